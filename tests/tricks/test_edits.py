"""The two edits and compiled loops, in every situation that the frameworks have. Tricks rest on this."""

import gc
import itertools
import subprocess
import sys
import weakref
from functools import cache

import numpy as np
import pytest

from backends import made
from transforms import OF_THE_EDITS, numerical_second_vjp


class TorchEdits:
    """The edits of PyTorch, and what the cases need besides."""

    def __init__(self):
        import torch

        from gradtricks.torch import _edits

        self.substitute, self.intercept, self.framework = _edits.substitute, _edits.intercept, torch
        self.clip = lambda g, bound: torch.minimum(torch.maximum(g, -bound), bound)
        self.loop = _edits.with_slope(_torch_product(), _product_cotangents, _product_tangent)

    def constant(self, values, like):
        return self.framework.tensor(values, dtype=like.dtype, device=like.device)

    def scaled(self, gradient, factor):
        return self.framework.where(factor == 0, 0, gradient * factor)


class TensorFlowEdits:
    """The edits of TensorFlow, and what the cases need besides."""

    def __init__(self):
        import tensorflow as tf

        from gradtricks.tensorflow import _edits

        self.substitute, self.intercept, self.framework = _edits.substitute, _edits.intercept, tf
        self.clip = lambda g, bound: tf.minimum(tf.maximum(g, -bound), bound)
        self.scaled = tf.math.multiply_no_nan
        self.loop = _edits.with_slope(np.multiply, _product_cotangents, lambda x, y: x * y)

    def constant(self, values, like):
        return self.framework.constant(values, like.dtype)


@cache
def _torch_product():
    import torch

    from gradtricks.torch._loops import as_operation

    return as_operation(
        "product", "(Tensor x, Tensor y) -> Tensor", np.multiply, torch.mul, elsewhere=torch.mul
    )


def _product_cotangents(gradient, output, x, y):
    return gradient * y, gradient * x


def _product_tangent(tangents, output, x, y):
    return tangents[0] * y + tangents[1] * x


EDITS = {"torch": TorchEdits, "tensorflow": TensorFlowEdits}
COTANGENT = np.array([[1.0, -3.0, 0.5], [4.0, -0.25, 2.0]])


@pytest.fixture(params=OF_THE_EDITS, ids=lambda way: way.id)
def way(request):
    """Each way of taking a gradient that edits have to stand."""
    return request.param(made(request.param.framework))


@pytest.fixture
def edits(way):
    """Return the edits of the framework of a way."""
    return EDITS[way.framework]()


@pytest.fixture
def x(way):
    """Return numbers of all kinds that the way can hold."""
    smallest = 2.0**-149 if way.name == "autocast" else 5e-324
    return np.array([[np.inf, -np.inf, -0.0], [1.5, -2.25, smallest]])


def refuses_rules(way):
    """Say whether a way asks for tangents, or loses gradients that a framework didn't derive itself."""
    return way.takes_tangents or any(word in way.name for word in ("around vectorized_map", "export"))


def test_substitute(way, edits, x):
    value, (gradient,) = way.value_and_vjp(lambda t: edits.substitute(-t, t + t), [x], COTANGENT)
    assert value.tobytes() == (-x).tobytes()
    np.testing.assert_array_equal(gradient, 2 * COTANGENT)


FACTOR = [[0.5, 0.0, -2.0], [0.0, 1.0, 3.0]]


def test_a_linear_rule(way, edits, x):
    def scaled(t):
        return edits.intercept(t, edits.scaled, edits.constant(FACTOR, t), linear=True)

    value, (gradient,) = way.value_and_vjp(scaled, [x], COTANGENT)
    assert value.tobytes() == x.tobytes()
    np.testing.assert_array_equal(gradient, COTANGENT * FACTOR)


def test_any_rule(way, edits, x):
    def clipped(t):
        return edits.intercept(t, edits.clip, edits.constant(1.0, t))

    if refuses_rules(way):
        refusals = r"must be used in reverse mode|edits a gradient|can't be exported"
        with pytest.raises(Exception, match=refusals):
            way.value_and_vjp(clipped, [x], COTANGENT)
        return
    value, (gradient,) = way.value_and_vjp(clipped, [x], COTANGENT)
    assert value.tobytes() == x.tobytes()
    # A Jacobian is clipped row by row, and each is within the bounds.
    expected = COTANGENT if "jac" in way.name else np.clip(COTANGENT, -1, 1)
    np.testing.assert_array_equal(gradient, expected)


