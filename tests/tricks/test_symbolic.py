"""Functional Keras models: with a KerasTensor every name works, or it says what to do, and that works."""

import importlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

from agreeing import assert_close

X = np.float32([[0.3, -1.2, 2.0], [1.5, 0.4, -0.7], [-0.2, 0.9, 0.1], [2.2, -0.5, 1.1]])


def doubled(x):
    return 2 * x


def cubed(x):
    return x * x * x


def total(x):
    return importlib.import_module("keras").ops.sum(cubed(x))


def first_squared(x):
    return x[:, 0] * x[:, 0]


def squared(state, action):
    return action * state, state * state


# What is called between two layers, of the hidden features ``h`` of a batch, [B, 3], with Keras' operations.
WORKING = {
    "add_compensated": lambda g, ops, h: g.add_compensated(h, ops.exp(h), doubled(h)),
    "average_tokens": lambda g, ops, h: g.average_tokens(h, h > 0),
    "clip_by_global_norm": lambda g, ops, h: g.clip_by_global_norm([h, {"again": 2 * h}], 0.1),
    "clip_gradient": lambda g, ops, h: g.clip_gradient(h, -0.01, 0.02),
    "clip_gradient_norm": lambda g, ops, h: g.clip_gradient_norm(h, 0.01, axis=1),
    "clipped_surrogate_pg_loss": lambda g, ops, h: g.clipped_surrogate_pg_loss(ops.exp(h), h - 1, 0.2),
    "discounted_returns": lambda g, ops, h: g.discounted_returns(h, 0.9),
    "edit_gradient": lambda g, ops, h: g.edit_gradient(x=h, rule=doubled),
    "entropy_loss": lambda g, ops, h: g.entropy_loss(h),
    "fake_quantize": lambda g, ops, h: g.fake_quantize(h, ops.mean(ops.exp(h), 0), -2, 1),
    "floor_straight_through": lambda g, ops, h: g.floor_straight_through(h),
    "gradient_descent_step": lambda g, ops, h: g.gradient_descent_step([h, h], [ops.exp(h), None], 0.1),
    "group_advantages": lambda g, ops, h: g.group_advantages(h, scale="group"),
    "gumbel_softmax": lambda g, ops, h: g.gumbel_softmax(h, ops.sin(h), 0.5, hard=True),
    "hessian_vector_product": lambda g, ops, h: g.hessian_vector_product(total, h, ops.exp(h)),
    "importance_weights": lambda g, ops, h: g.importance_weights(
        -ops.exp(h), -doubled(ops.exp(h)), h > 0, truncate=2.0
    ),
    "input_gradients": lambda g, ops, h: g.input_gradients(first_squared, h),
    "input_jacobians": lambda g, ops, h: g.input_jacobians(cubed, h),
    "kl_penalty": lambda g, ops, h: g.kl_penalty(h, doubled(h), slope="k2"),
    "masked_adam_step": lambda g, ops, h: g.masked_adam_step(
        h, ops.exp(h), ops.zeros_like(h), ops.zeros_like(h), ops.zeros((), "int32"), h > 0
    )[:4],
    "mixture_density_nll": lambda g, ops, h: g.mixture_density_nll(
        h, doubled(h), ops.exp(h), h[:, 0], scale_floor=0.01
    ),
    "muzero_loss": lambda g, ops, h: g.muzero_loss(
        *(ops.stack([h, ops.exp(h)])[-n:, ..., :k] for n, k in ((2, 2), (1, 2), (2, 3))),
        *(ops.softmax(ops.stack([h, h])[-n:, ..., :k]) for n, k in ((2, 2), (1, 2), (2, 3))),
    ),
    "normalize_gradient": lambda g, ops, h: g.normalize_gradient((h, {"again": ops.exp(h)}), 2.0),
    "piecewise_linear_floor": lambda g, ops, h: g.piecewise_linear_floor(h, 0.7),
    "policy_gradient_loss": lambda g, ops, h: g.policy_gradient_loss(h, ops.argmax(h, -1), h[:, 0], h[:, 1]),
    "project_to_max_norm": lambda g, ops, h: g.project_to_max_norm(h, 0.5, axis=[1]),
    "reverse_gradient": lambda g, ops, h: g.reverse_gradient(h),
    "rotation_trick": lambda g, ops, h: g.rotation_trick(h, ops.sign(h)),
    "round_stochastically": lambda g, ops, h: g.round_stochastically(h, ops.sigmoid(h), "float16"),
    "round_straight_through": lambda g, ops, h: g.round_straight_through(h),
    "safe_where": lambda g, ops, h: g.safe_where(h > 0, h, cubed, fallback=0.0),
    "scale_gradient": lambda g, ops, h: g.scale_gradient(h, 0.5),
    "ScaleGradient": lambda g, ops, h: g.ScaleGradient(0.5)(h),
    "soft_floor": lambda g, ops, h: g.soft_floor(h, 0.1),
    "soft_rank": lambda g, ops, h: g.soft_rank(h, regularization_strength=1.0),
    "spearman_correlation": lambda g, ops, h: g.spearman_correlation(h, h[:, ::-1]),
    "standardize": lambda g, ops, h: g.standardize(h),
    "straight_through": lambda g, ops, h: g.straight_through(ops.sign(h), ops.tanh(h)),
    "token_policy_loss": lambda g, ops, h: g.token_policy_loss(
        -ops.exp(h), -ops.exp(h - 0.1), h[:, 0], ops.ones_like(h), clip=(0.2, 0.3)
    ),
    "truncated_generalized_advantage_estimation": lambda g, ops, h: (
        g.truncated_generalized_advantage_estimation(h, 0.9, 0.8, ops.pad(h, [[0, 1], [0, 0]]))
    ),
    "unroll": lambda g, ops, h: g.unroll(squared, h, ops.ones([2, 1, 3])),
    "where_gradients": lambda g, ops, h: tuple(g.where_gradients(h > 0, h, cubed, 0.0)[:2]),
}


