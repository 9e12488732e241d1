"""The gradient through a choice: a relaxed sample, and a nearest code that turns gradients.

Relaxed, ``y = softmax((logits + gumbel) / temperature)``. Where R turns ``x`` towards its code::

    y = code,  dL/dx = |code| / |x| * R^T dL/dy
"""

import torch

from gradtricks._core.checks import check_flag, check_shape
from gradtricks.torch._tensors import as_coefficient, as_floating, at_least_float32, nonzero
from gradtricks.torch.discretizing import straight_through
from gradtricks.torch.editing import edit_gradient


def gumbel_softmax(
    logits: torch.Tensor, gumbel: torch.Tensor, temperature: float | torch.Tensor, *, hard: bool = False
) -> torch.Tensor:
    """Choose by ``logits`` plus Gumbel noise; softly, or hard with the slope of the soft choice.

    The largest sum lies at each place with the probability that ``softmax(logits)`` gives to it. Either way
    the slope is that of the soft choice, ``softmax((logits + gumbel) / temperature)``.

    Args:
        logits: ``[..., K]``, unnormalised log-probabilities, floating-point. Of ``-inf``: never chosen.
        gumbel: Shape of ``logits``, standard Gumbel noise, which gets no gradient:
            ``-torch.empty_like(logits).exponential_().log()``.
        temperature: A number of at least 1e-6; or a floating-point tensor that broadcasts to the shape of
            ``logits``, whose elements aren't checked and get no gradient.
        hard: Return 1 at the largest sum and 0 elsewhere, exactly.

    Returns:
        Shape and dtype of ``logits``, computed in float32 at least. Sums to 1 over the last axis.

    References:
        Categorical reparameterization with Gumbel-softmax, https://arxiv.org/abs/1611.01144; the same as
        https://arxiv.org/abs/1611.00712.

    Example:
        >>> logits = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> y = gumbel_softmax(logits, torch.tensor([0.9, 0.1]), 0.5, hard=True)
        >>> y.tolist(), [round(g, 2) for g in torch.autograd.grad(y[1], logits)[0].tolist()]
        ([0.0, 1.0], [-0.48, 0.48])
    """
    logits, gumbel = as_floating("logits", logits), as_floating("gumbel", gumbel)
    _check_vectors("logits", logits)
    check_shape("gumbel", gumbel.shape, logits.shape, "logits")
    check_flag("hard", hard)
    heat = as_coefficient("temperature", temperature, logits, low=1e-6)
    scores = at_least_float32(logits) + at_least_float32(gumbel.detach())
    soft = ((scores - scores.detach().amax(-1, keepdim=True)) / heat).softmax(-1)
    if hard:
        places = torch.arange(scores.shape[-1], device=scores.device)
        chosen = (places == scores.argmax(-1, keepdim=True)) + 0 * soft.detach()  # NaN stays to be seen
        soft = straight_through(chosen, soft)
    return soft.to(logits.dtype)


def rotation_trick(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    """The value of ``code`` forward, bit for bit; to ``x`` the gradient, turned and scaled as the two differ.

    Straight-through moves every ``x`` of a code by the same gradient. Here the angle between the gradient and
    the code becomes the angle between what arrives and ``x``, so that near and far ones move differently.

    Args:
        x: ``[..., D]``, floating-point. Where it or ``code`` is 0, the gradient passes as it is.
        code: Shape of ``x``, floating-point, such as the entry of a codebook nearest to each ``x``. It gets
            no gradient: a codebook learns from a loss of its own.

    Returns:
        Shape and dtype of ``code``. A view of ``code`` in plain eager mode: clone it before editing in place.

    References:
        Restructuring vector quantization with the rotation trick, https://arxiv.org/abs/2410.06424.

    Example:
        >>> x = torch.tensor([0.0, 0.5], requires_grad=True)
        >>> y = rotation_trick(x, torch.tensor([1.0, 0.0]))
        >>> [round(g, 2) for g in torch.autograd.grad(y[0], x)[0].tolist()]
        [0.0, 2.0]
    """
    x, code = as_floating("x", x), as_floating("code", code)
    _check_vectors("x", x)
    check_shape("code", code.shape, x.shape, "x")
    return straight_through(code, edit_gradient(x, _turned, x, code))


def _turned(gradient: torch.Tensor, x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    x, code, wide = (at_least_float32(tensor) for tensor in (x, code, gradient))
    to, of = _direction(code), _direction(x)
    middle = _direction(to + of)
    turned = wide - 2 * middle * _along(wide, middle) + 2 * of * _along(wide, to)
    length_c, length_x = _length(code), _length(x)
    defined = (length_c > 0) & (length_x > 0)
    return torch.where(defined, length_c / nonzero(length_x) * turned, wide)


def _direction(x: torch.Tensor) -> torch.Tensor:
    return x / nonzero(_length(x))


def _length(x: torch.Tensor) -> torch.Tensor:
    largest = nonzero(x.abs().amax(-1, keepdim=True))  # the square of which may overflow
    return largest * torch.linalg.vector_norm(x / largest, dim=-1, keepdim=True)


def _along(gradient: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    return (gradient * direction).sum(-1, keepdim=True)


def _check_vectors(name: str, x: torch.Tensor) -> None:
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name} must have a last axis of at least 1; got {tuple(x.shape)}")
