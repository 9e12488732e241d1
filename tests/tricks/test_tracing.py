"""explain_gradient: which operation cut the path of a gradient, and which made it zero, NaN or infinite."""

import contextlib
import copy
import functools
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import BACKENDS
from gradtricks._core.recorded import Input, Operation, Outside, Place, calling_place, merged
from gradtricks._core.tracing import explain
from gradtricks.reference.tracing import first_cuts

X = [1.5, -2.0, 3.0]


def watched(backend, values=X):
    """A tensor that wants a gradient."""
    if backend.name == "torch":
        return backend.framework.tensor(values, requires_grad=True)
    return backend.framework.constant(values)


def variable(backend, values=X):
    """A parameter of the framework."""
    if backend.name == "torch":
        return backend.framework.nn.Parameter(backend.framework.tensor(values))
    return backend.framework.Variable(values)


def total(y):
    """Sum of a tensor of either framework."""
    return y.sum() if hasattr(y, "sum") else sys.modules["tensorflow"].reduce_sum(y)


def own_gradient(backend, function, x):
    """What the framework itself says: None, or an array."""
    if backend.name == "torch":
        y = function(x)
        if not y.requires_grad:
            return None
        (gradient,) = backend.framework.autograd.grad(y.sum(), x, allow_unused=True)
    else:
        with backend.framework.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        gradient = tape.gradient(y, x)
    return None if gradient is None else backend.array(gradient)


# What cuts a path. Each case: a function of (framework, x), the reason, a part of the operation's name.


def no_grad_block(torch, x):
    with torch.no_grad():
        y = x * 2
        z = y + 1
    return total(z * torch.ones(3, requires_grad=True))


def inference_block(torch, x):
    with torch.inference_mode():
        return total(x * 2)


def data_copy(torch, x):
    leaf = torch.zeros(3, requires_grad=True)
    leaf.data.copy_(x)
    return total(leaf * 2)


def copy_without_grad(torch, x):
    leaf = torch.zeros(3, requires_grad=True)
    with torch.no_grad():
        leaf.copy_(x)
    return total(leaf * 2)


def detached_rows(torch, x):
    buffer = torch.zeros(3)
    buffer[0] = x.detach()[0]
    return total(buffer * 2)


def data_set(torch, x):
    leaf = torch.zeros(3, requires_grad=True)
    leaf.data = x
    return total(leaf * 2)


def add_in_place_without_grad(torch, x):
    buffer = torch.zeros(4)
    with torch.no_grad():
        buffer[:3].add_(x)
    return total(buffer * torch.ones(4, requires_grad=True))


def torch_tensor(torch, x):
    with pytest.warns(UserWarning, match="copy construct"):
        return total(torch.tensor(x, requires_grad=True))


def inner_gradient(torch, x):
    (gradient,) = torch.autograd.grad((x**3).sum(), x)
    return total(gradient * torch.ones(3, requires_grad=True))


def backward_of_none(torch, x):
    class Halve(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, gradient):
            return None

    return total(Halve.apply(x) * 2)


TORCH_CUTS = {
    "detach": (lambda torch, x: total(x.detach() * torch.ones(3)), "detached", "Tensor.detach"),
    "detach in place": (lambda torch, x: total((x * 2).detach_()), "detached", "Tensor.detach_"),
    "data": (lambda torch, x: total(x.data * 2), "detached", "Tensor.data"),
    "a new leaf": (lambda torch, x: total(x.detach().requires_grad_() * 2), "detached", "Tensor.detach"),
    "no_grad": (no_grad_block, "not recorded", "Tensor.mul"),
    "autograd.grad": (inner_gradient, "not recorded", "torch.autograd.grad"),
    "long": (lambda torch, x: total(x.long().float()), "integer cast", "Tensor.long"),
    "to": (lambda torch, x: total(x.to(torch.int32) * 2.0), "integer cast", "Tensor.to"),
    "argmax": (lambda torch, x: torch.ones(3)[x.argmax()], "not differentiable", "argmax"),
    "comparison": (lambda torch, x: total((x > 0).float()), "not differentiable", "gt"),
    "data.copy_": (data_copy, "assigned", "Tensor.copy_"),
    "float of a detached": (
        lambda torch, x: total(torch.ones(3) * float(x[0].detach())),
        "numpy",
        "__float__",
    ),
    "copy_": (copy_without_grad, "assigned", "Tensor.copy_"),
    "add_ to a view": (add_in_place_without_grad, "assigned", "Tensor.add_"),
    "detached rows": (detached_rows, "detached", "Tensor.detach"),
    "data =": (data_set, "assigned", "Tensor.data"),
    "torch.tensor": (torch_tensor, "copied", "torch.tensor"),
    "nn.Parameter": (lambda torch, x: total(torch.nn.Parameter(x) * 2), "copied", "nn.Parameter"),
    "numpy": (
        lambda torch, x: total(torch.from_numpy(np.exp(x.detach().numpy())) * 2),
        "numpy",
        "Tensor.numpy",
    ),
    "shared numpy": (
        lambda torch, x: total(torch.from_numpy(x.detach().numpy()) * 2),
        "numpy",
        "Tensor.numpy",
    ),
    "asarray": (lambda torch, x: total(torch.tensor(np.asarray(x.detach()))), "numpy", "__array__"),
    "item": (lambda torch, x: torch.ones(3).sum() * x.sum().item(), "numpy", "Tensor.item"),
    "float": (lambda torch, x: torch.ones(3).sum() * float(x.detach().sum()), "detached", "detach"),
    "tolist": (lambda torch, x: total(torch.tensor(x.tolist())), "numpy", "Tensor.tolist"),
    "an index": (lambda torch, x: torch.ones(3)[: int(x[0].detach())].sum(), "numpy", "Tensor.__int__"),
    "a number": (lambda torch, x: x.sum().item(), "numpy", "Tensor.item"),
    "a backward of None": (backward_of_none, "gradient rule", "Halve"),
    "nothing": (lambda torch, x: total(torch.ones(3) * 2.0), "unused", ""),
    "its shape": (lambda torch, x: total(torch.ones_like(x) * 2.0), "unused", ""),
    "a dead end": (lambda torch, x: (x * 2, total(torch.ones(3)))[1], "unused", "Tensor.mul"),
    "inference_mode": (inference_block, "not recorded", "Tensor.mul"),
    # A view that says it requires a gradient, and has none.
    "a sample": (
        lambda torch, x: torch.distributions.Normal(x, 1.0).sample().sum(),
        "not recorded",
        "Tensor.expand",
    ),
    "indices": (lambda torch, x: x.max(0).indices + torch.ones(1), "not differentiable", "Tensor.max"),
    "in a vmap": (
        lambda torch, x: total(torch.vmap(lambda row: row.detach() * 2)(x)),
        "not traced",
        "torch.func",
    ),
    # Made by a constructor that no mode sees.
    "an alias": (
        lambda torch, x: total(torch.Tensor._make_subclass(torch.Tensor, x) * 2),
        "detached",
        "shared memory",
    ),
}