# Their own tests compile them.
SLOW_IN_XLA = {"input_jacobians", "mixture_density_nll", "muzero_loss", "soft_rank", "spearman_correlation"}
# What needs values, or has variables: how it is called, what it says, and what it says to do.
REFUSED = {
    "accumulate_gradients": (
        lambda g, keras, h: accumulated(g, keras.layers.Dense(1), [h, 2 * h]),
        "the sum of losses must be a tf.Tensor; got a KerasTensor, .*; remedy: what keras.Model",
        lambda g, keras, inputs, h: accumulated(g, keras.Model(inputs, h), [X[:2], X[2:]]),
    ),
    "check_gradient": (
        lambda g, keras, h: g.check_gradient(keras.ops.sin, h),
        "inputs must be a tf.Tensor; got a KerasTensor, .*; remedy: what keras.Model",
        lambda g, keras, inputs, h: g.check_gradient(keras.ops.sin, keras.Model(inputs, h)(X)),
    ),
    "hessian_norm": (
        lambda g, keras, h: g.hessian_norm(keras.ops.logsumexp, h),
        "x must be a tf.Tensor; got a KerasTensor, .*; remedy: what keras.Model",
        lambda g, keras, inputs, h: g.hessian_norm(keras.ops.logsumexp, keras.Model(inputs, h)(X)),
    ),
    "MaskedAdam": (
        lambda g, keras, h: masking(keras, g.MaskedAdam(), h),
        "trainable_mask must be a tf.Tensor; got a KerasTensor, .*; remedy: what keras.Model",
        lambda g, keras, inputs, h: masking(keras, g.MaskedAdam(), keras.Model(inputs, h > 0)(X[:1])),
    ),
    "MaskedOptimizer": (
        lambda g, keras, h: masking(keras, g.MaskedOptimizer(keras.optimizers.SGD()), h),
        "trainable_mask must be a tf.Tensor; got a KerasTensor, .*; remedy: what keras.Model",
        lambda g, keras, inputs, h: masking(
            keras, g.MaskedOptimizer(keras.optimizers.SGD()), keras.Model(inputs, h > 0)(X[:1])
        ),
    ),
    "override_gradient": (
        lambda g, keras, h: g.override_gradient(keras.ops.sign, keras.ops.tanh)(h),
        "what forward returns must be .* got a KerasTensor, .*; remedy: .* the call method of a keras.layers",
        lambda g, keras, inputs, h: trained(keras, inputs, overriding(g, keras)(h)),
    ),
}
# Takes functions, and is entered where the model is called.
OF_CALLS = {"gradient_override_map"}


