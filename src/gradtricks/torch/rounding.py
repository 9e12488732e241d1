"""Weights of 16 bits: rounding that is right on average, and sums whose rounding errors are carried on.

Between its neighbours ``low`` and ``high``, x becomes ``high`` with probability ``(x - low) / (high - low)``.
A sum keeps what it couldn't take in::

    owed = update + compensation
    weights, compensation = weights + owed, owed - ((weights + owed) - weights)
"""

import torch

from gradtricks._core.checks import check_choice, check_shape
from gradtricks.torch._tensors import as_floating, at_least_float32
from gradtricks.torch.discretizing import straight_through


def round_stochastically(x: torch.Tensor, noise: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round up or down at random, so that the mean is ``x``; identity backward, the mean's gradient.

    Rounded to nearest, a step smaller than half the gap between two weights is lost each time. Here it
    arrives on average. What ``dtype`` has stays as it is, and so do infinities and NaN. Beyond the largest
    number there is no neighbour, so ``x`` is rounded to nearest.

    Args:
        x: Floating-point, any shape, such as weights in float32 after their step.
        noise: Shape of ``x``, uniform in [0, 1), in float32 or float64: ``torch.rand_like(x)``. The mean is
            exact to a noise step, 2^-24 of the gap in float32. From float32 to bfloat16 it is exact, save
            for subnormal numbers.
        dtype: ``torch.bfloat16`` or ``torch.float16``.

    Returns:
        Shape of ``x``, in ``dtype``. The variance is at most ``gap**2 / 4``.

    References:
        Deep learning with limited numerical precision, https://arxiv.org/abs/1502.02551.

    Example:
        >>> x, noise = torch.tensor([1.001, 1.001]), torch.tensor([0.1, 0.9])
        >>> round_stochastically(x, noise, torch.bfloat16).tolist()
        [1.0078125, 1.0]
    """
    x, noise = as_floating("x", x), _as_noise(noise)
    check_shape("noise", noise.shape, x.shape, "x")
    check_choice("dtype", dtype, (torch.bfloat16, torch.float16))
    exact = at_least_float32(x.detach()).abs()
    nearest = x.detach().to(dtype)
    # Numbers of one sign follow each other as their bits do, and the largest is followed by infinity.
    low = nearest.view(torch.int16) - (nearest.abs() > exact).to(torch.int16)
    high = low + 1
    size, next_size = (bits.view(dtype).abs().to(exact.dtype) for bits in (low, high))
    rises = noise * (next_size - size) < exact - size
    rounded = torch.where(rises, high, low).view(dtype)
    return straight_through(torch.where(next_size.isfinite(), rounded, nearest), x)


def add_compensated(
    weights: torch.Tensor, update: torch.Tensor, compensation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add as Kahan does: what rounding takes from this sum is returned, and added to the next one.

    Args:
        weights: Floating-point, any shape, such as weights in bfloat16.
        update: Shape of ``weights``, floating-point, such as ``-learning_rate * gradient`` in float32.
        compensation: Shape of ``weights``, floating-point. At first zeros, then what the last call returned.

    Returns:
        New weights and a new compensation, each in its dtype; computed in float32 at least. In 16 bits the
        two have about twice the digits of the weights. Weights that aren't finite have a compensation of 0.

    References:
        Kahan, Further remarks on reducing truncation errors, https://doi.org/10.1145/363707.363723; for
        weights, Revisiting BFloat16 training, https://arxiv.org/abs/2010.06192.

    Example:
        >>> weights, rest = torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
        >>> for _ in range(10):
        ...     weights, rest = add_compensated(weights, torch.tensor([0.001]), rest)
        >>> weights.item(), round(rest.item(), 4)
        (1.0078125, 0.0022)
    """
    weights, update = as_floating("weights", weights), as_floating("update", update)
    compensation = as_floating("compensation", compensation)
    check_shape("update", update.shape, weights.shape, "weights")
    check_shape("compensation", compensation.shape, weights.shape, "weights")
    wide = at_least_float32(weights)
    owed = update.to(wide.dtype) + compensation.to(wide.dtype)
    total = (wide + owed).to(weights.dtype)
    rest = owed - (total.to(wide.dtype) - wide)
    return total, torch.where(total.isfinite(), rest, 0).to(compensation.dtype)


def _as_noise(noise: object) -> torch.Tensor:
    tensor = as_floating("noise", noise).detach()
    if tensor.dtype.itemsize < 4:
        raise TypeError(
            f"noise must be float32 or float64, since {tensor.dtype} has too few numbers below 1; "
            "remedy: torch.rand_like(x, dtype=torch.float32)"
        )
    return tensor
