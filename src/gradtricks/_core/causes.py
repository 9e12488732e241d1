"""One function for each thing that goes wrong with gradients: what was seen of it, and where."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from gradtricks._core.diagnosing import Backward, Cause, Event, Record, Weight
from gradtricks._core.recorded import Place
from gradtricks._core.reports import Finding, InputReport

Remedies = Mapping[str, str]
# Gradients of healthy networks differ by a thousand at most between their ends.
_STEEP = 1e5
_SHORT = {"float16", "bfloat16"}


def failed(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """The backward pass failed, and not for want of a path, of which more is told."""
    for backward in record.unwell:
        told = backward.report and not any(entry.connected for entry in backward.entries)
        if backward.error and not told:
            yield Cause("backward fails", (), backward.error, backward.place, remedies["backward fails"])
            return


def not_finite(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """NaN or infinity in the loss, or in a gradient that the optimizer was given."""
    given = {n for n, seen in record.weights().items() if any(_bad(weight.gradient) for weight in seen)}
    for backward in record.unwell:
        names = tuple(entry.name for entry in backward.entries if _bad(entry.gradient))
        if not (_bad(backward.loss) or given.intersection(names)):
            continue
        first = backward.report.overflow if backward.report else None
        if first:
            seen = f"{first.operation} is the first to make a value that isn't finite, of values that are"
            seen += "" if _bad(backward.loss) else "; the loss leaves it out, and the gradient doesn't"
            kind = "not finite, forward" if _bad(backward.loss) else "not finite, backward"
            yield Cause(kind, names, seen, first.place, first.remedy)
        elif _bad(backward.loss):
            seen = f"the loss is {backward.loss}, and so is something that the step was given"
            yield Cause("not finite, data", (), seen, backward.spoilt, remedies["not finite, data"])
        else:
            yield _backward_cause(backward, names, remedies)
        return


def _backward_cause(backward: Backward, names: tuple[str, ...], remedies: Remedies) -> Cause:
    entry = next((e for e in backward.entries if e.name in names and e.operation), None)
    kind = "not finite, backward"
    if entry is None:
        return Cause(kind, names, "the gradient isn't finite, the loss is", backward.place, remedies[kind])
    seen = f"the loss is finite, and the gradient of {entry.operation} isn't ({entry.reason})"
    return Cause(kind, names, seen, entry.place, entry.remedy)


def unreached(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Trainable parameters that no gradient reaches, together where one line is to blame."""
    missing = [name for name in record.trainable if name not in record.reached]
    checkpoint = record.first("checkpointed")
    if not missing:
        return
    if not record.first("backward") and not record.unwell:
        yield Cause("no backward pass", (), "none was seen", None, remedies["no backward pass"])
        return
    if checkpoint:
        seen = "a reentrant checkpoint was given nothing that wants a gradient, so it passes none on"
        kind = "cut by a checkpoint"
        yield Cause(kind, tuple(missing), seen, checkpoint.place, remedies[kind])
        return
    for finding, names in _by_finding(record, missing, lambda entry: not entry.connected):
        kind = "not in the graph" if finding.reason in ("unused", "replaced", "made outside") else "cut"
        blamed = f" ({finding.operation})" if finding.operation else ""
        seen = f"no gradient arrives: {finding.reason}{blamed}"
        yield Cause(kind, names, seen, finding.place, finding.remedy)