def accumulated(g, layer, parts):
    layer(parts[0])  # makes its variables
    return g.accumulate_gradients(
        lambda part: (((layer(part) ** 2)[0, 0]), 1), layer.trainable_variables, parts
    )


def overriding(g, keras):
    class Sign(keras.layers.Layer):
        def call(self, x):
            return g.override_gradient(keras.ops.sign, keras.ops.tanh)(x)

    return Sign()


def masking(keras, optimizer, mask):
    weight = keras.Variable(np.zeros([1, 3]))
    optimizer.build([weight])
    optimizer.set_trainable_mask(weight, mask)


def trained(keras, inputs, outputs):
    model = keras.Model(inputs, keras.ops.sum(outputs, -1, keepdims=True))
    model.compile("sgd", "mse", jit_compile=True)
    before = model.get_weights()
    model.fit(X, np.ones((4, 1)), verbose=0)
    assert all((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))


@pytest.fixture
def keras(in_tensorflow):
    """Keras, with the functions that models here are saved with."""
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    for function in (cubed, doubled, first_squared, squared, total):
        keras.saving.register_keras_serializable("tests")(function)
    return keras


def means(keras, made):
    """Return the mean of each tensor of a structure."""
    return [keras.ops.mean(keras.ops.cast(leaf, "float32")) for leaf in keras.tree.flatten(made)]


def test_every_public_name_is_tried(in_tensorflow):
    assert {*WORKING, *REFUSED, *OF_CALLS} == {*in_tensorflow.tricks.__all__}


@pytest.mark.parametrize("name", WORKING)
def test_it_is_an_operation_with_the_same_values_and_gradients(in_tensorflow, keras, name):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    dense, inputs = keras.layers.Dense(3), keras.Input((3,))
    model = keras.Model(inputs, means(keras, WORKING[name](tricks, keras.ops, dense(inputs))))
    found = []
    for function in (model, lambda x: means(keras, WORKING[name](tricks, keras.ops, dense(x)))):
        with tf.GradientTape() as tape:
            values = function(tf.constant(X))
            loss = tf.add_n(tf.nest.flatten(values))
        gradients = [g for g in tape.gradient(loss, dense.trainable_variables) if g is not None]
        found.append([x.numpy() for x in (*tf.nest.flatten(values), *gradients)])
    assert_close(*found, rtol=1e-5, atol=1e-6)


def joined(tricks, keras, names):
    """Make one model of all of them."""
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(3)(inputs)
    made = [WORKING[name](tricks, keras.ops, hidden) for name in names]
    return keras.Model(inputs, keras.ops.zeros_like(inputs[:, :1]) + sum(means(keras, made)))


def test_models_train_compiled(in_tensorflow, keras):
    model = joined(in_tensorflow.tricks, keras, WORKING.keys() - SLOW_IN_XLA)
    model.compile(keras.optimizers.SGD(1e-4), "mse", jit_compile=True)
    variables = model.trainable_variables
    with in_tensorflow.framework.GradientTape() as tape:
        loss = keras.ops.mean(model(X) ** 2)
    expected = [v.numpy() - 1e-4 * g for v, g in zip(variables, tape.gradient(loss, variables), strict=True)]
    model.fit(X, np.zeros((4, 1)), shuffle=False, verbose=0)
    assert_close([v.numpy() for v in variables], expected, rtol=1e-3, atol=1e-5)


def test_models_come_back_from_their_file(in_tensorflow, keras, tmp_path):
    model = joined(in_tensorflow.tricks, keras, WORKING)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close([loaded(X).numpy()], [model(X).numpy()], rtol=1e-6, atol=0)
    assert [operation.name for operation in loaded.operations] == [op.name for op in model.operations]


def test_a_process_that_imports_the_package_loads_them(in_tensorflow, keras, tmp_path):
    tricks, inputs = in_tensorflow.tricks, keras.Input((2,))
    model = keras.Model(inputs, tricks.ScaleGradient(0.5)(tricks.clip_gradient_norm(inputs, 1.0)))
    model.compile(tricks.MaskedAdam(), "mse")
    model.save(tmp_path / "model.keras")
    code = "import sys, keras, gradtricks.tensorflow; keras.saving.load_model(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.keras")], check=True)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cant_be_an_operation_says_what_to_do(in_tensorflow, keras, name):
    call, message, remedy = REFUSED[name]
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(3)(inputs)
    with pytest.raises((TypeError, ValueError), match=message):
        call(in_tensorflow.tricks, keras, hidden)
    remedy(in_tensorflow.tricks, keras, inputs, hidden)