def assign(tf, x):
    variable = tf.Variable([0.0, 0.0, 0.0])
    variable.assign(x * 1.0)
    variable.assign_add(tf.ones(3))
    return total(variable * 2.0)


def assigned_before(tf, x):
    BEFORE.setdefault("variable", tf.Variable([0.0, 0.0, 0.0])).assign(x)
    return total(BEFORE["variable"] * 2.0)


BEFORE = {}


def custom_none(tf, x):
    @tf.custom_gradient
    def halve(x):
        return x / 2, lambda gradient: None

    return total(halve(x))


def data_set(tf, x):
    rows = [row + 1.0 for row in tf.data.Dataset.from_tensor_slices(x)]
    return total(tf.stack(rows))


def list_of_rows(tf, x):
    rows = tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant([], tf.int32), max_num_elements=-1, element_dtype=tf.float32
    )
    for row in tf.unstack(x):
        rows = tf.raw_ops.TensorListPushBack(input_handle=rows, tensor=row)
    stacked = tf.raw_ops.TensorListStack(
        input_handle=rows, element_shape=tf.constant([], tf.int32), element_dtype=tf.float32
    )
    return total(tf.floor(stacked))


def concrete(tf, x):
    return tf.function(lambda x: total(tf.floor(x))).get_concrete_function(x)(x)


TENSORFLOW_CUTS = {
    "stop_gradient": (lambda tf, x: total(tf.stop_gradient(x) * 2), "detached", "StopGradient"),
    "cast": (lambda tf, x: total(tf.cast(tf.cast(x, tf.int32), tf.float32)), "integer cast", "Cast"),
    "argmax": (lambda tf, x: tf.gather([1.0, 2.0, 3.0], tf.argmax(x)), "not differentiable", "ArgMax"),
    "comparison": (lambda tf, x: total(tf.cast(x > 0, tf.float32)), "not differentiable", "Greater"),
    "floor": (lambda tf, x: total(tf.floor(x)), "not differentiable", "Floor"),
    "round": (lambda tf, x: total(tf.round(x)), "not differentiable", "Round"),
    "ceil": (lambda tf, x: total(tf.math.ceil(x)), "not differentiable", "Ceil"),
    "assign": (assign, "assigned", "AssignVariableOp"),
    "assign before": (assigned_before, "assigned", "AssignVariableOp"),
    "Variable of a variable": (
        lambda tf, x: total(tf.Variable(tf.stop_gradient(x)) * 2.0),
        "copied",
        "Variable",
    ),
    "Variable": (lambda tf, x: total(tf.Variable(x) * 2.0), "copied", "Variable"),
    "numpy": (lambda tf, x: total(tf.constant(np.exp(x.numpy())) * 2), "numpy", "Tensor.numpy"),
    "numpy_function": (
        lambda tf, x: total(tf.numpy_function(np.exp, [x], tf.float32)),
        "numpy",
        "numpy_function",
    ),
    "np.exp": (lambda tf, x: total(tf.constant(np.exp(x)) * 2), "made outside", "Mul"),
    "float": (lambda tf, x: total(tf.ones(3)) * float(total(x)), "numpy", "Tensor.__float__"),
    "an index": (lambda tf, x: tf.ones(3)[int(x[0])], "numpy", "Tensor.__int__"),
    "an integer index": (lambda tf, x: tf.ones(3)[int(tf.argmax(x))], "not differentiable", "ArgMax"),
    "a number": (lambda tf, x: float(total(x)), "numpy", "Tensor.__float__"),
    "a gradient of None": (custom_none, "gradient rule", "halve"),
    "indices": (
        lambda tf, x: total(tf.cast(tf.math.top_k(x, 2).indices, tf.float32)),
        "not differentiable",
        "TopKV2",
    ),
    "a data set": (data_set, "unused", "TensorSliceDataset"),
    "a list of tensors": (list_of_rows, "not differentiable", "Floor"),
    "a concrete function": (concrete, "not traced", "lambda"),
    "nothing": (lambda tf, x: total(tf.ones(3) * 2.0), "unused", ""),
    "its shape": (lambda tf, x: total(tf.ones(tf.shape(x)) * 2.0), "unused", ""),
    "a dead end": (lambda tf, x: (x * 2, total(tf.ones(3)))[1], "unused", "Mul"),
}

CUTS = [("torch", name) for name in TORCH_CUTS] + [("tensorflow", name) for name in TENSORFLOW_CUTS]


@pytest.fixture(params=CUTS, ids=" ".join)
def cut(request):
    framework, name = request.param
    pytest.importorskip(framework)
    backend = BACKENDS[framework]()
    function, reason, operation = (TORCH_CUTS if framework == "torch" else TENSORFLOW_CUTS)[name]
    return SimpleNamespace(
        backend=backend,
        function=functools.partial(function, backend.framework),
        reason=reason,
        operation=operation,
    )


def test_names_what_cut_the_path(cut):
    x = watched(cut.backend)
    report = cut.backend.tricks.explain_gradient(lambda x: cut.function(x), x)["x"]
    assert (report.connected, report.gradient, report.reason) == (False, "none", cut.reason)
    assert cut.operation in report.operation
    assert bool(cut.operation) == bool(report.operation)
    assert report.remedy
    if report.operation:
        assert report.place.file == __file__


