"""Recording what each function of PyTorch reads and makes, and what it passes a gradient to."""

import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import GradientEdge, Node
from torch.overrides import TorchFunctionMode, resolve_name

from gradtricks.doctor.operations import Input, Operation, Outside, SourceLine, calling_line, merged
from gradtricks.doctor.recording import BaseRecorder
from gradtricks.doctor.torch._graph import (
    edge_of,
    is_floating,
    leaves_of,
    memory_of,
    name_of,
    part_of_memory,
    status_of,
    tensors_of,
    version_of,
)

_DETACHED = ("Tensor.detach", "Tensor.detach_", "Tensor.data", "torch.detach")
_COPIED = ("torch.tensor", "Tensor.__deepcopy__", "torch.asarray")
_CASTS = ("int", "long", "short", "byte", "char", "bool", "to", "type")
_REPLACING = ("Tensor.data", "Tensor.detach_")
_IGNORED = ("Tensor.grad", "Tensor._base", "Tensor.requires_grad")
_EXPORTS = ("numpy", "__array__", "item", "tolist", "__float__", "__int__", "__bool__", "__index__")
_OF_THE_SHAPE = ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")


class _State(NamedTuple):
    number: int
    tensor: torch.Tensor  # kept, so that neither its identity nor its memory is used again
    edge: GradientEdge | None


class _Write(NamedTuple):
    number: int
    name: str
    place: SourceLine | None


