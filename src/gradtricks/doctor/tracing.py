"""Why a gradient is missing, zero or not finite: the search through a list of recorded operations."""

from collections.abc import Mapping, Sequence
from typing import Any

from gradtricks.doctor.operations import Input, Operation, Outside, merged
from gradtricks.doctor.reports import Finding, GradientReport, InputReport

# A cut of these kinds takes values out of a path on purpose or by accident; the others stand beside many
# healthy paths (a comparison that picks a branch, an argmax for the accuracy) and would only be noise there.
_WORTH_TELLING = ("detached", "not recorded", "sampled", "drawn", "assigned", "copied")

_REMEDIES = {
    "integer cast": "stay in floating point, or gradtricks.{0}.straight_through(hard, soft)",
    "not differentiable": "use a differentiable stand-in (softmax for argmax, sigmoid for a comparison), or "
    "gradtricks.{0}.straight_through(hard, soft)",
    "assigned": "use the new tensor itself; an assignment stores values, not where they came from",
    "copied": "use the tensor itself; what is made of its values doesn't know where they came from",
    "numpy": "compute it with {0}; arrays of NumPy and numbers of Python keep values only",
    "replaced": "the output never reads the input, but another tensor of its shape. If the input was made "
    "from that one, compute the output from the input: z = x + delta; y = f(z); and the gradient in z",
    "unused": "let the output depend on it; nothing that was recorded leads from the input to the output",
    "nan": "keep its argument off the point where the slope is infinite, before and not after the operation: "
    "gradtricks.{0}.safe_where(condition, x, function, fallback)",
    "inf": "keep its argument off the point where the slope is infinite: clip it, or add an epsilon to it",
    "sum": "no single operation is to blame: the contributions of several paths cancel or overflow in sum",
    "softmax": "each row needs an entry that isn't -inf: leave rows that are masked altogether out before "
    "it, or mask with a large finite number",
    "std": "the unbiased deviation of one element is 0 / 0: unbiased=False, or gradtricks.{0}.standardize",
    "clip": "beyond its bounds a clip passes nothing: use the loss that takes logits, or keep what comes in "
    "within the bounds",
    "mask": "the keys that the mask lets in are all alike, or there are none: where a mask is True, "
    "scaled_dot_product_attention lets keys in, and MultiheadAttention shuts them out",
    "underflow": "float16 makes 0 of so small a gradient: scale the loss",
    "straight through": "what is inside of the detach is never trained by this value, and without the detach "
    "the rest isn't: let the loss have the inner value too, as in mse(code, z.detach())",
    "overflow": "look at the values that go in here: the logarithm of 0, a division by 0, an exponential",
}
# By a part of the operation's name.
_OVERFLOWS = {"softmax": "softmax", "attention": "softmax", "std": "std"}
_ZEROS = dict.fromkeys(("clip", "clamp", "minimum", "maximum"), "clip")
_ZEROS |= {"attention": "mask"}
_CASTS = ("cast", "to", "half", "float", "type")


def remedies(framework: str) -> dict[str, str]:
    """Return what to do about each reason for which that is the same in all frameworks."""
    return {reason: text.format(framework) for reason, text in _REMEDIES.items()}


def explained(
    recorder: Any, names: Sequence[str], leaves: Sequence[Any], remedies: Mapping[str, str]
) -> GradientReport:
    """Differentiate what was recorded, and say what became of the gradient of each of the named inputs.

    A number among the leaves counts as one that was read out.
    """
    outputs = [recorder.read_output(leaf) for leaf in leaves]
    tensors = [leaf for leaf in leaves if isinstance(leaf, recorder.kind)]
    gradients = recorder.differentiate(tensors) if names else []
    given = [recorder.described(name, i, g) for i, (name, g) in enumerate(zip(names, gradients))]
    value = merged(map(recorder.status, tensors))
    return explain(recorder.operations, given, outputs, recorder.outside, remedies, output=value)


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

    ``operations`` are in the order in which they ran, ``outputs`` were differentiated, none of the operations
    made what is ``outside``, and ``output`` is the status of the outputs' values.
    """
    search = _Search(operations, frozenset(outputs), outside, remedies)
    overflow = next((operation for operation in operations if operation.overflows), None)
    return GradientReport(
        tuple(search.report(given, {other.state for other in inputs}) for given in inputs),
        output,
        search.overflow(overflow) if overflow else None,
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
        drawn = ("sampled", "drawn")  # in several operations, of which only the last is open
        found.sort(
            key=lambda o: (
                o.reason == "numpy",
                self.open.isdisjoint(o.outputs) and o.reason not in drawn,
                not o.reason,
            )
        )
        return [self.finding(operation, self.reason_of(operation)) for operation in found]

    def reason_of(self, operation: Operation) -> str:
        # z + (code - z).detach() passes to z what code is meant to have, as it should.
        maker = self.maker.get(operation.inputs[0]) if operation.reason == "detached" else None
        made = set(operation.outputs)
        beside = {n for o in self.operations if made.intersection(o.inputs) for n in o.inputs} - made
        if maker and maker.short in ("sub", "rsub") and beside.intersection(maker.inputs):
            return "straight through"
        return operation.reason or "not differentiable"

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
        found: list[tuple[bool, Finding]] = []
        for operation in reversed(self.operations):
            sent = {status for state, status in operation.sent.items() if state in reached} & bad
            if sent and operation.arrived not in {"none", *bad}:
                reason = "nan" if "nan" in sent else sent.pop()
                lost = reason == "zero everywhere" and operation.short in _CASTS
                special = _named(operation, _ZEROS) if reason == "zero everywhere" else None
                # A label of 0 has nothing to pass anyway.
                factor = reason == "zero everywhere" and operation.short in ("mul", "rmul")
                found.append((factor, self.finding(operation, "underflow" if lost else reason, special)))
        found.sort(key=lambda item: item[0])
        # Each contribution is well, and their sum isn't.
        return [finding for _, finding in found] or [Finding("", gradient, None, self.remedies["sum"])]

    def overflow(self, operation: Operation) -> Finding:
        return self.finding(operation, "overflow", _named(operation, _OVERFLOWS))

    def finding(self, operation: Operation, reason: str, special: str | None = None) -> Finding:
        return Finding(operation.name, reason, operation.place, self.remedies[special or reason])


def _named(operation: Operation, parts: Mapping[str, str]) -> str | None:
    return next((key for part, key in parts.items() if part in operation.name.lower()), None)


def _alike(other: Outside, like: Outside) -> bool:
    # A variable that is given as an input isn't a shifted copy of anything.
    return (other.shape, other.dtype) == (like.shape, like.dtype) and not like.parameter
