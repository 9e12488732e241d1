"""Log-probabilities of chosen actions, and entropies, by blocks of rows where the logits are large.

Logits of a language model take gigabytes in half precision, and their softmax in float32 twice as much. By
blocks nothing of their size is made but their gradient.
"""

from collections.abc import Callable
from functools import partial

import torch

from gradtricks.torch._edits import intercept
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import are_ordinary, product

_ELEMENTS = 2**22  # of a block: 16 MiB in float32

OfRows = Callable[..., torch.Tensor]


def log_probability(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each action, of ``[..., A]`` and ``[...]``, in float32 at least."""
    return _by_blocks(_log_probability, _slope_of_probability, logits, actions.unsqueeze(-1))


def negative_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return minus the entropy of each row of ``[..., A]``, in float32 at least."""
    return _by_blocks(_negative_entropy, _slope_of_entropy, logits)


def _by_blocks(value: OfRows, slope: OfRows, logits: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    # A compiler fuses what is done, and transforms want to see it.
    if logits.numel() <= _ELEMENTS or not are_ordinary(logits, *others):
        return value(logits, *others)
    blocks = zip(*(_blocks(x, logits) for x in (stopped(logits), *others)))
    values = torch.cat([value(*block) for block in blocks]).view(logits.shape[:-1])
    return intercept(logits, partial(_rule, slope), logits, *others, tracked=True, value=values)


def _rule(slope: OfRows, gradient: torch.Tensor, logits: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    gradient = gradient.unsqueeze(-1)
    if torch.is_grad_enabled() or not are_ordinary(gradient):
        return slope(gradient, logits, *others)
    whole = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for part, *block in zip(*(_blocks(x, logits) for x in (whole, gradient, logits, *others))):
        part.copy_(slope(*block))
    return whole


def _log_probability(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return _log_softmax(logits).gather(-1, actions).squeeze(-1)


def _slope_of_probability(
    gradient: torch.Tensor, logits: torch.Tensor, actions: torch.Tensor
) -> torch.Tensor:
    pi = logits.softmax(-1, dtype=gradient.dtype)
    return (pi * -gradient).scatter_add(-1, actions, gradient).to(logits.dtype)


def _negative_entropy(logits: torch.Tensor) -> torch.Tensor:
    log_pi = _log_softmax(logits)
    return product(log_pi.exp(), log_pi).sum(-1)


def _slope_of_entropy(gradient: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    log_pi = _log_softmax(logits)
    pi = log_pi.exp()
    terms = product(pi, log_pi)
    return ((terms - pi * terms.sum(-1, keepdim=True)) * gradient).to(logits.dtype)


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _blocks(x: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.flatten(0, -2).split(max(1, _ELEMENTS // logits.shape[-1]))
