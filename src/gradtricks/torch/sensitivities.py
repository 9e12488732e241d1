"""Derivatives of each sample's output with respect to its own input, for a whole batch at once.

Where ``y_i = function(x)_i`` depends on ``x_i`` alone, and this is how the check knows::

    d (y_1 + ... + y_B) / d x_i = d y_i / d x_i        d (w_1 y_1 + ... + w_B y_B) / d x_i = w_i d y_i / d x_i
"""

import math
from collections.abc import Callable
from functools import partial

import torch

from gradtricks.torch._modes import in_plain_reverse
from gradtricks.torch._tensors import as_floating
from gradtricks.torch._vjp import vjp

_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly and repeat nowhere
_ROUNDING = 64  # a difference below this many units in the last place is rounding, not coupling
_MARGIN = 16  # and one below this many times the rounding of the function itself


def input_gradients(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, check: bool = True
) -> torch.Tensor:
    """Differentiate each sample's number with respect to its own input: ``d function(x)_i / d x_i``.

    One forward and one backward pass of the sum. That is right only if no sample has a part in another's
    output, so it is checked, for the price of a second backward pass: where each output has a weight of its
    own, each gradient must have grown by the weight of its own sample. ``function`` itself runs once, and
    the check changes no state; no ``.grad`` changes either.

    While gradients are enabled the result can be differentiated again, by ``x`` and by weights, as a gradient
    penalty has to be; under ``torch.no_grad()`` it is a constant and needs less memory.

    Args:
        function: Maps ``[B, ...]`` to ``[B]`` or ``[B, 1]``, row by row.
        x: ``[B, ...]``, floating-point.
        check: Refuse coupled samples, as by batch normalization while training; that asks for float32 at
            least. A difference up to 64 units in the last place of the sample's largest derivative, and one
            of the batch's, counts as rounding; a function that rounds more is allowed more. A coupling whose
            parts cancel under the weights passes too. Without, the derivatives are those of
            sums over the samples. Compiled or under a transform a check costs two backward passes; elsewhere
            it waits for the device, once where nothing is amiss.

    Returns:
        Shape and dtype of ``x``. Where nothing can be raised, compiled or under a transform, coupled samples
        make it NaN.

    Raises:
        RuntimeError: `torch.export` is called with ``strict=True``. With False weights are constants.

    References:
        The sum trick: https://pytorch.org/docs/stable/autograd.html says that ``grad`` returns sums.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> input_gradients(lambda x: (x**2).sum(-1), x)
        tensor([[2., 4.],
                [6., 8.]])
    """
    value, pull = _vjp(function, x, check)
    if value.numel() != value.shape[0] or value.ndim > 2:
        raise ValueError(
            f"function must return one number for each sample, [B] or [B, 1]; got {tuple(value.shape)}; "
            "remedy: input_jacobians, or select one output"
        )
    ones = torch.ones_like(value)
    gradients = pull(ones)
    return _unless_coupled(gradients, ones, pull) if check else gradients


def input_jacobians(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, check: bool = True
) -> torch.Tensor:
    """Differentiate each sample's outputs with respect to its own input: ``d function(x)_i / d x_i``.

    One forward pass, and one vectorised backward pass for each output of a sample, all samples together.
    Coupled samples are refused as by `input_gradients`.

    Args:
        function: Maps ``[B, I...]`` to ``[B, O...]``, row by row.
        x: ``[B, I...]``, floating-point.
        check: As for `input_gradients`.

    Returns:
        ``[B, O..., I...]`` in the dtype of ``x``; NaN as by `input_gradients`.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> input_jacobians(lambda x: torch.stack([x.sum(-1), x.prod(-1)], -1), x)
        tensor([[[1., 1.],
                 [2., 1.]],
        <BLANKLINE>
                [[1., 1.],
                 [4., 3.]]])
    """
    value, pull = _vjp(function, x, check)
    if value.numel() == 0:
        return x.new_zeros(*value.shape, *x.shape[1:])
    count = value.shape[1:].numel()
    units = torch.eye(count, dtype=value.dtype, device=value.device).reshape(count, 1, *value.shape[1:])
    units = units.expand(count, *value.shape)
    jacobians = pull(units, batched=True)
    if check:
        jacobians = _unless_coupled(jacobians, units, partial(pull, batched=True), axis=1)
    return jacobians.movedim(0, 1).reshape(*value.shape, *x.shape[1:])