def test_a_loop(way, edits):
    x, y = np.array([[1.5, -2.0, 0.25]]), np.array([[3.0, 0.5, -1.0]])
    value, gradients = way.value_and_vjp(edits.loop, [x, y], COTANGENT[1:])
    np.testing.assert_allclose(value, x * y, rtol=way.rtol)
    np.testing.assert_allclose(gradients, [COTANGENT[1:] * y, COTANGENT[1:] * x], rtol=way.rtol)


def test_a_rule_that_is_a_loop(way, edits):
    def scaled(t):
        return edits.intercept(t, edits.loop, t * 0 + edits.constant(-2.0, t), linear=True)

    x = np.array([[1.5, -2.0, 0.25]])
    value, (gradient,) = way.value_and_vjp(scaled, [x], COTANGENT[1:])
    assert value.tobytes() == x.tobytes()
    np.testing.assert_allclose(gradient, -2 * COTANGENT[1:], rtol=way.rtol)


@pytest.mark.parametrize("edit", ["substitute", "linear", "loop"])
def test_twice(second, edit):
    edits = EDITS[second.framework]()
    x, cotangent, direction = np.array([1.5, -2.0]), np.array([1.0, -3.0]), np.array([0.3, 0.7])
    functions = {
        "substitute": lambda t: edits.substitute(t * 1, t**3),
        "linear": lambda t: edits.intercept(t**3, edits.scaled, edits.constant(-0.5, t), linear=True),
        "loop": lambda t: edits.loop(t, t * t),
    }
    factor = -0.5 if edit == "linear" else 1
    (gradient,) = second.second_vjp(functions[edit], [x], cotangent, [direction])
    np.testing.assert_allclose(gradient, factor * 6 * x * cotangent * direction, rtol=1e-10)


def test_a_rule_twice(second):
    edits = EDITS[second.framework]()
    x, cotangent, direction = np.array([[1.5, -2.0, 0.1], [1.0, -3.0, 0.5], [0.3, 0.7, -1.0]])

    def clipped(t):
        return edits.intercept(t, edits.clip, edits.constant(1.0, t)) ** 3

    if second.takes_tangents:
        with pytest.raises(Exception, match="must be used in reverse mode"):
            second.second_vjp(clipped, [x], cotangent, [direction])
        return
    (gradient,) = second.second_vjp(clipped, [x], cotangent, [direction])

    def vjp(cotangent, x):
        return np.clip(3 * x**2 * cotangent, -1, 1)

    # The outer derivative is clipped too, on its way back to x.
    (once,) = numerical_second_vjp(vjp, [x], cotangent, [direction])
    np.testing.assert_allclose(gradient, np.clip(once, -1, 1), rtol=1e-5, atol=1e-8)


# Situations of one framework only


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def tf():
    return pytest.importorskip("tensorflow")


def scaled(x, factor):
    edits = TorchEdits()
    return edits.intercept(x, edits.scaled, factor, linear=True)


def test_changing_numbers_are_compiled_once_in_torch(in_torch):
    torch, tricks, x = in_torch.framework, in_torch.tricks, np.array([1.5, 0.3, 0.9])

    def added(x, number):
        rows, step = torch.stack([x, x]), torch.zeros(2, 1)
        clipped = tricks.clip_gradient_norm(tricks.clip_gradient(x, -number, number), number)
        (together,), _ = tricks.clip_by_global_norm([clipped], number)
        outputs, _ = tricks.unroll(lambda s, a: (s * s, s * s), x, step, hidden_scale=number)
        g_t = tricks.discounted_returns(x, number)
        return (
            tricks.gradient_descent_step(together, x, number)
            + tricks.soft_floor(x, number)
            + outputs[1]
            + x * tricks.soft_rank(x, regularization_strength=number)
            + tricks.truncated_generalized_advantage_estimation(x, number, number, torch.cat([g_t, g_t[:1]]))
            + tricks.token_policy_loss(-rows, -rows.detach() - 0.2, rows, rows.detach(), clip=number)
            + tricks.clipped_surrogate_pg_loss(x, x, number)
        )

    in_torch.check_compiled_once(added, x)


