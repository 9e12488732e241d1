"""scale_gradient: identity forward, scaled backward."""

import copy
import pickle

import numpy as np
import pytest

from backends import made
from domains import BROADCAST, floating, number
from gradtricks import reference
from suites import Edit, Row
from transforms import FIRST_ORDER

BEYOND = {"eager", "compile", "vmap of func.vjp", "func.jvp", "dual numbers"}
BEYOND |= {"tape", "xla", "vectorized_map", "accumulator", "accumulator in a function"}
BEYOND = [way for way in FIRST_ORDER if way.name in BEYOND]
X = {"x": floating()}


def scaled(random, shape):
    return [random.normal(size=shape), random.choice([0.0, -1.0, 1 / 3, 0.1, 2.0, random.normal()])]


class TestEdits(Edit):
    rows = (
        Row("scale_gradient", scaled, rtol=1e-15, domains=X | {"scale": number(tensor=f"{BROADCAST}x")}),
        Row("reverse_gradient", lambda random, shape: [random.normal(size=shape)], rtol=0, domains=X),
    )


EXTREMES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -1e-45, 1.0], np.float32)


@pytest.mark.parametrize("way", ["value_and_vjp", "compiled_value_and_vjp"])
def test_a_tensor_scale_broadcasts_and_zero_stops_even_infinite_gradients(backend, way):
    x, scale, cotangent = np.ones((2, 3)), np.array([[0.0], [-2.0]]), np.array([np.inf, np.nan, 5.0])
    _, (gradient, unused) = getattr(backend, way)(
        lambda t, s: backend.tricks.scale_gradient(t, s) + 0 * s, [x, scale], np.stack([cotangent, 2 * x[0]])
    )
    np.testing.assert_array_equal(gradient, [[0, 0, 0], [-4, -4, -4]])
    np.testing.assert_array_equal(unused[1], 0)
    for scale in (0.0, 1e-50):  # which is 0 in float32
        _, (gradient,) = getattr(backend, way)(
            lambda t, scale=scale: backend.tricks.scale_gradient(t, scale),
            [np.ones(3, np.float32)],
            np.float32(cotangent),
        )
        np.testing.assert_array_equal(gradient, np.zeros(3))


@pytest.mark.parametrize("way", BEYOND, ids=lambda way: way.id)
def test_a_scale_beyond_float16_scales_float16(way):
    way = way(made(way.framework))
    backend, x = way.backend, np.array([1.5, -2.0])

    def scaled(t):
        half = backend.cast(t * 2**-8, "float16")
        scales = 65536.0, backend.tensor(65536.0)
        both = backend.joined(*(way.tricks.scale_gradient(half, scale) for scale in scales))
        return backend.cast(both, "float64") * 2**-8

    # 65536 times 2**-16, through either.
    value, (gradient,) = way.value_and_vjp(scaled, [x], np.array([1.0, 3.0, 2.0, -1.0]))
    np.testing.assert_array_equal(value, 2**-16 * np.tile(x, 2))
    np.testing.assert_array_equal(gradient, [3.0, 2.0])


def test_an_unknown_rank_is_scaled_in_tensorflow(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None)], autograph=False)
    def gradient(x, scale):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tricks.scale_gradient(x, scale)
        return tape.gradient(y, x)

    np.testing.assert_array_equal(gradient(tf.ones(2), tf.constant(0.5)), [0.5, 0.5])


class Outputs(dict):
    """Refuses an update, as outputs of transformers do."""

    def update(self, *args):
        raise TypeError(args)


def test_a_kind_of_dict_stays_one(backend):
    outputs = backend.tricks.scale_gradient(Outputs(state=backend.tensor(np.ones(2))), 0.5)
    assert type(outputs) is Outputs
    assert backend.array(outputs["state"]).tolist() == [1, 1]


def test_the_layer_scales_and_can_be_set_anew(backend):
    layer = backend.tricks.ScaleGradient(0.5)
    for scale in (0.5, -2.0, 0.0, 0.1, 1e-50, 1e300, -0.0):
        layer.scale = scale
        assert layer.scale == backend.tricks.ScaleGradient(scale).scale == scale
    for scale in (0.5, -2.0, 0.0):
        layer.scale = scale
        x = np.float32([1.0, np.inf, -0.0])
        value, (gradient,) = backend.value_and_vjp(layer, [x], np.float32([1, 2, np.inf]))
        assert value.tobytes() == x.tobytes()
        np.testing.assert_array_equal(gradient, reference.scale_gradient_vjp([1, 2, np.inf], x, scale))


