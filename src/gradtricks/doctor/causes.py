"""One function for each thing that goes wrong with gradients; it yields the causes that a history shows."""

from collections.abc import Callable, Iterable, Iterator

from gradtricks.doctor.history import Event, History, Weight
from gradtricks.doctor.holding import held_wrongly, idle, never_updated, never_zeroed
from gradtricks.doctor.losses import cancelled, parts
from gradtricks.doctor.operations import BAD
from gradtricks.doctor.patterns import PRODUCTS
from gradtricks.doctor.reports import Cause, Finding, InputReport
from gradtricks.doctor.sizes import alike, dying, lost_to_float16, steep, still, underflow


def frozen(history: History) -> Iterator[Cause]:
    """Models of which nothing is trained, where nothing else is."""
    if history.frozen and not history.trainable and not history.unknown:
        place = next((backward.place for backward in history.unwell), history.place)
        seen = "all parameters of the model are frozen, so none wants a gradient"
        remedy = "make trainable what is to be trained, and then the optimizer"
        yield Cause("no backward pass", tuple(history.frozen), seen, place, remedy)


def failed(history: History) -> Iterator[Cause]:
    """The backward pass failed, and not for want of a path, of which more is told."""
    for backward in history.unwell:
        if backward.stale:
            seen = "a tensor of an earlier step is read, whose graph that step's backward pass has freed"
            yield Cause("kept graph", (), seen, backward.stale)
            return
        told = backward.report and not any(entry.connected for entry in backward.entries)
        told = told or any(entry.gradient in BAD for entry in backward.entries)
        if backward.error and not told:
            yield Cause("backward fails", (), backward.error, backward.place)
            return


def not_finite(history: History) -> Iterator[Cause]:
    """NaN or infinity in the loss, or in a gradient that the optimizer was given."""
    given = {n for n, seen in history.weights().items() if any(w.gradient in BAD for w in seen)}
    given |= {name for event in _left_out(history) for name in event.subjects}
    for backward in history.unwell:
        names = tuple(entry.name for entry in backward.entries if entry.gradient in BAD)
        # A debugging mode of the framework's raises before an update could be given anything.
        if not (backward.loss in BAD or given.intersection(names) or (backward.error and names)):
            continue
        first = backward.report.overflow if backward.report else None
        if first:
            seen = f"{first.operation} is the first to make a value that isn't finite, of values that are"
            seen += "" if backward.loss in BAD else "; the loss leaves it out, and the gradient doesn't"
            kind = "not finite, forward" if backward.loss in BAD else "not finite, backward"
            yield Cause(kind, names, seen, first.place, first.remedy)
        elif backward.loss in BAD:
            seen = f"the loss is {backward.loss}, and so is something that the step was given"
            yield Cause("not finite, data", (), seen, backward.spoilt)
        elif entry := next((e for e in backward.entries if e.name in names and e.operation), None):
            seen = f"the loss is finite, and the gradient of {entry.operation} isn't ({entry.reason})"
            yield Cause("not finite, backward", names, seen, entry.place, entry.remedy)
        else:
            seen = "the gradient isn't finite, the loss is"
            yield Cause("not finite, backward", names, seen, backward.place)
        return
    used = [update for update in history.updates if any(w.gradient in BAD for w in update.weights)]
    if used:
        names = tuple(weight.name for weight in used[0].weights if weight.gradient in BAD)
        seen = (
            "the update was given a gradient that isn't finite, and the backward pass here makes one that is"
        )
        remedy = "look at what other processes report, and at what edits gradients before the update"
        yield Cause("not finite, backward", names, seen, used[0].place, remedy)


def skipped(history: History) -> Iterator[Cause]:
    """Updates that the scaling of the loss leaves out, whatever it is scaled by."""
    events, total = _left_out(history), len(history.skips) + len(history.updates)
    if events:
        many = "no update was made" if len(events) == total else f"{len(events)} of {total} were left out"
        seen = (
            f"{many}: gradients were NaN or infinite each time, and no smaller scale of the loss mends that"
        )
        yield Cause("skipped updates", events[0].subjects, seen, events[0].place)


