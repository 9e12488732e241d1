"""What a framework records while a function runs, so that the search for a cut is the same for all."""

import linecache
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType

BAD = ("nan", "inf")
# Frames of these aren't the user's.
_LIBRARIES = {"gradtricks", "torch", "tensorflow", "keras", *sys.stdlib_module_names}


@dataclass(frozen=True)
class Place:
    """A line of the user's code.

    Attributes:
        file: As Python knows it.
        line: Its number, from 1.
        function: That the line stands in.
    """

    file: str
    line: int
    function: str

    @property
    def code(self) -> str:
        """The line itself; empty where the source can't be read."""
        return linecache.getline(self.file, self.line).strip()

    def lines(self) -> Iterator[str]:
        """Yield the place and its code, as a compiler shows them."""
        yield f"  --> {self}"
        yield f"   |  {self.code}"

    def __str__(self) -> str:
        """Return the place as one line."""
        # What was typed into a prompt or a notebook has no file that one could open.
        typed = self.file.startswith("<") or "ipykernel_" in self.file
        return f"line {self.line}" if typed else f"{self.file}:{self.line}, in {self.function}"


def calling_place(libraries: Collection[str] = _LIBRARIES) -> Place | None:
    """Return the innermost line being run that isn't in one of the top-level packages, if there is one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in libraries:
            return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
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
        shape: Such as ``(2, 3)``.
        dtype: By name.
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


def merged(statuses: Iterable[str]) -> str:
    """Return the worst status; "zero everywhere" only where all are, "none" where there are none."""
    found = set(statuses)
    return next((status for status in (*BAD, "fine", "zero everywhere") if status in found), "none")
