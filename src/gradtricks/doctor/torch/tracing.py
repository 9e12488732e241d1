"""Naming the operation that cut the path of a gradient.

Along a path ``x -> u -> ... -> y`` the gradient is ``dL/dy * ... * du/dx``, and several paths add up. Where
an operation hands on no slope, the path is cut; named too is the factor that makes 0, infinity or NaN of it.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from gradtricks.doctor import tracing
from gradtricks.doctor.inputs import bind, named_leaves
from gradtricks.doctor.recording import replaced
from gradtricks.doctor.reports import GradientReport
from gradtricks.doctor.torch._recording import Recorder
from gradtricks.torch._modes import in_transform
from gradtricks.torch._tensors import as_tensor

_REMEDIES = tracing.remedies("torch") | {
    "detached": "leave out .detach() or .data where a gradient has to pass",
    "not recorded": "compute it outside of torch.no_grad(); torch.autograd.grad needs create_graph=True",
    "sampled": "draw with .rsample(), which passes gradients on, instead of .sample()",
    "drawn": "nothing flows through this draw: give the loss its log_prob times what it was worth "
    "(gradtricks.torch.policy_gradient_loss)",
    "gradient rule": "return a gradient instead of None from backward of the autograd.Function",
    "made outside": "if this tensor was computed from the input, compute it inside of the function, with "
    "torch and after requires_grad_(); if not, the output doesn't depend on the input",
    "not watched": "set requires_grad to True before the function runs: tensor.requires_grad_()",
    "integer": "only floating-point tensors have gradients: tensor.float()",
    "not traced": "torch finds no gradient although every recorded operation passes one; look for "
    "torch.func transforms or hooks in the function",
    "zero everywhere": "the slope is 0 at every element: relu of negatives, clamp beyond its range, floor "
    "or round (gradtricks.torch.floor_straight_through), or a factor of 0",
}
explained = partial(tracing.explained, remedies=_REMEDIES)
# What is replaced while the function runs is replaced for every thread.
_ONE_AT_A_TIME = threading.RLock()


def explain_gradient(function: Callable[..., Any], inputs: Any) -> GradientReport:
    """Run ``function`` once; say of each input whether a gradient reaches it, and if not, what cut the path.

    A tensor doesn't know what went unrecorded, so this watches the function run: eagerly, compiled or not,
    with all its side effects. No flag and no ``.grad`` changes. Where the output isn't a number, its sum is
    differentiated. Calls from several threads wait for each other; what else another thread runs meanwhile
    isn't recorded.

    Args:
        function: Returns a tensor or a structure of tensors. Called without arguments where it needs none, as
            a closure over the inputs; otherwise ``function(*inputs)``, or ``function(**inputs)`` for a dict.
        inputs: Tensors: one, or nested lists, tuples and dicts of them, an iterator such as
            ``model.parameters()``, or a module, which stands for its parameters.

    Returns:
        One verdict for each input, with the operation, the line of code, the reason and the remedy; print it.
        An input is also judged by its gradient: zero everywhere, NaN or infinite, and where that began.

    Raises:
        RuntimeError: Called in a compiled function or a transform. Or torch can't differentiate the output,
            and says so itself: an operation has no derivative, or a ``backward()`` has freed the graph.

    References:
        "Show responsible nodes", https://github.com/tensorflow/tensorflow/issues/1768.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> report = explain_gradient(lambda x: (x.detach() ** 2).sum(), x)
        >>> report["x"].connected, report["x"].operation, report["x"].reason
        (False, 'Tensor.detach', 'detached')
    """
    if torch.compiler.is_compiling() or in_transform():
        raise RuntimeError(
            "explain_gradient must be called eagerly; got a call within torch.compile or a torch.func "
            "transform; remedy: call it outside, on the function inside"
        )
    call, named = bind(function, inputs, _parts)
    recorder = Recorder([as_tensor(name, leaf) for name, leaf in named])
    with _ONE_AT_A_TIME, eagerly(), replaced(torch, "from_numpy", recorder.on_from_numpy()), recorder:
        leaves = [leaf for _, leaf in named_leaves("output", call(), _parts)]
    return explained(recorder, [name for name, _ in named], leaves)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, torch.nn.Module):
        return list(value.named_parameters())
    return [("", value)] if isinstance(value, torch.Tensor) else None


def eagerly() -> AbstractContextManager[Any]:
    """Run what is compiled eagerly, for a while."""
    # Nothing has been compiled while the compiler isn't even imported, which takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