def unreached(history: History) -> Iterator[Cause]:
    """Trainable parameters that no gradient reaches, together where one line is to blame."""
    missing = [name for name in history.trainable if name not in history.reached]
    checkpoint = history.first("checkpointed")
    if not missing or (history.stopped and not history.updates):
        return
    if not history.first("backward") and not history.unwell:
        yield Cause("no backward pass", (), "none was seen", None)
        return
    if checkpoint:
        seen = "a reentrant checkpoint was given nothing that wants a gradient, so it passes none on"
        yield Cause("cut by a checkpoint", tuple(missing), seen, checkpoint.place)
        return
    for finding, names in _by_finding(history, missing, lambda entry: not entry.connected):
        if finding.reason == "made outside":
            names = tuple(name for name in names if not _is_an_alternative(name, history.reached))
            if not names:
                continue
        kind = "not in the graph" if finding.reason in ("unused", "replaced", "made outside") else "cut"
        blamed = f" ({finding.operation})" if finding.operation else ""
        seen = f"no gradient arrives: {finding.reason}{blamed}"
        yield Cause(kind, names, seen, finding.place, finding.remedy)


def _is_an_alternative(name: str, reached: Iterable[str]) -> bool:
    """Say whether a list of layers has another that a gradient reaches, so that this one waits its turn."""
    parts = name.split(".")
    lists = {".".join(parts[:n]) + "." for n, part in enumerate(parts) if n and part.isdecimal()}
    return any(
        other.removeprefix(each)[0].isdecimal()
        for each in lists
        for other in reached
        if other.startswith(each)
    )


def zero_everywhere(history: History) -> Iterator[Cause]:
    """Gradients that are zero everywhere in each update."""
    # Factors that begin at zero have moved away after the first update that moves anything.
    moved = any(update.rate for update in history.updates[:-1])
    zero = "zero everywhere"

    def is_zero(weight: Weight) -> bool:
        return weight.trainable and weight.gradient == zero and not weight.masked

    lost = lost_to_float16(history)
    names = [name for name, seen in history.weights().items() if moved and all(map(is_zero, seen))]
    names = [name for name in names if name not in lost]
    for finding, some in _by_finding(history, names, lambda entry: entry.gradient == zero):
        factor = history.unwell[-1].factor
        if factor and finding.operation.rpartition(".")[2].strip("_").lower() in PRODUCTS:
            told = f"in each update the gradient is multiplied by what {factor.name} made 0 everywhere"
            yield Cause("zero factor", some, told, factor.place)
        elif finding.operation:
            told = f"the gradient is zero everywhere in each update, from {finding.operation} on"
            remedy = finding.remedy if finding.reason == zero else ""
            yield Cause(finding.reason, some, told, finding.place, remedy)


def clipped_wrongly(history: History) -> Iterator[Cause]:
    """Clips that come too late, too early, or are given nothing."""
    told = set()
    for index, event in enumerate(history.events):
        if event.kind != "clip":
            continue
        before = [e.kind for e in history.events[:index] if e.kind in ("backward", "update")]
        after = [e.kind for e in history.events[index + 1 :] if e.kind in ("unscale", "update", "backward")]
        if event.size == 0:
            kind, seen = "clip of nothing", "no gradient was among what was given to the clip"
        elif event.unused:
            kind, seen = "clip unused", "the update took gradients that the clip hadn't returned"
        elif before[-1:] == ["update"]:
            kind, seen = "clip after the update", "the optimizer had already used the gradients"
        elif _is_of_others(event, history.events[index + 1 :]):
            kind, seen = "clip unused", "the updates up to the next backward pass use other gradients"
        elif after[:1] == ["unscale"]:
            kind, seen = "clip before unscaling", "the gradients were clipped while they were scaled up"
        else:
            continue
        if kind not in told:
            told.add(kind)
            yield Cause(kind, event.subjects, seen, event.place)