def zero_everywhere(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Gradients that are zero everywhere in each update."""
    # Factors that begin at zero have moved away after the first update that moves anything.
    moved = any(update.rate for update in record.updates[:-1])
    names = [name for name, seen in record.weights().items() if moved and all(map(_is_zero, seen))]
    for finding, some in _by_finding(record, names, lambda entry: entry.gradient == "zero everywhere"):
        if finding.operation:
            seen_ = f"the gradient is zero everywhere in each update, from {finding.operation} on"
            yield Cause("zero everywhere", some, seen_, finding.place, finding.remedy)


def held_wrongly(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Parameters that the optimizer doesn't hold, or holds twice."""
    reached = [name for name in record.trainable if name in record.reached]
    missing = tuple(name for name in reached if not record.held.get(name))
    if missing and record.held:
        seen = "a gradient arrives, and no optimizer holds the parameter"
        if record.unknown:
            seen += f"; one holds {len(record.unknown)} that aren't the model's (any more)"
        yield Cause("not in the optimizer", missing, seen, None, remedies["not in the optimizer"])
    for place, number in Counter(record.unregistered).items():
        seen = f"{number} parameters got a gradient here that neither the model nor an optimizer knows"
        yield Cause("not registered", (), seen, place, remedies["not registered"])
    counts = [Counter(weight.name for weight in update.weights) for update in record.updates]
    twice = dict.fromkeys(name for count in counts for name, number in count.items() if number > 1)
    if twice:
        seen = "one optimizer holds the parameter more than once, and updates it as often"
        yield Cause("twice in the optimizer", tuple(twice), seen, None, remedies["twice in the optimizer"])


def never_updated(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Gradients that no optimizer ever used."""
    passes = [event for event in record.events if event.kind == "backward"]
    if passes and not record.updates and not record.first("unscale"):
        seen = f"{len(passes)} backward passes, and no step of an optimizer"
        yield Cause("never updated", (), seen, passes[-1].place, remedies["never updated"])


def never_zeroed(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Gradients that are added to those of the update before."""
    names = tuple(n for n, seen in record.weights().items() if any(weight.leftover for weight in seen))
    if names:
        place = next((event.place for event in record.events if event.kind == "backward"), None)
        seen = "the gradient of the update before was still there, and the new one was added to it"
        yield Cause("never zeroed", names, seen, place, remedies["never zeroed"])


def clipped_wrongly(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Clips that come too late, too early, or are given nothing."""
    told = set()
    for index, event in enumerate(record.events):
        if event.kind != "clip":
            continue
        before = [e.kind for e in record.events[:index] if e.kind in ("backward", "update")]
        after = [e.kind for e in record.events[index + 1 :] if e.kind in ("unscale", "update", "backward")]
        if event.size == 0:
            kind, seen = "clip of nothing", "no gradient was among what was given to the clip"
        elif event.unused:
            kind, seen = "clip unused", "the update took gradients that the clip hadn't returned"
        elif before[-1:] == ["update"]:
            kind, seen = "clip after the update", "the optimizer had already used the gradients"
        elif after[:1] == ["unscale"]:
            kind, seen = "clip before unscaling", "the gradients were clipped while they were scaled up"
        else:
            continue
        if kind not in told:
            told.add(kind)
            yield Cause(kind, event.subjects, seen, event.place, remedies[kind])


def frozen_moves(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Weights that are frozen, or whose gradient is kept at zero, and that move."""
    weights = record.weights()
    frozen = tuple(n for n, seen in weights.items() if any(not w.trainable and _moves(w) for w in seen))
    if frozen:
        seen = "the parameter wants no gradient, and the optimizer moved it: by an old gradient, or by decay"
        yield Cause("frozen but moving", frozen, seen, record.place, remedies["frozen but moving"])
    masked = {n: w for n, seen in weights.items() for w in seen if w.trainable and w.masked and w.drifted}
    if masked:
        seen = (
            "the gradient was set to zero here, and the optimizer moved the weights: by momentum or by decay"
        )
        place = next(iter(masked.values())).masked
        yield Cause("frozen but moving", tuple(masked), seen, place, remedies["frozen but moving"])


def still(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Weights that have a gradient and don't move."""
    rates = [update.rate for update in record.updates]
    if len(rates) > 1 and not any(rates):
        seen = "the learning rate was 0 in each update; NaN times 0 is still NaN"
        yield Cause("learning rate of 0", (), seen, record.place, remedies["learning rate of 0"])
        return
    rounded = {n: seen for n, seen in record.weights().items() if _rounded_away(seen, all(rates))}
    if rounded:
        shares = [weight.moved or 0.0 for seen in rounded.values() for weight in seen]
        dtype = next(iter(rounded.values()))[0].dtype
        told = f"{max(shares):.0%} of the elements with a gradient moved: {dtype} rounds the update away"
        yield Cause("rounded away", tuple(rounded), told, record.place, remedies["rounded away"])


def _rounded_away(seen: list[Weight], learning: bool) -> bool:
    judged = [w.moved for w in seen if w.trainable and w.gradient == "fine" and w.moved is not None]
    limit = 0.5 if seen[0].dtype in _SHORT else 0.0
    return learning and len(judged) > 1 and max(judged) <= limit


def modes(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Training in the mode of evaluation, and the reverse."""
    sentences = {
        "trained": "dropout or batch normalization ran as in evaluation while the weights were trained",
        "evaluated": "dropout or batch normalization ran as in training where no gradient was recorded",
    }
    kinds = {"trained": "training in evaluation mode", "evaluated": "evaluation in training mode"}
    for which, seen in sentences.items():
        event = record.first(which)
        if event:
            yield Cause(kinds[which], event.subjects, seen, event.place, remedies[kinds[which]])


def coupled(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Gradients with respect to samples that batch normalization ties together."""
    event = record.first("coupled")
    if event:
        seen = "a gradient for each sample was asked for, and batch normalization mixes the samples"
        yield Cause("coupled samples", event.subjects, seen, event.place, remedies["coupled samples"])


def parts(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Parts of a batch whose gradients don't add up to that of the batch."""
    passes: list[Event] = []
    for event in record.events:
        if event.kind == "update":
            cause = _of_parts(passes, remedies)
            if cause:
                yield cause
                return
            passes = []
        elif event.kind == "backward":
            passes.append(event)


def _of_parts(passes: list[Event], remedies: Remedies) -> Cause | None:
    sizes, kind = [event.size for event in passes], "parts of unequal weight"
    # Losses of two kinds aren't parts of one batch: parts come from one line.
    if len(passes) < 2 or len({event.place for event in passes}) > 1 or not all(sizes):
        return None
    if not any(event.divided for event in passes):
        seen = (
            f"the means of {len(passes)} parts were added up: {len(passes)} times the gradient of their mean"
        )
        kind = "parts not averaged"
    elif len(set(sizes)) > 1:
        seen = f"means over {', '.join(map(str, sizes))} elements were given the same weight"
    else:
        return None
    return Cause(kind, (), seen, passes[0].place, remedies[kind])


def steep(record: Record, remedies: Remedies) -> Iterator[Cause]:
    """Gradients that vanish or explode on their way through layers or moments."""
    layers, moments = list(record.chain.values()), record.moments
    for values, what, place in ((layers, "layers", None), (moments, "moments", record.chained)):
        growth = _growth(values)
        if growth and (growth > _STEEP or growth < 1 / _STEEP):
            kind, names = "vanishing" if growth < 1 else "exploding", tuple(record.chain)
            names = names[:1] if what == "layers" else ()
            seen = f"from the last to the first of {len(values)} {what} the gradient grows {growth:.1e} times"
            yield Cause(kind, names, seen, place, remedies[kind])


def _growth(values: list[float]) -> float | None:
    if len(values) < 4 or not all(0 < value < math.inf for value in values):
        return None
    logs = [math.log(value) for value in values]
    steps = [later - earlier for earlier, later in pairwise(logs)]
    one_way = max(sum(step > 0 for step in steps), sum(step < 0 for step in steps))
    return math.exp(logs[0] - logs[-1]) if one_way >= 0.7 * len(steps) else None


def _by_finding(
    record: Record, names: list[str], is_it: Callable[[InputReport], bool]
) -> Iterator[tuple[Finding, tuple[str, ...]]]:
    found: dict[tuple[str, str, Place | None], tuple[Finding, list[str]]] = {}
    for name in names:
        entries = [e for b in record.unwell for e in b.entries if e.name == name and is_it(e)]
        if entries and entries[-1].finding:
            finding = entries[-1].finding
            key = finding.reason, finding.operation, finding.place
            found.setdefault(key, (finding, []))[1].append(name)
    for finding, some in found.values():
        yield finding, tuple(some)


def _is_zero(weight: Weight) -> bool:
    return weight.trainable and weight.gradient == "zero everywhere" and not weight.masked


def _moves(weight: Weight) -> bool:
    return weight.drifted or bool(weight.moved)


def _bad(status: str) -> bool:
    return status in ("nan", "inf")


# What breaks a training first comes first.
CAUSES: tuple[Callable[[Record, Remedies], Iterator[Cause]], ...] = (
    failed,
    not_finite,
    unreached,
    held_wrongly,
    never_updated,
    never_zeroed,
    zero_everywhere,
    clipped_wrongly,
    frozen_moves,
    still,
    modes,
    coupled,
    parts,
    steep,
)