def test_the_framework_has_no_gradient_either(cut):
    if isinstance(cut.function(watched(cut.backend)), float):
        return
    assert own_gradient(cut.backend, cut.function, watched(cut.backend)) is None


# What doesn't cut it.


def custom_function(torch, x):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    return total(Double.apply(x) * 2)


def buffer_of_rows(torch, x):
    buffer = torch.zeros(3)
    for row in range(3):
        buffer[row] = x[row] * 2
    return total(buffer)


def penalty(torch, x):
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return total(gradient**2)


def array_of_rows(tf, x):
    rows = tf.TensorArray(tf.float32, 3)
    for row in range(3):
        rows = rows.write(row, x[row] * 2)
    return total(rows.stack())


def penalty_by_tape(tf, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = total(x**3)
    return total(tape.gradient(y, x) ** 2)


def custom_rule(tf, x):
    @tf.custom_gradient
    def floor(x):
        return tf.floor(x), lambda gradient: gradient

    return total(floor(x))


def many_results(framework, x):
    return {"a": [x * 2, x[:1].sum() if hasattr(x, "sum") else x[0]], "b": (framework.ones(2),)}


BOTH_WHOLE = {
    "itself": lambda framework, x: x,
    "a chain": lambda framework, x: total(framework.exp(x) * 2),
    "a vector": lambda framework, x: framework.exp(x),
    "several results": many_results,
    "a loop": lambda framework, x: total(functools.reduce(lambda y, _: y * 1.1, range(9), x)),
}
TORCH_WHOLE = BOTH_WHOLE | {
    "an autograd.Function": custom_function,
    "rows of a buffer": buffer_of_rows,
    "autograd.grad": penalty,
    "func.grad": lambda torch, x: torch.func.grad(lambda y: (y**3).sum())(x),
    "vmap": lambda torch, x: torch.func.vmap(lambda y: y**3)(x),
    "requires_grad_ of it": lambda torch, x: total(x.requires_grad_() * 2),
    "eight bits": lambda torch, x: total(x * torch.ones(3).to(torch.float8_e4m3fn).float()),
    "complex": lambda torch, x: torch.complex(x, x).abs().sum(),
}
TENSORFLOW_WHOLE = BOTH_WHOLE | {
    "a custom gradient": custom_rule,
    "a TensorArray": array_of_rows,
    "a tape": penalty_by_tape,
    "while_loop": lambda tf, x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x))[1],
    "vectorized_map": lambda tf, x: tf.vectorized_map(lambda y: y * 2, x),
    "py_function": lambda tf, x: total(tf.py_function(tf.exp, [x], tf.float32)),
    "cond": lambda tf, x: total(tf.cond(total(x) > 0, lambda: x * 2, lambda: x)),
    "relu6": lambda tf, x: total(tf.nn.relu6(x)),
    "bias_add": lambda tf, x: tf.nn.bias_add(tf.ones([1, 3]), x),
    "gather": lambda tf, x: total(tf.gather(x, [0, 1])),
    "a variable that was edited": lambda tf, x: tf.Variable(1.0).assign(2.0) * x,
}
WHOLE = [("torch", name) for name in TORCH_WHOLE] + [("tensorflow", name) for name in TENSORFLOW_WHOLE]


@pytest.mark.parametrize(("framework", "name"), WHOLE)
def test_a_whole_path_is_connected(framework, name):
    pytest.importorskip(framework)
    backend = BACKENDS[framework]()
    function = functools.partial((TORCH_WHOLE if framework == "torch" else TENSORFLOW_WHOLE)[name])
    x = watched(backend)
    report = backend.tricks.explain_gradient(lambda x: function(backend.framework, x), x)
    assert report.connected
    assert report.fine
    assert (report[0].reason, report[0].operation, report[0].place, report[0].remedy) == ("", "", None, "")
    assert str(report) == "x: connected, gradient fine"


# What makes a gradient zero, NaN or infinite. Each case: function, input, status, reason, operation.

ZERO = [0.0, 0.0, 0.0]
TORCH_ILL = {
    "floor": (lambda torch, x: torch.floor(x), X, "zero everywhere", "floor"),
    "round": (lambda torch, x: torch.round(x), X, "zero everywhere", "round"),
    "sign": (lambda torch, x: torch.sign(x), X, "zero everywhere", "sign"),
    "a dead relu": (lambda torch, x: torch.relu(x - 9) * 3, X, "zero everywhere", "relu"),
    "clamp": (lambda torch, x: torch.clamp(x, 5, 6), X, "zero everywhere", "clamp"),
    "where": (lambda torch, x: torch.where(x > 9, x, 0.0), X, "zero everywhere", "where"),
    "zero": (lambda torch, x: (x * 2) * 0, X, "zero everywhere", "mul"),
    "sqrt": (lambda torch, x: torch.sqrt(x), ZERO, "inf", "sqrt"),
    "reciprocal": (lambda torch, x: 1 / x, ZERO, "inf", "rtruediv"),
    "log": (lambda torch, x: torch.log(x), ZERO, "inf", "log"),
    "where sqrt": (lambda torch, x: torch.where(x > 0, torch.sqrt(x), 0.0), ZERO, "nan", "sqrt"),
    "where log": (lambda torch, x: torch.where(x > 0, torch.log(x), 0.0), ZERO, "nan", "log"),
    "log 0 times 0": (lambda torch, x: torch.log(x) * 0, ZERO, "nan", "log"),
    "norm": (lambda torch, x: torch.sqrt((x**2).sum()), ZERO, "nan", "sqrt"),
}
TENSORFLOW_ILL = {
    "sign": (lambda tf, x: tf.sign(x), X, "zero everywhere", "Sign"),
    "a dead relu": (lambda tf, x: tf.nn.relu(x - 9) * 3, X, "zero everywhere", "Relu"),
    "clip": (lambda tf, x: tf.clip_by_value(x, 5.0, 6.0), X, "zero everywhere", "Maximum"),
    "where": (lambda tf, x: tf.where(x > 9, x, 0.0), X, "zero everywhere", "SelectV2"),
    "zero": (lambda tf, x: (x * 2) * 0, X, "zero everywhere", "Mul"),
    "sqrt": (lambda tf, x: tf.sqrt(x), ZERO, "inf", "Sqrt"),
    "reciprocal": (lambda tf, x: 1 / x, ZERO, "inf", "RealDiv"),
    "log": (lambda tf, x: tf.math.log(x), ZERO, "inf", "Log"),
    "where log": (lambda tf, x: tf.where(x > 0, tf.math.log(x), 0.0), ZERO, "nan", "Log"),
    "log 0 times 0": (lambda tf, x: tf.math.log(x) * 0, ZERO, "nan", "Log"),
    "norm": (lambda tf, x: tf.norm(x), ZERO, "nan", "Sqrt"),
}
ILL = [("torch", name) for name in TORCH_ILL] + [("tensorflow", name) for name in TENSORFLOW_ILL]


