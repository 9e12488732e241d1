"""Log-probabilities of chosen actions, by blocks of rows where the logits are large.

Logits of a language model take gigabytes in half precision, and their softmax in float32 twice as much. By
blocks nothing of their size is made but their gradient.
"""

import torch

from gradtricks.torch._edits import intercept
from gradtricks.torch._modes import stopped
from gradtricks.torch._tensors import are_ordinary

_ELEMENTS = 2**22  # of a block: 16 MiB in float32


def log_probability(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each action, of ``[..., A]`` and ``[...]``, in float32 at least."""
    # A compiler fuses what is done, and transforms want to see it.
    if logits.numel() <= _ELEMENTS or not are_ordinary(logits, actions):
        return _log_probability(logits, actions)
    blocks = zip(_blocks(stopped(logits), logits), _blocks(actions.unsqueeze(-1), logits))
    value = torch.cat([_log_probability(rows, chosen.squeeze(-1)) for rows, chosen in blocks])
    return intercept(logits, _slope, logits, actions, tracked=True, value=value.view(actions.shape))


def _log_probability(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    log_pi = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return log_pi.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def _slope(gradient: torch.Tensor, logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    gradient, actions = gradient.unsqueeze(-1), actions.unsqueeze(-1)
    if torch.is_grad_enabled() or not are_ordinary(gradient):
        return _slope_of_block(gradient, logits, actions)
    slope = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for part, *block in zip(*(_blocks(x, logits) for x in (slope, gradient, logits, actions))):
        part.copy_(_slope_of_block(*block))
    return slope


def _slope_of_block(gradient: torch.Tensor, logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    pi = logits.softmax(-1, dtype=gradient.dtype)
    return (pi * -gradient).scatter_add(-1, actions, gradient).to(logits.dtype)


def _blocks(x: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.flatten(0, -2).split(max(1, _ELEMENTS // logits.shape[-1]))
