"""Mistakes that the operations of one step show: shapes, functions that are applied twice, dead terms."""

import math
from collections.abc import Iterator
from typing import Any

from gradtricks.doctor.late import Late
from gradtricks.doctor.operations import Operation
from gradtricks.doctor.reports import Cause

Makers = dict[int, Operation]  # of tensors, by their numbers

_COMPARING = {"sub", "rsub", "mul", "rmul", "squareddifference", "mse_loss", "l1_loss", "smooth_l1_loss"}
_COMPARING |= {"huber_loss"}
# Somebody who adds an axis by hand means each with each.
_ADDS_AN_AXIS = {"unsqueeze", "getitem", "expanddims", "stridedslice"}
_TAKES_LOGITS = {"cross_entropy", "log_softmax", "logsoftmax", "binary_cross_entropy_with_logits"}
_TAKES_LOGITS |= {"softmaxcrossentropywithlogits", "sparsesoftmaxcrossentropywithlogits"}
_TAKES_LOGITS |= {"sigmoid_cross_entropy_with_logits"}
PRODUCTS = {"mul", "rmul", "imul", "multiply", "mulnonan"}
_MAKES_PROBABILITIES = {"softmax", "sigmoid"}
_CUTS_OFF = {"relu", "relu6"}
_TAKES_LOGARITHMS = {"nll_loss", "kl_div"}
_CELLS = {"gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell"}
_COMBINING = {"sub", "rsub", "isub", "div", "truediv", "itruediv", "realdiv"}
_RESHAPING = {"view", "reshape", "flatten", "squeeze", "permute", "transpose", "to", "float", "cast"}
_ADDING = {"add", "radd", "iadd", "addv2", "sub", "rsub"}
_SCALING = {"mul", "rmul", "truediv", "div", "realdiv", "neg", "mean", "sum", "to", "float", "cast"}
_ABOVE, _OFF = 1e-3, 1e-2  # more than rounding
_STEPS = 3  # calls of a cell that make a sequence
# What nobody takes for a constant on purpose, as one takes what is detached.
_BY_MISTAKE = {"copied", "not differentiable", "integer cast"}


def patterns(recorder: Late, loss: Any) -> Iterator[Cause]:
    """Yield what is wrong with the operations that led to a loss."""
    needed, learned, makers = recorder.needed([loss]), recorder.learned(), recorder.makers()
    for operation in [*recorder.operations, *recorder.composed]:
        if needed.intersection(operation.outputs):
            yield from _broadcast(recorder, makers, operation, learned)
            yield from _twice(makers, operation)
            yield from _no_logarithms(recorder, makers, operation)
            yield from _spread_of_one(recorder, operation)
            yield from _mean_of_all(recorder, makers, operation, learned)
    yield from _same_state(recorder, makers, needed)
    yield from _dead_terms(recorder, makers, recorder.read(loss), learned)


def zero_factor(recorder: Late, outputs: list[Any]) -> Operation | None:
    """Return what first made the zeros by which all that is learned is multiplied, if anything did."""
    needed, learned, makers = recorder.needed(outputs), recorder.learned(), recorder.makers()
    zeros = {n for n in needed - learned if n in recorder.kept and _is_zero(recorder, n)}
    products = [o for o in recorder.operations if o.short in PRODUCTS and needed.intersection(o.outputs)]
    empty = [o for o in products if zeros.intersection(o.inputs) and learned.intersection(o.inputs)]
    found = empty[-1] if empty else None
    while found and (factors := zeros.intersection(found.inputs)):
        maker = makers.get(min(factors))
        if maker is None:
            break  # nobody computed the zeros: they came so
        found = maker
    return found


def _is_zero(recorder: Late, number: int) -> bool:
    values = recorder.values_of(recorder.kept[number])
    return math.prod(values.shape) > 0 and not bool((values != 0).any())


def _twice(makers: Makers, operation: Operation) -> Iterator[Cause]:
    if operation.short not in _TAKES_LOGITS:
        return
    maker = makers.get(operation.inputs[0])
    while maker and maker.short in _RESHAPING and maker.inputs:
        maker = makers.get(maker.inputs[0])
    if maker and maker.short in _MAKES_PROBABILITIES:
        seen = f"{operation.name} takes logits, and got what {maker.name} had made probabilities of"
        yield Cause("logits expected", (), seen, operation.place)
    elif maker and maker.short in _CUTS_OFF:
        seen = f"{operation.name} takes logits, and {maker.name} had made 0 of all that were below"
        yield Cause("logits expected", (), seen, maker.place, "leave out the activation after the last layer")


def _no_logarithms(recorder: Late, makers: Makers, operation: Operation) -> Iterator[Cause]:
    if operation.short not in _TAKES_LOGARITHMS or operation.inputs[0] not in recorder.kept:
        return
    values = recorder.values_of(recorder.kept[operation.inputs[0]])
    maker = makers.get(operation.inputs[0])
    seen = ""
    if bool((values > _ABOVE).any()):
        seen = f"{operation.name} takes logarithms of probabilities, and got numbers above 0"
    elif maker and maker.short == "log_softmax" and len(values.shape) > 1:
        off = abs(values.exp().sum(1) - 1) > _OFF
        if operation.short == "nll_loss" and bool(off.any()):
            seen = (
                f"{operation.name} looks for classes along axis 1, and {maker.name} was taken along another"
            )
    if seen:
        yield Cause("log-probabilities expected", (), seen, operation.place)