def _is_of_others(clip: Event, later: list[Event]) -> bool:
    """Say whether no update uses what was clipped; not before it is known what all of them use."""
    kinds = [event.kind for event in later]
    follow = later[: kinds.index("backward")] if "backward" in kinds else []
    used = {name for event in follow if event.kind == "update" for name in event.subjects}
    return bool(used and clip.subjects) and used.isdisjoint(clip.subjects)


def frozen_moves(history: History) -> Iterator[Cause]:
    """Weights that are frozen, or whose gradient is kept at zero, and that move."""
    weights = history.weights()
    frozen = tuple(
        n for n, seen in weights.items() if any(not w.trainable and (w.drifted or w.moved) for w in seen)
    )
    if frozen:
        seen = "the parameter wants no gradient, and the optimizer moved it: by an old gradient, or by decay"
        yield Cause("frozen but moving", frozen, seen, history.place)
    masked = {n: w for n, seen in weights.items() for w in seen if w.trainable and w.masked and w.drifted}
    if masked:
        seen = "the gradient was set to zero here, and the weights moved: by momentum or by decay"
        place = next(iter(masked.values())).masked
        yield Cause("frozen but moving", tuple(masked), seen, place)


def always(history: History) -> Iterator[Cause]:
    """Events that are findings by themselves."""
    touchy = "dropout or batch normalization ran as in"
    for name, kind, seen in (
        ("trained", "training in evaluation mode", f"{touchy} evaluation while the weights were trained"),
        ("evaluated", "evaluation in training mode", f"{touchy} training where no gradient was recorded"),
        ("coupled", "coupled samples", "batch normalization mixed samples whose own gradients were wanted"),
    ):
        event = history.first(name)
        if event:
            yield Cause(kind, event.subjects, seen, event.place)


def drifting(history: History) -> Iterator[Cause]:
    """Statistics of normalizations whose own parameters are never trained."""
    drifts = [e for e in history.events if e.kind == "drift" and e.share and e.subjects]
    drifts = [event for event in drifts if history.reached.isdisjoint(event.subjects)]
    if drifts:
        names = tuple(name.rpartition(".")[0] for event in drifts for name in event.subjects)
        most = max(event.share for event in drifts)
        seen = f"the parameters are frozen, and the running statistics moved by up to {most:.2g} in a step"
        yield Cause("drifting statistics", names, seen, drifts[0].place)


def told(history: History) -> Iterator[Cause]:
    """Causes that were plain when they were seen."""
    yield from history.told


def _left_out(history: History) -> list[Event]:
    # A scaling is there to leave out a batch now and then.
    return history.hopeless if len(history.hopeless) >= len(history.updates) else []


def _by_finding(
    history: History, names: list[str], is_it: Callable[[InputReport], bool]
) -> Iterator[tuple[Finding, tuple[str, ...]]]:
    found: dict[Finding, list[str]] = {}
    for name in names:
        entries = [e for b in history.unwell for e in b.entries if e.name == name and is_it(e)]
        if entries and entries[-1].finding:
            found.setdefault(entries[-1].finding, []).append(name)
    for finding, some in found.items():
        yield finding, tuple(some)


# What breaks a training first comes first.
CAUSES: tuple[Callable[[History], Iterator[Cause]], ...] = (
    frozen,
    failed,
    not_finite,
    skipped,
    unreached,
    held_wrongly,
    never_updated,
    idle,
    never_zeroed,
    zero_everywhere,
    underflow,
    told,
    drifting,
    clipped_wrongly,
    frozen_moves,
    still,
    dying,
    alike,
    always,
    parts,
    steep,
    cancelled,
)