class Recorder(BaseRecorder, TorchFunctionMode):
    """Records each function of torch that runs: what it read and made, and what it passes a gradient to."""

    kind, status = torch.Tensor, staticmethod(status_of)

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.states: dict[int, _State] = {}
        self.edges: dict[GradientEdge, int] = {}
        self.links: list[tuple[Operation, list[GradientEdge], list[tuple[Node, int, int]]]] = []
        self.owners: dict[tuple[int, ...], int] = {}
        self.writes: dict[int, _Write] = {}
        self.constants: set[float] = set()  # numbers that were used before anything left
        for tensor in inputs:
            self.read(tensor)
        self.starts = [self.states[id(tensor)] for tensor in inputs]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        tensors = list(tensors_of(given))
        inputs, versions = [self.read(tensor) for tensor in tensors], [version_of(t) for t in tensors]
        result = func(*args, **given[1])
        name, short = _names(func)
        drawn = None if torch.is_grad_enabled() else _draw()
        edited = [t for t, version in zip(tensors, versions) if version_of(t) != version]
        edited = tensors[:1] if name in _REPLACING and short != "__get__" else edited
        made = [t for t in tensors_of(result) if all(t is not other for other in tensors)]
        if short in _EXPORTS and tensors:
            self.export(name, inputs, result)
        elif (made or edited) and name not in _IGNORED:
            inputs = [] if short in _OF_THE_SHAPE else inputs
            inputs += [self.host] if self.may_come_from_the_host(given) else []
            reason = _reason(name, short, made, edited)
            name, reason = drawn if drawn and reason == "not recorded" else (name, reason)
            self.add(name, inputs, made, edited, reason)
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

    def may_come_from_the_host(self, given: Any) -> bool:
        """Say whether a number or an array among the arguments may have been computed from what left."""
        return self.host > 0 and any(
            (isinstance(leaf, float) and leaf not in self.constants)
            or isinstance(leaf, np.ndarray | np.generic)
            or (isinstance(leaf, int) and leaf in self.integers and not isinstance(leaf, bool))
            for leaf in leaves_of(given)
        )

    def add(
        self,
        name: str,
        inputs: Iterable[int],
        made: list[torch.Tensor],
        edited: list[torch.Tensor],
        reason: str,
        place: SourceLine | None = None,
    ) -> int:
        """Record an operation and return the number of what it made first."""
        edges = [edge for edge in map(edge_of, [*made, *edited]) if edge]
        links = self.walk(edges)
        carries = frozenset([*(self.edges[e] for e in edges if e in self.edges), *(s for *_, s in links)])
        inputs = tuple(dict.fromkeys([*inputs, *carries]))
        outputs = tuple(self.register(tensor) for tensor in [*made, *edited])
        place = place or calling_line()
        operation = Operation(name, place, inputs, outputs, carries, reason)
        operation.overflows = not self.overflown.isdisjoint(outputs) and self.overflown.isdisjoint(inputs)
        self.operations.append(operation)
        self.links.append((operation, edges, links))
        for tensor in edited:
            self.writes[memory_of(tensor)] = _Write(self.states[id(tensor)].number, name, place)
        return outputs[0]

    def add_indices(self, name: str, inputs: list[int], made: list[torch.Tensor]) -> None:
        """Record that no gradient passes to the indices that came along with values, as from ``max``."""
        indices = [tensor for tensor in made if not is_floating(tensor)]
        if 0 < len(indices) < len(made):
            outputs = tuple(self.states[id(tensor)].number for tensor in indices)
            self.operations.append(Operation(name, calling_line(), tuple(inputs), outputs))

    def read(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor as it is now; it may have been edited behind the recorder's back."""
        state = self.states.get(id(tensor))
        if state is None:
            return self.meet(tensor)
        # Asking a leaf for its node takes long, and the node stays the same.
        same = state.edge and tensor.requires_grad and not tensor._is_view() and tensor.is_leaf
        write, edge = self.writes.get(memory_of(tensor)), state.edge if same else edge_of(tensor)
        if write and write.number > state.number:
            return self.add(write.name, [state.number, write.number], [tensor], [], "assigned", write.place)
        if edge and edge != state.edge and self.walk([edge]):
            # What an autograd.Function returned was made inside of it, without a gradient.
            inside = next((o.place for o in self.operations if state.number in o.outputs), None)
            return self.add(name_of(edge), [], [tensor], [], "gradient rule", inside)
        if edge and edge != state.edge:
            self.states[id(tensor)] = _State(state.number, tensor, edge)
            self.edges[edge] = state.number
        return state.number

    def meet(self, tensor: torch.Tensor) -> int:
        """Return a number for a tensor that no recorded operation made."""
        edge, owner = edge_of(tensor), self.owners.get(part_of_memory(tensor))
        if edge and self.walk([edge]):
            return self.add(name_of(edge), [], [tensor], [], "gradient rule")
        if owner:
            wrapped = isinstance(tensor, torch.nn.Parameter)
            reason = "copied" if wrapped else "numpy" if self.host else "detached"
            return self.add("nn.Parameter" if wrapped else "shared memory", [owner], [tensor], [], reason)
        number = self.register(tensor)
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            inside = self.read(torch._C._functorch.get_unwrapped(tensor))
            place = calling_line()
            self.operations.append(Operation("torch.func", place, (inside,), (number,), reason="not traced"))
        elif tensor.dtype.is_floating_point:
            self.outside[number] = Outside(tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
        return number

    def register(self, tensor: torch.Tensor) -> int:
        number, edge = self.next_number(), edge_of(tensor)
        self.states[id(tensor)] = _State(number, tensor, edge)
        self.owners.setdefault(part_of_memory(tensor), number)
        if edge:
            self.edges[edge] = number
        self.judge(number, tensor)
        return number

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
                sent[node], arrived[node] = list(map(status_of, outgoing)), list(map(status_of, incoming))

            return hook

        cotangents = [torch.full_like(tensor, self.cotangent) for tensor in ends]
        nodes = {edge.node for _, edges, _ in self.links for edge in edges}
        nodes |= {node for *_, links in self.links for node, *_ in links}
        hooks = [node.register_hook(note(node)) for node in nodes]
        try:
            found = torch.autograd.grad(ends, edges, cotangents, retain_graph=True, allow_unused=True)
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
        return [status_of(next(statuses)) if state.edge else "none" for state in self.starts]

    def described(self, name: str, index: int, gradient: str) -> Input:
        state = self.starts[index]
        tensor = state.tensor
        refused = "integer" if not is_floating(tensor) else "" if state.edge else "not watched"
        wrapped = isinstance(tensor, torch.nn.Parameter)
        like = Outside(tuple(tensor.shape), str(tensor.dtype), wrapped)
        return Input(name, state.number, gradient, like, refused)


def _draw() -> tuple[str, str] | None:
    """Return which draw of a distribution runs, and why it passes no gradient on."""
    frame: FrameType | None = sys._getframe(2)
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "gradtricks"):
        if frame.f_code.co_name == "sample" and "distributions" in frame.f_globals["__name__"]:
            kind = type(frame.f_locals["self"])
            return f"{kind.__name__}.sample", "sampled" if kind.has_rsample else "drawn"
        frame = frame.f_back
    return None


@cache
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
    if not any(map(is_floating, made)):
        return "integer cast" if short in _CASTS else "not differentiable"
    return "not recorded" if not torch.is_grad_enabled() or name == "torch.autograd.grad" else ""
