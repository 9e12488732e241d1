"""explain_gradient: which operation cut the path of a gradient, and which made it zero, NaN or infinite."""

import contextlib
import functools
import re
import sys
import threading
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import ForeignTensor, made
from gradtricks._core.structures import leaves
from gradtricks.doctor.operations import Input, Operation, Outside, SourceLine, calling_line, merged
from gradtricks.doctor.reference.tracing import first_cuts
from gradtricks.doctor.tracing import explain

X = [1.5, -2.0, 3.0]
ZERO = [0.0, 0.0, 0.0]


def total(y):
    """Sum of a tensor of either framework."""
    return y.sum() if hasattr(y, "sum") else sys.modules["tensorflow"].reduce_sum(y)


# What cuts a path: the reason, a part of the operation's name, a function of (framework, x).
CUTS = {
    "torch": [
        ("detached", "Tensor.detach", lambda t, x: total(x.detach() * t.ones(3))),
        ("detached", "Tensor.detach_", lambda t, x: total((x * 2).detach_())),
        ("detached", "Tensor.data", lambda t, x: total(x.data * 2)),
        ("detached", "Tensor.detach", lambda t, x: total(x.detach().requires_grad_() * 2)),
        ("detached", "detach", lambda t, x: t.ones(3).sum() * float(x.detach().sum())),
        # Made by a constructor that no mode sees.
        ("detached", "shared memory", lambda t, x: total(t.Tensor._make_subclass(t.Tensor, x))),
        # Made of a view that says it requires a gradient, and has none.
        ("sampled", "Normal.sample", lambda t, x: t.distributions.Normal(x, 1.0).sample().sum()),
        ("drawn", "Bernoulli.sample", lambda t, x: t.distributions.Bernoulli(logits=x).sample().sum()),
        ("not recorded", "Tensor.mul", lambda t, x: total(t.inference_mode()(lambda: x * 2)())),
        ("integer cast", "Tensor.to", lambda t, x: total(x.to(t.int32) * 2.0)),
        ("not differentiable", "argmax", lambda t, x: t.ones(3)[x.argmax()]),
        ("not differentiable", "Tensor.max", lambda t, x: x.max(0).indices + t.ones(1)),
        ("copied", "nn.Parameter", lambda t, x: total(t.nn.Parameter(x) * 2)),
        ("numpy", "Tensor.numpy", lambda t, x: total(t.from_numpy(np.exp(x.detach().numpy())))),
        ("numpy", "Tensor.numpy", lambda t, x: total(t.from_numpy(x.detach().numpy()) * 2)),
        ("numpy", "__array__", lambda t, x: total(t.tensor(np.asarray(x.detach())))),
        ("numpy", "__float__", lambda t, x: total(t.ones(3) * float(x[0].detach()))),
        ("numpy", "Tensor.item", lambda t, x: x.sum().item()),
        ("numpy", "Tensor.tolist", lambda t, x: total(t.tensor(x.tolist()))),
        ("numpy", "Tensor.__int__", lambda t, x: t.ones(3)[: int(x[0].detach())].sum()),
        ("not traced", "torch.func", lambda t, x: total(t.vmap(lambda row: row.detach() * 2)(x))),
        ("unused", "", lambda t, x: total(t.ones(3) * 2.0)),
        ("unused", "Tensor.mul", lambda t, x: (x * 2, total(t.ones(3)))[1]),
    ],
    "tensorflow": [
        ("detached", "StopGradient", lambda tf, x: total(tf.stop_gradient(x) * 2)),
        ("integer cast", "Cast", lambda tf, x: total(tf.cast(tf.cast(x, tf.int32), tf.float32))),
        ("not differentiable", "Floor", lambda tf, x: total(tf.floor(x))),
        ("not differentiable", "ArgMax", lambda tf, x: tf.ones(3)[int(tf.argmax(x))]),
        ("not differentiable", "TopKV2", lambda tf, x: total(tf.cast(tf.math.top_k(x, 2)[1], tf.float32))),
        ("copied", "Variable", lambda tf, x: total(tf.Variable(tf.stop_gradient(x)) * 2.0)),
        ("copied", "Variable", lambda tf, x: total(tf.Variable(x) * 2.0)),
        ("numpy", "Tensor.numpy", lambda tf, x: total(tf.constant(np.exp(x.numpy())) * 2)),
        ("numpy", "numpy_function", lambda tf, x: total(tf.numpy_function(np.exp, [x], tf.float32))),
        ("numpy", "Tensor.__float__", lambda tf, x: float(total(x))),
        ("numpy", "Tensor.__int__", lambda tf, x: tf.ones(3)[int(x[0])]),
        ("made outside", "Mul", lambda tf, x: total(tf.constant(np.exp(x)) * 2)),
        ("not traced", "lambda", lambda t, x: t.function(lambda x: t.floor(x)).get_concrete_function(x)(x)),
        ("unused", "", lambda tf, x: total(tf.ones(tf.shape(x)) * 2.0)),
        ("unused", "Mul", lambda tf, x: (x * 2, total(tf.ones(3)))[1]),
    ],
}