def _spread_of_one(recorder: Late, operation: Operation) -> Iterator[Cause]:
    numbers = [n for n in (*operation.inputs[:1], *operation.outputs) if n in recorder.kept]
    if operation.short in ("std", "var") and len(numbers) == 2:
        sizes = [math.prod(recorder.kept[n].shape) for n in numbers]
        made = {numbers[1]}
        made.update(n for o in recorder.operations if made.intersection(o.inputs) for n in o.outputs)
        # What one element has its own mean subtracted from is 0 too, and may be divided by anything.
        ends = {n for o in recorder.operations if made.intersection(o.inputs) for n in o.outputs}
        widens = any(math.prod(recorder.kept[n].shape) > sizes[1] for n in ends if n in recorder.kept)
        if sizes[0] == sizes[1] and widens and _is_zero(recorder, numbers[1]):
            seen = f"{operation.name} is taken of one element each, so it is 0 whatever that is"
            yield Cause("spread of one", (), seen, operation.place)


def _mean_of_all(recorder: Late, makers: Makers, operation: Operation, learned: set[int]) -> Iterator[Cause]:
    numbers = [n for n in operation.inputs if n in recorder.kept]
    if operation.short not in _COMBINING or len(numbers) != 2 or not learned.issuperset(numbers):
        return
    rows, mean = sorted(numbers, key=lambda n: -math.prod(recorder.kept[n].shape))
    shape, maker = tuple(recorder.kept[rows].shape), makers.get(mean)
    if len(shape) < 2 or min(shape[0], shape[-1]) < 2 or maker is None or maker.short != "mean":
        return
    averaged = maker.inputs[0]
    single = math.prod(recorder.kept[mean].shape) == 1
    if single and averaged in recorder.kept and tuple(recorder.kept[averaged].shape) == shape:
        # A mean of weights alone is the same for all samples.
        ancestors = recorder.needed([recorder.kept[averaged]])
        if ancestors - makers.keys() - set(recorder.roots()):
            seen = f"{maker.name} averages all {shape[0]} samples, and {operation.name} takes that from each"
            remedy = "average each sample by itself, along its own axis, and keep the axis"
            yield Cause("coupled samples", (), seen, operation.place, remedy)


def _same_state(recorder: Late, makers: Makers, needed: set[int]) -> Iterator[Cause]:
    cells: dict[int, list[Operation]] = {}
    for operation in recorder.operations:
        if operation.short in _CELLS and needed.intersection(operation.outputs):
            cells.setdefault(operation.inputs[-1], []).append(operation)
    for calls in cells.values():
        makers_of_states = [makers.get(call.inputs[1]) for call in calls]
        anew = all(maker and maker.short == "zeros" for maker in makers_of_states)
        if len(calls) >= _STEPS and (anew or len({call.inputs[1] for call in calls}) == 1):
            seen = f"{calls[0].name} began {len(calls)} times from the same state, and never from its own"
            yield Cause("state not carried", (), seen, calls[1].place)


def _broadcast(recorder: Late, makers: Makers, operation: Operation, learned: set[int]) -> Iterator[Cause]:
    numbers = [n for n in operation.inputs if n in recorder.kept][:2]
    shapes = {len(shape): shape for shape in (tuple(recorder.kept[n].shape) for n in numbers)}
    if operation.short not in _COMPARING or {*shapes} != {1, 2} or shapes[2] != (*shapes[1], 1):
        return
    column = next(n for n in numbers if len(recorder.kept[n].shape) == 2)
    maker = makers.get(column)
    compared = len(learned.intersection(numbers)) == 1  # what is learned, with what isn't
    if compared and shapes[1] > (1,) and not (maker and maker.short in _ADDS_AN_AXIS):
        size = shapes[1][0]
        seen = f"{operation.name} of [{size}, 1] and [{size}] takes each with each: [{size}, {size}]"
        yield Cause("broadcast", (), seen, operation.place)


def _dead_terms(recorder: Late, makers: Makers, loss: int, learned: set[int]) -> Iterator[Cause]:
    pending, dead = [loss], list[int]()
    while pending:
        number = pending.pop()
        maker = makers.get(number)
        if number not in learned:
            dead.append(number)
        elif maker and math.prod(recorder.kept[number].shape) == 1:
            inputs = [n for n in maker.inputs if n in recorder.kept]
            pending += inputs if maker.short in _ADDING else []
            # Factors that aren't learned are no terms.
            pending += [n for n in inputs if n in learned] if maker.short in _SCALING else []
    for number in dead if loss in learned else ():
        cuts = _cuts_before(recorder, number, learned)
        forgotten = [cut for cut in cuts if cut.name == "torch.autograd.grad"]
        if forgotten or (cuts and all(cut.reason in _BY_MISTAKE for cut in cuts)):
            cut = (forgotten or cuts)[0]
            seen = f"a term of the loss is computed from the model, and {cut.name} lets no gradient pass"
            yield Cause("dead term", (), seen, cut.place)


def _cuts_before(recorder: Late, number: int, learned: set[int]) -> list[Operation]:
    needed, found = {number}, []
    for operation in reversed(recorder.operations):
        if needed.intersection(operation.outputs):
            found += [operation] if learned.intersection(operation.inputs) else []
            needed.update(n for n in operation.inputs if n not in learned)
    return found
