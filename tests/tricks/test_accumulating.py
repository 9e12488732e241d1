"""accumulate_gradients: a batch in parts, whose gradient is that of the whole batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from agreeing import assert_close
from gradtricks import reference


def squares_by_hand(parameters, part):
    """Return the same with the gradients of the sum, in NumPy."""
    x, y, weight = part.T
    residual = x * parameters[0] + parameters[1] - y
    gradients = [2 * (weight * residual * x).sum(), 2 * (weight * residual).sum()]
    return (weight * residual**2).sum(), weight.sum(), gradients


@given(data=st.data())
@settings(max_examples=25)
def test_agrees_with_the_reference_and_the_whole_batch(backend, data):
    rows = data.draw(arrays(np.float64, (12, 3), elements=st.floats(-4, 4)))
    rows[:, 2] = data.draw(arrays(np.int64, 12, elements=st.integers(0, 3)))
    rows[0, 2] += 1
    cuts = sorted(data.draw(st.lists(st.integers(0, 12), max_size=4)))
    parts = np.split(rows, cuts)
    values = [np.float64(1.5), np.float64(-0.5)]
    parameters = [backend.variable(value) for value in values]

    def function(part):
        # The sum stands last, so that both frameworks have a name for it.
        x, y, weight = (backend.tensor(column) for column in part.T)
        residual = x * parameters[0] + parameters[1] - y
        return backend.total(weight * residual * residual), backend.total(weight)

    loss, gradients = backend.tricks.accumulate_gradients(function, parameters, parts)
    for wanted_loss, wanted in (
        reference.accumulate_gradients(squares_by_hand, values, parts),
        reference.accumulate_gradients(squares_by_hand, values, [rows]),
    ):
        assert_close(map(backend.array, [loss, *gradients]), [wanted_loss, *wanted])


def test_parts_of_a_generator_weigh_what_they_like(backend):
    weight = backend.variable(np.float32(2.0))
    parts = (backend.tensor(np.array(x, np.float32)) for x in ([1.0, 2.0, 3.0], [], [6.0]))
    loss, (gradient,) = backend.tricks.accumulate_gradients(
        lambda x: (backend.total(weight * x), x.shape[0]), [weight], parts
    )
    assert (float(loss), float(gradient)) == (6.0, 3.0)


def test_structures_stay_and_unused_parameters_have_no_gradient(backend):
    used, sometimes, never = (backend.variable(np.float32(x)) for x in (1.0, 2.0, 3.0))
    parameters = {"used": used, 0: (sometimes, never)}

    def function(part):
        return (used * sometimes if part else used * 5.0), 2

    _, gradients = backend.tricks.accumulate_gradients(function, parameters, [0, 1])
    assert gradients[0][1] is None
    assert [float(gradients["used"]), float(gradients[0][0])] == [1.75, 0.25]


def test_the_gradients_of_two_parameters_are_two_tensors(backend):
    # A framework hands out one tensor for both.
    a, b = (backend.variable(np.ones(2, np.float32)) for _ in range(2))
    _, gradients = backend.tricks.accumulate_gradients(
        lambda part: (backend.total(a + b), 1), [a, b], range(3)
    )
    assert [backend.array(g).tolist() for g in gradients] == [[1.0, 1.0]] * 2


def test_many_parts_of_half_precision_are_added_up_in_float32(backend):
    # In bfloat16 the sum would stay at 256, because 256 + 1 is 256.
    weight = backend.half_variable(1.0, "bfloat16")
    one = backend.cast(backend.tensor(np.ones(())), "bfloat16")
    loss, (gradient,) = backend.tricks.accumulate_gradients(
        lambda part: (weight * one, 0.125), [weight], range(320)
    )
    assert gradient.dtype == weight.dtype
    assert "float32" in str(loss.dtype)
    assert (float(loss), float(gradient)) == (8.0, 8.0)


def test_sparse_gradients_are_added_up(backend):
    table = backend.variable(np.arange(6, dtype=np.float32).reshape(3, 2))
    parts = [backend.tensor(np.array(rows)) for rows in ([0, 2], [2, 2])]

    def function(rows):
        return backend.total(backend.total(backend.take(table, rows))), 2

    _, (gradient,) = backend.tricks.accumulate_gradients(function, [table], parts)
    np.testing.assert_array_equal(backend.array(gradient), [[0.25] * 2, [0] * 2, [0.75] * 2])


def test_parts_that_do_not_count_may_be_constants(backend):
    weight, zero = backend.variable(np.float32(2.0)), backend.tensor(np.float32(0.0))
    loss, (gradient,) = backend.tricks.accumulate_gradients(
        lambda part: (weight * 3.0, 1) if part else (zero, 0), [weight], [False, True]
    )
    assert (float(loss), float(gradient)) == (6.0, 3.0)


@pytest.mark.parametrize(
    ("function", "parts", "error", "message"),
    [
        (None, [1.0], TypeError, "function must be callable; got NoneType"),
        (lambda w: w, [1.0], TypeError, "must return a sum of losses and its weight; got"),
        (lambda w: (3.0, 1), [1.0], TypeError, "the sum of losses must be a .*Tensor; got float"),
        (lambda w: (w * w, 1), [[1.0, 2.0]], ValueError, "the sum of losses must have the shape of a scalar"),
        (lambda w: (w, w[None]), [1.0], ValueError, "the weight must have the shape of a scalar"),
        (lambda w: (w, "1"), [1.0], TypeError, "the weight must be a real number; got str"),
        (lambda w: (w, 0), [1.0], ValueError, "the weights must not add up to 0"),
        (lambda w: (w, 0 * w), [1.0], ValueError, "the weights must not add up to 0"),
        (lambda w: (w, 1), [], ValueError, "parts must not be empty; got none"),
    ],
)
def test_errors_say_what_is_expected(backend, function, parts, error, message):
    parameter = backend.variable(np.float32(2.0))
    called = function and (lambda part: function(parameter * backend.tensor(np.float32(part))))
    with pytest.raises(error, match=message):
        backend.tricks.accumulate_gradients(called, [parameter], parts)


def test_a_loss_of_other_parameters_is_refused(backend):
    parameter, constant = backend.variable(np.float32(2.0)), backend.tensor(np.float32(1.0))
    with pytest.raises(ValueError, match="a sum of losses must depend on the parameters; got none that does"):
        backend.tricks.accumulate_gradients(lambda part: (constant, 1), [parameter], [0])
    with pytest.raises(TypeError, match="parameters must be floating-point; got"):
        backend.tricks.accumulate_gradients(lambda part: (constant, 1), [backend.tensor([1])], [0])


def test_a_models_parameters_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    model = torch.nn.Linear(2, 1)
    rows = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))

    def function(part):
        return model(part).square().sum(), len(part)

    model(rows).square().mean().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    for frozen, wanted in ((False, expected), (True, [expected[0], None])):
        model.bias.requires_grad_(not frozen)
        _, found = tricks.accumulate_gradients(function, model.parameters(), rows.split(2))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_in_a_function_of_tensorflow(in_tensorflow, jit_compile):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    weight = tf.keras.Variable(2.0)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def gradients(rows):
        parts = tf.split(rows, [3, 1])
        return tricks.accumulate_gradients(lambda x: (tf.reduce_sum(weight * x), tf.size(x)), [weight], parts)

    loss, (gradient,) = gradients(tf.constant([1.0, 2.0, 3.0, 6.0]))
    assert (float(loss), float(gradient)) == (6.0, 3.0)


@pytest.mark.parametrize("convert", [lambda parts: parts, iter])
def test_a_dataset_in_a_function_is_refused_in_tensorflow(in_tensorflow, convert):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    weight = tf.Variable(2.0)
    parts = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 6.0]).batch(3)

    def function(x):
        return tf.reduce_sum(weight * x), tf.size(x)

    given = convert(parts)
    for autograph in (False, True):
        inside = tf.function(
            lambda: tricks.accumulate_gradients(function, [weight], given), autograph=autograph
        )
        with pytest.raises(TypeError, match=r"outside of it, with tf\.function\(function\)"):
            inside()
    loss, (gradient,) = tricks.accumulate_gradients(tf.function(function), [weight], convert(parts))
    assert (float(loss), float(gradient)) == (6.0, 3.0)


def test_a_fused_optimizer_takes_the_gradients_in_torch(in_torch):
    torch, ends = in_torch.framework, []
    slopes = torch.arange(-3.0, 3.0).reshape(3, 2)
    for fused in (False, True):
        weight = torch.zeros(2, 3, requires_grad=True)
        _, [weight.grad] = in_torch.tricks.accumulate_gradients(
            lambda part, weight=weight: ((weight.T * slopes).sum(), part), [weight], [1, 2]
        )
        assert weight.grad.stride() == weight.stride()
        torch.optim.Adam([weight], fused=fused).step()
        ends.append(weight.detach())
    assert_close(ends[1], ends[0])
    assert_close(ends[0].sign(), -slopes.T.sign())
