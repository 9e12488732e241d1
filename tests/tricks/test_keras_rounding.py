"""MaskedAdam of Keras on variables of 16 bits, with steps that arrive."""

import subprocess
import sys

import numpy as np
import pytest

from gradtricks import reference

HALVES = {"bfloat16": 8, "float16": 11}
WAYS = ["stochastic", "compensated"]
RATE = 2**-12


def made(in_tensorflow, start, rounding, dtype="bfloat16", **options):
    """Make a variable and its optimizer."""
    variable = in_tensorflow.parameter(start, dtype)
    return variable, in_tensorflow.masked_adam(variable, RATE, rounding=rounding, **options)


def bits(variables):
    """Return what variables hold, bit for bit."""
    arrays = [np.atleast_1d(variable.numpy()) for variable in variables]
    return [array.view(f"u{array.itemsize}") for array in arrays]


@pytest.mark.parametrize("dtype", HALVES)
def test_the_noise_follows_from_seed_step_and_variable(in_tensorflow, dtype):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    random, shape = np.random.default_rng(0), (40, 5)
    mask = random.random(shape) < 0.7
    first, second = (in_tensorflow.parameter(random.normal(size=shape), dtype) for _ in range(2))
    optimizer = tricks.MaskedAdam(RATE, epsilon=1e-8, weight_decay=0.1, rounding="stochastic", seed=7)
    optimizer.build([first, second])
    optimizer.set_trainable_mask(second, tf.constant(mask))
    state = [tf.zeros(shape), tf.zeros(shape), tf.zeros(shape, tf.int32), tf.constant(mask)]
    for turn in range(3):
        gradient = tf.cast(random.normal(size=shape), dtype)
        wide = tf.cast(second, tf.float32)
        moved, *state[:3], _ = tricks.masked_adam_step(
            wide, gradient, *state, learning_rate=RATE, weight_decay=0.1
        )
        noise = tf.random.stateless_uniform(shape, [7, 2 * turn + 1])
        wanted = reference.round_stochastically(moved.numpy(), noise.numpy(), dtype)
        optimizer.apply([gradient], [second])
        np.testing.assert_array_equal(in_tensorflow.array(second), np.where(mask, wanted, wide))


LARGE = 2**15  # elements, whose steps XLA compiles in any case; it draws other noise
COMPILED = [("compensated", 100), ("compensated", LARGE), ("stochastic", LARGE)]


@pytest.mark.parametrize(
    ("rounding", "size", "jit_compile"),
    [("stochastic", 100, False), *((*each, jit) for each in COMPILED for jit in (False, True))],
)
def test_a_graph_rounds_as_eager_steps_do(in_tensorflow, rounding, size, jit_compile):
    tf, random = in_tensorflow.framework, np.random.default_rng(0)
    start, gradients = random.normal(size=size), random.normal(size=(4, size))
    mask, values = tf.constant(random.random(size) < 0.5), []
    for compiled in (lambda step: step, tf.function(jit_compile=jit_compile)):
        seed = 3 if rounding == "stochastic" else None
        variable, optimizer = made(in_tensorflow, start, rounding, amsgrad=True, seed=seed)
        step = compiled(lambda gradient, optimizer=optimizer: optimizer.apply([gradient]))
        for turn, gradient in enumerate(gradients):
            if turn == 2:
                optimizer.set_trainable_mask(variable, mask)
            step(tf.cast(gradient, variable.dtype))
        values.append(in_tensorflow.array(variable))
    # A compiler rounds the step in float32 otherwise, which moves a few elements to the other neighbour.
    assert np.mean(values[0] != values[1]) < 0.01
    np.testing.assert_allclose(*values, rtol=2.0**-7, atol=2.0**-14)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_mean_of_a_stochastic_step_is_the_step(in_tensorflow, dtype):
    count, start = 2**16, 1.5
    variable, optimizer = made(in_tensorflow, np.full(count, start), "stochastic", dtype, seed=0)
    in_tensorflow.apply(optimizer, variable, np.ones(count))
    values, gap = in_tensorflow.array(variable).astype(float), 2.0 ** (1 - HALVES[dtype])
    assert set(values) == {start, start - gap}
    share = RATE / gap  # of those that go down
    assert abs(values.mean() - (start - RATE)) < 4 * gap * (share * (1 - share) / count) ** 0.5


@pytest.mark.parametrize("dtype", HALVES)
def test_many_small_compensated_steps_arrive(in_tensorflow, dtype):
    random, rate, count = np.random.default_rng(0), 1e-4, 300
    start = 1 + random.integers(0, 64, 50) * 2.0**-7
    gradients = random.normal(1, 1, (count, 50)).round(1)
    gradients = in_tensorflow.array(in_tensorflow.cast(in_tensorflow.tensor(gradients), dtype)).astype(float)
    nearest, compensated = (in_tensorflow.parameter(start, dtype) for _ in range(2))
    optimizers = [
        in_tensorflow.masked_adam(nearest, rate),
        in_tensorflow.masked_adam(compensated, rate, rounding="compensated"),
    ]
    state = [start, np.zeros(50), np.zeros(50), np.zeros(50, int)]
    for gradient in gradients:
        for variable, optimizer in zip((nearest, compensated), optimizers, strict=True):
            in_tensorflow.apply(optimizer, variable, gradient)
        state = reference.masked_adam_step(state[0], gradient, *state[1:4], True, learning_rate=rate)[:4]
    (rest,) = (v for v in optimizers[1].variables if "compensation" in v.name)
    total = in_tensorflow.array(compensated).astype(float) + in_tensorflow.array(rest)
    np.testing.assert_array_equal(in_tensorflow.array(nearest), start)
    # At each step the compensation errs by half of its gap, and float32 by half of that of the weight.
    error = count * (2.0 ** (-2 * HALVES[dtype] - 1) + 2.0**-24)
    assert np.abs(total - state[0]).max() < error
    assert np.abs(state[0] - start).min() > 5 * error