def test_gradient_maps_are_entered_where_models_are_called(in_tensorflow, keras):
    tf = in_tensorflow.framework
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.ReLU()(inputs))
    x = tf.constant([[-1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        with in_tensorflow.tricks.gradient_override_map(
            {tf.nn.relu: lambda gradient, output, x: 3 * gradient}
        ):
            y = model(x)
    assert tape.gradient(y, x).numpy().tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize("argument", ["scale", "x"])
def test_any_argument_may_be_a_keras_tensor(in_tensorflow, keras, argument):
    arguments = {"x": in_tensorflow.framework.constant(X), "scale": in_tensorflow.framework.constant(0.5)}
    arguments[argument] = keras.Input(batch_shape=arguments[argument].shape)
    made = in_tensorflow.tricks.scale_gradient(**arguments)
    assert keras.backend.is_keras_tensor(made)
    assert made.shape == (4, 3)


def test_errors_are_those_of_tensors(in_tensorflow, keras):
    tricks, h = in_tensorflow.tricks, keras.Input((3,))
    with pytest.raises(TypeError, match=r"^max_norm must be a real number; got str$"):
        tricks.clip_gradient_norm(h, "one")
    with pytest.raises(TypeError, match="x must be floating-point; got int32"):
        tricks.scale_gradient(keras.Input((3,), dtype="int32"), 1.0)
    with pytest.raises(TypeError, match=r"function\(x\) must be a tf.Tensor; got a KerasTensor"):
        tricks.safe_where(in_tensorflow.tensor(X) > 0, in_tensorflow.tensor(X), lambda x: h, 0.0)


def test_variables_are_refused_of_which_the_model_wouldnt_know(in_tensorflow, keras):
    tricks, h = in_tensorflow.tricks, keras.Input((3,))
    for call in (
        lambda: tricks.scale_gradient(h, keras.Variable(0.5)),
        lambda: tricks.safe_where(h > 0, h, keras.layers.Dense(3), 0.0),
    ):
        with pytest.raises(ValueError, match="must not read variables as an operation of a Keras model"):
            call()


def test_structures_come_out_as_they_went_in(in_tensorflow, keras):
    h = keras.Input((3,))
    (first, nothing), norm = in_tensorflow.tricks.clip_by_global_norm((h, None), 1.0)
    assert nothing is None
    assert [x.shape for x in (first, norm)] == [(None, 3), ()]


@pytest.mark.parametrize("eagerly", [True, False])
def test_a_mask_of_keras_goes_on(in_tensorflow, keras, eagerly):
    words, masks = keras.Input((4,), dtype="int32"), []

    class Seen(keras.layers.Layer):
        supports_masking = True

        def call(self, x, mask=None):
            masks.append(mask)
            return x

    embedded = keras.layers.Embedding(5, 3, mask_zero=True)(words)
    clipped = in_tensorflow.tricks.clip_gradient_norm(embedded, 1.0)
    model = keras.Model(words, Seen()(clipped))
    model.compile(run_eagerly=eagerly)
    masks.clear()
    model.predict(np.array([[1, 2, 0, 0]]), verbose=0)
    (mask,) = masks
    assert mask.shape[-1] == 4
    assert not eagerly or mask.numpy().tolist() == [[True, True, False, False]]


def test_a_model_of_a_later_version_names_the_remedy(in_tensorflow):
    trick = type(in_tensorflow.tricks.scale_gradient.__globals__["Trick"]("scale_gradient"))
    with pytest.raises(ValueError, match="got 'scale_everything'; remedy: the version of gradtricks"):
        trick("scale_everything")


def test_functions_can_be_sent_to_other_processes(in_tensorflow):
    for name in (*WORKING, *REFUSED):
        exported = getattr(in_tensorflow.tricks, name)
        assert pickle.loads(pickle.dumps(exported)) is exported  # noqa: S301
