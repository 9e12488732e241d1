"""Why a gradient is missing, zero or not finite: the search through a list of recorded operations.

The frameworks only record. What an operation read, what it made and through which of its inputs a gradient
passes is the same kind of list for both, so that the verdict is found here, once.
"""

import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# A cut of these kinds takes values out of a path on purpose or by accident; the others stand beside many
# healthy paths (a comparison that picks a branch, an argmax for the accuracy) and would only be noise there.
_WORTH_TELLING = ("detached", "not recorded", "assigned", "copied")
_SHOWN = 3


@dataclass(frozen=True)
class Place:
    """A line of the user's code.

    Attributes:
        file: As Python knows it.
        line: Number of the line, from 1.
        function: Name of the function that the line stands in.
    """

    file: str
    line: int
    function: str

    @property
    def code(self) -> str:
        """The line itself; empty where the source can't be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        """Return the place as one line."""
        # What was typed into a prompt or a notebook has no file that one could open.
        typed = self.file.startswith("<") or "ipykernel_" in self.file
        return f"line {self.line}" if typed else f"{self.file}:{self.line}, in {self.function}"


def calling_place(libraries: Iterable[str]) -> Place | None:
    """Return the innermost line being run that isn't in one of the libraries.

    Args:
        libraries: Names of top-level packages whose frames are passed over, besides the standard library.

    Returns:
        The place, or None where only libraries run.
    """
    passed = {"gradtricks", *sys.stdlib_module_names, *libraries}
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in passed:
            return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None


@dataclass
class Operation:
    """What is known of one operation that ran. Tensors are numbers; a tensor that is edited gets a new one.

    Attributes:
        name: As the framework calls it.
        place: Where the user's code called it.
        inputs: Tensors whose values it read.
        outputs: Tensors that it made.
        carries: Those of its inputs to which it passes a gradient on.
        reason: Why it passes none on to the others, a key of the remedies; empty where that may only be
            because they had none to begin with.
        arrived: Status of the gradient that came in at its outputs, "none" where none did.
        sent: Status of what it contributed to the gradient of an input.
        overflows: Whether finite inputs gave a value that isn't finite.
    """

    name: str
    place: Place | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    carries: frozenset[int] = frozenset()
    reason: str = "not differentiable"
    arrived: str = "none"
    sent: dict[int, str] = field(default_factory=dict)
    overflows: bool = False


@dataclass(frozen=True)
class Outside:
    """A tensor that an operation read although none had made it.

    Attributes:
        shape: Of the tensor.
        dtype: Of the tensor.
        parameter: Whether it is watched by itself, as a variable is.
        before: Whether it surely existed before the function ran.
    """

    shape: tuple[int, ...]
    dtype: str
    parameter: bool = False
    before: bool = True


@dataclass(frozen=True)
class Input:
    """One input, as the framework found it.

    Attributes:
        name: What the user calls it.
        state: Its number.
        gradient: Status of its gradient by the framework itself; "none" where there is none.
        like: Its shape and dtype.
        refused: Why it can't have a gradient at all: "integer", "not watched" or empty.
        kin: Tensors that it was computed from, as far as the framework remembers.
    """

    name: str
    state: int
    gradient: str
    like: Outside
    refused: str = ""
    kin: frozenset[int] = frozenset()


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
    place: Place | None
    remedy: str

    def lines(self) -> Iterator[str]:
        """Yield the finding as lines of text."""
        yield f"  {self.reason}: {self.operation}" if self.operation else f"  {self.reason}"
        if self.place:
            yield f"  --> {self.place}"
            yield f"   |  {self.place.code}"
        yield f"  remedy: {self.remedy}"


@dataclass(frozen=True)
class InputReport:
    """What became of the gradient of one input.

    Attributes:
        name: What the user calls it.
        connected: Whether a gradient reaches it.
        gradient: "none", "fine", "zero everywhere", "nan" or "inf".
        cuts: The first cut on each path from the input to the output; before the others those with no further
            cut behind them. Where the input is connected, the cuts of its other paths that lose a value.
        origins: Where the gradient began to be zero, NaN or infinite, nearest to the output first.
    """

    name: str
    connected: bool
    gradient: str
    cuts: tuple[Finding, ...] = ()
    origins: tuple[Finding, ...] = ()

    @property
    def finding(self) -> Finding | None:
        """What to mend first; None where the gradient is fine."""
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
    def place(self) -> Place | None:
        """Line of the user's code to look at."""
        return self.finding.place if self.finding else None

    @property
    def remedy(self) -> str:
        """What to do; empty where the gradient is fine."""
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
    """What became of the gradients; ``print`` it.

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
        """Return the report as text."""
        lines = [line for report in self.inputs for line in report.lines()]
        bad = {"nan", "inf"} & {self.output, *(report.gradient for report in self.inputs)}
        if self.overflow and bad:
            lines += ["values: finite until here", *self.overflow.lines()]
        return "\n".join(lines)


def explain(
    operations: Sequence[Operation],
    inputs: Sequence[Input],
    outputs: Sequence[int],
    outside: Mapping[int, Outside],
    remedies: Mapping[str, str],
    *,
    output: str = "fine",
) -> GradientReport:
    """Say of each input whether a gradient reaches it, and if not, or if it isn't fine, what is to blame.

    Args:
        operations: In the order in which they ran.
        inputs: What the gradient is wanted for.
        outputs: Tensors that were differentiated.
        outside: Tensors that nothing in ``operations`` made.
        remedies: What to do, for each reason.
        output: Status of the outputs' values.

    Returns:
        The verdicts.
    """
    search = _Search(operations, frozenset(outputs), outside, remedies)
    overflow = next((operation for operation in operations if operation.overflows), None)
    return GradientReport(
        tuple(search.report(given, {other.state for other in inputs}) for given in inputs),
        output,
        search.finding(overflow, "overflow") if overflow else None,
    )


class _Search:
    def __init__(
        self,
        operations: Sequence[Operation],
        outputs: frozenset[int],
        outside: Mapping[int, Outside],
        remedies: Mapping[str, str],
    ) -> None:
        # A custom gradient says once more, and last, who made its outputs.
        self.maker = {state: operation for operation in operations for state in operation.outputs}
        self.operations = [o for o in operations if self.made_by(o)]
        self.outputs, self.outside, self.remedies = outputs, outside, remedies
        self.needed = set(outputs)
        for operation in reversed(self.operations):
            if self.needed.intersection(operation.outputs):
                self.needed.update(operation.inputs)
        self.open = set(outputs)
        for operation in reversed(self.operations):
            if self.open.intersection(operation.outputs):
                self.open |= operation.carries if operation.reason else set(operation.inputs)

    def made_by(self, operation: Operation) -> set[int]:
        return {state for state in operation.outputs if self.maker[state] is operation}

    def report(self, given: Input, others: set[int]) -> InputReport:
        reached = self.reached_from(given.state)
        connected = given.gradient != "none"
        if connected:
            cuts = [c for c in self.cuts(reached) if c.reason in _WORTH_TELLING]
            origins = self.origins(given.gradient, reached)
        else:
            cuts, origins = self.verdict(given, reached, others), []
        return InputReport(given.name, connected, given.gradient, tuple(cuts), tuple(origins))

    def reached_from(self, state: int) -> set[int]:
        reached = {state}
        for operation in self.operations:
            if operation.carries & reached:
                reached |= self.made_by(operation)
        return reached

    def verdict(self, given: Input, reached: set[int], others: set[int]) -> list[Finding]:
        if given.refused:
            return [Finding("", given.refused, None, self.remedies[given.refused])]
        return self.cuts(reached) or [self.without_a_cut(given, reached, others)]

    def cuts(self, reached: set[int]) -> list[Finding]:
        found: list[Operation] = []
        for operation in self.operations:
            met, made = reached.intersection(operation.inputs), self.needed.intersection(operation.outputs)
            if met and made and not reached.intersection(operation.outputs):
                found += [o for o in self.beyond(operation) if o not in found]
        # First what is enough to mend, and cuts for sure; and an exported number may only have been logged.
        found.sort(key=lambda o: (o.reason == "numpy", self.open.isdisjoint(o.outputs), not o.reason))
        return [self.finding(operation, operation.reason or "not differentiable") for operation in found]

    def beyond(self, operation: Operation) -> list[Operation]:
        # Nobody detaches for its own sake on the way to an array or a variable: that is what cuts the path.
        readers = [o for o in self.operations if set(operation.outputs).intersection(o.inputs)]
        readers = [o for o in readers if self.needed.intersection(o.outputs)]
        steps_aside = operation.reason in ("detached", "not recorded") and readers
        stored = steps_aside and all(o.reason in ("numpy", "assigned", "copied") for o in readers)
        return readers[:1] if stored else [operation]

    def without_a_cut(self, given: Input, reached: set[int], others: set[int]) -> Finding:
        if reached & self.outputs:
            return Finding("", "not traced", None, self.remedies["not traced"])
        read = [operation for operation in self.operations if reached.intersection(operation.inputs)]
        hidden = next((operation for operation in read if operation.reason == "not traced"), None)
        if hidden:
            return self.finding(hidden, "not traced")
        if read:
            return self.finding(read[-1], "unused")
        suspects = (
            ("replaced", lambda state: state in given.kin),
            ("made outside", lambda state: not self.outside[state].before),
            ("replaced", lambda state: _alike(self.outside[state], given.like)),
            ("made outside", lambda state: not self.outside[state].parameter),
        )
        for reason, is_suspect in suspects:
            for operation in self.operations:
                read_here = self.needed.intersection(operation.inputs) & (self.outside.keys() - others)
                if any(map(is_suspect, read_here)) and self.needed.intersection(operation.outputs):
                    return self.finding(operation, reason)
        return Finding("", "unused", None, self.remedies["unused"])

    def origins(self, gradient: str, reached: set[int]) -> list[Finding]:
        if gradient == "fine":
            return []
        bad = {"zero everywhere"} if gradient == "zero everywhere" else {"nan", "inf"}
        found = []
        for operation in reversed(self.operations):
            sent = {status for state, status in operation.sent.items() if state in reached} & bad
            if sent and operation.arrived not in {"none", *bad}:
                reason = "nan" if "nan" in sent else sent.pop()
                found.append(self.finding(operation, reason))
        # Each contribution is well, and their sum isn't.
        return found or [Finding("", gradient, None, self.remedies["sum"])]

    def finding(self, operation: Operation, reason: str) -> Finding:
        return Finding(operation.name, reason, operation.place, self.remedies[reason])


def _alike(other: Outside, like: Outside) -> bool:
    # A variable that is given as an input isn't a shifted copy of anything.
    return (other.shape, other.dtype) == (like.shape, like.dtype) and not like.parameter


def merged(statuses: Iterable[str]) -> str:
    """Return the status of several gradients taken together.

    Args:
        statuses: Of each.

    Returns:
        The worst; "zero everywhere" only where all are, "none" where there are none.
    """
    found = set(statuses)
    order = ("nan", "inf", "fine", "zero everywhere")
    return next((status for status in order if status in found), "none")


def bind(function: Callable[..., Any], inputs: Any) -> tuple[Callable[[], Any], list[tuple[str, Any]]]:
    """Decide how a function is given its inputs, and what to call them.

    A function that needs no argument is called without any: it is a closure over the inputs. Otherwise a dict
    is given by keyword, a list or a tuple item by item, and anything else as the only argument.

    Args:
        function: Takes the inputs, or nothing.
        inputs: A structure of tensors.

    Returns:
        What runs the function, and the inputs with their names.
    """
    inputs = list(inputs) if isinstance(inputs, Iterator) else inputs
    names = _argument_names(function)
    several = isinstance(inputs, list | tuple)
    if isinstance(inputs, dict):
        named = [(str(key), value) for key, value in inputs.items()]
    elif several:
        known = names or []
        numbered = [f"inputs[{index}]" for index in range(len(known), len(inputs))]
        named = list(zip([*known, *numbered], inputs))
    else:
        named = [((names or ["inputs"])[0], inputs)]
    if names is not None and not names:
        return function, named
    if isinstance(inputs, dict):
        return lambda: function(**inputs), named
    return (lambda: function(*inputs)) if several else (lambda: function(inputs)), named


def _argument_names(function: Callable[..., Any]) -> list[str] | None:
    """Return the names of the positional arguments, [] where none is needed, None where nobody knows."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # built into the framework
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD] if required else []


def named_leaves(
    name: str, value: Any, parts: Callable[[Any], list[tuple[str, Any]] | None]
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a structure with their names.

    Args:
        name: What the user calls the structure.
        value: A tensor, a model, or dicts, lists and tuples of them.
        parts: Returns ``[("", tensor)]`` for a tensor, the named parameters of a model, None for the rest.

    Yields:
        Name and tensor; what is none of these is yielded too, to be refused.
    """
    found = parts(value)
    if found is not None:
        prefix = "" if name == "inputs" else f"{name}."
        yield from ((f"{prefix}{part}" if part else name, leaf) for part, leaf in found)
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from named_leaves(f"{name}[{key!r}]", item, parts)
    else:
        yield name, value