@pytest.mark.parametrize(("framework", "name"), ILL)
def test_names_where_a_gradient_went_wrong(framework, name):
    pytest.importorskip(framework)
    backend = BACKENDS[framework]()
    function, values, status, operation = (TORCH_ILL if framework == "torch" else TENSORFLOW_ILL)[name]
    x = watched(backend, values)
    report = backend.tricks.explain_gradient(lambda x: function(backend.framework, x), x)["x"]
    assert (report.connected, report.gradient) == (True, status)
    assert operation in report.operation
    assert report.reason in (status, "inf")
    assert report.place.file == __file__
    gradient = own_gradient(backend, lambda x: function(backend.framework, x), x)
    seen = {"zero everywhere": not gradient.any(), "nan": np.isnan(gradient).any()}
    assert seen.get(status, np.isinf(gradient).any())


def test_contributions_that_cancel_blame_no_operation(backend):
    x = watched(backend)
    report = backend.tricks.explain_gradient(lambda x: total(x * 2 - x - x), x)["x"]
    assert (report.gradient, report.reason, report.operation) == ("zero everywhere", "zero everywhere", "")
    assert "several paths cancel" in report.remedy


def test_the_first_value_that_is_not_finite_is_named(backend):
    log = backend.framework.log if backend.name == "torch" else backend.framework.math.log
    x = watched(backend, [0.0, 1.0])
    report = backend.tricks.explain_gradient(lambda x: total(log(x) + 1), x)
    assert report.output == "inf"
    assert "og" in report.overflow.operation
    assert "values: finite until here" in str(report)
    masked = backend.tricks.explain_gradient(lambda x: total(backend.framework.exp(log(x))), x)
    assert masked.output == "fine"


def test_in_place_edits_are_followed_to_the_values_they_store(backend):
    # The variable itself stays connected; the values that were stored in it don't.
    x, stored = watched(backend), variable(backend)

    def function():
        if backend.name == "torch":
            stored.data.copy_(x)
        else:
            stored.assign(x)
        return total(stored * 2.0)

    report = backend.tricks.explain_gradient(function, {"x": x, "stored": stored})
    assert (report["x"].reason, report["stored"].connected) == ("assigned", True)


def test_a_path_beside_a_cut_one_is_connected_and_the_cut_is_told(backend):
    x = watched(backend)
    stop = backend.framework.detach if backend.name == "torch" else backend.framework.stop_gradient
    report = backend.tricks.explain_gradient(lambda x: total(x * stop(x)), x)
    assert report.fine
    assert [finding.reason for finding in report["x"].cuts] == ["detached"]
    assert report["x"].reason == ""
    assert "another of its paths is cut" in str(report)


def test_comparisons_beside_a_whole_path_are_no_news(backend):
    where = backend.framework.where
    report = backend.tricks.explain_gradient(lambda x: total(where(x > 0, x, -x)), watched(backend))
    assert report["x"].cuts == ()


# The threads.


def test_the_thread_that_stores_a_difference_in_a_variable(backend):
    # How often a product fits into a box, and what is left over; the answer is put into a variable.
    prod, box = watched(backend, 3.0), watched(backend, 10.0)

    def difference(prod, box):
        left = box - backend.framework.floor(box / prod) * prod
        result = variable(backend, 0.0)
        if backend.name == "torch":
            result.data.copy_(left)
        else:
            result.assign(left)
        return result * 1.0

    report = backend.tricks.explain_gradient(difference, [prod, box])
    assert [entry.name for entry in report.inputs] == ["prod", "box"]
    assert {entry.reason for entry in report.inputs} == {"assigned"}
    assert "left" in report["prod"].place.code
    assert not report.connected


def test_the_thread_that_asks_at_a_plus_delta(backend):
    # gradients(b, a + delta): b was computed from a, and a + delta is another tensor.
    a, delta = watched(backend), 0.1

    def function(a):
        return total(a**3)

    report = backend.tricks.explain_gradient(lambda: function(a), a + delta)
    assert report[0].reason == "replaced"
    assert "z = x + delta" in report[0].remedy
    assert backend.tricks.explain_gradient(function, a + delta).connected


def test_a_tensor_made_before_the_function_ran_is_pointed_at(backend):
    x = watched(backend)
    before = backend.framework.exp(x.detach() if backend.name == "torch" else x)[:2]

    def function(x):
        return total(before * 2.0)

    report = backend.tricks.explain_gradient(function, x)["x"]
    assert (report.reason, report.place.code) == ("made outside", "return total(before * 2.0)")


def test_a_tensor_that_torch_remembers_was_made_of_the_input_is_connected():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    x = torch.tensor(X, requires_grad=True)
    before = x * 2
    assert tricks.explain_gradient(lambda: before.sum(), x).connected


def test_a_shifted_tensor_of_another_shape_is_known_to_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    a = torch.tensor(X, requires_grad=True)
    shifted = a[:2] + 1
    report = tricks.explain_gradient(lambda: (a**2).sum(), shifted)
    assert report[0].reason == "replaced"