@pytest.mark.parametrize("size", [8, LARGE])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rounding", WAYS)
def test_frozen_entries_keep_every_bit(in_tensorflow, rounding, dtype, size):
    tf = in_tensorflow.framework
    patterns = np.resize(np.array([0x0001, 0x8000, 0x7FC1, 0xFFC1, 0x7C01, 0x3F80, 0x3C01, 0x7F80]), size)
    variable = tf.Variable(tf.bitcast(tf.constant(patterns.astype(np.uint16)), dtype))
    optimizer = in_tensorflow.masked_adam(variable, RATE, rounding=rounding)
    in_tensorflow.apply(optimizer, variable, np.ones(size))
    mask = np.arange(size) >= size // 2
    optimizer.set_trainable_mask(variable, tf.constant(mask))
    held = [variable, *(v for v in optimizer.variables if v.shape == variable.shape)]
    before = bits(held)
    in_tensorflow.apply(optimizer, variable, np.where(mask, 0.5, np.nan))
    for old, new in zip(before, bits(held), strict=True):
        np.testing.assert_array_equal(old[~mask], new[~mask])


@pytest.mark.parametrize("rounding", WAYS)
def test_a_loaded_model_goes_on_as_if_it_had_never_stopped(in_tensorflow, rounding, tmp_path):
    keras = in_tensorflow.framework.keras
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(3, dtype="bfloat16")]
    model = keras.Sequential(layers)
    optimizer = in_tensorflow.tricks.MaskedAdam(1e-3, rounding=rounding)
    model.compile(optimizer, "mse")
    x, y = np.random.default_rng(0).normal(size=(2, 32, 4)).astype(np.float32)
    model.fit(x, y[:, :3], epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == optimizer.get_config()
    for some in (model, loaded):
        some.fit(x, y[:, :3], epochs=5, verbose=0, shuffle=False)
    held = [[*some.trainable_variables, *some.optimizer.variables] for some in (model, loaded)]
    for ours, theirs in zip(*map(bits, held), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_seed_is_drawn_where_noise_needs_one(in_tensorflow):
    keras, tricks = in_tensorflow.framework.keras, in_tensorflow.tricks
    seeds = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        seeds += [tricks.MaskedAdam(rounding="stochastic").seed for _ in range(2)]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]
    assert tricks.MaskedAdam(rounding="compensated").seed is tricks.MaskedAdam().seed is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rounding": "kahan"}, ValueError, "rounding must be one of None, 'stochastic', 'compensated'; got"),
        (
            {"rounding": "compensated", "seed": 1},
            ValueError,
            'seed must be None unless rounding="stoch.*got 1',
        ),
        ({"rounding": "stochastic", "seed": 0.5}, TypeError, "seed must be an integer; got float"),
        ({"rounding": "stochastic", "seed": -1}, ValueError, r"seed must lie in \[0, 2147483647\]; got -1"),
    ],
)
def test_wrong_options_of_rounding_are_refused(in_tensorflow, options, error, message):
    with pytest.raises(error, match=message):
        in_tensorflow.tricks.MaskedAdam(**options)


@pytest.mark.parametrize("rounding", WAYS)
def test_variables_with_too_many_digits_are_refused(in_tensorflow, rounding):
    tf = in_tensorflow.framework
    narrow, wide = tf.Variable(tf.ones(2, tf.bfloat16)), tf.Variable(tf.ones(2), name="kernel")
    optimizer = in_tensorflow.tricks.MaskedAdam(rounding=rounding)
    message = f'must be bfloat16 or float16 with rounding="{rounding}"; got float32 for kernel.*; remedy: '
    with pytest.raises(TypeError, match=message):
        optimizer.build([narrow, wide])
    assert not optimizer.built


REPLICAS = """
import tensorflow as tf
from gradtricks.tensorflow import MaskedAdam
cpu, two = tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    variable, optimizer = tf.Variable(tf.ones(1000, tf.bfloat16)), MaskedAdam(rounding="stochastic", seed=0)
    optimizer.build([variable])
step = tf.function(lambda: strategy.run(lambda: optimizer.apply([tf.ones(1000, tf.bfloat16)])))
for _ in range(3):
    step()
one, other = strategy.experimental_local_results(variable)
tf.debugging.assert_equal(one, other)
assert 1 < len(set(one.numpy())) < 5
"""


def test_replicas_draw_the_same_noise(in_tensorflow):
    subprocess.run([sys.executable, "-c", REPLICAS], check=True, timeout=120)