def cuts(framework, reason, operation):
    """Add a function of several lines to those that cut a path."""
    return lambda function: CUTS[framework].append((reason, operation, function))


@cuts("torch", "not recorded", "Tensor.mul")
def _(torch, x):
    with torch.no_grad():
        y = x * 2
        z = y + 1
    return total(z * torch.ones(3, requires_grad=True))


@cuts("torch", "not recorded", "torch.autograd.grad")
def _(torch, x):
    (gradient,) = torch.autograd.grad((x**3).sum(), x)
    return total(gradient * torch.ones(3, requires_grad=True))


@cuts("torch", "assigned", "Tensor.mul_")
def _(torch, x):
    doubled = x * 2
    with torch.no_grad():
        view = doubled.view(-1)
        view.mul_(x)
    return total(view.detach() * torch.ones(3, requires_grad=True))


@cuts("torch", "assigned", "Tensor.copy_")
def _(torch, x):
    leaf = torch.zeros(3, requires_grad=True)
    leaf.data.copy_(x)
    return total(leaf * 2)


@cuts("torch", "assigned", "Tensor.copy_")
def _(torch, x):
    leaf = torch.zeros(3, requires_grad=True)
    with torch.no_grad():
        leaf.copy_(x)
    return total(leaf * 2)


@cuts("torch", "assigned", "Tensor.add_")
def _(torch, x):
    buffer = torch.zeros(4)
    with torch.no_grad():
        buffer[:3].add_(x)
    return total(buffer * torch.ones(4, requires_grad=True))


@cuts("torch", "assigned", "Tensor.data")
def _(torch, x):
    leaf = torch.zeros(3, requires_grad=True)
    leaf.data = x
    return total(leaf * 2)


@cuts("torch", "detached", "Tensor.detach")
def _(torch, x):
    buffer = torch.zeros(3)
    buffer[0] = x.detach()[0]
    return total(buffer * 2)


@cuts("torch", "copied", "torch.tensor")
def _(torch, x):
    with pytest.warns(UserWarning, match="copy construct"):
        return total(torch.tensor(x, requires_grad=True))


@cuts("torch", "gradient rule", "Halve")
def _(torch, x):
    class Halve(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, gradient):
            return None

    return total(Halve.apply(x) * 2)


BEFORE = {}


@cuts("tensorflow", "assigned", "AssignVariableOp")
def _(tf, x):
    variable = tf.Variable(ZERO)
    variable.assign(x * 1.0)
    variable.assign_add(tf.ones(3))
    return total(variable * 2.0)


@cuts("tensorflow", "assigned", "AssignVariableOp")
def _(tf, x):
    BEFORE.setdefault("variable", tf.Variable(ZERO)).assign(x)
    return total(BEFORE["variable"] * 2.0)


@cuts("tensorflow", "gradient rule", "halve")
def _(tf, x):
    @tf.custom_gradient
    def halve(x):
        return x / 2, lambda gradient: None

    return total(halve(x))


@cuts("tensorflow", "unused", "TensorSliceDataset")
def _(tf, x):
    return total(tf.stack([row + 1.0 for row in tf.data.Dataset.from_tensor_slices(x)]))


@cuts("tensorflow", "not differentiable", "Floor")
def _(tf, x):
    ops, kind = tf.raw_ops, {"element_shape": tf.constant([], tf.int32), "element_dtype": tf.float32}
    rows = ops.EmptyTensorList(max_num_elements=-1, **kind)
    for row in tf.unstack(x):
        rows = ops.TensorListPushBack(input_handle=rows, tensor=row)
    return total(tf.floor(ops.TensorListStack(input_handle=rows, **kind)))


@pytest.mark.parametrize(("framework", "case"), [(name, case) for name in CUTS for case in CUTS[name]])
def test_names_what_cut_the_path(framework, case):
    (reason, operation, function), backend = case, made(framework)
    x = backend.leaf(X)
    report = backend.doctor.explain_gradient(lambda x: function(backend.framework, x), x)["x"]
    assert (report.connected, report.gradient, report.reason) == (False, "none", reason)
    assert operation in report.operation
    assert bool(operation) == bool(report.operation)
    assert report.remedy
    assert not report.operation or report.place.file == __file__
    # The framework itself finds none either.
    assert backend.own_gradient(lambda x: function(backend.framework, x), x) is None


# What doesn't cut it.


def custom_rule(framework, x):
    floor = made(framework.__name__).declared(framework.floor, lambda x: 1.0)
    return total(floor(x) * 2)