def test_a_tensor_from_an_unseen_constructor_is_pointed_at():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    x = torch.tensor([[1.0]], requires_grad=True)
    report = tricks.explain_gradient(lambda x: torch.FloatTensor([1.0, 2.0]).sum(), x)
    assert (report["x"].reason, report["x"].operation) == ("made outside", "Tensor.sum")


def test_variables_are_told_apart_from_constants_of_their_shape_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    one, other = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    report = tricks.explain_gradient(lambda: tf.reduce_sum(one), [one, other])
    assert (report[0].connected, report[1].connected, report[1].reason) == (True, False, "unused")
    report = tricks.explain_gradient(lambda: tf.reduce_sum(tf.stop_gradient(one) * other), [one, other])
    assert (report[0].operation, report[1].connected) == ("StopGradient", True)
    scalar = tf.Variable(2.0)
    assert tricks.explain_gradient(lambda: tf.exp(scalar), scalar).connected


def test_a_tape_that_was_stopped_stops_ours_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    x, scalar = tf.constant(X), tf.Variable(2.0)

    @tf.custom_gradient
    def half(x):
        return x / 2, lambda gradient: gradient / 2

    with tf.GradientTape() as tape, tf.GradientTape() as other:
        tape.watch(x)

        def of_a_tensor(x):
            with tape.stop_recording(), other.stop_recording():
                y = x * 2
                z = y + 1
            return total(z * 3.0)

        def of_a_variable():
            with tape.stop_recording():
                return tf.exp(scalar)

        def with_a_gradient_of_its_own(x):
            with tape.stop_recording():
                return total(half(x))

        one = tricks.explain_gradient(of_a_tensor, x)[0]
        two = tricks.explain_gradient(of_a_variable, scalar)[0]
        three = tricks.explain_gradient(with_a_gradient_of_its_own, x)[0]
        y = of_a_tensor(x)
    assert tape.gradient(y, x) is None
    assert (one.reason, one.operation, one.place.code) == ("not recorded", "Mul", "y = x * 2")
    assert (two.reason, two.place.code) == ("not recorded", "return tf.exp(scalar)")
    assert (three.reason, three.operation) == ("not recorded", "half")


def test_a_tape_within_the_function_is_not_the_one_that_differentiates_it():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")

    def function(x):
        with tf.GradientTape() as tape, tape.stop_recording():
            y = x * 2
        return total(y)

    assert tricks.explain_gradient(function, tf.constant(X)).fine


def test_a_copy_of_a_variable_is_no_part_of_it_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    report = tricks.explain_gradient(lambda x: total(tf.Variable(x) * 2.0), tf.Variable(X))[0]
    assert (report.connected, report.reason, report.operation) == (False, "copied", "Variable")


def test_rows_of_a_table_have_a_gradient(backend):
    table, rows = variable(backend, [[1.0, 2.0], [3.0, 4.0]]), backend.tensor([0, 0])
    if backend.name == "torch":
        look_up = functools.partial(backend.framework.nn.functional.embedding, rows, sparse=True)
    else:
        look_up = functools.partial(backend.framework.gather, indices=rows)
    assert backend.tricks.explain_gradient(lambda: total(look_up(table)), table).fine
    assert backend.tricks.explain_gradient(lambda: total(look_up(table) * 0), table)[0].gradient == (
        "zero everywhere"
    )


# What may be given.


def test_an_input_that_is_not_watched_says_so(backend):
    if backend.name == "torch":
        x = backend.framework.ones(3)
    else:
        x = backend.framework.Variable(X, trainable=False)
    report = backend.tricks.explain_gradient(lambda x: total(x * 2.0), x)["x"]
    assert (report.connected, report.reason, report.place) == (False, "not watched", None)


def test_an_integer_input_has_no_gradient(backend):
    report = backend.tricks.explain_gradient(lambda x: total(x), backend.tensor([1, 2]))["x"]
    assert (report.connected, report.reason) == (False, "integer")


def test_an_integer_output_is_traced_to_the_cast(backend):
    x = watched(backend)
    to_integer = (
        (lambda x: x.long())
        if backend.name == "torch"
        else functools.partial(backend.framework.cast, dtype="int32")
    )
    report = backend.tricks.explain_gradient(lambda x: to_integer(x), x)["x"]
    assert report.reason == "integer cast"


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x, y: x, ["x"]),
        (lambda x, y: [x, y], ["x", "y"]),
        (lambda x, y: (x, y, x), ["x", "y", "inputs[2]"]),
        (lambda x, y: {"y": y, "x": x}, ["y", "x"]),
        (lambda x, y: [[x, y], {"k": y}], ["x[0]", "x[1]", "y['k']"]),
    ],
)
def test_inputs_keep_their_structure_and_get_names(backend, make, names):
    def leaves(value):
        if isinstance(value, dict | list | tuple):
            return sum(leaves(item) for item in (value.values() if isinstance(value, dict) else value))
        return value if isinstance(value, float) else total(value)

    def function(x, y=0.0, *, z=0.0, **rest):
        return leaves([x, y, z])

    def of_three(*args):
        return leaves(list(args))

    x, y = watched(backend), watched(backend, [4.0])
    inputs = make(x, y)
    function = of_three if len(names) == 3 and isinstance(inputs, tuple) else function
    report = backend.tricks.explain_gradient(function, inputs)
    names = [f"inputs[{i}]" for i in range(3)] if function is of_three else names
    assert [entry.name for entry in report.inputs] == names
    assert report.connected


def test_a_closure_is_called_without_arguments(backend):
    x, y = watched(backend), watched(backend, [4.0])
    explain_gradient = backend.tricks.explain_gradient
    assert [e.name for e in explain_gradient(lambda: total(x), x).inputs] == ["inputs"]
    assert [e.name for e in explain_gradient(lambda: total(x), [x, y]).inputs] == ["inputs[0]", "inputs[1]"]
    report = explain_gradient(lambda scale=2.0: total(x) * scale, iter([x]))
    assert (report["inputs[0]"].name, report.connected) == ("inputs[0]", True)
    assert "remedy" in str(explain_gradient(lambda: 1.0, x))
    with pytest.raises(KeyError, match=r"expected one of: inputs\[0\]; got 'y'"):
        report["y"]