def test_a_sparse_gradient_reaches_a_rule_dense_in_torch(torch):
    weights = torch.ones(3, 2, requires_grad=True)
    rows = torch.tensor([0, 0, 2])
    for edited in (
        scaled(weights, torch.tensor(0.5)),
        TorchEdits().substitute(torch.zeros(3, 2), weights * 0.5),
    ):
        looked_up = torch.nn.functional.embedding(rows, edited, sparse=True)
        (gradient,) = torch.autograd.grad(looked_up.sum(), weights)
        np.testing.assert_array_equal(gradient.to_dense(), [[1.0, 1.0], [0.0, 0.0], [0.5, 0.5]])


def test_an_edited_tensor_of_a_rule_is_refused_in_torch(torch):
    x, factor = torch.ones(2, requires_grad=True), torch.tensor(0.5)
    y = scaled(x, factor)
    factor.fill_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_dual_numbers_around_a_compiled_function_are_refused_in_torch(torch):
    edits, forward_ad = TorchEdits(), torch.autograd.forward_ad
    functions = [
        lambda x: edits.substitute(x * 1, x),
        lambda x: edits.intercept(x, edits.clip, torch.ones(())),
        lambda x: edits.loop(x, x),
    ]
    for function in functions:
        torch.compiler.reset()
        whole = torch.compile(function, fullgraph=True, backend="aot_eager")
        whole(torch.ones(2))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
            # Since 2.15 the compiler refuses them by itself.
            with pytest.raises(RuntimeError, match=r"must not meet dual numbers|wrap a dual tensor"):
                whole(dual)


def test_duals_are_refused_by_what_a_compiler_traces_in_torch(torch, monkeypatch):
    from gradtricks.torch._modes import refuse_compiled_duals

    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    refused = pytest.raises(RuntimeError, match="must not meet dual numbers")
    with torch.autograd.forward_ad.dual_level(), refused:
        refuse_compiled_duals()


def test_a_batch_of_values_with_one_slope_in_torch(torch):
    slope, values = torch.tensor([0.5, 2.0]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])

    def loss(slope, value):
        return (TorchEdits().substitute(value, slope) ** 2).sum()

    assert torch.func.vmap(loss, in_dims=(None, 0))(slope, values).tolist() == [1, 1, 2]
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(slope, values)
    assert gradients.tolist() == (2 * values).tolist()


@pytest.mark.parametrize("compiled", [False, True])
def test_mapped_tensors_edit_each_examples_gradient_in_torch(torch, compiled):
    edits, weights = TorchEdits(), torch.tensor([1.0, -0.0])

    def loss(weights, bound):
        return (edits.intercept(weights, edits.clip, bound) * torch.tensor([5.0, -5.0])).sum()

    def losses(weights):
        return torch.func.vmap(loss, (None, 0))(weights, torch.tensor([1.0, 2.0, 9.0]))

    torch.compiler.reset()
    if compiled:
        losses = torch.compile(losses, backend="aot_eager")
    _, pulled_back = torch.func.vjp(losses, weights)
    assert pulled_back(torch.ones(3))[0].tolist() == [8, -8]
    tracked = weights.requires_grad_()
    losses(tracked).sum().backward()
    assert tracked.grad.tolist() == [8, -8]
    values = torch.func.vmap(lambda bound: edits.intercept(weights, edits.clip, bound))(torch.ones(3))
    assert all(torch.equal(value.signbit(), weights.signbit()) for value in values)


def test_a_default_device_is_the_users_in_torch():
    # Whatever the package makes for itself belongs where the tensors are that it was given.
    ran = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


ELSEWHERE = """
import torch
torch.set_default_device("meta")
import gradtricks.torch as tricks
from gradtricks.doctor.torch import explain_gradient

x = torch.tensor([3.0, 4.0], device="cpu", requires_grad=True)
rewards = torch.ones(4, device="cpu")
results = [
    tricks.scale_gradient(x, 0.5),
    tricks.clip_gradient(x, -1.0, 1.0),
    tricks.clip_gradient_norm(x, 1.0),
    tricks.clip_by_global_norm([x], 1.0)[0][0],
    tricks.soft_rank(x, regularization_strength=1.0),
    tricks.spearman_correlation(x, x),
    tricks.discounted_returns(rewards, 0.5, 1.0),
    tricks.gradient_descent_step(x, x, 0.5),
    tricks.input_gradients(lambda t: t.square(), x),
    tricks.kl_penalty(x, x, slope="k2"),
    tricks.standardize(x),
]
for result in results:
    result.sum().item()
for mask in (None, torch.tensor([True, False], device="cpu")):
    for optimizer in (tricks.MaskedAdam([x]), tricks.MaskedOptimizer(torch.optim.SGD([x]))):
        optimizer.set_trainable_mask(x, mask)
        x.grad = torch.ones(2, device="cpu")
        optimizer.step()
assert x.tolist()[1] != 4.0
print(explain_gradient(lambda t: t.detach().sum(), x))
"""


