"""The updates of PyTorch's optimizers: which gradients they are given, and which weights move."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradtricks.doctor.history import SMALL, Event, History, Update, Weight
from gradtricks.doctor.operations import SourceLine, calling_line
from gradtricks.doctor.torch._graph import memory_of, statuses_of, tensors_of, version_of

# These bound a gradient, and make no zeros of it.
_BOUNDS = ("clamp_", "clamp_min_", "clamp_max_", "_foreach_clamp_min_", "_foreach_clamp_max_")
_INVARIANT: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)
_EARLY = 4  # updates at which it is seen whether units are alike
_SCALES = ("_foreach_mul_", "div_", "_foreach_div_")


class Updates:
    """Follows the gradients of parameters from update to update."""

    def __init__(self, history: History, names: dict[torch.Tensor, str]) -> None:
        self.history, self.names = history, names
        self.optimizers: list[torch.optim.Optimizer] = []
        self.sizes: dict[torch.Tensor, float] = {}
        self.kept: dict[torch.Tensor, tuple[torch.Tensor, int]] = {}  # gradients that an update has used
        self.before_pass: dict[torch.Tensor, tuple[torch.Tensor, int]] = {}
        self.again: set[torch.Tensor] = set()  # parameters that another backward pass has reached since
        self.edits: dict[torch.Tensor, SourceLine | None] = {}
        self.frozen: dict[
            torch.Tensor, SourceLine | None
        ] = {}  # where it was said whether it wants a gradient
        self.emptied: SourceLine | None = None  # where gradients were reset that no update had used
        self.weights: dict[torch.Tensor, tuple[Weight, torch.Tensor, torch.Tensor | None]] = {}

    def meet(self, optimizer: torch.optim.Optimizer) -> None:
        if any(optimizer is other for other in self.optimizers):
            return
        self.optimizers.append(optimizer)
        self.count()

    def count(self) -> None:
        """Note how often each parameter is held, and what is held that no model knows."""
        held = [p for optimizer in self.optimizers for p in parameters_of(optimizer)]
        self.history.held = dict(Counter(self.names.get(p, "") for p in held))
        self.history.unknown = [str(tuple(p.shape)) for p in held if p not in self.names]

    def held(self, parameter: torch.Tensor) -> bool:
        return bool(parameter in self.names and self.history.held.get(self.names[parameter]))

    def before_edit(self, args: Any) -> dict[torch.Tensor, torch.Tensor]:
        """Return which gradients an operation in place edits, and where these aren't zero so far."""
        dense = {p: p.grad for p in self.names if p.grad is not None and p.grad.layout == torch.strided}
        memories = {memory_of(gradient): p for p, gradient in dense.items()}
        edited = [memories[m] for t in tensors_of(args[:1]) if (m := memory_of(t)) in memories]
        return {p: dense[p].abs() > 0 for p in edited}

    def note_edit(
        self,
        short: str,
        args: Any,
        edited: dict[torch.Tensor, torch.Tensor],
        place: SourceLine | None,
        events: list[Event],
    ) -> None:
        """Note that the user's code has edited gradients in place."""
        scale = args[1] if len(args) > 1 else None
        scaled = isinstance(scale, float | int) or (isinstance(scale, torch.Tensor) and scale.numel() == 1)
        if short in _SCALES or (short in ("mul_", "__imul__") and scaled and scale != 0):
            return
        if short in _BOUNDS:
            if not events or events[-1].kind != "clip" or events[-1].place != place:
                events.append(
                    Event("clip", place, len(edited), subjects=tuple(self.names[p] for p in edited))
                )
            return
        # Only what makes zeros that weren't there before is a mask.
        self.edits |= {p: place for p, had in edited.items() if bool((had & (p.grad == 0)).any())}

    def before_backward(self) -> bool:
        """Look which gradients were reset since an update used them; say if any were since a pass."""
        gradients = {p: p.grad for p in self.names}
        sizes = {p: size for p, (_, size) in zip(gradients, statuses_of(list(gradients.values())))}
        self.before_pass = {p: (g, version_of(g)) for p, g in gradients.items() if g is not None}
        for parameter, (gradient, version) in list(self.kept.items()):
            same = parameter.grad is gradient and gradient._version == version
            if not same or not sizes[parameter]:
                del self.kept[parameter]
                self.again.discard(parameter)
        return any(size and not sizes[parameter] for parameter, size in self.sizes.items())

    def reached(self) -> tuple[str, ...]:
        """Return the names of the parameters that a backward pass has just reached."""
        now = {p: p.grad for p in self.names if p.grad is not None}
        before = self.before_pass
        return tuple(
            self.names[p]
            for p, g in now.items()
            if p not in before or before[p][0] is not g or before[p][1] != version_of(g)
        )

    def after_backward(self, statuses: dict[torch.Tensor, tuple[str, float]]) -> None:
        """Take over what a backward pass has made of the gradients."""
        for parameter, (_, size) in statuses.items():
            self.sizes[parameter] = size
            if parameter in self.kept and parameter.grad is not None:
                if parameter.grad._version != self.kept[parameter][1]:
                    self.again.add(parameter)
                self.kept[parameter] = parameter.grad, parameter.grad._version

    def before(self, optimizer: torch.optim.Optimizer, place: SourceLine | None) -> None:
        self.meet(optimizer)
        self.weights = {}
        rates = [float(group.get("lr", 1.0)) for group in optimizer.param_groups]
        held = [p for p in parameters_of(optimizer) if p in self.names]
        statuses = statuses_of([p.grad for p in held])
        for parameter, (status, size) in zip(held, statuses):
            gradient = parameter.grad
            weight = Weight(
                self.names[parameter],
                str(parameter.dtype).removeprefix("torch."),
                parameter.requires_grad,
                status,
                size,
                masked=self.edits.get(parameter),
                leftover=parameter in self.again,
                frozen=self.frozen.get(parameter),
            )
            if status in ("none", "zero everywhere") and self.sizes.get(parameter) and not weight.masked:
                weight.emptied = self.emptied
            kept = gradient if gradient is not None and not gradient.is_sparse else None
            if kept is not None and status == "fine" and 0 < size < SMALL:
                weight.look_for_underflow(kept.detach())
            if kept is not None and kept.ndim > 1 and status == "fine" and len(self.history.updates) < _EARLY:
                weight.alike = _rows_alike(parameter.detach()) and _rows_alike(kept)
            # Some optimizers change gradients in place, by adding decay or by a sign.
            kept = kept.clone() if kept is not None and weight.masked else kept
            self.weights[parameter] = weight, parameter.detach().clone(), kept
        weights = [self.weights[p][0] for p in held]
        invariant = isinstance(optimizer, _INVARIANT)
        self.history.updates.append(Update(weights, max(rates, default=0.0), place, invariant))

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter, (weight, before, gradient) in self.weights.items():
            weight.compare(before, parameter.detach(), None if weight.gradient == "none" else gradient)
            if parameter.grad is not None:
                self.kept[parameter] = parameter.grad, parameter.grad._version
        self.again -= self.weights.keys()
        self.edits, self.emptied = {}, None
        self.weights = {}

    def stand_ins(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yield the functions to replace, and what with."""
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            yield owner, "zero_grad", _after(self.note_zeroing, owner.zero_grad)
        schedule = torch.optim.lr_scheduler.LRScheduler
        yield schedule, "step", _after(self.note_schedule, schedule.step)

    def note_zeroing(self) -> None:
        """Note that gradients are reset, if no update has used those of the last backward pass."""
        kinds = [event.kind for event in self.history.events if event.kind in ("backward", "update", "skip")]
        self.emptied = calling_line() if kinds[-1:] == ["backward"] else None

    def note_schedule(self) -> None:
        """Note where a schedule sets the rates."""
        self.history.schedule = calling_line()

    def note_freezing(self, args: Any, place: SourceLine | None) -> None:
        """Note that a parameter is told whether it wants a gradient."""
        if isinstance(args[0], torch.nn.Parameter):
            self.frozen[args[0]] = place


def _after(note: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        note()
        return original(*args, **options)

    return run


def _rows_alike(matrix: torch.Tensor) -> bool:
    return len(matrix) > 1 and torch.equal(matrix[0], matrix[1]) and bool((matrix == matrix[:1]).all())


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