def test_a_function_of_the_framework_is_called_with_the_inputs(backend):
    exp = backend.framework.exp
    assert backend.tricks.explain_gradient(exp, watched(backend)).fine


def small_network(backend):
    """A network of two layers, its input, and its second layer."""
    if backend.name == "torch":
        torch = backend.framework
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        return model, model[2], torch.ones(2, 3)
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model(backend.framework.ones([2, 3]))
    return model, model.layers[1], backend.framework.ones([2, 3])


def test_a_model_stands_for_its_parameters(backend):
    model, last, x = small_network(backend)
    assert backend.tricks.explain_gradient(lambda: model(x), model).fine
    parameters = list(model.parameters()) if backend.name == "torch" else model.trainable_variables
    assert len(backend.tricks.explain_gradient(lambda: model(x), parameters).inputs) == 4
    stop = backend.framework.detach if backend.name == "torch" else backend.framework.stop_gradient
    first = model[:2] if backend.name == "torch" else model.layers[0]
    report = backend.tricks.explain_gradient(lambda: last(stop(first(x))), {"model": model})
    assert [entry.connected for entry in report.inputs] == [False, False, True, True]
    assert {entry.reason for entry in report.inputs} == {"detached", ""}
    assert report[0].name.startswith("model.")
    assert not report[0].name.endswith(".")


def test_a_model_can_be_the_function(backend):
    model, _, _ = small_network(backend)
    report = backend.tricks.explain_gradient(model, watched(backend, [[1.0, 2.0, 3.0]]))
    assert (report[0].name, report.fine) == ("inputs", True)


@pytest.mark.parametrize(
    ("function", "inputs", "error", "message"),
    [
        (
            "tensor",
            "x",
            TypeError,
            r"function must be callable; got .*Tensor; remedy: explain_gradient\(lambda",
        ),
        (lambda x: None, "x", TypeError, "function must return tensors; got NoneType; remedy"),
        (lambda: "text", "x", TypeError, "function must return tensors; got str; remedy"),
        (lambda x: x, np.ones(3), TypeError, "x must be a .*Tensor; got ndarray; remedy"),
        (lambda x: x, [1.0], TypeError, "x must be a .*Tensor; got float; remedy"),
        (lambda: 1.0, [], ValueError, "inputs must hold a tensor; got none; remedy"),
        (lambda: 1.0, {}, ValueError, "inputs must hold a tensor; got none; remedy"),
    ],
)
def test_bad_input_says_what_is_expected(backend, function, inputs, error, message):
    x = watched(backend)
    function = x if isinstance(function, str) else function
    with pytest.raises(error, match=message):
        backend.tricks.explain_gradient(function, x if isinstance(inputs, str) else inputs)


def test_the_other_frameworks_tensor_is_refused(backend):
    other = BACKENDS[{"torch": "tensorflow", "tensorflow": "torch"}[backend.name]]
    pytest.importorskip(other.name)
    with pytest.raises(TypeError, match=r"x must be a .*Tensor; got .*Tensor; remedy"):
        backend.tricks.explain_gradient(lambda x: x, watched(other()))


# Where it may be called, and what it leaves behind.


def test_a_compiled_function_is_looked_into(backend):
    x = watched(backend)
    if backend.name == "torch":
        torch = backend.framework
        torch.compiler.reset()
        compiled = torch.compile(lambda x: (x.detach() * 2).sum(), backend="eager")
        assert not compiled(x).requires_grad
    else:
        tf = backend.framework
        compiled = tf.function(lambda x: tf.reduce_sum(tf.stop_gradient(x) * 2), jit_compile=True)
        compiled(x)
    report = backend.tricks.explain_gradient(compiled, x)["x"]
    assert (report.name, report.reason) == ("x", "detached")
    assert report.place.file == __file__


def test_a_call_in_compiled_code_is_refused(backend):
    x, framework = watched(backend), backend.framework

    def inside(x):
        backend.tricks.explain_gradient(lambda x: x, x)
        return total(x)

    transformed = framework.func.grad(inside) if backend.name == "torch" else framework.function(inside)
    x = x.detach() if backend.name == "torch" else x
    with pytest.raises(RuntimeError, match="explain_gradient must be called eagerly; got a call within"):
        transformed(x)


def test_a_call_in_a_graph_is_refused_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="must be called eagerly"):
        tricks.explain_gradient(lambda: tf.ones(3), tf.ones(3))


def test_an_operation_without_a_gradient_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")

    def smaller(x):
        tf.raw_ops.NoOp()
        return tf.image.resize(x, [1, 1], method="area")

    image = tf.ones([1, 2, 2, 1])
    report = tricks.explain_gradient(lambda image: (smaller(image), total(image))[1], image)
    assert report.fine
    # TensorFlow names it itself, and so that stays an error.
    with pytest.raises(LookupError, match="ResizeArea"):
        tricks.explain_gradient(smaller, image)


def state_of(backend):
    """What a careless tracer would leave changed."""
    if backend.name == "torch":
        from torch.overrides import _get_current_function_mode_stack

        return [*_get_current_function_mode_stack(), backend.framework.from_numpy]
    from tensorflow.python.eager import context, record
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import script_ops

    tf = backend.framework
    return [
        list(context.context().op_callbacks),
        tf.config.functions_run_eagerly(),
        record.record_operation,
        record.could_possibly_record(),
        ops._EagerTensorBase._numpy,
        script_ops.py_func_common,
        tf.GradientTape.stop_recording,
        tf.GradientTape._push_tape,
    ]


def test_threads_that_take_turns_leave_nothing_behind(backend):
    x, before, reports = watched(backend), state_of(backend), []
    stop = backend.framework.detach if backend.name == "torch" else backend.framework.stop_gradient
    # Were they not to take turns, both would be inside here at once.
    inside = threading.Barrier(2)

    def function(x):
        y = stop(x)
        with contextlib.suppress(threading.BrokenBarrierError):
            inside.wait(0.2)
        return total(y * 2)

    def run():
        reports.append(backend.tricks.explain_gradient(function, x)["x"])

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.reason for report in reports] == ["detached", "detached"]
    assert inside.broken
    assert state_of(backend) == before


