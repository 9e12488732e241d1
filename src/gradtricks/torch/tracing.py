"""Naming the operation that cut the path of a gradient."""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gradtricks._core.inputs import bind, named_leaves
from gradtricks._core.recorded import merged
from gradtricks._core.recording import replaced
from gradtricks._core.reports import GradientReport
from gradtricks._core.tracing import explain
from gradtricks.torch._edits import in_transform
from gradtricks.torch._graph import status_of
from gradtricks.torch._recording import Recorder
from gradtricks.torch._tensors import as_tensor

_REMEDIES = {
    "detached": "leave out .detach() or .data where a gradient has to pass",
    "not recorded": "compute it outside of torch.no_grad(); torch.autograd.grad needs create_graph=True",
    "integer cast": "stay in floating point, or gradtricks.torch.straight_through(hard, soft)",
    "not differentiable": "use a differentiable stand-in (softmax for argmax, sigmoid for a comparison), or "
    "gradtricks.torch.straight_through(hard, soft)",
    "assigned": "use the new tensor itself; an assignment stores values, not where they came from",
    "copied": "use the tensor itself, or tensor.clone(); a new leaf doesn't know where its values came from",
    "numpy": "compute it with torch; .numpy(), .item(), float() and .tolist() keep values only",
    "gradient rule": "return a gradient instead of None from backward of the autograd.Function",
    "replaced": "the output never reads the input, but another tensor of its shape. If the input was made "
    "from that one, compute the output from the input: z = x + delta; y = f(z); torch.autograd.grad(y, z)",
    "made outside": "if this tensor was computed from the input, compute it inside of the function, with "
    "torch and after requires_grad_(); if not, the output doesn't depend on the input",
    "unused": "let the output depend on it; nothing that was recorded leads from the input to the output",
    "not watched": "set requires_grad to True before the function runs: tensor.requires_grad_()",
    "integer": "only floating-point tensors have gradients: tensor.float()",
    "not traced": "torch finds no gradient although every recorded operation passes one; look for torch.func "
    "transforms or hooks in the function",
    "zero everywhere": "the slope is 0 at every element: relu of negatives, clamp beyond its range, floor or "
    "round (gradtricks.torch.floor_straight_through), or a factor of 0",
    "nan": "keep its argument off the point where the slope is infinite, before and not after the operation: "
    "gradtricks.torch.safe_where(condition, x, function, fallback)",
    "inf": "keep its argument off the point where the slope is infinite: clamp it, or add an epsilon to it",
    "sum": "no single operation is to blame: the contributions of several paths cancel or overflow in sum",
    "overflow": "look at the values that go in here: the logarithm of 0, a division by 0, an exponential",
}
# What is replaced while the function runs is replaced for every thread.
_ONE_AT_A_TIME = threading.RLock()


def explain_gradient(function: Callable[..., Any], inputs: Any) -> GradientReport:
    """Run ``function`` once; say of each input whether a gradient reaches it, and if not, what cut the path.

    A tensor doesn't know which operations failed to record themselves. So this takes the function that
    computes the output, and watches it run. The function runs eagerly, compiled or not, with all its side
    effects; no flag and no ``.grad`` changes. Where the output isn't a number, its sum is differentiated.
    Calls from several threads wait for each other, and what else another thread runs meanwhile isn't
    recorded.

    Args:
        function: Returns a tensor or a structure of tensors. Called without arguments where it needs none, as
            a closure over the inputs; otherwise ``function(*inputs)``, or ``function(**inputs)`` for a dict.
        inputs: Tensors: one, or nested lists, tuples and dicts of them, an iterator such as
            ``model.parameters()``, or a module, which stands for its parameters.

    Returns:
        One verdict for each input, with the operation, the line of code, the reason and the remedy; print it.
        An input is also judged by its gradient: zero everywhere, NaN or infinite, and where that began.

    Raises:
        RuntimeError: Called within a compiled function or a `torch.func` transform. Or torch can't
            differentiate the output, and says so itself: an operation has no derivative, or a ``backward()``
            within the function has freed the graph.

    References:
        "Show responsible nodes", https://github.com/tensorflow/tensorflow/issues/1768.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> report = explain_gradient(lambda x: (x.detach() ** 2).sum(), x)
        >>> report["x"].connected, report["x"].operation, report["x"].reason
        (False, 'Tensor.detach', 'detached')
    """
    call, named = _checked(function, inputs)
    recorder = Recorder([leaf for _, leaf in named])
    with _ONE_AT_A_TIME, eagerly(), replaced(torch, "from_numpy", recorder.on_from_numpy()), recorder:
        leaves = [leaf for _, leaf in named_leaves("output", call(), _parts)]
    return explained(recorder, [name for name, _ in named], leaves)


def explained(recorder: Recorder, names: Sequence[str], leaves: Sequence[Any]) -> GradientReport:
    """Differentiate what was recorded, and say what became of the gradient of each of the named inputs.

    A number among the leaves counts as one that was read out.
    """
    outputs = [recorder.read_output(leaf) for leaf in leaves]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    gradients = recorder.differentiate(tensors)
    given = [recorder.described(name, i, g) for i, (name, g) in enumerate(zip(names, gradients))]
    value = merged(map(status_of, tensors))
    return explain(recorder.operations, given, outputs, recorder.outside, _REMEDIES, output=value)


def _checked(
    function: Callable[..., Any], inputs: Any
) -> tuple[Callable[[], Any], list[tuple[str, torch.Tensor]]]:
    if not callable(function):
        raise TypeError(
            f"function must be callable; got {type(function).__name__}; "
            "remedy: explain_gradient(lambda: ..., inputs), a tensor doesn't know what went unrecorded"
        )
    if torch.compiler.is_compiling() or in_transform():
        raise RuntimeError(
            "explain_gradient must be called eagerly; got a call within torch.compile or a torch.func "
            "transform; remedy: call it outside, on the function inside"
        )
    call, structures = bind(function, inputs)
    named = [leaf for name, value in structures for leaf in named_leaves(name, value, _parts)]
    if not named:
        raise ValueError("inputs must hold a tensor; got none; remedy: name what the gradient is wanted for")
    return call, [(name, as_tensor(name, leaf)) for name, leaf in named]


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, torch.nn.Module):
        return list(value.named_parameters())
    return [("", value)] if isinstance(value, torch.Tensor) else None


def eagerly() -> AbstractContextManager[Any]:
    """Run what is compiled eagerly, for a while."""
    # Nothing has been compiled while the compiler isn't even imported, which takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
