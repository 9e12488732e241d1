"""One step of gradient descent.

Forward ``q = p - rate * g``; backward ``dL/dp = dL/dq``, ``dL/dg = -rate * dL/dq`` and
``dL/d rate = -sum(g * dL/dq)``.
"""

from collections.abc import Sequence
from typing import Any

import torch

from gradtricks._core.checks import check_number, check_shape
from gradtricks._core.structures import pairs, rebuilt
from gradtricks.torch._modes import in_plain_reverse
from gradtricks.torch._tensors import as_floating, at_least_float32, beside, filled


def gradient_descent_step(parameters: Any, gradients: Any, learning_rate: float | torch.Tensor) -> Any:
    """Subtract ``learning_rate`` times its gradient from every parameter.

    A pure function, to be differentiated through as often as you like. A parameter without a gradient (None)
    stays as it is. A rate of 0 doesn't hide a gradient that is NaN or infinite: 0 times either is NaN.

    Args:
        parameters: A floating-point tensor, or tuples, lists and dicts of them, nested or not.
        gradients: The same structure, each tensor of the shape of its parameter; a list may be paired with
            a tuple. Sparse gradients in coordinate form are made dense.
        learning_rate: A finite number, at least 0, or a floating-point tensor of shape []. The value of a
            tensor isn't checked.

    Returns:
        Structure of ``parameters``, each tensor of the shape and dtype of its parameter. float16 and
        bfloat16 are computed in float32.

    References:
        Cauchy, Méthode générale pour la résolution des systèmes d'équations simultanées, 1847.

    Example:
        >>> weights = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(0.5)}
        >>> slopes = {"w": torch.tensor([10.0, 0.0]), "b": torch.tensor(-5.0)}
        >>> gradient_descent_step(weights, slopes, 0.1)
        {'w': tensor([0., 2.]), 'b': tensor(1.)}
    """
    rate = _as_rate(learning_rate)
    found = [_checked(*pair) for pair in pairs("parameters", parameters, "gradients", gradients)]
    if found and all(gradient is None for _, gradient in found):
        raise ValueError("gradients must hold a gradient; got only None; remedy: explain_gradient says why")
    alike: dict[Any, list[int]] = {}  # what a single kernel takes together
    for index, (parameter, gradient) in enumerate(found):
        if gradient is not None:
            alike.setdefault((at_least_float32(parameter).dtype, parameter.device), []).append(index)
    rates = [
        beside("learning_rate", rate.to(dtype), found[indices[0]][0]) for (dtype, _), indices in alike.items()
    ]
    stepped = [parameter for parameter, _ in found]
    for one_rate, indices in zip(rates, alike.values()):
        moved = _moved([found[index] for index in indices], one_rate)
        for index, tensor in zip(indices, moved):
            stepped[index] = tensor.to(stepped[index].dtype)
    return rebuilt(parameters, iter(stepped))


def _checked(
    place: str, parameter: torch.Tensor, gradient: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    parameter = as_floating(f"parameters{place}", parameter)
    if gradient is None:
        return parameter, None
    gradient = as_floating(f"gradients{place}", gradient)
    check_shape(f"gradients{place}", gradient.shape, parameter.shape, f"parameters{place}")
    return parameter, gradient.to_dense() if gradient.is_sparse else gradient


def _moved(found: list[tuple[torch.Tensor, Any]], rate: torch.Tensor) -> Sequence[torch.Tensor]:
    parameters = [at_least_float32(parameter) for parameter, _ in found]
    gradients = [gradient.to(rate) for _, gradient in found]
    # No transform knows the kernels of many tensors, and PyTorch has no slope of them for a tensor's rate.
    followed = rate.requires_grad and torch.is_grad_enabled()
    if not followed and all(map(in_plain_reverse, [rate, *parameters, *gradients])):
        return torch._foreach_sub(parameters, torch._foreach_mul(gradients, rate))
    return [parameter - rate * gradient for parameter, gradient in zip(parameters, gradients)]


def _as_rate(learning_rate: float | torch.Tensor) -> torch.Tensor:
    if not isinstance(learning_rate, torch.Tensor):
        return filled(check_number("learning_rate", learning_rate, low=0), torch.float64)
    learning_rate = as_floating("learning_rate", learning_rate)
    check_shape("learning_rate", learning_rate.shape, (), "a scalar")
    return learning_rate