def test_what_another_thread_runs_meanwhile_is_not_recorded(backend):
    x = watched(backend)

    def aside():
        if backend.name == "torch":
            backend.framework.from_numpy(x.detach().numpy() * 2)
            return
        tf = backend.framework
        tf.numpy_function(np.exp, [x], tf.float32)
        tf.recompute_grad(tf.exp)(x)
        with tf.GradientTape() as tape, tape.stop_recording():
            tf.exp(x).numpy()

    def function(x):
        thread = threading.Thread(target=aside)
        thread.start()
        thread.join()
        return total(backend.framework.ones(3) * 2.0)

    report = backend.tricks.explain_gradient(function, x)["x"]
    assert (report.reason, report.operation) == ("unused", "")


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(backend, fails):
    x, before = watched(backend), state_of(backend)

    def function(x):
        y = x * 2
        if fails:
            raise ZeroDivisionError("of the function's own")
        return total(y)

    if fails:
        with pytest.raises(ZeroDivisionError, match="of the function's own"):
            backend.tricks.explain_gradient(function, x)
    else:
        assert backend.tricks.explain_gradient(function, x).fine
    assert state_of(backend) == before
    if backend.name == "torch":
        assert (x.requires_grad, x.grad, x._backward_hooks) == (True, None, None)


def test_what_torch_cannot_differentiate_it_says_itself():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    x = torch.tensor(X, requires_grad=True)

    def freed(x):
        y = (x**2).sum()
        y.backward()
        return y

    with pytest.raises(RuntimeError, match="derivative for aten::heaviside is not implemented"):
        tricks.explain_gradient(lambda x: torch.heaviside(x, torch.ones(1)), x)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        tricks.explain_gradient(freed, x)


def test_a_place_in_the_standard_library_is_the_line_that_called_it(backend):
    if backend.name == "torch":
        copied = copy.deepcopy
    else:
        copied = functools.singledispatch(backend.framework.stop_gradient)
    report = backend.tricks.explain_gradient(lambda x: total(copied(x)), watched(backend))["x"]
    assert report.place.file == __file__


def test_the_graph_outside_can_still_be_differentiated():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    x = torch.tensor(X, requires_grad=True)
    y = torch.exp(x)
    assert tricks.explain_gradient(lambda: (y**2).sum(), x).fine
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_printing_a_tensor_is_no_use_of_it(backend):
    x, shown = watched(backend), []

    def function(x):
        shown.append(f"{x} {total(x)}")
        return total(backend.framework.ones(3) * 2.0)

    report = backend.tricks.explain_gradient(function, x)["x"]
    assert report.reason == "unused"
    assert "1.5" in shown[0]


def test_a_number_that_is_only_logged_does_not_hide_a_cut(backend):
    x = watched(backend)
    stop = backend.framework.detach if backend.name == "torch" else backend.framework.stop_gradient

    def function(x):
        float(stop(total(x)))
        return total(stop(x * 2.0) * 3.0)

    report = backend.tricks.explain_gradient(function, x)["x"]
    assert report.place.code == "return total(stop(x * 2.0) * 3.0)"


@given(steps=st.lists(st.sampled_from(["exp", "tanh", "neg", "stop", "whole"]), max_size=6))
def test_the_first_cut_of_a_chain_is_found(backend, steps):
    framework = backend.framework
    if backend.name == "torch":
        stop, whole, names = framework.detach, framework.Tensor.long, ("Tensor.detach", "Tensor.long")
    else:
        stop = framework.stop_gradient
        whole, names = functools.partial(framework.cast, dtype="int32"), ("StopGradient", "Cast")
    calls = {
        "exp": framework.exp,
        "tanh": framework.tanh,
        "neg": lambda x: -x,
        "stop": stop,
        "whole": lambda x: backend.cast(whole(x), "float32"),
    }
    first = next((step for step in steps if step in ("stop", "whole")), None)
    x = watched(backend, [0.3, -0.2])

    def function(x):
        return functools.reduce(lambda y, step: calls[step](y), steps, x)

    report = backend.tricks.explain_gradient(function, x)["x"]
    expected = {"stop": names[0], "whole": names[1], None: ""}[first]
    assert (report.connected, report.operation.replace("torch.detach", names[0])) == (first is None, expected)


# The search itself, on lists that no framework made.

REMEDIES = {
    name: f"remedy of {name}"
    for name in ("detached", "unused", "replaced", "made outside", "not traced", "numpy", "sum", "nan", "inf")
} | {"zero everywhere": "", "overflow": "", "not differentiable": "", "integer": ""}
LIKE = Outside((3,), "float32")


def searched(operations, gradient="none", outside=None, **rest):
    """Explain one input, number 1, of an output, number 9."""
    report = explain(
        operations, [Input("x", 1, gradient, LIKE, **rest)], [9], {1: LIKE} | (outside or {}), REMEDIES
    )
    return report["x"]


@given(data=st.data(), size=st.integers(1, 6))
def test_the_search_agrees_with_a_walk_along_every_path(data, size):
    operations = []
    for made in range(2, size + 2):
        read = data.draw(st.sets(st.integers(1, made - 1), min_size=1, max_size=3))
        carries = data.draw(st.sets(st.sampled_from(sorted(read))))
        operations.append(Operation(f"op{made}", None, tuple(sorted(read)), (made,), frozenset(carries)))
    expected = first_cuts(operations, 1, {size + 1})
    gradient = "none" if expected is not None else "fine"
    report = explain(operations, [Input("x", 1, gradient, LIKE)], [size + 1], {1: LIKE}, REMEDIES)["x"]
    cuts = {cut.operation for cut in report.cuts if cut.reason == "not differentiable"}
    assert cuts == (expected or set())