def test_a_substituted_slope_is_not_kept_in_torch(torch):
    slope = torch.ones(2, requires_grad=True) * 1
    kept = weakref.ref(slope)
    value = TorchEdits().substitute(torch.zeros(2), slope)
    del slope
    gc.collect()
    assert kept() is None
    assert value.requires_grad


def test_loops_refuse_nested_forward_mode_in_torch(torch):
    loop, jacfwd = TorchEdits().loop, torch.func.jacfwd
    with pytest.raises(NotImplementedError, match="forward mode within forward mode"):
        jacfwd(jacfwd(lambda x: loop(x, x)))(torch.ones(2))
    hessian = torch.func.hessian(lambda x: loop(x, x).sum())(torch.ones(2))
    np.testing.assert_array_equal(hessian, 2 * np.eye(2))


def test_without_gradients_any_rule_can_be_exported_in_torch(torch):
    class Clipped(torch.nn.Module):
        def forward(self, x):
            edits = TorchEdits()
            return edits.intercept(x, edits.clip, torch.ones(()))

    x = torch.tensor([torch.inf, -0.0, 2.0])
    with torch.no_grad():
        program = torch.export.export(Clipped(), (x,))
    np.testing.assert_array_equal(program.module()(x), x)


@pytest.fixture(params=["substitute", "linear"])
def halved(torch, request):
    substituted = request.param == "substitute"
    return lambda x: TorchEdits().substitute(x, x / 2) if substituted else scaled(x, torch.tensor(0.5))


def test_functionalized_inside_of_the_gradient_is_refused_in_torch(torch, halved):
    from torch.fx.experimental.proxy_tensor import make_fx

    grad, functionalize = torch.func.grad, torch.func.functionalize
    outside, inside, x = functionalize(grad(lambda x: halved(x).sum())), functionalize(halved), torch.ones(2)
    assert inside(x).tolist() == [1, 1]
    assert outside(x).tolist() == [0.5, 0.5]
    assert make_fx(outside)(x)(x).tolist() == [0.5, 0.5]
    for differentiate in (
        lambda: grad(lambda x: inside(x).sum())(x),
        lambda: torch.func.vmap(grad(lambda x: inside(x).sum()))(x[:, None]),
        lambda: torch.func.jvp(inside, (x,), (x,)),
        lambda: inside(x.clone().requires_grad_()),
        lambda: outside(x.clone().requires_grad_()),
        lambda: make_fx(inside)(x),
    ):
        with pytest.raises(NotImplementedError, match="must not be functionalized within"):
            differentiate()
    with torch.no_grad():
        assert make_fx(inside)(x)(x).tolist() == [1, 1]


def test_traced_now_and_differentiated_later_in_torch(torch, halved):
    from torch.fx.experimental.proxy_tensor import make_fx

    def loss(x):
        return (halved(x) ** 2).sum()

    x = torch.tensor([2.0, 3.0])
    leaf, grad = x.clone().requires_grad_(), torch.func.grad
    for example, mode in itertools.product((x, leaf), ("real", "fake", "symbolic")):
        now = make_fx(loss, tracing_mode=mode)(example)
        assert grad(now)(x).tolist() == [2, 3]
        assert torch.autograd.grad(now(leaf), leaf)[0].tolist() == [2, 3]
        assert torch.func.jvp(now, (x,), (torch.ones(2),))[1].item() == 5
        assert torch.func.vmap(grad(now))(torch.stack([x, x])).tolist() == [[2, 3]] * 2
    slope = make_fx(lambda x: grad(loss)(x).sum())(x)
    assert grad(slope)(x).tolist() == [0.5, 0.5]


