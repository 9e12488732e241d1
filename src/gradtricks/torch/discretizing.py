"""Steps with a gradient: straight through, a staircase that is smooth or has ramps, or levels of a scale.

Straight through, ``y = hard`` and ``dL/d soft = dL/dy``. The smooth staircase and the one with ramps::

    y = sum over k > 0 of sigmoid((x - k) / temperature) - sum over k <= 0 of sigmoid((k - x) / temperature)
    y = floor(x) + max(0, 1 - (floor(x) + 1 - x) / width)

Levels, whose scale is learned too::

    y = scale * round(clip(x / scale, quant_min, quant_max))
"""

import math
from functools import partial
from typing import Any

import torch

from gradtricks._core.checks import check_broadcast, check_flag, check_integer, check_shape
from gradtricks._core.structures import map_structure, pairs
from gradtricks.torch._edits import intercept, substitute
from gradtricks.torch._modes import in_plain_reverse
from gradtricks.torch._tensors import (
    are_ordinary,
    as_coefficient,
    as_floating,
    as_tensor,
    at_least_float32,
    beside,
    filled,
    nonzero,
)
from gradtricks.torch.scaling import scale_gradient


def straight_through(hard: Any, soft: Any) -> Any:
    """The value of ``hard`` forward, bit for bit; all of the incoming gradient to ``soft``.

    Args:
        hard: Real, any shape and dtype; or a tuple, list or dict of such tensors.
        soft: Floating-point, structure and shape of ``hard``. Its values aren't used.

    Returns:
        Shape of ``hard``, and its dtype if that is floating-point, otherwise the dtype of ``soft``. A view of
        ``hard`` in plain eager mode: clone it before editing in place.

    References:
        Bengio, Léonard, Courville 2013, https://arxiv.org/abs/1308.3432.

    Example:
        >>> x = torch.tensor([-0.3, 0.8], requires_grad=True)
        >>> y = straight_through(x > 0, torch.sigmoid(x))
        >>> y.tolist(), [round(g, 2) for g in torch.autograd.grad(y.sum(), x)[0].tolist()]
        ([0.0, 1.0], [0.24, 0.21])
    """
    return paired("hard", hard, "soft", soft)


def paired(hard_name: str, hard: Any, soft_name: str, soft: Any) -> Any:
    """Do the same; errors call the two by these names."""
    pairs(hard_name, hard, soft_name, soft)  # refuses other structures
    return map_structure(lambda one, other: _paired_tensors(hard_name, one, soft_name, other), hard, soft)


def _paired_tensors(hard_name: str, hard: Any, soft_name: str, soft: Any) -> torch.Tensor:
    hard, soft = as_tensor(hard_name, hard), as_floating(soft_name, soft)
    if hard.dtype.is_complex:
        raise TypeError(f"{hard_name} must be real; got {hard.dtype}; remedy: hard.real")
    check_shape(hard_name, hard.shape, soft.shape, soft_name)
    return substitute(hard if hard.dtype.is_floating_point else hard.to(soft.dtype), soft)


def floor_straight_through(x: Any) -> Any:
    """Floor forward; identity backward. ``x`` is as in `soft_floor`.

    Example:
        >>> x = torch.tensor([1.7, -0.2], requires_grad=True)
        >>> y = floor_straight_through(x)
        >>> y.tolist(), torch.autograd.grad(y.sum(), x)[0].tolist()
        ([1.0, -1.0], [1.0, 1.0])
    """
    x = map_structure(partial(as_floating, "x"), x)
    return straight_through(map_structure(lambda leaf: leaf.detach().floor(), x), x)


def round_straight_through(x: Any) -> Any:
    """Round forward, ties to even; identity backward. ``x`` is as in `soft_floor`."""
    x = map_structure(partial(as_floating, "x"), x)
    return straight_through(map_structure(lambda leaf: leaf.detach().round(), x), x)


def soft_floor(x: Any, temperature: float | torch.Tensor) -> Any:
    """Staircase of sigmoids forward; its own derivative backward.

    It is the mean of ``floor(x + temperature * noise)`` under logistic noise, to the precision of the dtype:
    n at n + 1/2, n - 1/2 at every integer n, and one more with each unit.

    Args:
        x: Floating-point, any shape, or a tuple, list or dict of such tensors. float16 and bfloat16 are
            computed in float32. From 2**23 on (float32) each is an integer, and the half is rounded.
        temperature: A number of at least 1e-30; or a floating-point tensor that broadcasts to the shape of
            ``x``, whose elements aren't checked and get no gradient. Towards 0 it becomes the floor, towards
            infinity ``x - 0.5``.

    Returns:
        Shape and dtype of ``x``. Values that aren't finite stay, with a slope of 0.

    Example:
        >>> x = torch.tensor([0.5, 0.95, 1.0, 1.5], requires_grad=True)
        >>> y = soft_floor(x, 0.05)
        >>> [round(value, 2) for value in y.tolist()]
        [0.0, 0.27, 0.5, 1.0]
        >>> [round(g, 2) for g in torch.autograd.grad(y.sum(), x)[0].tolist()]
        [0.0, 3.93, 5.0, 0.0]
    """
    return map_structure(lambda leaf: _soft_floor(leaf, temperature), x)


