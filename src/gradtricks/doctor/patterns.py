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
_RESHAPING = {"view", "reshape", "flatten", "squeeze", "permute", "transpose", "to", "float", "cast"}
_ADDING = {"add", "radd", "iadd", "addv2", "sub", "rsub"}
_SCALING = {"mul", "rmul", "truediv", "div", "realdiv", "neg", "mean", "sum", "to", "float", "cast"}
# What nobody takes for a constant on purpose, as one takes what is detached.
_BY_MISTAKE = {"copied", "not differentiable", "integer cast"}


def patterns(recorder: Late, loss: Any) -> Iterator[Cause]:
    """Yield what is wrong with the operations that led to a loss."""
    needed, learned, makers = recorder.needed([loss]), recorder.learned(), recorder.makers()
    for operation in [*recorder.operations, *recorder.composed]:
        if needed.intersection(operation.outputs):
            yield from _broadcast(recorder, makers, operation, learned)
            yield from _twice(makers, operation)
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
