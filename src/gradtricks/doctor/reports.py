"""Reports on gradients and on trainings, which print like a compiler's messages."""

from collections.abc import Iterator
from dataclasses import dataclass

from gradtricks.doctor.operations import SourceLine
from gradtricks.doctor.rules import IDS

_SHOWN = 3  # findings of each input
_NAMED = 4  # parameters or layers of each cause


@dataclass(frozen=True)
class Finding:
    """Where something happened to a gradient, why, and what to do.

    Attributes:
        operation: Name of the operation; empty where none is to blame.
        reason: One or two words, such as "detached", "numpy" or "nan".
        place: Line of the user's code, where known.
        remedy: What to do, in the framework's words.
    """

    operation: str
    reason: str
    place: SourceLine | None
    remedy: str

    def lines(self) -> Iterator[str]:
        """Yield the finding as lines of text."""
        yield f"  {self.reason}: {self.operation}" if self.operation else f"  {self.reason}"
        yield from self.place.lines() if self.place else ()
        yield f"  remedy: {self.remedy}"


@dataclass(frozen=True)
class InputReport:
    """A verdict on the gradient of one input.

    Attributes:
        name: What the user calls it.
        connected: Whether a gradient reaches it.
        gradient: "none", "fine", "zero everywhere", "nan" or "inf".
        cuts: The first cut on each path from the input to the output, those first whose mending is enough.
            Where the input is connected: detaches, assignments and copies that cut its other paths.
        origins: Where the gradient began to be zero, NaN or infinite, nearest to the output first.
    """

    name: str
    connected: bool
    gradient: str
    cuts: tuple[Finding, ...] = ()
    origins: tuple[Finding, ...] = ()

    @property
    def finding(self) -> Finding | None:
        """The finding to mend first; None where the gradient is fine."""
        findings = self.origins if self.connected else self.cuts
        return findings[0] if findings else None

    @property
    def operation(self) -> str:
        """Name of the operation to blame; empty where there is none."""
        return self.finding.operation if self.finding else ""

    @property
    def reason(self) -> str:
        """Why the gradient isn't fine, in a word; empty where it is."""
        return self.finding.reason if self.finding else ""

    @property
    def place(self) -> SourceLine | None:
        """Line of the user's code to look at."""
        return self.finding.place if self.finding else None

    @property
    def remedy(self) -> str:
        """The remedy; empty where the gradient is fine."""
        return self.finding.remedy if self.finding else ""

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        state = f"connected, gradient {self.gradient}" if self.connected else "not connected, gradient None"
        yield f"{self.name}: {state}"
        for finding in (self.origins if self.connected else self.cuts)[:_SHOWN]:
            yield from finding.lines()
        if self.connected and self.cuts:
            yield "  another of its paths is cut:"
            yield from (line for finding in self.cuts[:_SHOWN] for line in finding.lines())


@dataclass(frozen=True)
class GradientReport:
    """Verdicts on the gradients of all inputs; ``print`` it.

    Attributes:
        inputs: One report for each input, in the order given.
        output: Status of the output's value: "fine", "zero everywhere", "nan" or "inf".
        overflow: The first operation that made a value that isn't finite from finite ones, if any did.
    """

    inputs: tuple[InputReport, ...]
    output: str
    overflow: Finding | None = None

    @property
    def connected(self) -> bool:
        """Whether a gradient reaches every input."""
        return all(report.connected for report in self.inputs)

    @property
    def fine(self) -> bool:
        """Whether every gradient is there, finite and somewhere other than zero."""
        return all(report.gradient == "fine" for report in self.inputs)

    def __getitem__(self, key: str | int) -> InputReport:
        """Return the report of one input, by name or by position."""
        if isinstance(key, int):
            return self.inputs[key]
        found = [report for report in self.inputs if report.name == key]
        if not found:
            names = ", ".join(report.name for report in self.inputs)
            raise KeyError(f"expected one of: {names}; got {key!r}")
        return found[0]

    def __str__(self) -> str:
        """Return the reports on the inputs, and where values began not to be finite."""
        lines = [line for report in self.inputs for line in report.lines()]
        bad = {"nan", "inf"} & {self.output, *(report.gradient for report in self.inputs)}
        if self.overflow and bad:
            lines += ["values: finite until here", *self.overflow.lines()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Cause:
    """One thing that is wrong with the gradients of a training.

    Attributes:
        kind: In a few words, such as "never zeroed"; the same in both frameworks.
        subjects: Names of the parameters or layers that it concerns; empty where it concerns all.
        seen: What was seen, in a sentence.
        place: Line of the user's code to look at, where known.
        remedy: What to do, in the framework's words.
    """

    kind: str
    subjects: tuple[str, ...]
    seen: str
    place: SourceLine | None
    remedy: str = ""

    @property
    def id(self) -> str:
        """The id of the kind, for options and other programs, such as ``"GT305"``."""
        return IDS[self.kind]

    def lines(self) -> Iterator[str]:
        """Yield the cause as lines of text."""
        more = len(self.subjects) - _NAMED
        names = ", ".join(self.subjects[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield f"{self.kind} [{self.id}]: {names}" if names else f"{self.kind} [{self.id}]"
        yield f"  seen: {self.seen}"
        yield from self.place.lines() if self.place else ()
        yield f"  remedy: {self.remedy}"


@dataclass(frozen=True)
class Diagnosis:
    """Everything that is wrong with the gradients of a training; ``print`` it.

    Attributes:
        causes: What was found, what breaks the training first; empty where nothing was.
        num_updates: How many updates of the weights were watched.
        num_skipped: How many updates the scaling of the loss left out, for gradients that weren't finite.
    """

    causes: tuple[Cause, ...]
    num_updates: int
    num_skipped: int = 0

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.causes

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the causes, in their order."""
        return tuple(cause.kind for cause in self.causes)

    def __str__(self) -> str:
        """Return the causes, numbered."""
        updates = f"{self.num_updates} update{'' if self.num_updates == 1 else 's'} watched"
        updates += f", {self.num_skipped} skipped by the scaling of the loss" if self.num_skipped else ""
        if self.healthy:
            return f"{updates}, nothing found"
        lines = [f"{updates}, {len(self.causes)} found"]
        for number, cause in enumerate(self.causes, 1):
            first, *rest = cause.lines()
            lines += [f"{number}. {first}", *rest]
        return "\n".join(lines)
