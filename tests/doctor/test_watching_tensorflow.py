"""Trainings of TensorFlow in every shape: the command watches each, and says nothing false."""

import pytest
from typer.testing import CliRunner

from gradtricks.cli import app
from gradtricks.doctor.late import Late

HEAD = """
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
x = np.random.normal(size=(16, 4)).astype("float32")
y = x[:, :1]


def dense(size=1):
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(size)])


def error(prediction):
    return tf.reduce_mean((prediction - y) ** 2)


w, b = tf.Variable(tf.random.normal([4, 1])), tf.Variable([0.0])
model, optimizer = dense(), keras.optimizers.SGD(0.1)
"""
LOOP = """
for _ in range(9):
    with tf.GradientTape() as tape:
        loss = {loss}
    {gradients} = tape.gradient(loss, {sources})
    {update}
raise SystemExit("not reached")
"""


def loop(update, loss="error(x @ w + b)", sources="[w, b]", gradients="dw, db"):
    return LOOP.format(loss=loss, sources=sources, gradients=gradients, update=update)


MODEL = {"loss": "error(model(x))", "sources": "model.trainable_variables", "gradients": "dw, db"}
HEALTHY = {
    "assigned": loop("w.assign_sub(0.1 * dw); b.assign(b - 0.1 * db)"),
    "with_momentum": "v = tf.Variable(tf.zeros([4, 1]))"
    + loop("v.assign(0.9 * v + dw); w.assign_sub(0.1 * v); b.assign_sub(db)"),
    "in_a_dictionary": loop(
        "w.assign_sub(0.1 * given['w'])", loss="error(x @ w)", sources="{'w': w}", gradients="given"
    ),
    "rows_of_a_table": loop(
        "w.scatter_sub(tf.IndexedSlices(given.values, given.indices))",
        loss="tf.reduce_mean(tf.gather(w, [0, 2]) ** 2)",
        sources="w",
        gradients="given",
    ),
    "of_complex_numbers": "z = tf.Variable(tf.complex(w, w))"
    + loop(
        "z.assign_sub(0.1 * dz)",
        loss="tf.reduce_mean(tf.abs(tf.cast(x, tf.complex64) @ z) ** 2)",
        sources="z",
        gradients="dz",
    ),
    "by_a_former_optimizer": "optimizer = tf.compat.v1.train.AdamOptimizer(0.1)"
    + loop("optimizer.apply_gradients([(dw, w), (db, b)])"),
    "a_models_weights_assigned": loop(
        "[v.assign_sub(0.1 * dv) for v, dv in zip(model.trainable_variables, (dw, db))]", **MODEL
    ),
    "variables_beside_a_model": "s = tf.Variable(1.0)"
    + loop(
        "optimizer.apply(given, [*model.trainable_variables, s])",
        loss="error(model(x) * s)",
        sources="[*model.trainable_variables, s]",
        gradients="given",
    ),
    "the_gradient_of_the_input_too": "x = tf.Variable(x, trainable=False)"
    + loop(
        "optimizer.apply([dw, db], model.trainable_variables)",
        loss="(tape.watch(x), error(model(x)))[1]",
        sources="[x, *model.trainable_variables]",
        gradients="_, dw, db",
    ),
    "two_models_by_hand": "other = dense(4)\nvs = model.trainable_variables + other.trainable_variables"
    + loop(
        "[v.assign_sub(0.1 * dv) for v, dv in zip(vs, given)]",
        loss="error(model(other(x)))",
        sources="vs",
        gradients="given",
    ),
    "fitted_to_a_generator": """
def batches():
    while True:
        yield x, y


model.compile("sgd", "mse")
model.fit(batches(), steps_per_epoch=9, verbose=0, shuffle=False)
""",
}
FIT = "model.compile('sgd', 'mse')\n"
ELSEWHERE = {
    "thread": FIT
    + """
from threading import Thread
thread = Thread(target=lambda: model.fit(x, y, verbose=0))
thread.start()
thread.join()
""",
    "replicas": f"""
with tf.distribute.MirroredStrategy().scope():
    model = dense()
    {FIT}
model.fit(x, y, verbose=0)
""",
}
SATURATED = "tf.nn.relu(model(x) * 0 - 1)"
FAULTY = {
    "forgotten": (loop("w.assign_sub(0.1 * dw)"), "not in the optimizer [GT301]: Variable 1"),
    "never_applied": (
        "steps = 0"
        + LOOP.replace("raise", "#").format(
            loss="error(x @ w + b)", sources="[w, b]", gradients="dw, db", update="steps += 1"
        ),
        "never updated [GT304]",
    ),
    "logarithm_of_zero": (
        loop(
            "w.assign_sub(0.1 * dw); b.assign_sub(db)",
            loss="-tf.reduce_mean(tf.math.log(tf.nn.relu(x @ w + b)))",
        ),
        "not finite, forward [GT201]",
    ),
    "softmax_twice": (
        loop(
            "w.assign_sub(0.1 * dw); b.assign_sub(db)",
            loss="tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(x, tf.nn.softmax(x @ w + b + x)))",
        ),
        "logits expected [GT502]",
    ),
    "zero_everywhere": (
        loop(
            "optimizer.apply([dw, db], model.trainable_variables)", **MODEL | {"loss": f"error({SATURATED})"}
        ),
        "zero everywhere [GT108]",
    ),
}


def examined(tmp_path, script):
    path = tmp_path / "train.py"
    path.write_text(HEAD + script)
    return CliRunner().invoke(app, ["doctor", str(path)])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_of_any_shape_is_watched_in_tensorflow(in_tensorflow, tmp_path, name):
    result = examined(tmp_path, HEALTHY[name])
    assert (result.exit_code, result.stdout) == (0, "3 updates watched, nothing found\n"), result.output


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_in_any_shape_is_named_in_tensorflow(in_tensorflow, tmp_path, name):
    script, cause = FAULTY[name]
    result = examined(tmp_path, script)
    assert result.exit_code == 1, result.output
    assert f"\n1. {cause}" in result.stdout


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_trains_elsewhere_is_not_called_healthy(in_tensorflow, tmp_path, name):
    result = examined(tmp_path, ELSEWHERE[name])
    assert (result.exit_code, result.stdout) == (4, "0 updates watched, nothing found\n"), result.output
    assert "process, thread or replica trains" in result.output


def test_a_failure_while_looking_back_is_no_missing_training(in_tensorflow, tmp_path, monkeypatch):
    monkeypatch.setattr(Late, "worst", lambda recorder: 1 / 0)
    result = examined(tmp_path, "raise ValueError('of its own')")
    assert (result.exit_code, "ZeroDivisionError" in result.output) == (3, True)
