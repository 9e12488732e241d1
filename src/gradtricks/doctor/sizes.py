"""Gradients and updates of wrong sizes: lost to rounding or to a format, vanishing, exploding."""

import math
from collections.abc import Iterator
from itertools import dropwhile, pairwise

from gradtricks.doctor.history import History
from gradtricks.doctor.reports import Cause

# Gradients of healthy networks differ by a thousand at most between their ends.
_STEEP = 1e5
_ROUNDING = 1e-6  # of the largest gradient
_DEAD, _LONG = 1e-3, 10  # of the largest rate; updates
_LOST = 0.2  # of a gradient's elements


def still(history: History) -> Iterator[Cause]:
    """Weights that have a gradient and don't move."""
    rates = [update.rate for update in history.updates]
    if len(rates) > 1 and not any(rates):
        seen = "the learning rate was 0 in each update; NaN times 0 is still NaN"
        yield Cause("learning rate of 0", (), seen, history.place)
        return
    weights = history.weights()
    # What is left of a gradient that cancels is itself nothing but rounding.
    bounds = [(u, max((w.size for w in u.weights), default=0.0) * _ROUNDING) for u in history.updates]
    cancelled = {id(weight) for u, bound in bounds for weight in u.weights if weight.size <= bound}
    shares: dict[str, float] = {}
    for name, updates in weights.items():
        real = [w for w in updates if w.trainable and w.gradient == "fine" and id(w) not in cancelled]
        moved = [weight.moved for weight in real if weight.moved is not None]
        if all(rates) and len(moved) > 1 and max(moved) <= (0.5 if updates[0].short else 0.0):
            shares[name] = max(moved)
    if shares:
        dtype = weights[next(iter(shares))][0].dtype
        told = f"{max(shares.values()):.0%} of the elements with a gradient moved: {dtype} loses the update"
        yield Cause("rounded away", tuple(shares), told, history.place)


def dying(history: History) -> Iterator[Cause]:
    """Rates that a schedule brings next to nothing within the updates that were watched."""
    rates: dict[tuple[str, ...], list[float]] = {}
    for update in history.updates:
        rates.setdefault(tuple(weight.name for weight in update.weights), []).append(update.rate)
    for each in rates.values():
        small = [rate < max(each) * _DEAD for rate in each[each.index(max(each)) :]]
        if sum(small) >= _LONG and small[-1]:
            seen = f"the learning rate fell from {max(each):.2g} to {each[-1]:.2g} in {len(each)} updates"
            yield Cause("rate dies", (), seen, history.schedule or history.place)
            return


def alike(history: History) -> Iterator[Cause]:
    """Units that begin alike and are given the same gradient, so that they stay one unit."""
    begun = {name: seen[:2] for name, seen in history.weights().items()}
    names = tuple(n for n, seen in begun.items() if len(seen) > 1 and all(weight.alike for weight in seen))
    if names:
        seen = "all rows are the same, and so are their gradients: these units stay one unit"
        yield Cause("identical units", names, seen, history.place)


def underflow(history: History) -> Iterator[Cause]:
    """Gradients that lose elements in float16."""
    lost = {n: max(w.lost for w in seen) for n, seen in history.weights().items()}
    lost |= dict.fromkeys(lost_to_float16(history), 1.0)
    some = {name: share for name, share in lost.items() if share > _LOST}
    if some and history.backwards:
        told = f"up to {max(some.values()):.0%} of a gradient's elements are lost to float16"
        yield Cause("underflow", tuple(some), told, history.backwards[0].place)


def lost_to_float16(history: History) -> set[str]:
    """Return whose gradient vanished as a whole in float16, where no cast is known to have done it."""
    lost = {name for backward in history.unwell for name in backward.lost}
    entries = [entry for backward in history.unwell for entry in backward.entries]
    return lost - {entry.name for entry in entries if entry.reason == "underflow"}


def steep(history: History) -> Iterator[Cause]:
    """Gradients that vanish or explode on their way through layers or moments."""
    for values, what, names, place in (
        (list(history.chain.values()), "layers", tuple(history.chain)[:1], None),
        (history.moments, "moments", (), history.chained),
    ):
        growth = _growth(values)
        if growth and (growth > _STEEP or growth < 1 / _STEEP):
            kind = "vanishing" if growth < 1 else "exploding"
            seen = f"from the last to the first of {len(values)} {what} the gradient grows {growth:.1e} times"
            yield Cause(kind, names, seen, place)


def _growth(values: list[float]) -> float | None:
    # What has vanished altogether adds nothing to what is left; what a mask cut off hasn't vanished.
    values = list(dropwhile(lambda value: value == 0, values))
    if len(values) < 4 or not all(0 < value < math.inf for value in values):
        return None
    logs = [math.log(value) for value in values]
    steps = [later - earlier for earlier, later in pairwise(logs)]
    one_way = max(sum(step > 0 for step in steps), sum(step < 0 for step in steps))
    return math.exp(logs[0] - logs[-1]) if one_way >= 0.7 * len(steps) else None
