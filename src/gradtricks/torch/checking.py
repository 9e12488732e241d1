"""Checking a gradient against differences of its function.

One element moves at a time, by steps ``h`` of many sizes; ``y`` is an output, or a weighted sum of them::

    dy / dx_i = (y(x_i + h) - y(x_i - h)) / 2h        and apart (y(x_i + h) - y(x_i)) / h, on either side
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gradtricks._core.checking import GradientCheck, check_accepts_float64, compare_with_differences
from gradtricks.torch._modes import in_plain_reverse
from gradtricks.torch._tensors import as_floating

Function = Callable[..., torch.Tensor]


def check_gradient(
    function: Function,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    *,
    surrogate: Function | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    num_samples: int = 100,
    seed: int = 0,
) -> GradientCheck:
    """Compare the gradient of ``function`` with central differences in float64, and say what is amiss.

    Every element is moved by many steps, so that truncation and rounding are told apart, and to each side by
    itself, so that kinks and jumps are found. A gradient that isn't the derivative is called wrong. There is
    one exception: a function that is flat far and wide, as floor is, can only have a gradient that was
    declared, a surrogate. Any other intent has to be said with ``surrogate``, because no measurement tells
    `reverse_gradient` from a wrong sign. Rounding to 16 bits inside makes a staircase too; near zero its
    stairs are so fine that they may pass for noise, and the slope across them for the derivative.

    Args:
        function: Takes one tensor for each input, returns one tensor of any shape. It is given float64, so
            convert a module first, by ``model.double()``; where it computes in float32 nevertheless, that is
            found and allowed for. It is called some 20 times for each element that is moved; what it changes
            by the way, such as running statistics, stays.
        inputs: A floating-point tensor of any shape, or a sequence of them. They are copied to float64 on
            their device. Results are compared on the CPU, so each call waits for the device.
        surrogate: The function whose derivative the gradient is meant to be, where that isn't ``function``.
        rtol: Relative error that passes; at least the square root of the function's rounding noise, of which
            no more than 1e-3 counts.
        atol: Absolute error that passes.
        num_samples: How many elements of the inputs are moved at most, chosen at random. A result with more
            elements is added up, with random weights, into as many sums.
        seed: Of what is chosen at random.

    Returns:
        A report to print, with the verdict, the reason, the largest relative error and where it is, as
        attributes of a `gradtricks._core.checking.GradientCheck`.

    Raises:
        ValueError: ``function`` returns something else when it is called again, or another shape where an
            element is moved.
        RuntimeError: Called inside `torch.compile` or a `torch.func` transform.

    Example:
        >>> print(check_gradient(torch.floor, torch.tensor([0.5, 2.0])).verdict)
        not differentiable here
        >>> print(check_gradient(torch.sin, torch.tensor([0.5, 2.0])).verdict)
        correct
    """
    tensors = _as_inputs(inputs)
    if not all(in_plain_reverse(tensor) for tensor in tensors):
        raise RuntimeError("check_gradient must run eagerly; got a call inside torch.compile or a transform")
    check_accepts_float64(
        lambda: _evaluated(function, [tensor.double() for tensor in tensors]),
        lambda: _evaluated(function, [x.float() if x.dtype == torch.float64 else x for x in tensors]),
    )
    return compare_with_differences(
        _on_arrays(function, tensors),
        _vjp_on_arrays(function, tensors),
        [_array(tensor.double()) for tensor in tensors],
        surrogate=None if surrogate is None else _on_arrays(surrogate, tensors),
        rtol=rtol,
        atol=atol,
        num_samples=num_samples,
        seed=seed,
    )


def _as_inputs(inputs: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(inputs, list | tuple):
        return [as_floating(f"inputs[{i}]", x).detach() for i, x in enumerate(inputs)]
    return [as_floating("inputs", inputs).detach()]


def _on_arrays(function: Function, tensors: list[torch.Tensor]) -> Callable[..., NDArray]:
    def on_arrays(*arrays: NDArray) -> NDArray:
        return _array(_result(_evaluated(function, _moved_to(tensors, arrays))[1]))

    return on_arrays


def _vjp_on_arrays(function: Function, tensors: list[torch.Tensor]) -> Callable[..., list[NDArray]]:
    def on_arrays(cotangent: NDArray, *arrays: NDArray) -> list[NDArray]:
        points, value = _evaluated(function, _moved_to(tensors, arrays))
        value = _result(value)
        if not value.requires_grad:
            return [np.zeros(array.shape) for array in arrays]
        weights = torch.as_tensor(cotangent, dtype=value.dtype, device=value.device)
        gradients = torch.autograd.grad(value, points, weights, allow_unused=True, materialize_grads=True)
        return [_array(gradient) for gradient in gradients]

    return on_arrays


def _moved_to(tensors: list[torch.Tensor], arrays: Sequence[NDArray]) -> list[torch.Tensor]:
    return [torch.tensor(array, device=tensor.device) for array, tensor in zip(arrays, tensors)]


def _evaluated(function: Function, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    # With gradients each time, because a function may differentiate inside, or ask whether it is watched.
    with torch.inference_mode(False), torch.enable_grad():
        points = [tensor.clone().detach().requires_grad_() for tensor in tensors]
        return points, function(*points)


def _result(value: torch.Tensor) -> torch.Tensor:
    if isinstance(value, list | tuple):
        raise TypeError(
            f"function must return one tensor; got {type(value).__name__}; "
            "remedy: check one of them at a time"
        )
    value = as_floating("function's result", value)
    if value.dtype.itemsize < 4:
        raise TypeError(
            f"function must return float32 or float64; got {value.dtype}; "
            "remedy: check it outside autocast, with float64 parameters"
        )
    return value


def _array(tensor: torch.Tensor) -> NDArray:
    return tensor.numpy(force=True)