def penalty(framework, x):
    return total(made(framework.__name__).slope(lambda x: x**3)(x) ** 2)


def buffer_of_rows(torch, x):
    buffer = torch.zeros(3)
    for row in range(3):
        buffer[row] = x[row] * 2
    return total(buffer)


def array_of_rows(tf, x):
    rows = tf.TensorArray(tf.float32, 3)
    for row in range(3):
        rows = rows.write(row, x[row] * 2)
    return total(rows.stack())


BOTH_WHOLE = [
    custom_rule,
    penalty,
    lambda framework, x: x,
    lambda framework, x: total(framework.exp(x) * 2),
    lambda framework, x: framework.exp(x),
    lambda framework, x: {"a": [x * 2, total(x[:1])], "b": (framework.ones(2),)},
    lambda framework, x: total(functools.reduce(lambda y, _: y * 1.1, range(9), x)),
]
WHOLE = {
    "torch": [
        *BOTH_WHOLE,
        buffer_of_rows,
        lambda torch, x: torch.func.grad(lambda y: (y**3).sum())(x),
        lambda torch, x: torch.func.vmap(lambda y: y**3)(x),
        lambda torch, x: total(x.requires_grad_() * 2),
        lambda torch, x: total(x * torch.ones(3).to(torch.float8_e4m3fn).float()),
        lambda torch, x: torch.complex(x, x).abs().sum(),
    ],
    "tensorflow": [
        *BOTH_WHOLE,
        array_of_rows,
        lambda tf, x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x))[1],
        lambda tf, x: tf.vectorized_map(lambda y: y * 2, x),
        lambda tf, x: total(tf.py_function(tf.exp, [x], tf.float32)),
        lambda tf, x: total(tf.cond(total(x) > 0, lambda: x * 2, lambda: x)),
        lambda tf, x: total(tf.nn.relu6(x)),
        lambda tf, x: tf.nn.bias_add(tf.ones([1, 3]), x),
        lambda tf, x: total(tf.gather(x, [0, 1])),
        lambda tf, x: tf.Variable(1.0).assign(2.0) * x,
    ],
}


@pytest.mark.parametrize(("framework", "function"), [(name, f) for name in WHOLE for f in WHOLE[name]])
def test_a_whole_path_is_connected(framework, function):
    backend = made(framework)
    report = backend.doctor.explain_gradient(lambda x: function(backend.framework, x), backend.leaf(X))
    assert report.fine
    assert (report[0].reason, report[0].operation, report[0].place, report[0].remedy) == ("", "", None, "")
    assert str(report) == "x: connected, gradient fine"


# What makes a gradient zero, NaN or infinite: function, input, status, a part of the operation's name.

ILL = {
    "torch": [
        (lambda torch, x: torch.floor(x), X, "zero everywhere", "floor"),
        (lambda torch, x: torch.relu(x - 9) * 3, X, "zero everywhere", "relu"),
        (lambda torch, x: torch.where(x > 9, x, 0.0), X, "zero everywhere", "where"),
        (lambda torch, x: (x * 2) * 0, X, "zero everywhere", "mul"),
        (lambda torch, x: 1 / x, ZERO, "inf", "rtruediv"),
        (lambda torch, x: torch.where(x > 0, torch.sqrt(x), 0.0), ZERO, "nan", "sqrt"),
        (lambda torch, x: torch.log(x) * 0, ZERO, "nan", "log"),
        (lambda torch, x: torch.sqrt((x**2).sum()), ZERO, "nan", "sqrt"),
    ],
    "tensorflow": [
        (lambda tf, x: tf.sign(x), X, "zero everywhere", "Sign"),
        (lambda tf, x: tf.nn.relu(x - 9) * 3, X, "zero everywhere", "Relu"),
        (lambda tf, x: tf.clip_by_value(x, 5.0, 6.0), X, "zero everywhere", "Maximum"),
        (lambda tf, x: (x * 2) * 0, X, "zero everywhere", "Mul"),
        (lambda tf, x: 1 / x, ZERO, "inf", "RealDiv"),
        (lambda tf, x: tf.where(x > 0, tf.math.log(x), 0.0), ZERO, "nan", "Log"),
        (lambda tf, x: tf.math.log(x) * 0, ZERO, "nan", "Log"),
        (lambda tf, x: tf.norm(x), ZERO, "nan", "Sqrt"),
    ],
}


@pytest.mark.parametrize(("framework", "case"), [(name, case) for name in ILL for case in ILL[name]])
def test_names_where_a_gradient_went_wrong(framework, case):
    function, values, status, operation = case
    backend = made(framework)
    x = backend.leaf(values)
    report = backend.doctor.explain_gradient(lambda x: function(backend.framework, x), x)["x"]
    assert (report.connected, report.gradient) == (True, status)
    assert operation in report.operation
    assert report.reason in (status, "inf")
    assert report.place.file == __file__
    gradient = backend.own_gradient(lambda x: function(backend.framework, x), x)
    seen = {"zero everywhere": not gradient.any(), "nan": np.isnan(gradient).any()}
    assert seen.get(status, np.isinf(gradient).any())


