"""Causes in what optimizers hold and use: parameters, and their gradients."""

from collections import Counter
from collections.abc import Iterator

from gradtricks.doctor.history import History, Update
from gradtricks.doctor.reports import Cause

_OFTEN = 3  # passes after which an update was to come


def held_wrongly(history: History) -> Iterator[Cause]:
    """Parameters that the optimizer doesn't hold, or holds twice."""
    missing = tuple(name for name in _forgotten(history) if name in history.reached)
    if missing:
        seen = "a gradient arrives, and no optimizer holds the parameter"
        if history.unknown:
            seen += f"; one holds {len(history.unknown)} that aren't the model's (any more)"
        yield Cause("not in the optimizer", missing, seen, None)
    for place, number in Counter(history.unregistered).items():
        seen = f"the loss depends on {number} parameters here that neither the model nor an optimizer knows"
        yield Cause("not registered", (), seen, place)
    counts = [Counter(weight.name for weight in update.weights) for update in history.updates]
    twice = dict.fromkeys(name for count in counts for name, number in count.items() if number > 1)
    if twice:
        seen = "one optimizer holds the parameter more than once, and updates it as often"
        yield Cause("twice in the optimizer", tuple(twice), seen, None)


def _forgotten(history: History) -> list[str]:
    """Return what no optimizer holds, and nobody leaves out on purpose, as one does with the first layers."""
    held = [name for name in history.trainable if history.held.get(name)]
    begin = history.trainable.index(held[0]) if held and not history.unknown else 0
    missing = [name for name in history.trainable[begin:] if not history.held.get(name)]
    return missing if history.held else []


def never_updated(history: History) -> Iterator[Cause]:
    """Gradients that no optimizer ever used."""
    postponed = any(map(history.first, ("unscale", "accumulated", "skip"))) or history.stopped
    passes = history.backwards
    if passes and not history.updates and not postponed:
        seen = f"{len(passes)} backward passes, and no step of an optimizer"
        yield Cause("never updated", (), seen, passes[-1].place)
    held = {name for name, number in history.held.items() if number}
    for place in dict.fromkeys(event.place for event in passes if history.updates and held):
        reached = [event.subjects for event in passes if event.place == place]
        names = dict.fromkeys(name for subjects in reached for name in subjects)
        often = len(reached) >= _OFTEN and all(reached)
        if often and held.union(["", *_forgotten(history)]).isdisjoint(names):
            seen = f"{len(reached)} passes reach these alone, and no optimizer of theirs takes a step"
            remedy = "call the step of the optimizer that has them; or freeze what isn't to be trained"
            yield Cause("never updated", tuple(names), seen, place, remedy)


def idle(history: History) -> Iterator[Cause]:
    """Optimizers that never have a gradient to use: all they hold is frozen, or was reset too early."""
    groups: dict[tuple[str, ...], list[Update]] = {}
    for update in history.updates:
        groups.setdefault(tuple(weight.name for weight in update.weights), []).append(update)
    for names, updates in groups.items():
        weights = [weight for update in updates for weight in update.weights]
        if len(updates) < 2 or not history.trainable:
            continue
        if weights and all(not w.trainable and w.gradient == "none" for w in weights):
            seen = f"in {len(updates)} updates nothing that the optimizer holds wanted a gradient"
            yield Cause("nothing to update", names, seen, weights[-1].frozen or updates[0].place)
        emptied = [weight.emptied for weight in weights if weight.emptied]
        if emptied and all(weight.emptied or weight.gradient == "none" for weight in weights):
            seen = "each time gradients were reset between the backward pass and the update"
            yield Cause("zeroed too early", names, seen, emptied[0])


def never_zeroed(history: History) -> Iterator[Cause]:
    """Gradients that are added to those of the update before."""
    names = tuple(n for n, seen in history.weights().items() if any(weight.leftover for weight in seen))
    if names:
        seen = "the gradient of the update before was still there, and the new one was added to it"
        yield Cause("never zeroed", names, seen, history.backwards[0].place)
