"""Naming the operation that cut the path of a gradient."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import GradientEdge, Node
from torch.overrides import TorchFunctionMode, resolve_name

from gradtricks.reference.tracing import (
    GradientReport,
    Input,
    Operation,
    Outside,
    Place,
    bind,
    calling_place,
    explain,
    merged,
    named_leaves,
)
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
_DETACHED = ("Tensor.detach", "Tensor.detach_", "Tensor.data", "torch.detach")
_COPIED = ("torch.tensor", "Tensor.__deepcopy__", "torch.asarray")
_CASTS = ("int", "long", "short", "byte", "char", "bool", "to", "type")
_REPLACING = ("torch.Tensor.data.__set__", "torch.Tensor.detach_")
_IGNORED = ("Tensor.grad", "Tensor._base", "Tensor.requires_grad")
_EXPORTS = ("numpy", "__array__", "item", "tolist", "__float__", "__int__", "__bool__", "__index__")
_OF_THE_SHAPE = ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")
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
        TypeError: ``function`` isn't callable or doesn't return tensors, or an input isn't a tensor.
        ValueError: There are no inputs.
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
    recorder = _Recorder([leaf for _, leaf in named])
    with _ONE_AT_A_TIME, _eagerly(), _replaced(torch, "from_numpy", recorder.on_from_numpy()), recorder:
        leaves = [leaf for _, leaf in named_leaves("output", call(), _parts)]
    outputs = [recorder.read_output(leaf) for leaf in leaves]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    gradients = recorder.differentiate(tensors)
    given = [recorder.described(name, i, g) for i, ((name, _), g) in enumerate(zip(named, gradients))]
    value = merged(map(_status, tensors))
    return explain(recorder.operations, given, outputs, recorder.outside, _REMEDIES, output=value)


def _checked(
    function: Callable[..., Any], inputs: Any
) -> tuple[Callable[[], Any], list[tuple[str, torch.Tensor]]]:
    if not callable(function):
        raise TypeError(
            f"function must be callable; got {type(function).__name__}; "
            "remedy: explain_gradient(lambda: ..., inputs), a tensor doesn't know what went unrecorded"
        )
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
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


def _eagerly() -> AbstractContextManager[Any]:
    # Nothing has been compiled while the compiler isn't even imported, which takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _State(NamedTuple):
    number: int
    tensor: torch.Tensor  # kept, so that neither its identity nor its memory is used again
    edge: GradientEdge | None


class _Write(NamedTuple):
    number: int
    name: str
    place: Place | None


class _Recorder(TorchFunctionMode):
    """Records each function of torch that runs: what it read and made, and what it passes a gradient to."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.outside: dict[int, Outside] = {}
        self.states: dict[int, _State] = {}
        self.edges: dict[GradientEdge, int] = {}
        self.links: list[tuple[Operation, list[GradientEdge], list[tuple[Node, int, int]]]] = []
        self.owners: dict[tuple[int, ...], int] = {}
        self.writes: dict[int, _Write] = {}
        self.overflown: set[int] = set()
        self.integers: set[int] = set()
        self.host = self.last = 0  # the host's memory is one large tensor, number 0
        for tensor in inputs:
            self.read(tensor)
        self.starts = [self.states[id(tensor)] for tensor in inputs]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function and record it."""
        given = (args, kwargs or {})
        tensors = list(_tensors_of(given))
        inputs, versions = [self.read(tensor) for tensor in tensors], [_version(t) for t in tensors]
        result = func(*args, **given[1])
        name, short = _names(func)
        edited = [t for t, version in zip(tensors, versions) if _version(t) != version]
        edited = tensors[:1] if resolve_name(func) in _REPLACING else edited
        made = [t for t in _tensors_of(result) if all(t is not other for other in tensors)]
        if short in _EXPORTS and tensors:
            self.export(name, inputs, result)
        elif (made or edited) and name not in _IGNORED:
            inputs = [] if short in _OF_THE_SHAPE else inputs
            inputs += [self.host] if self.may_come_from_the_host(given) else []
            self.add(name, inputs, made, edited, _reason(name, short, made, edited))
            self.add_indices(name, inputs, made)
        return result

    def on_from_numpy(self) -> Callable[[np.ndarray], torch.Tensor]:
        """Return what makes a tensor of an array, the one constructor in use that no mode sees."""
        original, thread = torch.from_numpy, threading.get_ident()

        def from_numpy(array: np.ndarray) -> torch.Tensor:
            tensor = original(array)
            if threading.get_ident() == thread:
                with torch._C.DisableTorchFunction():
                    self.add("torch.from_numpy", [self.host] if self.host else [], [tensor], [], "numpy")
            return tensor

        return from_numpy

    def export(self, name: str, inputs: list[int], result: Any) -> None:
        """Record that values left for Python or NumPy."""
        self.integers |= {result} if type(result) is int else set()
        inputs, self.host = [*inputs, self.host], self.next_number()
        place = calling_place(("torch",))
        self.operations.append(Operation(name, place, tuple(inputs), (self.host,), reason="numpy"))

    def may_come_from_the_host(self, given: Any) -> bool:
        """Say whether a number or an array among the arguments may have been computed from what left."""
        return self.host > 0 and any(
            isinstance(leaf, float | np.ndarray | np.generic)
            or (isinstance(leaf, int) and leaf in self.integers and not isinstance(leaf, bool))
            for leaf in _leaves_of(given)
        )

    def add(
        self,
        name: str,
        inputs: Iterable[int],
        made: list[torch.Tensor],
        edited: list[torch.Tensor],
        reason: str,
        place: Place | None = None,
    ) -> int:
        """Record an operation and return the number of what it made first."""
        edges = [edge for edge in map(_edge, [*made, *edited]) if edge]
        links = self.walk(edges)
        carries = frozenset([*(self.edges[e] for e in edges if e in self.edges), *(s for *_, s in links)])
        inputs = tuple(dict.fromkeys([*inputs, *carries]))
        outputs = tuple(self.register(tensor) for tensor in [*made, *edited])
        place = place or calling_place(("torch",))
        operation = Operation(name, place, inputs, outputs, carries, reason)
        operation.overflows = not self.overflown.isdisjoint(outputs) and self.overflown.isdisjoint(inputs)
        self.operations.append(operation)
        self.links.append((operation, edges, links))
        for tensor in edited:
            self.writes[_memory(tensor)] = _Write(self.states[id(tensor)].number, name, place)
        return outputs[0]

    def add_indices(self, name: str, inputs: list[int], made: list[torch.Tensor]) -> None:
        """Record that no gradient passes to the indices that came along with values, as from ``max``."""
        indices = [tensor for tensor in made if not _is_floating(tensor)]
        if 0 < len(indices) < len(made):
            outputs = tuple(self.states[id(tensor)].number for tensor in indices)
            self.operations.append(Operation(name, calling_place(("torch",)), tuple(inputs), outputs))

    def read(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor as it is now; it may have been edited behind the recorder's back."""
        state = self.states.get(id(tensor))
        if state is None:
            return self.meet(tensor)
        write, edge = self.writes.get(_memory(tensor)), _edge(tensor)
        if write and write.number > state.number:
            return self.add(write.name, [state.number, write.number], [tensor], [], "assigned", write.place)
        if edge and edge != state.edge and self.walk([edge]):
            # What an autograd.Function returned was made inside of it, without a gradient.
            inside = next((o.place for o in self.operations if state.number in o.outputs), None)
            return self.add(_of_the_node(edge), [], [tensor], [], "gradient rule", inside)
        if edge and edge != state.edge:
            self.states[id(tensor)] = _State(state.number, tensor, edge)
            self.edges[edge] = state.number
        return state.number

    def meet(self, tensor: torch.Tensor) -> int:
        """Return a number for a tensor that no recorded operation made."""
        edge, owner = _edge(tensor), self.owners.get(_owned(tensor))
        if edge and self.walk([edge]):
            return self.add(_of_the_node(edge), [], [tensor], [], "gradient rule")
        if owner:
            wrapped = isinstance(tensor, torch.nn.Parameter)
            reason = "copied" if wrapped else "numpy" if self.host else "detached"
            return self.add("nn.Parameter" if wrapped else "shared memory", [owner], [tensor], [], reason)
        number = self.register(tensor)
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            inside = self.read(torch._C._functorch.get_unwrapped(tensor))
            place = calling_place(("torch",))
            self.operations.append(Operation("torch.func", place, (inside,), (number,), reason="not traced"))
        elif tensor.dtype.is_floating_point:
            self.outside[number] = Outside(tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
        return number

    def register(self, tensor: torch.Tensor) -> int:
        """Give a tensor a new number."""
        number, edge = self.next_number(), _edge(tensor)
        self.states[id(tensor)] = _State(number, tensor, edge)
        self.owners.setdefault(_owned(tensor), number)
        if edge:
            self.edges[edge] = number
        if _status(tensor) in ("nan", "inf"):
            self.overflown.add(number)
        return number

    def next_number(self) -> int:
        """Count on."""
        self.last += 1
        return self.last

    def walk(self, edges: list[GradientEdge]) -> list[tuple[Node, int, int]]:
        """Return where the nodes behind some edges meet known tensors: node, index of its input, number."""
        links, pending, seen = [], [edge.node for edge in edges if edge not in self.edges], set[Node]()
        while pending:
            node = pending.pop()
            for index, (following, output_nr) in enumerate(() if node in seen else node.next_functions):
                known = self.edges.get(GradientEdge(following, output_nr)) if following else None
                if known is not None:
                    links.append((node, index, known))
                elif following:
                    pending.append(following)
            seen.add(node)
        return links

    def read_output(self, leaf: Any) -> int:
        """Return the number of what the function returned."""
        if isinstance(leaf, torch.Tensor):
            return self.read(leaf)
        if isinstance(leaf, int | float | np.ndarray | np.generic):
            return self.host
        raise TypeError(
            f"function must return tensors; got {type(leaf).__name__}; remedy: return what is differentiated"
        )

    def differentiate(self, outputs: list[torch.Tensor]) -> list[str]:
        """Return the status of each input's gradient, and fill in what each operation passed on."""
        ends = [tensor for tensor in outputs if tensor.requires_grad]
        edges = [state.edge for state in self.starts if state.edge]
        if not ends or not edges:
            return ["none"] * len(self.starts)
        arrived: dict[Node, list[str]] = {}
        sent: dict[Node, list[str]] = {}

        def note(node: Node) -> Callable[[Any, Any], None]:
            def hook(outgoing: Any, incoming: Any) -> None:
                sent[node], arrived[node] = list(map(_status, outgoing)), list(map(_status, incoming))

            return hook

        ones = [torch.ones_like(tensor) for tensor in ends]
        hooks = [node.register_hook(note(node)) for node in self.nodes()]
        try:
            found = torch.autograd.grad(ends, edges, ones, retain_graph=True, allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
        for operation, made, links in self.links:
            operation.arrived = merged(arrived[e.node][e.output_nr] for e in made if e.node in arrived)
            for number in {number for node, _, number in links if node in sent}:
                operation.sent[number] = merged(sent[n][i] for n, i, s in links if s == number and n in sent)
            refused = {number for number, status in operation.sent.items() if status == "none"}
            operation.reason = "gradient rule" if refused else operation.reason
            operation.carries -= refused
        statuses = iter(found)
        return [_status(next(statuses)) if state.edge else "none" for state in self.starts]

    def nodes(self) -> set[Node]:
        """Return the nodes whose gradients tell what an operation did."""
        ends = {edge.node for _, edges, _ in self.links for edge in edges}
        return ends | {node for *_, links in self.links for node, *_ in links}

    def described(self, name: str, index: int, gradient: str) -> Input:
        """Return one input as the search wants it."""
        state = self.starts[index]
        tensor = state.tensor
        refused = "integer" if not _is_floating(tensor) else "" if state.edge else "not watched"
        wrapped = isinstance(tensor, torch.nn.Parameter)
        like = Outside(tuple(tensor.shape), str(tensor.dtype), wrapped)
        return Input(name, state.number, gradient, like, refused, self.kin(state.edge))

    def kin(self, edge: GradientEdge | None) -> frozenset[int]:
        """Return the known tensors that an input was computed from."""
        found, pending = set[int](), [edge.node] if edge else []
        while pending:
            for following, output_nr in pending.pop().next_functions:
                if following:
                    found |= {self.edges.get(GradientEdge(following, output_nr), 0)}
                    pending.append(following)
        return frozenset(found - {0})


def _names(func: Any) -> tuple[str, str]:
    short = getattr(func, "__name__", "")
    full = resolve_name(func) or f"{getattr(func, '__module__', 'torch')}.{short}"
    full = full.removesuffix(".__get__").removesuffix(".__set__")
    return full.replace("torch.Tensor.", "Tensor."), short


def _reason(name: str, short: str, made: list[torch.Tensor], edited: list[torch.Tensor]) -> str:
    if name in _DETACHED and short != "__set__":
        return "detached"
    if edited:
        # In-place operations pass gradients on, unless they are hidden from autograd.
        return "assigned" if short == "__set__" or not torch.is_grad_enabled() else ""
    if name in _COPIED:
        return "copied"
    if not any(map(_is_floating, made)):
        return "integer cast" if short in _CASTS else "not differentiable"
    return "not recorded" if not torch.is_grad_enabled() or name == "torch.autograd.grad" else ""


def _leaves_of(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves_of(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in _leaves_of(value) if isinstance(leaf, torch.Tensor))


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _edge(tensor: torch.Tensor) -> GradientEdge | None:
    if not tensor.requires_grad:
        return None
    if tensor.grad_fn is not None:
        return GradientEdge(tensor.grad_fn, tensor.output_nr)
    with torch.inference_mode(False), torch.enable_grad():
        following = tensor.view_as(tensor).grad_fn
    # torch.func.jvp hides the node of a leaf; a view of a view, made in no_grad, only says that it has one.
    node, output_nr = following.next_functions[0] if following else (None, 0)
    return GradientEdge(node, output_nr) if node else None


def _of_the_node(edge: GradientEdge) -> str:
    return edge.node.name().rstrip("0123456789").removesuffix("Backward")


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _memory(tensor: torch.Tensor) -> int:
    # A wrapper of torch.func or a tensor without elements has no memory that another could share.
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    shared = tensor.layout == torch.strided and not wrapped and tensor.untyped_storage().data_ptr()
    return shared or -id(tensor)


def _owned(tensor: torch.Tensor) -> tuple[int, ...]:
    memory = _memory(tensor)
    return (memory, int(tensor.storage_offset()), tensor.numel()) if memory > 0 else (memory,)


def _status(values: torch.Tensor | None) -> str:
    if values is None:
        return "none"
    values = values.detach()
    values = values.coalesce().values() if values.is_sparse else values
    unreadable = values.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(values)
    if unreadable or not _is_floating(values):
        return "fine"
    values = values.float() if values.dtype.itemsize == 1 else values
    if values.isnan().any():
        return "nan"
    if values.isinf().any():
        return "inf"
    return "fine" if values.numel() == 0 or values.any() else "zero everywhere"