def test_contributions_that_cancel_blame_no_operation(backend):
    report = backend.doctor.explain_gradient(lambda x: total(x * 2 - x - x), backend.leaf(X))["x"]
    assert (report.gradient, report.reason, report.operation) == ("zero everywhere", "zero everywhere", "")
    assert "several paths cancel" in report.remedy


def test_the_first_value_that_is_not_finite_is_named(backend):
    log, x = backend.operator("log"), backend.leaf([0.0, 1.0])
    report = backend.doctor.explain_gradient(lambda x: total(log(x) + 1), x)
    assert report.output == "inf"
    assert "og" in report.overflow.operation
    assert "values: finite until here" in str(report)
    masked = backend.doctor.explain_gradient(lambda x: total(backend.framework.exp(log(x))), x)
    assert masked.output == "fine"


def test_a_cut_beside_a_whole_path_is_told(backend):
    report = backend.doctor.explain_gradient(lambda x: total(x * backend.stop(x)), backend.leaf(X))
    assert report.fine
    assert [finding.reason for finding in report["x"].cuts] == ["detached"]
    assert report["x"].reason == ""
    assert "another of its paths is cut" in str(report)


def test_comparisons_beside_a_whole_path_are_no_news(backend):
    where = backend.framework.where
    report = backend.doctor.explain_gradient(lambda x: total(where(x > 0, x, -x)), backend.leaf(X))
    assert report["x"].cuts == ()


# The threads.


def test_the_thread_that_stores_a_difference_in_a_variable(backend):
    # How often a product fits into a box, and what is left over; the answer is put into a variable.
    def difference(prod, box, stored):
        left = box - backend.framework.floor(box / prod) * prod
        backend.assign(stored, left)
        return stored * 1.0

    inputs = [backend.leaf(3.0), backend.leaf(10.0), backend.parameter(0.0, "float32")]
    report = backend.doctor.explain_gradient(difference, inputs)
    assert [entry.name for entry in report.inputs] == ["prod", "box", "stored"]
    # The variable itself stays connected; the values that were stored in it don't.
    assert [entry.reason for entry in report.inputs] == ["assigned", "assigned", ""]
    assert report["stored"].connected
    assert report["prod"].place.function == "assign"


def test_the_thread_that_asks_at_a_plus_delta(backend):
    # gradients(b, a + delta): b was computed from a, and a + delta is another tensor.
    a, delta = backend.leaf(X), 0.1

    def function(a):
        return total(a**3)

    report = backend.doctor.explain_gradient(lambda: function(a), a + delta)
    assert report[0].reason == "replaced"
    assert "z = x + delta" in report[0].remedy
    assert backend.doctor.explain_gradient(function, a + delta).connected


def test_a_tensor_made_before_the_function_is_named(backend):
    x = backend.leaf(X)
    before = backend.framework.exp(backend.stop(x))[:2]
    report = backend.doctor.explain_gradient(lambda x: total(before * 2.0), x)["x"]
    assert report.reason == "made outside"
    assert "total(before * 2.0)" in report.place.code


def test_what_torch_remembers_of_tensors_made_before(in_torch):
    x = in_torch.leaf(X)
    before = x * 2
    assert in_torch.doctor.explain_gradient(lambda: before.sum(), x).connected


def test_a_tensor_from_an_unseen_constructor_is_pointed_at(in_torch):
    constructor = in_torch.framework.FloatTensor
    report = in_torch.doctor.explain_gradient(lambda x: constructor([1.0, 2.0]).sum(), in_torch.leaf([[1.0]]))
    assert (report["x"].reason, report["x"].operation) == ("made outside", "Tensor.sum")


def test_variables_are_told_from_others_and_copies_in_tensorflow(in_tensorflow):
    tf, explain_gradient = in_tensorflow.framework, in_tensorflow.doctor.explain_gradient
    one, other, scalar = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0]), tf.Variable(2.0)
    report = explain_gradient(lambda: tf.reduce_sum(one), [one, other])
    assert (report[0].connected, report[1].connected, report[1].reason) == (True, False, "unused")
    report = explain_gradient(lambda: tf.reduce_sum(tf.stop_gradient(one) * other), [one, other])
    assert (report[0].operation, report[1].connected) == ("StopGradient", True)
    assert explain_gradient(lambda: tf.exp(scalar), scalar).connected
    report = explain_gradient(lambda x: total(tf.Variable(x) * 2.0), one)[0]
    assert (report.connected, report.reason, report.operation) == (False, "copied", "Variable")


