"""Keras on PyTorch: the tricks of `gradtricks.torch` in layers, in `fit` and in a model's `train_step`."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agreeing import assert_close
from gradtricks import reference

PAGE = Path(__file__).parents[2] / "book" / "masking.md"
X, Y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype("float32")
MASK = np.array([True, False, True])
# A process of its own, as Keras reads its backend once; without TensorFlow, which Keras imports where it can.
SCRIPT = """
import json
import sys

sys.modules["tensorflow"] = None
import keras
import torch

import gradtricks.torch as g

given = json.load(sys.stdin)
x, y, mask = (torch.tensor(given[name]) for name in "XYM")


class Clipped(keras.layers.Layer):
    def call(self, x):
        return g.clip_gradient(x, -0.01, 0.02)


class Limited(keras.Model):
    def train_step(self, data):
        x, y = data
        self.zero_grad()
        self.compute_loss(x, y, self(x, training=True)).backward()
        variables = self.trainable_variables
        gradients, norm = g.clip_by_global_norm([v.value.grad for v in variables], 0.001)
        self.optimizer.apply(gradients, variables)
        return {"norm": norm}


LAYERS = {
    "scale_gradient": keras.layers.Lambda(g.ScaleGradient(0.5)),
    "clip_gradient": Clipped(),
    "clip_gradient_norm": keras.layers.Lambda(lambda h: g.clip_gradient_norm(h, 0.01, axis=1)),
    "normalize_gradient": keras.layers.Lambda(lambda h: g.normalize_gradient(h, 2.0)),
}


def connect(edit):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    return inputs, keras.layers.Dense(3)(edit(keras.layers.Dense(3)(inputs)))


def step(model):
    # One batch, and SGD of rate 1: what the step takes away is the gradient.
    model.compile(keras.optimizers.SGD(1.0), "mse")
    before = model.get_weights()
    logs = model.fit(x, y, batch_size=8, verbose=0).history
    return [then - now for then, now in zip(before, model.get_weights())], logs


found = {name: step(keras.Model(*connect(layer)))[0] for name, layer in LAYERS.items()}
found["clip_by_global_norm"], found["norm"] = step(Limited(*connect(keras.layers.Identity())))
inputs, outputs = connect(keras.layers.Identity())
found["weights"] = keras.Model(inputs, outputs).get_weights()
try:
    g.scale_gradient(inputs, 0.5)
except TypeError as error:
    found["refused"] = str(error)

page = {"inputs": inputs, "outputs": outputs, "mask": mask, "x": x, "y": y}
exec(given["page"], page)
found["MaskedOptimizer"] = page["model"].get_weights()
inputs, outputs = connect(keras.layers.Identity())
model = page["Masked"](inputs, outputs)
model.masked = g.MaskedAdam(model.parameters(), lr=0.01)
model.masked.set_trainable_mask(model.layers[1].kernel.value, mask)
try:
    model.masked.set_trainable_mask(model.layers[1].kernel, mask)
except ValueError as error:
    found["no tensor"] = str(error)
model.compile(loss="mse")
found["MaskedAdam's losses"] = model.fit(x, y, epochs=3, verbose=0).history["seen"]
found["MaskedAdam"] = model.get_weights()
print(json.dumps(found, default=lambda array: array.tolist()))
"""


@pytest.fixture(scope="module")
def found():
    if importlib.util.find_spec("keras") is None or importlib.util.find_spec("torch") is None:
        pytest.skip("Keras on PyTorch: one of them is missing; remedy: pip install keras torch")
    (shown,) = [
        code
        for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
        if "keras" in code
    ]
    given = {"X": X.tolist(), "Y": Y.tolist(), "M": MASK.tolist(), "page": shown}
    command = [sys.executable, "-W", "error:::gradtricks", "-c", SCRIPT]
    environment = os.environ | {"KERAS_BACKEND": "torch"}
    done = subprocess.run(command, input=json.dumps(given), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def gradients(found, edit):
    """Return those of both layers, where ``edit`` changes the one that comes to their middle."""
    first, first_bias, last, last_bias = map(np.float64, found["weights"])
    hidden = X @ first + first_bias
    slope = 2 * (hidden @ last + last_bias - Y) / Y.size
    middle = edit(slope @ last.T, hidden)
    return [X.T @ middle, middle.sum(0), hidden.T @ slope, slope.sum(0)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("scale_gradient", {"scale": 0.5}),
        ("clip_gradient", {"gradient_min": -0.01, "gradient_max": 0.02}),
        ("clip_gradient_norm", {"max_norm": 0.01, "axis": 1}),
        ("normalize_gradient", {"norm": 2.0}),
    ],
)
def test_an_edit_in_a_layer_of_keras(found, name, arguments):
    expected = gradients(found, lambda *both: getattr(reference, f"{name}_vjp")(*both, **arguments))
    for moved, gradient in zip(found[name], expected):
        assert_close(moved, gradient, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_together_before_keras_optimizer(found):
    expected, norm = reference.clip_by_global_norm(gradients(found, lambda g, _: g), 0.001)
    assert found["norm"]["norm"] == pytest.approx([norm], rel=1e-4)
    for moved, gradient in zip(found["clip_by_global_norm"], expected):
        assert_close(moved, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["MaskedAdam", "MaskedOptimizer"])
def test_a_masked_training_of_keras(found, name):
    for number, (now, then) in enumerate(zip(found[name], found["weights"])):
        moved = np.array(now) != then
        assert (moved == (MASK if number == 0 else True)).all()


def test_what_a_train_step_of_keras_returns_is_seen(found):
    losses = found["MaskedAdam's losses"]
    assert losses[0] > losses[1] > losses[2] > 0


def test_a_variable_of_keras_is_refused_with_its_value_as_remedy(found):
    assert found["no tensor"].endswith(
        "got Variable; remedy: its tensor, such as the value of a Keras variable"
    )


def test_a_tensor_of_keras_without_values_is_refused(found):
    message = (
        r"x must be a torch.Tensor; got KerasTensor; remedy: keras.layers.Lambda around the function, or"
    )
    assert re.match(message, found["refused"])
    from gradtricks.torch import scale_gradient

    with pytest.raises(TypeError, match=message):
        scale_gradient(type("KerasTensor", (), {})(), 0.5)
