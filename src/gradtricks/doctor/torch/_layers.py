"""Watching the modules of PyTorch: their modes, their running statistics, their paddings."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import resolve_name

from gradtricks.doctor.history import Event
from gradtricks.doctor.operations import SourceLine, calling_line
from gradtricks.doctor.reports import Cause
from gradtricks.doctor.torch._graph import memory_of, tensors_of

# Functions that drop elements unless told otherwise: where their rate stands, its name, and what it is.
_DROPOUTS = dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), (1, "p", 0.5))
_DROPOUTS |= {"scaled_dot_product_attention": (4, "dropout_p", 0.0)}


class Layers:
    """Follows the calls of modules."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch
        self.running: list[torch.nn.Module] = []
        # Lines that set the mode of a module last, and after how many updates.
        self.lines: dict[int, tuple[SourceLine | None, int]] = {}
        self.statistics: dict[int, torch.Tensor] = {}  # of frozen normalizations, before their call
        self.known: set[int] = set()  # modules of which something has been told

    def begin(self) -> None:
        """Forget the calls of the update before."""
        self.normalized: list[str] = []
        self.padded: list[tuple[SourceLine | None, torch.Tensor, torch.Tensor]] = []

    def stand_ins(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yield the functions to replace, and what with."""
        resolve_name(functional.scaled_dot_product_attention)  # learns all names before any is replaced
        yield torch.nn.Module, "train", self.on_train(torch.nn.Module.train)
        for name in _DROPOUTS:
            yield functional, name, self.on_dropout(getattr(functional, name))

    def on_train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what sets the mode of a module."""

        def train(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
            self.lines[id(module)] = calling_line(), len(self.watch.history.updates)
            return original(module, mode)

        return train

    def on_dropout(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what drops elements; who doesn't say in which mode, drops them in an evaluation too."""

        def dropout(*args: Any, **options: Any) -> Any:
            name = original.__name__
            index, key, usual = _DROPOUTS[name]
            told = key == "p" and (len(args) > 2 or "training" in options)
            rate = options.get(key, args[index] if len(args) > index else usual)
            if not told and rate and self.running and not self.running[-1].training:
                seen = f"{name} ran as in training, in a module that is in evaluation mode"
                mode = "training=self.training" if key == "p" else f"{key}={rate} if self.training else 0.0"
                remedy = f"functional.{name}(..., {mode})"
                cause = Cause("evaluation in training mode", (), seen, calling_line(), remedy)
                self.watch.history.tell(cause)
            return original(*args, **options)

        return dropout

    def before(self, module: Any, args: Any) -> None:
        """Enter a module."""
        watch = self.watch
        if watch.limit:
            watch.add_outermost(module, type(module).__name__)
        watch.depth += 1
        self.running.append(module)
        if isinstance(module, _BatchNorm) and module.training:
            self.normalized.append(type(module).__name__)
            mean = module.running_mean
            if mean is not None and self.is_frozen(module):
                with torch._C.DisableTorchFunction():  # what is looked at here isn't the training's
                    self.statistics[id(module)] = mean.clone()

    def is_frozen(self, module: _BatchNorm) -> bool:
        """Say whether the parameters of a normalization stay as they are, and others beside it don't."""
        frozen = module.affine and not module.weight.requires_grad
        return frozen and torch.is_grad_enabled() and _wants_gradients(self.running[0])

    def after(self, module: Any, args: Any, result: Any) -> None:
        """Leave a module."""
        self.running.pop()
        self.watch.depth -= 1
        if self.watch.deaf:
            return
        with torch._C.DisableTorchFunction():
            before = self.statistics.pop(id(module), None)
            if before is not None and id(module) not in self.known:
                self.note_drift(module, float((module.running_mean - before).abs().max()))
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                self.note_padding(module, args, result)
        if not self.watch.depth:
            self.note_mode(module, result)

    def note_drift(self, module: torch.nn.Module, size: float) -> None:
        """Note that the statistics of a frozen normalization moved."""
        self.known.add(id(module))
        names = tuple(self.watch.names[p] for p in module.parameters() if p in self.watch.names)
        place = self.lines.get(id(module), (None, 0))[0] or calling_line()
        self.watch.note("drift", place=place, subjects=names[:1], share=size)

    def note_padding(self, module: torch.nn.Embedding, args: Any, result: Any) -> None:
        """Note rows of padding that aren't 0, once for each table."""
        weight, index = module.weight, module.padding_idx
        if id(module) in self.known or not (weight.requires_grad and torch.is_grad_enabled() and args):
            return
        self.known.add(id(module))
        padding = args[0] == index
        if bool(weight.detach()[index].any()) and bool(padding.any()):
            write = self.watch.recorder.writes.get(memory_of(weight))
            self.padded.append((write.place if write else calling_line(), result, padding))

    def look(self, loss: torch.Tensor) -> None:
        """Tell which paddings a loss depends on."""
        for place, made, padding in self.padded:
            slope = next(iter(self.watch.recorder.slopes(loss, [made])), None)
            if slope is not None and bool(slope[padding].any()):
                seen = "the row of padding_idx isn't 0, the loss depends on it, and it gets no gradient"
                self.watch.history.tell(Cause("padding not 0", (), seen, place))
        self.padded = []

    def note_mode(self, module: torch.nn.Module, result: Any) -> None:
        """Look at the mode of an outermost module."""
        touchy = [child for child in module.modules() if _depends_on_mode(child)]
        training, called = any(child.training for child in touchy), calling_line()
        names = tuple(dict.fromkeys(type(child).__name__ for child in touchy))
        line, updates = self.lines.get(id(touchy[0]), (None, -1)) if touchy else (None, -1)
        if not torch.is_grad_enabled():
            self.watch.note_quiet(called)
            # What sets the mode long before is the training's own.
            place = line if line and updates == len(self.watch.history.updates) else called
            event = Event("evaluated", place, subjects=names)
            self.watch.silent += [(event, list(tensors_of(result)))] if training else []
        wanted = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
        held = any(self.watch.updates.held(p) for p in module.parameters() if p.requires_grad)
        if touchy and wanted and held and not training and not module.training:
            event = Event("trained", line or called, subjects=names)
            # An evaluation has a graph too where nobody turns it off, and no gradient comes there.
            wanted[0].register_hook(lambda gradient: self.watch.history.events.append(event))


def _wants_gradients(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _depends_on_mode(module: torch.nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, _BatchNorm) and module.track_running_stats