def test_a_tape_that_was_stopped_stops_ours_in_tensorflow(in_tensorflow):
    tf, explain_gradient = in_tensorflow.framework, in_tensorflow.doctor.explain_gradient
    x, scalar = tf.constant(X), tf.Variable(2.0)

    @tf.custom_gradient
    def half(x):
        return x / 2, lambda gradient: gradient / 2

    def within(x):
        # Not the tape that differentiates the function.
        with tf.GradientTape() as tape, tape.stop_recording():
            y = x * 2
        return total(y)

    with tf.GradientTape() as tape, tf.GradientTape() as other:
        tape.watch(x)

        def of_a_tensor(x):
            with tape.stop_recording(), other.stop_recording():
                y = x * 2
                z = y + 1
            return total(z * 3.0)

        def stopped(function):
            with tape.stop_recording():
                return function()

        one = explain_gradient(of_a_tensor, x)[0]
        two = explain_gradient(lambda: stopped(lambda: tf.exp(scalar)), scalar)[0]
        three = explain_gradient(lambda x: stopped(lambda: total(half(x))), x)[0]
        y = of_a_tensor(x)
    assert tape.gradient(y, x) is None
    assert (one.reason, one.operation, one.place.code) == ("not recorded", "Mul", "y = x * 2")
    assert two.reason == "not recorded"
    assert "tf.exp(scalar)" in two.place.code
    assert (three.reason, three.operation) == ("not recorded", "half")
    assert explain_gradient(within, x).fine


def test_rows_of_a_table_have_a_gradient(backend):
    table, rows = backend.parameter([[1.0, 2.0], [3.0, 4.0]]), backend.tensor([0, 0])
    explain_gradient = backend.doctor.explain_gradient
    assert explain_gradient(lambda: total(backend.take(table, rows)), table).fine
    report = explain_gradient(lambda: total(backend.take(table, rows) * 0), table)
    assert report[0].gradient == "zero everywhere"


# What may be given.


def test_what_can_have_no_gradient_says_so(backend):
    explain_gradient = backend.doctor.explain_gradient
    report = explain_gradient(lambda x: total(x * 2.0), backend.unwatched(X))["x"]
    assert (report.connected, report.reason, report.place) == (False, "not watched", None)
    report = explain_gradient(total, backend.tensor([1, 2]))[0]
    assert (report.connected, report.reason) == (False, "integer")
    assert explain_gradient(lambda x: backend.cast(x, "int32"), backend.leaf(X))["x"].reason == "integer cast"


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x, y: x, ["x"]),
        (lambda x, y: [x, y], ["x", "y"]),
        (lambda x, y: {"y": y, "x": x}, ["y", "x"]),
        (lambda x, y: [[x, y], {"k": y}], ["x[0]", "x[1]", "y['k']"]),
    ],
)
def test_inputs_keep_their_structure_and_get_names(backend, make, names):
    def function(x, y=0.0, *, z=0.0, **rest):
        return sum(leaf if isinstance(leaf, float) else total(leaf) for leaf in leaves([x, y, z]))

    report = backend.doctor.explain_gradient(function, make(backend.leaf(X), backend.leaf([4.0])))
    assert [entry.name for entry in report.inputs] == names
    assert report.connected


def test_inputs_without_names_are_numbered(backend):
    x, y = backend.leaf(X), backend.leaf([4.0])
    explain_gradient = backend.doctor.explain_gradient
    report = explain_gradient(lambda *args: sum(map(total, args)), (x, y, x))
    assert [entry.name for entry in report.inputs] == ["inputs[0]", "inputs[1]", "inputs[2]"]
    # A closure is called without arguments.
    assert [e.name for e in explain_gradient(lambda: total(x), x).inputs] == ["inputs"]
    assert [e.name for e in explain_gradient(lambda: total(x), [x, y]).inputs] == ["inputs[0]", "inputs[1]"]
    report = explain_gradient(lambda scale=2.0: total(x) * scale, iter([x]))
    assert (report["inputs[0]"].name, report.connected) == ("inputs[0]", True)
    assert "remedy" in str(explain_gradient(lambda: 1.0, x))
    with pytest.raises(KeyError, match=r"expected one of: inputs\[0\]; got 'y'"):
        report["y"]
    assert explain_gradient(backend.framework.exp, x).fine


def test_a_model_stands_for_its_parameters_or_the_function(backend):
    model, (first, last), parameters = backend.network(3, 4, 1)
    x = backend.cast(backend.leaf([[1.0, 2.0, 3.0]]), "float32")
    explain_gradient = backend.doctor.explain_gradient
    assert explain_gradient(lambda: model(x), model).fine
    assert len(explain_gradient(lambda: model(x), parameters).inputs) == 4
    report = explain_gradient(lambda: last(backend.stop(first(x))), {"model": model})
    found = [(entry.connected, entry.reason) for entry in report.inputs]
    assert found == [(False, "detached")] * 2 + [(True, "")] * 2
    assert report[0].name.startswith("model.")
    assert not report[0].name.endswith(".")
    report = explain_gradient(model, x)
    assert (report[0].name, report.fine) == ("inputs", True)


