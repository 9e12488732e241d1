"""The base of both frameworks' watchers of a training."""

import time
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from gradtricks.doctor.history import Backward, Event, History
from gradtricks.doctor.late import Late
from gradtricks.doctor.losses import as_event
from gradtricks.doctor.operations import BAD, SourceLine, calling_line
from gradtricks.doctor.patterns import patterns, zero_factor
from gradtricks.doctor.reports import GradientReport

_FAINT = 2.0**-100
_SCALE = 2.0**15  # about the most that float16 holds
_FEW = 3  # updates that show most faults
_MOMENTS = 8  # uses of one weight that make it a recurrent one


class EnoughSeen(BaseException):
    """Leaves a program that is watched; no handler of the program's is meant to catch it."""


class Watching:
    """Keeps the history of a training; the framework says what happens in it."""

    recorder: Late
    patience_s = 0.0  # how long a program is watched for its evaluation, beyond a few updates

    most = _FEW  # updates of each optimizer that a program is watched for, unless it is told how many

    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self.began = time.monotonic()
        self.quiet: set[SourceLine | None] = set()  # lines that called a model without gradients, and trained
        self.evaluated = 0  # updates before the first such line that came later
        # Of updates by each optimizer, where a program is watched; or 0.
        self.limit, self.least = (self.most, _FEW) if limit is None else (limit, limit)
        self.depth = 0  # of calls of modules
        self.judged = 0  # backward passes that weren't well before the last update
        self.scaled: list[tuple[Any, Any]] = []  # losses that were, as they were before and after
        self.models: list[Any] = []
        self.history = History()
        self.silent: list[tuple[Event, list[Any]]] = []  # as in training, and used for no loss so far

    @abstractmethod
    def add(self, model: Any, prefix: str = "") -> None:
        """Watch the parameters of one more model."""

    @abstractmethod
    def explain(self, outputs: list[Any]) -> GradientReport | None:
        """Say what became of the gradient of each parameter; without outputs, only what overflowed."""

    @abstractmethod
    def end_step(self) -> None:
        """Keep what was run and used for no gradient, and forget the operations."""

    @abstractmethod
    def largest(self, gradients: list[Any]) -> list[float]:
        """Return the largest magnitude in each gradient."""

    def note(self, kind: str, **seen: Any) -> Event:
        """Note that something happens on the line that runs."""
        seen.setdefault("place", calling_line())
        event = Event(kind, **seen)
        self.history.events.append(event)
        return event

    def note_skip(self, num_optimizers: int) -> None:
        """Note that the scaling of the loss left out an update."""
        entries = [entry for backward in self.history.unwell[self.judged :] for entry in backward.entries]
        bad = dict.fromkeys(entry.name for entry in entries if entry.gradient in BAD)
        self.note("skip", subjects=tuple(bad))
        self.end_update(num_optimizers)

    def end_update(self, num_optimizers: int) -> None:
        """Forget what led to an update, and leave the program where it has made enough of them."""
        self.judged = len(self.history.unwell)
        if self.limit:
            self.end_step()
            # A scale that falls leaves out any number of updates before the first.
            made = len(self.history.updates) + len(self.history.hopeless)
            if self.has_seen_enough(made, num_optimizers):
                raise EnoughSeen

    def has_seen_enough(self, made: int, num_optimizers: int = 1) -> bool:
        """Say whether a program that has made some updates can be left."""
        if made <= num_optimizers:
            self.began = time.monotonic()
        in_time = time.monotonic() < self.began + self.patience_s
        goes_on = in_time and not (self.evaluated and made >= self.evaluated + 2 * num_optimizers)
        return made >= (self.limit if goes_on else self.least) * num_optimizers

    def note_quiet(self, place: SourceLine | None) -> None:
        """Note that a line calls a model without gradients."""
        if not self.history.updates:
            self.quiet.add(place)
        elif not self.evaluated and place not in self.quiet:
            self.evaluated = len(self.history.updates)

    def as_it_was(self, outputs: list[Any]) -> list[Any]:
        """Return what was differentiated, as it was before it was scaled."""
        needed = self.recorder.needed(outputs) if self.scaled else set()
        return [loss for loss, scaled in self.scaled if self.recorder.read(scaled) in needed] or outputs

    def add_all(self, models: list[Any]) -> None:
        """Watch the parameters of several models."""
        for index, model in enumerate(models):
            self.add(model, f"{index}." if len(models) > 1 else "")

    def add_outermost(self, model: Any, name: str) -> None:
        """Watch a model that a program uses, if it is one that nobody has seen."""
        if not self.depth and not any(model is other for other in self.models):
            self.add(model, f"{name} {len(self.models)}: " if self.models else "")

    def judge(
        self,
        statuses: dict[str, str],
        outputs: list[Any],
        loss: str,
        place: SourceLine | None,
        error: str = "",
    ) -> None:
        """Look at what a backward pass came to; where that isn't well, find out why."""
        history = self.history
        history.reached |= {name for name, status in statuses.items() if status != "none"}
        missing = set(history.trainable) - history.reached
        well = all(status in ("fine", "none") for status in statuses.values())
        if well and not (missing or error or loss != "fine"):
            return
        # What overflows does so no more where next to nothing comes in; what an infinite slope makes stays.
        faint = self.scaled and any(status in BAD for status in statuses.values())
        self.recorder.cotangent = _FAINT if faint else 1.0
        spoilt, report = self.recorder.settle(), self.explain(outputs)
        zero = {name for name, status in statuses.items() if status == "zero everywhere"}
        lost = self.lost_to_float16(zero, outputs)
        factor = zero_factor(self.recorder, outputs) if zero.difference(lost) else None
        history.unwell.append(Backward(report, loss, spoilt, error, place, factor=factor, lost=lost))
        # A gradient that nobody asked for would have arrived, and that of a pass that failed.
        entries = history.unwell[-1].entries
        history.reached |= {e.name for e in entries if e.connected and (error or e.name not in statuses)}

    def lost_to_float16(self, zero: set[str], outputs: list[Any]) -> tuple[str, ...]:
        """Return which gradients that are zero everywhere aren't where the loss is scaled up."""
        recorder = self.recorder
        types = {recorder.dtype_of(number) for number in recorder.kept} if zero else set()
        if not any("float16" in name and "bfloat16" not in name for name in types):
            return ()
        recorder.cotangent = _SCALE
        report = self.explain(outputs)
        recorder.cotangent = 1.0
        entries = report.inputs if report else ()
        return tuple(
            e.name for e in entries if e.name in zero and e.gradient not in ("zero everywhere", "none")
        )

    def note_backward(self, outputs: list[Any], place: SourceLine | None, reached: tuple[str, ...]) -> None:
        """Note a backward pass that went through, what its loss adds up, and what it reached."""
        terms = self.recorder.terms(outputs[0]) if len(outputs) == 1 else []
        for cause in patterns(self.recorder, outputs[0]) if len(outputs) == 1 else ():
            self.history.tell(cause)
        self.history.events.append(as_event(terms, place, reached))
        if self.silent:
            needed, read = self.recorder.needed(outputs), self.recorder.read
            self.silent = [(e, made) for e, made in self.silent if needed.isdisjoint(map(read, made))]
        if self.history.moments or self.history.updates:
            return
        made, self.history.chained = self.recorder.longest_chain()
        if len(made) >= _MOMENTS:
            found = self.recorder.slopes(outputs[0], made)
            self.history.moments = self.largest([gradient for gradient in found if gradient is not None])

    def look_back(self, error: BaseException | None) -> None:
        """Where a program failed, find out what spoilt the values of the update that it didn't come to."""
        if error is None:
            return
        history = self.history
        history.stopped = not (isinstance(error, SystemExit) and not error.code)
        loss = self.recorder.worst()
        known = any(b.loss in BAD or any(e.gradient in BAD for e in b.entries) for b in history.unwell)
        if not history.stopped or known or loss not in BAD:
            return
        spoilt, report = self.recorder.settle(), self.explain([])
        if spoilt or (report and report.overflow):
            history.unwell.append(Backward(report, loss, spoilt))


def as_several(name: str, value: Any, kind: type) -> list[Any]:
    """Return one or several things of a kind as a list; raise a TypeError if there is another among them."""
    one = isinstance(value, kind) or hasattr(value, "dtype") or not isinstance(value, Iterable)
    things = [value] if one else list(value)
    wrong = [thing for thing in things if not isinstance(thing, kind)]
    if wrong or not things:
        framework, got = kind.__module__.partition(".")[0], type(wrong[0]).__name__ if wrong else "none"
        raise TypeError(
            f"{name} must be a {framework} {kind.__name__}, or several; got {got}; remedy: pass it itself"
        )
    return things