def _soft_floor(x: Any, temperature: float | torch.Tensor) -> torch.Tensor:
    x = as_floating("x", x)
    heat = as_coefficient("temperature", temperature, x, low=1e-30)
    # Compilers fuse what is done, and transforms want to see it.
    if not isinstance(temperature, torch.Tensor) and temperature < _WARM and are_ordinary(x):
        return _with_few_operations(x, heat, float(temperature))
    return _by_operations(x, heat, temperature)


def _by_operations(x: torch.Tensor, heat: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
    whole, part = _floor_and_part(x)
    side = torch.where(part < 0, 1, -1)
    if isinstance(temperature, torch.Tensor) or torch.compiler.is_compiling():
        cold, warm = heat.clamp(max=_WARM), heat.clamp(min=_WARM)
        above = torch.where(heat < _WARM, _sigmoids(part, side, cold, _WARM), _waves(part, side, warm, _WARM))
    else:
        above = (_sigmoids if temperature < _WARM else _waves)(part, side, heat, temperature)
    return _with_dense_gradient((whole + above).to(x.dtype))


def _with_few_operations(x: torch.Tensor, heat: torch.Tensor, temperature: float) -> torch.Tensor:
    # Each step counts by what is missing beyond it, the nearest first, then the one on the other side, and so
    # on with alternating signs. What isn't finite is infinitely far from all steps.
    wide = at_least_float32(x.detach())
    part = (wide - wide.round()).nan_to_num(nan=math.inf)
    near, terms = part.abs() * (-1 / temperature), []
    for place in range(max(2, math.ceil(2 * temperature * _reach(part)))):
        far = -((place + 1) // 2) / temperature
        terms.append(torch.sigmoid(far - near if place % 2 else near + far if place else near))
    missing = sum((-term if place % 2 else term for place, term in enumerate(terms[2:])), terms[0] - terms[1])
    value = (wide.floor() - torch.copysign(missing, part)).to(x.dtype)

    def rule(gradient: torch.Tensor, x: torch.Tensor, *terms: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():  # the gradient is differentiated again
            again = _by_operations(x, heat, temperature)
            return torch.autograd.grad(again, x, gradient, create_graph=True)[0]
        wide = at_least_float32(gradient)
        slopes = [torch.ops.aten.sigmoid_backward(wide, term) for term in terms]
        return (sum(slopes[1:], slopes[0]) * (1 / temperature)).to(gradient.dtype)

    # A clone, since a view couldn't be edited in place.
    return intercept(x, rule, x, *terms, tracked=True, value=value).clone()


def piecewise_linear_floor(x: Any, width: float | torch.Tensor) -> Any:
    """Floor forward with a ramp before each step; slope ``1 / width`` on the ramps backward.

    It is the mean of ``floor(x + noise)`` under noise uniform in [0, width); width 1 is the identity. At a
    corner the slope is that to the right of it.

    Args:
        x: As in `soft_floor`.
        width: Of a ramp: a number of at least 1e-30 and at most 1; or a tensor, as in `soft_floor`.

    Returns:
        As `soft_floor`.

    Example:
        >>> x = torch.tensor([0.5, 0.875, 1.0], requires_grad=True)
        >>> y = piecewise_linear_floor(x, 0.25)
        >>> y.tolist(), torch.autograd.grad(y.sum(), x)[0].tolist()
        ([0.0, 0.5, 1.0], [0.0, 4.0, 0.0])
    """
    return map_structure(lambda leaf: _piecewise_linear_floor(leaf, width), x)


def _piecewise_linear_floor(x: Any, width: float | torch.Tensor) -> torch.Tensor:
    x = as_floating("x", x)
    width = as_coefficient("width", width, x, low=1e-30, high=1.0)
    whole, part = _floor_and_part(x)
    # Written from the nearer end, so that a narrow ramp isn't lost in the rounding of 1 - width.
    rise = torch.where(part < 0, width + part, part - (1 - width))
    return _with_dense_gradient((whole + torch.where(rise >= 0, rise / width, 0)).to(x.dtype))


def fake_quantize(
    x: Any, scale: float | torch.Tensor, quant_min: int, quant_max: int, *, normalize: bool = True
) -> Any:
    """Levels forward; the identity within the range backward, and for the scale the rule of LSQ.

    The levels are ``scale`` times the whole numbers from ``quant_min`` to ``quant_max``; ties go to even
    ones. Backward, an element within the range or exactly at its bound gets the incoming gradient, one beyond
    gets 0. To the gradient of the scale, an element within adds the incoming gradient times
    ``level - x / scale``, and one beyond adds it times its level. Differentiated again, both factors are
    constant.

    Args:
        x: Floating-point, any shape; or a tuple, list or dict of such tensors. float16 and bfloat16 are
            computed in float32.
        scale: The distance of two levels: a number of at least 1e-30; or a floating-point tensor that
            broadcasts to the shape of every ``x``, such as ``[C, 1]`` for one scale a row, whose elements
            aren't checked. A tensor gets a gradient. Where it is 0, so is the value, and a negative scale
            mirrors the range.
        quant_min: The lowest level, an integer of at most 0: -8 for signed weights of 4 bits.
        quant_max: The highest level, an integer of at least 1: 7 for those.
        normalize: Divide the gradient of the scale by ``sqrt(n * quant_max)``, as LSQ does, where n elements
            of ``x`` share a scale. Without, it grows with the layer.

    Returns:
        Shape and dtype of ``x``. NaN stays NaN and makes the gradient of its scale NaN.

    References:
        Esser and others 2020, Learned Step Size Quantization, https://arxiv.org/abs/1902.08153.

    Example:
        >>> x = torch.tensor([0.2, 0.6, 9.0], requires_grad=True)
        >>> scale = torch.tensor(0.5, requires_grad=True)
        >>> y = fake_quantize(x, scale, -2, 1, normalize=False)
        >>> y.tolist(), [g.tolist() for g in torch.autograd.grad(y.sum(), [x, scale])]
        ([0.0, 0.5, 0.5], [[1.0, 0.0, 0.0], 1.600000023841858])
    """
    lowest = check_integer("quant_min", quant_min, low=-(2**31), high=0)
    highest = check_integer("quant_max", quant_max, low=1)
    check_flag("normalize", normalize)

    def quantized(leaf: Any) -> torch.Tensor:
        wide = at_least_float32(as_floating("x", leaf))
        step = _as_step(scale, wide, highest, normalize)
        ratio = wide.detach() / nonzero(step.detach())
        inside = (ratio >= lowest) & (ratio <= highest)
        level = ratio.clamp(lowest, highest).round()
        slope = torch.where(inside, wide, 0) + step * (level - torch.where(inside, ratio, 0))
        return substitute((step.detach() * level).to(leaf.dtype), slope)

    return map_structure(quantized, x)


def _as_step(scale: float | torch.Tensor, x: torch.Tensor, highest: int, normalize: bool) -> torch.Tensor:
    if not isinstance(scale, torch.Tensor):
        return as_coefficient("scale", scale, x, low=1e-30)
    check_broadcast("scale", as_floating("scale", scale).shape, x.shape, "x")
    step = beside("scale", scale.to(x.dtype), x)
    share = max(1, x.numel() // max(1, scale.numel())) * highest
    return scale_gradient(step, filled(share, x.dtype, x.device).rsqrt()) if normalize else step


def _floor_and_part(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # The part beyond the nearest integer: beyond the floor, a small negative x would be lost in rounding.
    x = at_least_float32(x)
    nearest = x.detach().round()
    return x.detach().floor(), torch.where(x.isfinite(), x - nearest, 0)


def _with_dense_gradient(y: torch.Tensor) -> torch.Tensor:
    # An embedding with sparse=True sends back a sparse gradient, which few operations take; an edit gets it
    # dense. A clone, since a view couldn't be edited in place.
    return intercept(y, lambda gradient: gradient).clone() if in_plain_reverse(y) else y


# From here on fewer waves are needed than sigmoids.
_WARM = 0.25


def _sigmoids(part: torch.Tensor, side: torch.Tensor, heat: torch.Tensor, hottest: float) -> torch.Tensor:
    # Steps above count by what is there of them already, steps below by what is still missing; the nearest is
    # to one side. Beyond the last pair less than one rounding error remains.
    count = math.ceil(max(1, hottest * _reach(part)) - 0.5)
    total = torch.zeros_like(part)
    for step in range(count, 0, -1):
        rising = torch.sigmoid((part - step) / heat)
        total = total + (rising - torch.sigmoid((-step - part) / heat))
    return total + side * torch.sigmoid(side * part / heat)


def _reach(part: torch.Tensor) -> float:
    # At so many temperatures from a step less than half a rounding error of it is missing.
    return math.log(2 / torch.finfo(part.dtype).eps)


def _waves(part: torch.Tensor, side: torch.Tensor, heat: torch.Tensor, coldest: float) -> torch.Tensor:
    # The same sum by Poisson's formula: the warmer, the fewer waves.
    count = int((8 - math.log(torch.finfo(part.dtype).eps)) / (2 * math.pi**2 * coldest))
    total = part + side / 2
    for wave in range(1, count + 1):
        height = 2 * math.pi * heat / torch.sinh(2 * math.pi**2 * wave * heat)
        total = total + height * torch.sin(2 * math.pi * wave * part)
    return total