@pytest.mark.parametrize(
    ("function", "inputs", "error", "message"),
    [
        ("x", "x", TypeError, r"function must be callable; got .*Tensor; remedy: explain_gradient\(lambda"),
        (lambda x: None, "x", TypeError, "function must return tensors; got NoneType; remedy"),
        (lambda: "text", "x", TypeError, "function must return tensors; got str; remedy"),
        (lambda x: x, np.ones(3), TypeError, "x must be a .*Tensor; got ndarray; remedy"),
        (lambda x: x, [1.0], TypeError, "x must be a .*Tensor; got float; remedy"),
        (lambda x: x, ForeignTensor(), TypeError, r"x must be a .*Tensor; got ForeignTensor; remedy"),
        (lambda: 1.0, [], ValueError, "inputs must hold a tensor; got none; remedy"),
        (lambda: 1.0, {}, ValueError, "inputs must hold a tensor; got none; remedy"),
    ],
)
def test_bad_input_says_what_is_expected(backend, function, inputs, error, message):
    x = backend.leaf(X)
    function = x if isinstance(function, str) else function
    inputs = x if isinstance(inputs, str) else inputs
    with pytest.raises(error, match=message):
        backend.doctor.explain_gradient(function, inputs)


# Where it may be called, and what it leaves behind.


def test_a_compiled_function_is_looked_into(backend):
    def function(x):
        return total(backend.stop(x) * 2)

    report = backend.doctor.explain_gradient(backend.compiled(function), backend.leaf(X))["x"]
    assert (report.name, report.reason, report.place.file) == ("x", "detached", __file__)


def test_a_call_in_compiled_code_is_refused(backend):
    with pytest.raises(RuntimeError, match="explain_gradient must be called eagerly; got a call within"):
        backend.traced(lambda x: backend.doctor.explain_gradient(lambda x: x, x), X)


def test_an_operation_without_a_gradient_in_tensorflow(in_tensorflow):
    tf, explain_gradient = in_tensorflow.framework, in_tensorflow.doctor.explain_gradient

    def smaller(x):
        tf.raw_ops.NoOp()
        return tf.image.resize(x, [1, 1], method="area")

    image = tf.ones([1, 2, 2, 1])
    assert explain_gradient(lambda image: (smaller(image), total(image))[1], image).fine
    # TensorFlow names it itself, and so that stays an error.
    with pytest.raises(LookupError, match="ResizeArea"):
        explain_gradient(smaller, image)


def test_threads_that_take_turns_leave_nothing_behind(backend):
    x, before, reports = backend.leaf(X), backend.replaceable(), []
    # Were they not to take turns, both would be inside here at once.
    inside = threading.Barrier(2)

    def function(x):
        y = backend.stop(x)
        with contextlib.suppress(threading.BrokenBarrierError):
            inside.wait(0.2)
        return total(y * 2)

    def run():
        reports.append(backend.doctor.explain_gradient(function, x)["x"])

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.reason for report in reports] == ["detached", "detached"]
    assert inside.broken
    assert backend.replaceable() == before


def look_aside(tf, x):
    tf.numpy_function(np.exp, [x], tf.float32)
    tf.recompute_grad(tf.exp)(x)
    with tf.GradientTape() as tape, tape.stop_recording():
        tf.exp(x).numpy()


ASIDE = {"torch": lambda torch, x: torch.from_numpy(x.detach().numpy() * 2), "tensorflow": look_aside}


def test_what_another_thread_runs_meanwhile_is_not_recorded(backend):
    def function(x):
        thread = threading.Thread(target=ASIDE[backend.name], args=(backend.framework, x))
        thread.start()
        thread.join()
        return total(backend.framework.ones(3) * 2.0)

    report = backend.doctor.explain_gradient(function, backend.leaf(X))["x"]
    assert (report.reason, report.operation) == ("unused", "")