def _vjp(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, check: bool
) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
    x = _as_batch(x, check)
    value, pull_back = vjp(lambda x: _as_value(function(x), x), x)

    def pull(cotangent: torch.Tensor, batched: bool = False) -> torch.Tensor:
        (found,) = pull_back(cotangent, batched)
        if found is None:
            raise ValueError(
                "function must return what depends on x; got a result that gradients can't trace back to x; "
                "remedy: explain_gradient names the cut"
            )
        return found

    return value, pull


def _unless_coupled(
    derivatives: torch.Tensor, cotangents: torch.Tensor, pull: Callable[..., torch.Tensor], axis: int = 0
) -> torch.Tensor:
    found, batch = derivatives.detach(), derivatives.shape[axis]
    if found.numel() == 0 or batch == 1:
        return derivatives
    spread = torch.arange(batch, dtype=torch.float64, device=found.device) * _GOLDEN % -1
    # From 1/2 to 1, and bent, since on a line what one neighbour adds the other may take away.
    weights = torch.exp2(spread).to(cotangents.dtype)

    def error_with(weights: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            together = pull(_along(weights, cotangents, axis) * cotangents)
        return _largest(together - _along(weights, found, axis).to(found.dtype) * found, axis)

    error, sizes = error_with(weights), _largest(found, axis)
    # The largest of all adds one unit, for gradients that are nothing but the rounding of what cancels.
    rounding = torch.finfo(found.dtype).eps * (_ROUNDING * sizes + sizes.amax())
    # Under a tracer there may be no values to look at, nor are they those of the next call.
    raises = in_plain_reverse(derivatives) and not (
        derivatives.is_meta or torch._C._len_torch_dispatch_stack()
    )
    if raises and (error <= rounding).all():
        return derivatives
    # Where the function itself rounds more, one weight for all shows by how much. A sample may do so by
    # chance in one pass only, so what any sample shows counts for all; not what its own gradient explains.
    noise = _MARGIN * error_with(torch.full_like(weights, _GOLDEN))
    coupled = (error > rounding + torch.where(noise > rounding, noise, 0).amax()).any()
    if not raises:
        return torch.where(coupled, math.nan, derivatives)
    if coupled:
        raise ValueError(
            "function must treat each sample by itself; got samples with a part in each other's outputs, as "
            "in batch normalization while training; remedy: model.eval(), or check=False for the "
            "derivatives of sums over the samples"
        )
    return derivatives


def _along(weights: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    return weights.reshape(-1, *[1] * (like.ndim - axis - 1))


def _largest(x: torch.Tensor, axis: int) -> torch.Tensor:
    # Of each sample. Where a slope is infinite, a weight times it says nothing.
    finite, axes = x.abs().nan_to_num(nan=0, posinf=0), tuple(range(axis + 1, x.ndim))
    return finite.amax(axes) if axes else finite


def _as_batch(x: torch.Tensor, check: bool) -> torch.Tensor:
    x = as_floating("x", x)
    if x.ndim == 0:
        raise ValueError("x must have shape [B, ...], samples first; got a scalar")
    if check and x.dtype.itemsize < 4:
        raise TypeError(
            "x must be float32 or wider for a check, since rounding in half precision hides couplings; "
            f"got {x.dtype}; remedy: check the function once in float32, then check=False"
        )
    return x


def _as_value(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    value = as_floating("function(x)", value)
    if value.ndim == 0 or value.shape[0] != x.shape[0]:
        raise ValueError(
            f"function must return a row for each of the {x.shape[0]} samples; "
            f"got shape {tuple(value.shape)}; remedy: no reduction over the samples"
        )
    return value