@pytest.mark.parametrize(
    ("scale", "error"), [("half", TypeError), (True, TypeError), (float("inf"), ValueError)]
)
def test_the_layer_checks_its_scale(backend, scale, error):
    with pytest.raises(error, match="scale must be"):
        backend.tricks.ScaleGradient(scale)
    layer = backend.tricks.ScaleGradient(1.0)
    with pytest.raises(error, match="scale must be"):
        layer.scale = scale
    assert layer.scale == 1


def test_the_module_is_an_ordinary_one_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), tricks.ScaleGradient(0.1))
    assert "ScaleGradient(scale=0.1)" in repr(model)
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.half()):  # noqa: S301
        assert same[1].scale == 0.1


def test_the_module_made_in_inference_mode_trains_in_torch(in_torch):
    torch, x = in_torch.framework, in_torch.framework.ones(2, dtype=in_torch.framework.float64)
    with torch.inference_mode():
        layer = in_torch.tricks.ScaleGradient(1.0)
        layer.scale = 0.5
    (gradient,) = torch.autograd.grad(layer(x.requires_grad_()).sum(), x)
    assert gradient.tolist() == [0.5, 0.5]


def test_another_scale_of_the_module_isnt_another_compilation_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    torch.compiler.reset()
    compilations, layer = [], tricks.ScaleGradient(0.0)
    counted = torch.compile(layer, fullgraph=True, backend=lambda g, _: compilations.append(g) or g.forward)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for scale in range(14):
        layer.scale = scale
        x = torch.ones(1, requires_grad=True)
        compiled(x).backward()
        assert x.grad.tolist() == [scale]
        counted(x)
    assert len(compilations) == 1


# PyTorch's own copies of graphs warn.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_the_exported_module_is_the_identity_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    x = torch.tensor(EXTREMES)
    exported = torch.export.export(tricks.ScaleGradient(1 / 3), (x,))
    for program in (exported, exported.run_decompositions()):
        assert program.module()(x).numpy().tobytes() == EXTREMES.tobytes()


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_layer_trains_in_fit_in_tensorflow(in_tensorflow, policy, tmp_path):
    keras, tricks = pytest.importorskip("keras"), in_tensorflow.tricks
    inputs = keras.Input((2,))
    dense = keras.layers.Dense(1, kernel_initializer="ones", dtype=policy)
    layer = tricks.ScaleGradient(0.0, dtype=policy)
    model = keras.Model(inputs, layer(dense(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    for scale, moved in ((0.0, 0.0), (0.5, -0.2), (-0.5, 0.2)):
        layer.scale = scale
        dense.set_weights([np.ones((2, 1)), np.zeros(1)])
        model.fit(x, y, batch_size=4, verbose=0)
        # The loss is (w1 + w2)**2, its gradient 4.
        np.testing.assert_allclose(dense.get_weights()[0] - 1, moved, atol=1e-2)
    assert model(x).dtype == dense.compute_dtype
    path = tmp_path / "model.keras"
    model.save(path)
    assert keras.saving.load_model(path).layers[-1].scale == -0.5
    assert tricks.ScaleGradient.from_config(layer.get_config()).scale == -0.5


def test_a_strategy_may_hold_the_scale_in_tensorflow(in_tensorflow):
    with in_tensorflow.framework.distribute.MirroredStrategy(["CPU:0"]).scope():
        layer = in_tensorflow.tricks.ScaleGradient(0.5)
        layer.scale = 0.25
    assert layer.scale == layer.get_config()["scale"] == 0.25


def test_a_variable_is_read_in_tensorflow(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    keras = tf.keras
    variable = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = tricks.scale_gradient(variable, keras.Variable(0.5))
    assert float(tape.gradient(y, variable)) == 0.5


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "float64"])
def test_the_layers_weight_is_float64_in_tensorflow(in_tensorflow, dtype):
    layer = in_tensorflow.tricks.ScaleGradient(1 / 3, dtype=dtype)
    assert layer.weights[0].dtype == "float64"
    assert layer.scale == 1 / 3