def test_an_error_of_the_function_leaves_nothing_behind(backend):
    x, before = backend.leaf(X), backend.replaceable()
    with pytest.raises(ZeroDivisionError):
        backend.doctor.explain_gradient(lambda x: total(x * 2) / (1 // 0), x)
    assert backend.replaceable() == before


def test_torchs_flags_and_errors_stay_its_own(in_torch):
    torch, explain_gradient = in_torch.framework, in_torch.doctor.explain_gradient
    x = in_torch.leaf(X)
    outside = torch.exp(x)
    assert explain_gradient(lambda: (outside**2).sum(), x).fine
    assert (x.requires_grad, x.grad, x._backward_hooks) == (True, None, None)
    outside.sum().backward()
    torch.testing.assert_close(x.grad, outside.detach())

    def freed(x):
        y = (x**2).sum()
        y.backward()
        return y

    with pytest.raises(RuntimeError, match="derivative for aten::heaviside is not implemented"):
        explain_gradient(lambda x: torch.heaviside(x, torch.ones(1)), x)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        explain_gradient(freed, x)


def test_a_line_of_the_standard_library_is_its_callers(backend):
    called = functools.singledispatch(backend.stop)
    report = backend.doctor.explain_gradient(lambda x: total(called(x)), backend.leaf(X))["x"]
    assert report.place.file == __file__


def test_printing_a_tensor_is_no_use_of_it(backend):
    shown = []

    def function(x):
        shown.append(f"{x} {total(x)}")
        return total(backend.framework.ones(3) * 2.0)

    assert backend.doctor.explain_gradient(function, backend.leaf(X))["x"].reason == "unused"
    assert "1.5" in shown[0]


def test_looking_at_a_constant_is_no_use_in_tensorflow(in_tensorflow):
    tf, explain_gradient = in_tensorflow.framework, in_tensorflow.doctor.explain_gradient

    def constant_value(x):
        return tf.constant(x.numpy())  # a cut, in a function that is called as one of TensorFlow's is

    assert explain_gradient(lambda x: total(constant_value(x)), tf.constant(X))["x"].reason == "numpy"
    looking = explain_gradient(lambda x: (tf.get_static_value(x), total(tf.ones(3) * 2.0))[1], tf.constant(X))
    assert looking["x"].reason == "unused"


def test_a_logged_number_does_not_hide_a_cut(backend):
    def function(x):
        float(backend.stop(total(x)))
        return total(backend.stop(x * 2.0) * 3.0)

    report = backend.doctor.explain_gradient(function, backend.leaf(X))["x"]
    assert report.place.code == "return total(backend.stop(x * 2.0) * 3.0)"


# The search itself, on lists that no framework made.

REMEDIES = defaultdict(str)
LIKE = Outside((3,), "float32")


def op(name, reads, makes, *carries, **rest):
    return Operation(name, None, tuple(reads), tuple(makes), frozenset(carries), **rest)


def searched(operations, gradient="none", outside=None):
    """Explain one input, number 1, of an output, number 9."""
    given = [Input("x", 1, gradient, LIKE)]
    return explain(operations, given, [9], {1: LIKE} | (outside or {}), REMEDIES)["x"]


@given(data=st.data(), size=st.integers(1, 6))
def test_the_search_agrees_with_a_walk_along_every_path(data, size):
    operations = []
    for makes in range(2, size + 2):
        read = data.draw(st.sets(st.integers(1, makes - 1), min_size=1, max_size=3))
        carries = data.draw(st.sets(st.sampled_from(sorted(read))))
        operations.append(op(f"op{makes}", sorted(read), [makes], *carries))
    expected = first_cuts(operations, 1, {size + 1})
    gradient = "none" if expected is not None else "fine"
    report = explain(operations, [Input("x", 1, gradient, LIKE)], [size + 1], {1: LIKE}, REMEDIES)["x"]
    cuts = {cut.operation for cut in report.cuts if cut.reason == "not differentiable"}
    assert cuts == (expected or set())


def ops(*texts):
    """Read operations such as "stop/detached: 1 > 2" and "add: 3+ 4 > 5", which carries from 3."""
    found = []
    for text in texts:
        head, reads, makes = re.split(": | > ", text)
        name, slash, reason = head.partition("/")
        carries = [int(number[:-1]) for number in reads.split() if number.endswith("+")]
        numbers = [[int(number) for number in side.replace("+", "").split()] for side in (reads, makes)]
        found.append(op(name, *numbers, *carries, **({"reason": reason} if slash else {})))
    return found


STOP, EXPORT = "stop/detached: 1 > 2", ["numpy/numpy: 2 0 > 3", "constant/numpy: 3 > 4"]


@pytest.mark.parametrize(
    ("operations", "cuts"),
    [
        # Each path once, where it is first cut: mending the stop wouldn't be enough, floor follows.
        (
            [STOP, "mul: 2+ > 3", "floor: 3 > 4", "argmax: 1 > 5", "lost/detached: 1 > 6", "add: 4+ 5+ > 9"],
            ["argmax", "stop"],
        ),
        # An operation without a reason of its own hides nothing.
        (
            ["log/detached: 1 > 4", "round: 4 > 3", STOP, "mul/: 2 > 5", "add/: 3 5 > 9"],
            ["stop", "log"],
        ),
        # Indices that come along with values end the path.
        (["max: 1+ > 2 3", "max: 1 > 3", "float/: 3 > 9"], ["max"]),
        # A cut without a reason comes after one with.
        (["broadcast/: 1 7+ > 3", STOP, "odd: 3 2 > 9"], ["stop", "broadcast"]),
        # What is detached only for NumPy is blamed on that.
        ([STOP, *EXPORT, "add: 4+ > 9"], ["numpy"]),
        ([STOP, *EXPORT, "add: 4+ 2+ > 9"], ["stop"]),
    ],
)
def test_cuts_are_told_in_the_order_of_mending(operations, cuts):
    assert [finding.operation for finding in searched(ops(*operations)).cuts][: len(cuts)] == cuts


def test_a_later_maker_of_a_tensor_replaces_the_earlier():
    operations = ops("floor: 1 > 9", "custom: 1+ > 9")
    assert searched(operations, "fine").cuts == ()
    # The framework says that there's no gradient, and the list doesn't know why.
    assert searched(operations).reason == "not traced"
    assert searched(ops("odd/: 1 > 9")).reason == "not differentiable"


def test_the_likeliest_stand_in_for_an_input_is_named():
    operations = ops("read: 5+ > 6", "load: 7+ > 8", "add: 6+ 8+ 4 > 9")
    far, near = Outside((2,), "float32"), Outside((3,), "float32")
    new, known = Outside((2,), "float32", before=False), Outside((2,), "float32", parameter=True)

    def found(**named):
        outside = {{"read": 5, "load": 7, "add": 4}[name]: like for name, like in named.items()}
        report = searched(operations, outside=outside)
        return report.operation, report.reason

    assert found(read=known, load=far) == ("load", "made outside")
    assert found(read=far, load=near) == ("load", "replaced")
    assert found(read=near, add=new) == ("add", "made outside")
    assert found(read=known, load=known) == ("", "unused")


def test_origins_are_told_nearest_to_the_output_first():
    operations = [
        op("log", [1], [2], 1, arrived="fine", sent={1: "nan"}),
        op("sqrt", [1], [3], 1, arrived="fine", sent={1: "inf"}),
        op("twice", [2], [4], 2, arrived="nan", sent={2: "nan"}),
        op("add", [4, 3], [9], 4, 3, arrived="fine", sent={4: "fine", 3: "fine"}),
    ]
    origins = [(found.operation, found.reason) for found in searched(operations, "nan").origins]
    assert origins == [("sqrt", "inf"), ("log", "nan")]


def test_statuses_merge_to_the_worst():
    order = ["none", "zero everywhere", "fine", "inf", "nan"]
    assert merged([]) == "none"
    assert [merged(order[: i + 1]) for i in range(5)] == order


def test_source_lines(monkeypatch):
    assert str(SourceLine("train.py", 12, "loss")) == "train.py:12, in loss"
    assert str(SourceLine("<stdin>", 1, "<module>")) == "line 1"
    assert SourceLine("nowhere.py", 1, "f").code == ""
    assert calling_line().function == "test_source_lines"
    frame, names = sys._getframe(), set()
    while frame:
        names.add(frame.f_globals["__name__"].partition(".")[0])
        frame = frame.f_back
    monkeypatch.setattr("gradtricks.doctor.operations._LIBRARIES", names)
    assert calling_line() is None


def test_a_report_prints_like_a_compiler(backend):
    report = backend.doctor.explain_gradient(lambda x: total(backend.stop(x)), {"x": backend.leaf(X)})
    first, second, third, fourth, fifth = str(report).splitlines()
    assert first == "x: not connected, gradient None"
    assert second.startswith("  detached: ")
    assert third.startswith(f"  --> {__file__}:")
    assert fourth.endswith('explain_gradient(lambda x: total(backend.stop(x)), {"x": backend.leaf(X)})')
    assert fifth.startswith("  remedy: leave out ")


@pytest.mark.parametrize(
    "edit",
    [
        lambda torch, w: w[0].zero_(),
        lambda torch, w: w.T.div_(2),
        lambda torch, w: [row.clamp_(-1, 1) for row in w],
        lambda torch, w: w.view(-1)[:1].copy_(torch.ones(1)),
        lambda torch, w: w.unbind(0)[0].mul_(w[0]),
        lambda torch, w: torch.nn.init.zeros_(w[0]),
        lambda torch, w: torch.nn.Embedding(5, 3, padding_idx=0),
    ],
)
def test_an_edited_view_of_a_parameter_cuts_nothing_in_torch(in_torch, edit):
    torch, layer = in_torch.framework, in_torch.framework.nn.Linear(4, 3)

    def function():
        with torch.no_grad():
            edit(torch, layer.weight)
        return layer(torch.ones(2, 4)).sum()

    report = in_torch.doctor.explain_gradient(function, layer)
    assert report.fine, str(report)
