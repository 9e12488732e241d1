"""The terms of a loss: parts of a batch that aren't weighed as the batch, and a loss of 0 that learns."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradtricks.doctor.history import Event, History
from gradtricks.doctor.operations import SourceLine
from gradtricks.doctor.reports import Cause

_ROUNDING = 1e-5  # of what a loss adds up, where that cancels
_ALIKE = 1e-3


@dataclass(frozen=True)
class Term:
    """A part of a loss that is a sum: a tensor, and the slope of the loss in it."""

    size: int  # how many elements it averages or holds; 0 where that isn't known
    least: float  # the smallest slope
    most: float
    share: float  # all slopes together; 1 for a mean
    value: float  # what it adds to the loss
    magnitude: float  # the same without signs


def as_event(terms: list[Term], place: SourceLine | None, reached: tuple[str, ...]) -> Event:
    """Return a backward pass through the sum of some terms."""
    event = Event("backward", place, subjects=reached)
    magnitude = sum(term.magnitude for term in terms)
    if 0 < magnitude < math.inf:
        event.cancels = abs(sum(term.value for term in terms)) <= _ROUNDING * magnitude
    # Only a loss of one kind, whose elements weigh the same, can be compared with other parts.
    if len(terms) == 1 and terms[0].least == terms[0].most:
        event.size, event.share = terms[0].size, terms[0].share
    return event


def parts(history: History) -> Iterator[Cause]:
    """Parts of a batch whose gradients don't add up to that of the batch."""
    passes: list[Event] = []
    clipped = history.first("clip") is not None
    invariant = not clipped and all(update.invariant for update in history.updates)
    for event in history.events:
        if event.kind == "backward":
            passes.append(event)
        elif event.kind in ("update", "skip", "reset"):
            # What gradients that are reset or skipped were for isn't known.
            cause = _of_parts(passes) if event.kind == "update" else None
            if cause and not (invariant and cause.kind == "parts not averaged"):
                yield cause
                return
            passes = []


def _of_parts(passes: list[Event]) -> Cause | None:
    sizes, shares = [event.size for event in passes], [event.share for event in passes]
    # Losses of two kinds aren't parts of one batch: parts come from one line, and reach the same parameters.
    if len(passes) < 2 or len({(event.place, event.subjects) for event in passes}) > 1 or not all(sizes):
        return None
    if all(math.isclose(share, 1, rel_tol=_ALIKE) for share in shares):
        several = len(passes)
        seen = f"the means of {several} parts were added up: {several} times the gradient of their mean"
        return Cause("parts not averaged", (), seen, passes[0].source or passes[0].place)
    if len(set(sizes)) > 1 and math.isclose(min(shares), max(shares), rel_tol=_ALIKE):
        seen = f"means over {', '.join(map(str, sizes))} elements were given the same weight"
        return Cause("parts of unequal weight", (), seen, passes[0].source or passes[0].place)
    return None


def cancelled(history: History) -> Iterator[Cause]:
    """Losses that are 0 whatever the model does, because what they add up cancels; their gradients don't."""
    learns = any(weight.gradient == "fine" for seen in history.weights().values() for weight in seen)
    for place in dict.fromkeys(event.place for event in history.backwards if learns):
        if all(event.cancels for event in history.backwards if event.place == place):
            seen = "what the loss adds up cancels each time, so it says nothing; the gradients don't cancel"
            yield Cause("loss of 0", (), seen, place)