def test_constants_get_no_gradient_in_a_trace_in_torch(torch):
    from torch.fx.experimental.proxy_tensor import make_fx

    tricks = pytest.importorskip("gradtricks.torch")
    x, mask = torch.tensor([[2.0, 3.0], [-1.0, 4.0]]), torch.ones(2, 2)
    for loss in (
        lambda x: tricks.scale_gradient(x, x.mean()).sum(),
        lambda x: tricks.policy_gradient_loss(x, torch.tensor([0, 1]), x[:, 0], x[:, 1].abs()),
        lambda x: tricks.clipped_surrogate_pg_loss(x, x * x, 0.2),
        lambda x: tricks.discounted_returns(x, 0.9, stop_target_gradients=True).sum() + x.sum(),
        lambda x: tricks.token_policy_loss(x, x - 0.1, x, mask),
        lambda x: tricks.group_advantages(x).sum() + x.sum(),
        lambda x: tricks.kl_penalty(x, x * x).sum(),
        lambda x: tricks.spearman_correlation(x, x * x, regularization_strength=1.0).sum(),
    ):
        leaf, traced = x.clone().requires_grad_(), make_fx(loss)(x)
        (later,) = torch.autograd.grad(traced(leaf), leaf)
        np.testing.assert_allclose(later, torch.func.grad(loss)(x), rtol=1e-5, atol=1e-6)


def test_a_rule_stays_in_what_make_fx_traces_in_torch(torch):
    from torch.fx.experimental.proxy_tensor import make_fx

    edits, x = TorchEdits(), torch.tensor([2.0, 0.2])
    grad, vmap, leaf = torch.func.grad, torch.func.vmap, x.clone().requires_grad_()

    def squared(x):
        return edits.intercept(x, edits.clip, torch.ones(())) ** 2

    def slopes(function, x):
        (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.stack([slope, *torch.autograd.grad(slope.sum(), x)])

    here = slopes(squared, leaf).tolist()
    assert here[0] == [1, pytest.approx(0.4)]
    for mode in ("real", "fake", "symbolic"):
        for example in (x, leaf):
            assert slopes(make_fx(squared, tracing_mode=mode)(example), leaf).tolist() == here
        assert make_fx(lambda x: slopes(squared, x), tracing_mode=mode)(leaf)(leaf).tolist() == here
    np.testing.assert_allclose(make_fx(grad(lambda x: squared(x).sum()))(x)(x), [1, 0.4])
    with pytest.raises(NotImplementedError, match="must be traced with its gradient where it is mapped"):
        make_fx(vmap(squared))(x)
    with torch.no_grad():
        np.testing.assert_allclose(make_fx(vmap(squared))(x)(x), [4, 0.04])
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="in reverse mode"):
        make_fx(squared)(torch.autograd.forward_ad.make_dual(x, x))


def test_a_compiled_transform_rereads_a_rule_in_torch(torch):
    edits, bounds = TorchEdits(), {"now": 1.0}

    def loss(x):
        return edits.intercept(x, lambda gradient: gradient * bounds["now"]).sum()

    torch.compiler.reset()
    gradient = torch.compile(torch.func.grad(loss), fullgraph=True, backend="aot_eager")
    for bounds["now"] in (1.0, 3.0):
        assert gradient(torch.ones(1)).item() == bounds["now"]


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_what_is_linearized_keeps_its_value_in_torch(torch):
    edits, x = TorchEdits(), torch.tensor([3.0])
    value, tangent = torch.func.linearize(lambda x: edits.substitute(x * 5, -x) ** 2, x)
    assert (value.item(), tangent(torch.ones(1)).item()) == (225, -30)


def test_inference_mode_values_leave_slopes_their_gradient_in_torch(torch):
    with torch.inference_mode():
        value = torch.ones(2)
    slope, other = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
    y = TorchEdits().substitute(value, slope)
    (y * other).sum().backward()
    assert (slope.grad.tolist(), other.grad.tolist()) == ([1, 1], [1, 1])


def test_a_rule_with_tensors_refuses_tangents_around_vmap_in_torch(torch):
    mapped = torch.func.vmap(lambda x: TorchEdits().intercept(x, torch.mul, torch.ones(())))
    with pytest.raises(RuntimeError, match="must be used in reverse mode"):
        torch.func.jvp(mapped, (torch.ones(2),), (torch.ones(2),))