def test_each_path_is_cut_once_where_it_is_first_cut():
    operations = [
        Operation("stop", None, (1,), (2,), reason="detached"),
        Operation("mul", None, (2,), (3,), frozenset([2])),
        Operation("floor", None, (3,), (4,)),
        Operation("argmax", None, (1,), (5,)),
        Operation("lost", None, (1,), (6,), reason="detached"),
        Operation("add", None, (4, 5), (9,), frozenset([4, 5])),
    ]
    # Mending the stop wouldn't be enough: floor follows.
    assert [finding.operation for finding in searched(operations).cuts] == ["argmax", "stop"]


def test_an_operation_without_a_reason_of_its_own_hides_nothing():
    operations = [
        Operation("logged", None, (1,), (2,), reason="detached"),
        Operation("round", None, (2,), (3,)),
        Operation("stop", None, (1,), (4,), reason="detached"),
        Operation("mul", None, (4,), (5,), reason=""),
        Operation("add", None, (3, 5), (9,), reason=""),
    ]
    assert [finding.operation for finding in searched(operations).cuts] == ["stop", "logged"]
    assert searched([Operation("odd", None, (1,), (9,), reason="")]).reason == "not differentiable"


def test_a_later_maker_of_a_tensor_replaces_an_earlier_one():
    operations = [
        Operation("floor", None, (1,), (9,)),
        Operation("custom", None, (1,), (9,), frozenset([1])),
    ]
    assert searched(operations, "fine").cuts == ()
    # The framework says that there's no gradient, and the list doesn't know why.
    assert searched(operations).reason == "not traced"


def test_the_tensor_that_stands_in_is_looked_for_by_likelihood():
    operations = [
        Operation("read", None, (5,), (6,), frozenset([5])),
        Operation("load", None, (7,), (8,), frozenset([7])),
        Operation("add", None, (6, 8, 4), (9,), frozenset([6, 8])),
    ]
    far, near = Outside((2,), "float32"), Outside((3,), "float32")
    new, known = Outside((2,), "float32", before=False), Outside((2,), "float32", parameter=True)

    def found(**outside):
        names = {"read": 5, "load": 7, "add": 4}
        report = searched(operations, outside={names[name]: like for name, like in outside.items()})
        return report.operation, report.reason

    assert found(read=known, load=far) == ("load", "made outside")
    assert found(read=far, load=near) == ("load", "replaced")
    assert found(read=near, add=new) == ("add", "made outside")
    assert found(read=known, load=known) == ("", "unused")
    report = searched(operations, outside={5: far, 7: near}, kin=frozenset([5]))
    assert (report.operation, report.reason) == ("read", "replaced")


def test_indices_that_come_along_with_values_end_the_path():
    operations = [
        Operation("max", None, (1,), (2, 3), frozenset([1])),
        Operation("max", None, (1,), (3,)),
        Operation("float", None, (3,), (9,), reason=""),
    ]
    assert searched(operations).operation == "max"


def test_a_cut_without_a_reason_comes_after_one_with():
    operations = [
        Operation("broadcast", None, (1, 7), (2,), frozenset([7]), reason=""),
        Operation("stop", None, (1,), (3,), reason="detached"),
        Operation("odd", None, (2, 3), (9,), reason="not differentiable"),
    ]
    assert [finding.operation for finding in searched(operations).cuts] == ["stop", "broadcast"]


def test_a_detached_tensor_is_blamed_on_numpy_where_it_only_goes_there():
    stop = Operation("detach", None, (1,), (2,), reason="detached")
    leave = Operation("numpy", None, (2, 0), (3,), reason="numpy")
    back = Operation("constant", None, (3,), (4,), reason="numpy")
    end = Operation("add", None, (4,), (9,), frozenset([4]))
    assert searched([stop, leave, back, end]).operation == "numpy"
    both = Operation("add", None, (4, 2), (9,), frozenset([4, 2]))
    assert searched([stop, leave, back, both]).operation == "detach"


def test_origins_are_told_nearest_to_the_output_first():
    operations = [
        Operation("log", None, (1,), (2,), frozenset([1]), arrived="fine", sent={1: "nan"}),
        Operation("sqrt", None, (1,), (3,), frozenset([1]), arrived="fine", sent={1: "inf"}),
        Operation("twice", None, (2,), (4,), frozenset([2]), arrived="nan", sent={2: "nan"}),
        Operation("add", None, (4, 3), (9,), frozenset([4, 3]), arrived="fine", sent={4: "fine", 3: "fine"}),
    ]
    assert [(f.operation, f.reason) for f in searched(operations, "nan").origins] == [
        ("sqrt", "inf"),
        ("log", "nan"),
    ]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "none"),
        (["none"], "none"),
        (["none", "zero everywhere"], "zero everywhere"),
        (["fine", "zero everywhere"], "fine"),
        (["inf", "fine"], "inf"),
        (["inf", "nan"], "nan"),
    ],
)
def test_statuses_merge_to_the_worst(statuses, expected):
    assert merged(statuses) == expected


def test_a_place_is_printed_so_that_it_can_be_opened():
    assert str(Place("train.py", 12, "loss")) == "train.py:12, in loss"
    assert str(Place("<stdin>", 1, "<module>")) == "line 1"
    assert Place("nowhere.py", 1, "f").code == ""


def test_where_only_libraries_run_there_is_no_place():
    frame, names = sys._getframe(), set()
    while frame:
        names.add(frame.f_globals["__name__"].partition(".")[0])
        frame = frame.f_back
    assert calling_place(names) is None
    assert calling_place(()).function == "test_where_only_libraries_run_there_is_no_place"


def test_a_report_prints_like_a_compiler(backend):
    x = watched(backend)
    stop = backend.framework.detach if backend.name == "torch" else backend.framework.stop_gradient
    report = backend.tricks.explain_gradient(lambda x: total(stop(x)), {"x": x})
    first, second, third, fourth, fifth = str(report).splitlines()
    assert first == "x: not connected, gradient None"
    assert second.startswith("  detached: ")
    assert third.startswith(f"  --> {__file__}:")
    assert fourth.endswith('explain_gradient(lambda x: total(stop(x)), {"x": x})')
    assert fifth.startswith("  remedy: leave out ")
