"""The record of a function that ran: operations, the lines that called them, the tensors that they read."""

import linecache
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType

BAD = ("nan", "inf")
# Frames of these aren't the user's.
_LIBRARIES = {"gradtricks", "torch", "tensorflow", "keras", *sys.stdlib_module_names}


@dataclass(frozen=True)
class SourceLine:
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


def calling_line() -> SourceLine | None:
    """Return the innermost line being run that is the user's, if there is one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


@dataclass
class Operation:
    """An operation that ran. Tensors are numbers; a tensor that is edited gets a new one."""

    name: str  # as the framework calls it
    place: SourceLine | None  # where the user's code called it
    inputs: tuple[int, ...]  # tensors whose values it read
    outputs: tuple[int, ...]  # tensors that it made
    carries: frozenset[int] = frozenset()  # those of its inputs to which it passes a gradient on
    # Why it passes none on to the others, a key of the remedies; empty where that may only be because they
    # had none to begin with.
    reason: str = "not differentiable"
    arrived: str = "none"  # status of the gradient that came in at its outputs, "none" where none did
    sent: dict[int, str] = field(default_factory=dict)  # status of its part in the gradient of an input
    overflows: bool = False  # whether finite inputs gave a value that isn't finite

    @property
    def short(self) -> str:
        """Its name without what it is a method of, so that both frameworks' are much the same."""
        return self.name.rpartition(".")[2].strip("_").lower()


@dataclass(frozen=True)
class Outside:
    """A tensor that an operation read although none had made it."""

    shape: tuple[int, ...]
    dtype: str
    parameter: bool = False  # whether it is watched by itself, as a variable is
    before: bool = True  # whether it surely existed before the function ran


@dataclass(frozen=True)
class Input:
    """One input, as the framework found it."""

    name: str  # what the user calls it
    state: int  # its number
    gradient: str  # status of its gradient by the framework itself; "none" where there is none
    like: Outside  # its shape and dtype
    refused: str = ""  # why it can't have a gradient at all: "integer", "not watched" or empty


def merged(statuses: Iterable[str]) -> str:
    """Return the worst status; "zero everywhere" only where all are, "none" where there are none."""
    found = set(statuses)
    return next((status for status in (*BAD, "fine", "zero everywhere") if status in found), "none")