def test_negative_and_conjugate_bits_are_resolved_in_torch(torch):
    edits, z = TorchEdits(), torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert z.imag.is_neg()
    assert edits.loop(z.imag, z.real).tolist() == [-2, 12]
    assert edits.substitute(z.imag, z.real).tolist() == [-2, 4]
    assert scaled(z.imag, torch.tensor(0.5)).tolist() == [-2, 4]


def test_a_function_in_vectorized_map_is_refused_in_tensorflow(tf):
    edits, x = TensorFlowEdits(), tf.ones((3, 2))
    # A value of booleans has no way back to x.
    for value in (lambda row: row * 1, lambda row: tf.cast(row > 0, tf.float32)):
        replaced = tf.function(lambda row, value=value: edits.substitute(value(row), row))
        replaced(tf.ones(2))
        with tf.GradientTape() as tape:
            tape.watch(x)
            with pytest.raises(LookupError, match=r"edits a gradient in a tf\.function in a tf\.vector"):
                tape.gradient(tf.vectorized_map(replaced, x), x)


def test_a_variable_keeps_its_sparse_gradient_dense_in_tensorflow(tf):
    edits, table = TensorFlowEdits(), tf.Variable([[1.0], [2.0], [3.0]])
    with tf.GradientTape(persistent=True) as tape:
        x = tf.convert_to_tensor(table)
        losses = [
            tf.reduce_sum(tf.gather(edited, [0, 0, 2]))
            for edited in (
                edits.intercept(x, edits.clip, tf.constant(1.5)),
                edits.substitute(x * 0, x),
                edits.loop(x, x / x),
            )
        ]
    for loss, first in zip(losses, (1.5, 2.0, 2.0)):
        np.testing.assert_array_equal(tape.gradient(loss, table), [[first], [0.0], [1.0]])


def test_accumulators_around_control_flow_in_tensorflow(tf):
    edits, x, factor = TensorFlowEdits(), tf.constant([1.5, -2.0]), tf.constant([-0.5, 3.0])
    tricks = {
        "substitute": lambda t: edits.substitute(t * 1, t * factor),
        "linear": lambda t: edits.intercept(t, edits.scaled, factor, linear=True),
        "loop": lambda t: edits.loop(t, factor * 1),
        "rule": lambda t: edits.intercept(t, edits.clip, factor),
    }

    def tangent(function):
        with tf.autodiff.ForwardAccumulator(x, tf.ones(2)) as accumulator:
            value = function(x)
        return accumulator.jvp(value)

    for name, trick in tricks.items():

        def branch(t, trick=trick):
            return tf.cond(t[0] > 0, lambda: trick(t), lambda: t)

        def repeat(t, trick=trick):
            return tf.while_loop(lambda i, y: i < 1, lambda i, y: (i + 1, y + trick(t)), (0, t * 0))[1]

        for control in (branch, repeat):
            for ask in (
                tf.function(lambda control=control: tangent(control)),
                lambda control=control: tangent(tf.function(control)),
            ):
                if name == "rule":
                    with pytest.raises(RuntimeError, match="must be used in reverse mode"):
                        ask()
                else:
                    np.testing.assert_array_equal(ask(), factor)


def first_and_second(tf, function, x):
    """Return, by a tf.function, the first two derivatives of the squares of what ``function`` returns."""

    @tf.function
    def derivatives():
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                squares = function(x) ** 2
            first = inner.gradient(squares, x)
        return first, outer.gradient(first, x)

    return derivatives()


def test_a_rule_twice_in_nested_functions_is_refused_in_tensorflow(tf):
    edits, x = TensorFlowEdits(), tf.constant([0.25, 2.0])

    def called(t):
        return edits.intercept(t, edits.clip, tf.constant(1.0))

    function = tf.function(called)
    with pytest.raises(RuntimeError, match=r"or the gradient of a gradient .* python_function"):
        first_and_second(tf, function, x)
    found = first_and_second(tf, function.python_function, x)
    np.testing.assert_array_equal(found, [[0.5, 1.0], [1.0, 0.0]])


def test_a_rule_twice_in_a_branch_in_tensorflow(tf):
    edits, x = TensorFlowEdits(), tf.constant([0.25, 2.0])

    def branch(t):
        return tf.cond(t[0] > 0, lambda: edits.intercept(t, edits.clip, tf.constant(1.0)), lambda: t)

    np.testing.assert_array_equal(first_and_second(tf, branch, x), [[0.5, 1.0], [1.0, 0.0]])
