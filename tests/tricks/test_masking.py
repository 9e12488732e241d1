"""masked_adam_step and MaskedAdam."""

import copy
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from backends import COMPILER
from gradtricks import reference
from transforms import numerical_second_vjp

TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}
OPTIONS = [{}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}, {"beta_1": 0.0, "beta_2": 0.9}]


class Optimizer:
    """MaskedAdam of either framework over one parameter, with the same few calls."""

    def __init__(self, backend, start, **options):
        self.backend = backend
        if backend.name == "torch":
            self.parameter = backend.framework.nn.Parameter(backend.tensor(start))
            self.optimizer = backend.tricks.MaskedAdam([self.parameter], 0.01, **options)
        else:
            self.parameter = backend.framework.Variable(start)
            self.optimizer = backend.tricks.MaskedAdam(0.01, **options)
            self.optimizer.build([self.parameter])

    def set_mask(self, mask):
        self.optimizer.set_trainable_mask(self.parameter, None if mask is None else self.backend.tensor(mask))

    def step(self, gradient):
        if self.backend.name == "torch":
            self.parameter.grad = self.backend.tensor(gradient)
            self.optimizer.step()
        else:
            self.optimizer.apply([self.backend.tensor(gradient)])
        return self.value()

    def value(self):
        return self.backend.array(self.parameter).copy()


def reference_run(start, gradients, masks, amsgrad=False, **options):
    """Return the parameter after every step of the reference."""
    zero = np.zeros_like(start)
    state = [start, zero, zero, np.zeros(start.shape, int), zero if amsgrad else None]
    path = []
    for gradient, mask in zip(gradients, masks, strict=True):
        parameter, m, v, step, v_max = state
        options = {"learning_rate": 0.01, **options}
        state = list(
            reference.masked_adam_step(parameter, gradient, m, v, step, mask, v_max=v_max, **options)
        )
        path.append(state[0])
    return path


@given(data=st.data())
@pytest.mark.parametrize("options", OPTIONS)
def test_step_agrees_with_the_reference(backend, options, data):
    numbers = arrays(np.float64, (2, 3), elements=st.floats(0.1, 3) | st.floats(-3, -0.1))
    parameter, gradient, m = (data.draw(numbers) for _ in range(3))
    v = np.abs(data.draw(numbers))
    v_max = v * data.draw(st.sampled_from([0.5, 2.0]))  # never a tie, where either slope would do
    step = data.draw(arrays(np.int32, (2, 3), elements=st.integers(0, 5000)))
    mask = data.draw(arrays(np.bool_, (2, 3)))
    options = dict(options)
    v_max = v_max if options.pop("amsgrad", False) else None

    def new_parameter(parameter, gradient):
        tensors = (None if x is None else backend.tensor(x) for x in (m, v, step, mask, v_max))
        m_, v_, step_, mask_, v_max_ = tensors
        results.append(
            backend.tricks.masked_adam_step(
                parameter, gradient, m_, v_, step_, mask_, v_max=v_max_, **options
            )
        )
        return results[-1][0]

    results = []
    cotangent = np.cos(np.arange(6.0)).reshape(2, 3)
    _, gradients = backend.value_and_vjp(new_parameter, [parameter, gradient], cotangent)
    arguments = (parameter, gradient, m, v, step, mask)
    expected = reference.masked_adam_step(*arguments, v_max=v_max, **options)
    for result, wanted in zip(results[-1], expected, strict=True):
        assert (result is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_allclose(backend.array(result), wanted, **TOLERANCE)
    slopes = reference.masked_adam_step_vjp(cotangent, *arguments, v_max=v_max, **options)
    for got, wanted in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(got, wanted, **TOLERANCE)


@pytest.mark.parametrize("options", OPTIONS)
def test_optimizer_agrees_with_the_reference_under_changing_masks(backend, options):
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(4, 5)), random.normal(size=(30, 4, 5))
    masks = random.random((30, 4, 5)) < 0.4
    optimizer = Optimizer(backend, start, **options)
    rate = 0.01 if backend.name == "torch" else float(np.float32(0.01))  # Keras keeps it in float32
    for gradient, mask, wanted in zip(
        gradients, masks, reference_run(start, gradients, masks, **options, learning_rate=rate), strict=True
    ):
        optimizer.set_mask(mask)
        np.testing.assert_allclose(optimizer.step(gradient), wanted, **TOLERANCE)


@pytest.mark.parametrize(
    ("options", "peer"),
    [
        ({}, ("Adam", {})),
        ({"weight_decay": 0.1}, ("AdamW", {"weight_decay": 0.1})),
        ({"amsgrad": True}, ("Adam", {"amsgrad": True})),
        ({"maximize": True}, ("Adam", {"maximize": True})),
    ],
)
def test_without_a_mask_it_is_the_adam_of_pytorch(options, peer):
    torch = pytest.importorskip("torch")
    name, peer_options = peer
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(3, 2)), random.normal(size=(200, 3, 2))
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = getattr(torch.optim, name)([parameter], lr=0.01, **peer_options)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    ours = reference_run(start, gradients, np.ones((200, 3, 2), bool), **options)[-1]
    np.testing.assert_allclose(ours, parameter.detach().numpy(), rtol=1e-12)


def test_a_frozen_element_thaws_as_if_nothing_had_happened(backend):
    gradients = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    undisturbed = Optimizer(backend, np.zeros(2, np.float32), weight_decay=0.1)
    interrupted = Optimizer(backend, np.zeros(2, np.float32), weight_decay=0.1)
    for gradient in gradients[:10]:
        undisturbed.step(gradient)
        interrupted.step(gradient)
    before = interrupted.value()
    interrupted.set_mask(np.zeros(2, bool))
    for _ in range(50):
        np.testing.assert_array_equal(interrupted.step(np.full(2, np.nan, np.float32)), before)
    interrupted.set_mask(None)
    for gradient in gradients[10:]:
        np.testing.assert_array_equal(interrupted.step(gradient), undisturbed.step(gradient))


def test_it_does_what_sparse_adam_does(backend):
    # torch.optim.SparseAdam is lazy Adam on rows. Its step count is global, so the rows here move at every
    # step; its epsilon is added before the bias correction, so it is made too small to matter.
    torch = pytest.importorskip("torch")
    gradients = np.random.default_rng(0).normal(size=(10, 4, 2))
    gradients[:, 2:] = 0
    parameter = torch.nn.Parameter(torch.zeros(4, 2, dtype=torch.float64))
    peer = torch.optim.SparseAdam([parameter], lr=0.01, eps=1e-30)
    ours = Optimizer(backend, np.zeros((4, 2)), epsilon=1e-30)
    ours.set_mask(np.array([[True], [True], [False], [False]]))
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient).to_sparse(1)
        peer.step()
        value = ours.step(gradient)
    np.testing.assert_allclose(value, parameter.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_keeps_wide_moments(backend, dtype):
    start = np.ones(3, np.float32)
    optimizer = Optimizer(backend, start)
    half = backend.cast(backend.tensor(start), dtype)
    if backend.name == "torch":
        optimizer.parameter = backend.framework.nn.Parameter(half)
        optimizer.optimizer = backend.tricks.MaskedAdam([optimizer.parameter], 0.01)
        optimizer.parameter.grad = 1e-4 * half
        optimizer.optimizer.step()
    else:
        optimizer.parameter = backend.framework.Variable(half)
        optimizer.optimizer = backend.tricks.MaskedAdam(0.01)
        optimizer.optimizer.build([optimizer.parameter])
        optimizer.optimizer.apply([half * backend.cast(1e-4, dtype)])
    # In float16 the square of 1e-4 would be 0 and the step infinite.
    np.testing.assert_allclose(optimizer.value(), 0.99, rtol=0.01)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_state_dict_round_trip(amsgrad):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    gradients = torch.tensor(np.random.default_rng(0).normal(size=(20, 3)), dtype=torch.bfloat16)

    def make():
        parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        return parameter, tricks.MaskedAdam([parameter], 0.01, amsgrad=amsgrad)

    parameter, optimizer = make()
    optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))
    for gradient in gradients[:10]:
        parameter.grad = gradient
        optimizer.step()
    file = io.BytesIO()
    torch.save((parameter.data, optimizer.state_dict()), file)
    file.seek(0)
    data, state = torch.load(file)
    other_parameter, other = make()
    other_parameter.data = data
    other.load_state_dict(state)
    assert other.state[other_parameter]["trainable_mask"].dtype == torch.bool
    assert other.state[other_parameter]["m"].dtype == torch.float32
    assert other.state[other_parameter]["step"].dtype == torch.int32
    for gradient in gradients[10:]:
        parameter.grad, other_parameter.grad = gradient, gradient.clone()
        optimizer.step()
        other.step()
        assert torch.equal(parameter, other_parameter)


def test_amsgrad_can_be_switched_on_midway():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = tricks.MaskedAdam([parameter], 0.01)
    parameter.grad = torch.ones(1)
    optimizer.step()
    assert "v_max" not in optimizer.state[parameter]
    optimizer.param_groups[0]["amsgrad"] = True
    optimizer.step()
    assert optimizer.state[parameter]["v_max"].item() > 0


def test_bad_groups_say_what_is_expected():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    parameter = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=r"a group may hold params, lr, .*; got learning_rate"):
        tricks.MaskedAdam([{"params": [parameter], "learning_rate": 0.1}])
    with pytest.raises(ValueError, match="beta_1 must lie in"):
        tricks.MaskedAdam([{"params": [parameter], "beta_1": 2.0}])


def test_the_slope_of_the_step_at_rest(backend):
    # Element 0 is frozen with a NaN gradient; elements 1 and 2 have no gradient yet, one frozen, one not.
    parameter, gradient, zero = np.ones(3), np.array([np.nan, 0.0, 0.0]), np.zeros(3)
    mask = np.array([False, False, True])
    rest = [backend.tensor(x) for x in (zero, zero, np.zeros(3, np.int32), mask)]
    value, gradients = backend.value_and_vjp(
        lambda p, g: backend.tricks.masked_adam_step(p, g, *rest)[0], [parameter, gradient], np.ones(3)
    )
    arguments = (parameter, gradient, zero, zero, np.zeros(3, int), mask)
    np.testing.assert_array_equal(value, np.ones(3))
    np.testing.assert_allclose(gradients[1], [0, 0, -1e-3 / 1e-8], rtol=1e-10)
    for got, wanted in zip(gradients, reference.masked_adam_step_vjp(np.ones(3), *arguments), strict=True):
        np.testing.assert_allclose(got, wanted, **TOLERANCE)


STATE = [  # m, v, step, trainable_mask
    np.array([[0.5, -0.25], [1.0, 0.0]]),
    np.array([[0.25, 1.5], [0.5, 0.75]]),
    np.array([[0, 7], [3, 1]], np.int32),
    np.array([[True, False], [True, True]]),
]
START, GRADIENT = np.array([[1.0, -2.0], [0.5, 3.0]]), np.array([[0.5, 1.0], [-1.5, 0.25]])
STEP_OPTIONS = {"learning_rate": 0.5, "weight_decay": 0.125, "maximize": True}


def state_of(backend, dtype="float64"):
    """Return m, v, step and mask as tensors, and the options, v_max among them."""
    m, v, step, mask = (backend.tensor(x) for x in STATE)
    m, v = backend.cast(m, dtype), backend.cast(v, dtype)
    return (m, v, step, mask), {**STEP_OPTIONS, "v_max": 2 * v}


def new_parameter_vjp(cotangent, parameter, gradient):
    m, v, step, mask = STATE
    arguments = parameter, gradient, m, v, step, mask
    return reference.masked_adam_step_vjp(cotangent, *arguments, v_max=2 * v, **STEP_OPTIONS)


def test_masked_adam_step_under_every_transform(way):
    cotangent = np.array([[1.0, -2.0], [0.5, 3.0]])
    state, options = state_of(way.backend, "float32" if way.name == "autocast" else "float64")
    value, gradients = way.value_and_vjp(
        lambda parameter, gradient: way.tricks.masked_adam_step(parameter, gradient, *state, **options)[0],
        [START, GRADIENT],
        cotangent,
    )
    m, v, step, mask = STATE
    arguments = START, GRADIENT, m, v, step, mask
    expected = reference.masked_adam_step(*arguments, v_max=2 * v, **STEP_OPTIONS)[0]
    np.testing.assert_allclose(value, expected, rtol=way.rtol)
    for gradient, wanted in zip(gradients, new_parameter_vjp(cotangent, START, GRADIENT), strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=way.rtol, atol=1e-12)


def test_masked_adam_step_twice_under_every_transform(second):
    cotangent = np.array([[1.0, -2.0], [0.5, 3.0]])
    directions = [np.array([[0.5, 1.0], [-1.0, 0.25]]), np.array([[1.0, -1.0], [0.5, 2.0]])]
    state, options = state_of(second.backend)
    got = second.second_vjp(
        lambda parameter, gradient: second.tricks.masked_adam_step(parameter, gradient, *state, **options)[0],
        [START, GRADIENT],
        cotangent,
        directions,
    )
    wanted = numerical_second_vjp(new_parameter_vjp, [START, GRADIENT], cotangent, directions)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_the_case_of_optax_own_test(backend):
    # Parameters, mask and gradients of optax/transforms/_masking_test.py, test_masked and
    # test_update_requires_params. Adam's first step is one learning rate whatever the gradient; weight decay
    # adds 0.1 of the parameter to it.
    start = np.arange(1.0, 7.0)
    mask = np.array([True, False, True, True, False, True])
    for decay in (0.0, 0.1):
        optimizer = Optimizer(backend, start, weight_decay=decay, epsilon=0.0)
        optimizer.set_mask(mask)
        expected = start - 0.01 * mask * (1 + decay * start)
        np.testing.assert_allclose(optimizer.step(start / 10), expected, rtol=1e-7)


@pytest.mark.parametrize("layout", ["one pass", "by tensors"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", OPTIONS)
def test_both_ways_of_torch_agree_with_the_reference(layout, dtype, options):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(40, 30)), random.normal(size=(12, 40, 30))
    masks = (random.random((3, 40, 30)) < 0.5).repeat(4, axis=0)  # some set anew while nothing changes
    masks[:4] = True
    tensor = torch.tensor(start, dtype=getattr(torch, dtype))
    tensor = tensor if layout == "one pass" else tensor.T.contiguous().T
    parameter = torch.nn.Parameter(tensor)
    optimizer = tricks.MaskedAdam([parameter], 0.01, **options)
    path = reference_run(start, gradients, masks, **options)
    for index, (gradient, mask, wanted) in enumerate(zip(gradients, masks, path, strict=True)):
        if index % 2 == 0:
            optimizer.set_trainable_mask(parameter, torch.tensor(mask))
        parameter.grad = torch.tensor(gradient, dtype=parameter.dtype)
        optimizer.step()
        rtol = 1e-5 if dtype == "float32" else 1e-10
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=rtol, atol=rtol)
    state = optimizer.state[parameter]
    counted = state["step"].numpy() + state["since"] * masks[-1]
    np.testing.assert_array_equal(counted, masks.sum(axis=0))
    assert (state["since"] == 0) == (layout == "by tensors")


@pytest.mark.parametrize("amsgrad", [False, True])
def test_many_elements_take_several_threads_and_no_rounding_of_their_own(amsgrad):
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    threads = torch.get_num_threads()
    random = np.random.default_rng(0)
    start, gradient = random.normal(size=(2, 300_001)).astype(np.float32)
    mask = random.random(start.size) < 0.5
    values = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            parameter = torch.nn.Parameter(torch.tensor(start))
            optimizer = tricks.MaskedAdam([parameter], amsgrad=amsgrad)
            parameter.grad = torch.tensor(gradient)
            optimizer.step()
            optimizer.set_trainable_mask(parameter, torch.tensor(mask))
            optimizer.step()
            optimizer.step()  # now the counts under the mask are known to agree
            optimizer.set_trainable_mask(parameter, None)  # and now they differ
            optimizer.step()
            values.append(parameter.detach().numpy())
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(*values)
    everywhere = np.ones_like(mask)
    masks = [everywhere, mask, mask, everywhere]
    wanted = reference_run(start.astype(float), [gradient] * 4, masks, amsgrad, learning_rate=1e-3)
    np.testing.assert_allclose(values[0], wanted[-1], rtol=1e-5, atol=1e-6)


def test_a_parameter_without_a_gradient_stays(backend):
    if backend.name == "torch":
        used, unused = (backend.framework.nn.Parameter(backend.framework.ones(2)) for _ in range(2))
        used.grad = backend.framework.ones(2)
        backend.tricks.MaskedAdam([used, unused], 0.1).step()
    else:
        used, unused = (backend.framework.Variable([1.0, 1.0]) for _ in range(2))
        optimizer = backend.tricks.MaskedAdam(0.1)
        optimizer.build([used, unused])
        with pytest.warns(UserWarning, match="Gradients do not exist"):
            optimizer.apply([backend.framework.ones(2), None])
    assert backend.array(unused).tolist() == [1, 1]
    np.testing.assert_allclose(backend.array(used), [0.9, 0.9], rtol=1e-6)


def test_autograd_notices_that_a_parameter_was_edited():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    parameter = torch.nn.Parameter(torch.ones(2))
    loss = parameter.square().sum()
    loss.backward(retain_graph=True)
    tricks.MaskedAdam([parameter]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("beta_2", [0.0, 0.9999999])
def test_decays_without_a_table_and_without_an_average(backend, beta_2):
    gradients = np.random.default_rng(0).normal(size=(3, 2))
    optimizer = Optimizer(backend, np.ones(2), beta_2=beta_2)
    rate = 0.01 if backend.name == "torch" else float(np.float32(0.01))
    path = reference_run(np.ones(2), gradients, np.ones((3, 2), bool), beta_2=beta_2, learning_rate=rate)
    for gradient, wanted in zip(gradients, path, strict=True):
        np.testing.assert_allclose(optimizer.step(gradient), wanted, rtol=1e-9)


def test_empty_and_scalar_parameters(backend):
    for start in (np.zeros((0, 3), np.float32), np.array(1.0, np.float32)):
        optimizer = Optimizer(backend, start)
        value = optimizer.step(np.ones_like(start))
        np.testing.assert_allclose(value, start - np.float32(0.01), rtol=1e-6)
        assert value.shape == start.shape


def test_a_compiled_step_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = tricks.MaskedAdam([parameter], 0.1)
        optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))
        parameter.grad = torch.tensor([1.0, 2.0, -3.0])
        step = torch.compile(optimizer.step, backend=COMPILER) if compiled else optimizer.step
        for _ in range(3):
            step()
        results.append(parameter.detach())
    torch.testing.assert_close(*results)


def test_gradient_scaler_and_deep_copies_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = tricks.MaskedAdam([parameter], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for gradient, wanted in [(1.0, 0.9), (torch.inf, 0.9), (1.0, 0.8)]:
        optimizer.zero_grad()
        scaler.scale((gradient * parameter).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert parameter[0].item() == pytest.approx(wanted)
    assert copy.deepcopy(optimizer).state_dict()["state"][0]["since"] == 2


def test_wrong_shapes_of_the_step_say_what_is_expected(backend):
    good = [np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3, np.int32), np.ones(3, bool)]
    for index, name in enumerate(["gradient", "m", "v", "step"], start=1):
        bad = list(good)
        bad[index] = np.zeros((2, 3), bad[index].dtype)
        with pytest.raises(
            ValueError, match=rf"{name} must have the shape of parameter, \(3,\); got \(2, 3\)"
        ):
            backend.tricks.masked_adam_step(*(backend.tensor(x) for x in bad))
    tensors = [backend.tensor(x) for x in good]
    with pytest.raises(ValueError, match=r"v_max must have the shape of parameter, \(3,\); got \(2,\)"):
        backend.tricks.masked_adam_step(*tensors, v_max=backend.tensor(np.zeros(2)))
    with pytest.raises(TypeError, match="v_max must be floating-point"):
        backend.tricks.masked_adam_step(*tensors, v_max=tensors[4])
    with pytest.raises(ValueError, match="beta_1 must lie in"):
        backend.tricks.masked_adam_step(*tensors, beta_1=1.0)
    with pytest.raises(TypeError, match=r"step must hold integers; got .*; remedy"):
        backend.tricks.masked_adam_step(*tensors[:4], tensors[0], tensors[5])


def test_the_learning_rate_may_be_a_tensor_that_learns(backend):
    tensors = [backend.tensor(x) for x in (START, GRADIENT, *STATE)]
    rate = np.float64(0.25)
    value, (slope,) = backend.value_and_vjp(
        lambda rate: backend.tricks.masked_adam_step(*tensors, learning_rate=rate)[0], [rate], np.ones((2, 2))
    )
    expected = reference.masked_adam_step(START, GRADIENT, *STATE, learning_rate=rate)[0]
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert slope == pytest.approx((expected - START).sum() / rate)


def test_clipping_in_keras_ignores_frozen_elements():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    variable = tf.Variable([1.0, 1.0])
    optimizer = tricks.MaskedAdam(0.1, clipnorm=1.0, weight_decay=0.5)
    optimizer.exclude_from_weight_decay([variable])
    optimizer.build([variable])
    optimizer.set_trainable_mask(variable, tf.constant([True, False]))
    optimizer.apply([tf.constant([0.5, np.nan])])
    np.testing.assert_allclose(variable.numpy(), [0.9, 1.0], rtol=1e-6)
    with pytest.raises(ValueError, match="use_ema would move frozen elements; got True; remedy"):
        tricks.MaskedAdam(use_ema=True)
    with pytest.raises(ValueError, match="parameter must be one that the optimizer was given"):
        optimizer.set_trainable_mask("variable", None)


def test_schedulers_groups_and_closures():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = tricks.MaskedAdam(
        [{"params": [first]}, {"params": [second], "lr": 0.5, "initial_lr": 0.5}], 0.1
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (first + second).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 0
    assert (first.item(), second.item()) == (pytest.approx(-0.1), pytest.approx(-0.5))
    scheduler.step()
    optimizer.step(closure)
    assert (first.item(), second.item()) == (pytest.approx(-0.11), pytest.approx(-0.55))


@pytest.mark.parametrize("graph", ["eager", "function", "xla"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_large_parameters_in_keras_agree_with_the_reference(graph, amsgrad):
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(200, 100)), random.normal(size=(4, 200, 100))
    masks = (random.random((2, 200, 100)) < 0.5).repeat(2, axis=0)
    variable = tf.Variable(start)
    optimizer = tricks.MaskedAdam(0.01, amsgrad=amsgrad, weight_decay=0.1)
    optimizer.build([variable])

    def step(gradient):
        optimizer.apply([gradient])

    step = step if graph == "eager" else tf.function(step, jit_compile=graph == "xla")
    path = reference_run(
        start, gradients, masks, amsgrad, weight_decay=0.1, learning_rate=float(np.float32(0.01))
    )
    for gradient, mask, wanted in zip(gradients, masks, path, strict=True):
        optimizer.set_trainable_mask(variable, tf.constant(mask))
        step(tf.constant(np.where(mask, gradient, np.nan)))
        np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_keras_mixed_precision(policy):
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    keras.utils.set_random_seed(0)
    inputs = keras.layers.Input((64,))
    model = keras.Sequential([inputs, keras.layers.Dense(256, dtype=policy), keras.layers.Dense(1)])
    optimizer = tricks.MaskedAdam(0.01)
    whole = keras.optimizers.LossScaleOptimizer(optimizer) if policy == "mixed_float16" else optimizer
    model.compile(whole, "mse", jit_compile=False)
    whole.build(model.trainable_variables)
    kernel = model.layers[0].kernel
    mask = np.arange(64 * 256).reshape(64, 256) % 3 == 0
    optimizer.set_trainable_mask(kernel, tf.constant(mask))
    x, y = np.random.default_rng(0).normal(size=(2, 32, 64)).astype(np.float32)
    before = kernel.numpy()
    history = model.fit(x, y[:, :1], batch_size=8, epochs=3, verbose=0).history["loss"]
    np.testing.assert_array_equal(kernel.numpy() != before, mask)
    assert history[-1] < history[0]


def test_an_embedding_trains_the_rows_that_the_mask_allows():
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Embedding(4, 1)])
    optimizer = tricks.MaskedAdam(0.1)
    model.compile(optimizer, "mse", jit_compile=False)
    table = model.layers[0].embeddings
    optimizer.build(model.trainable_variables)
    optimizer.set_trainable_mask(table, tf.constant([[True], [True], [False], [False]]))
    before = table.numpy()
    model.fit(np.array([[0, 2]]), np.ones((1, 2, 1), np.float32), verbose=0)
    assert (table.numpy() != before)[:, 0].tolist() == [True, False, False, False]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_keras_fit_save_and_load(jit_compile, tmp_path):
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    optimizer = tricks.MaskedAdam(schedule, weight_decay=0.1, amsgrad=True, clipnorm=1.0)
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    kernel = model.layers[0].kernel
    optimizer.build(model.trainable_variables)
    mask = np.arange(12).reshape(4, 3) % 2 == 0
    optimizer.set_trainable_mask(kernel, tf.constant(mask))
    x, y = np.random.default_rng(0).normal(size=(2, 32, 4)).astype(np.float32)
    before = kernel.numpy()
    model.fit(x, y[:, :3], batch_size=8, epochs=2, verbose=0)
    moved = kernel.numpy() != before
    np.testing.assert_array_equal(moved, mask)
    optimizer.set_trainable_mask(kernel, tf.constant(~mask))  # seen by the graph that is compiled already
    before = kernel.numpy()
    model.fit(x, y[:, :3], batch_size=8, epochs=1, verbose=0)
    np.testing.assert_array_equal(kernel.numpy() != before, ~mask)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == optimizer.get_config()
    for some in (model, loaded):
        some.fit(x, y[:, :3], batch_size=8, epochs=1, verbose=0, shuffle=False)
    np.testing.assert_array_equal(loaded.layers[0].kernel.numpy(), kernel.numpy())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learning_rate": -1.0}, ValueError, r"learning_rate must lie in \[0, inf\); got -1"),
        ({"beta_1": 1.0}, ValueError, r"beta_1 must lie in \[0, 1\]; got 1"),
        ({"beta_2": "x"}, TypeError, "beta_2 must be a real number; got str"),
        ({"epsilon": -1e-8}, ValueError, "epsilon must lie in"),
        ({"weight_decay": float("nan")}, ValueError, "weight_decay must be finite"),
    ],
)
def test_bad_options_say_what_is_expected(backend, options, error, message):
    parameters = [[backend.tensor(np.zeros(2))]] if backend.name == "torch" else []
    with pytest.raises(error, match=message):
        backend.tricks.MaskedAdam(*parameters, **options)


def test_bad_masks_say_what_is_expected(backend):
    optimizer = Optimizer(backend, np.zeros((2, 3)))
    with pytest.raises(TypeError, match=r"trainable_mask must be bool \(True = trainable\); got"):
        optimizer.set_mask(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"must broadcast to the shape of parameter, \(2, 3\); got \(3, 2\)"):
        optimizer.set_mask(np.ones((3, 2), bool))
    with pytest.raises(ValueError, match="parameter must be one that the optimizer was given"):
        optimizer.optimizer.set_trainable_mask(
            Optimizer(backend, np.zeros((2, 3))).parameter, backend.tensor(np.ones((2, 3), bool))
        )


def test_an_optimizer_that_is_not_built_says_so():
    tf = pytest.importorskip("tensorflow")
    tricks = pytest.importorskip("gradtricks.tensorflow")
    with pytest.raises(ValueError, match="the optimizer must be built; remedy"):
        tricks.MaskedAdam().set_trainable_mask(tf.Variable(0.0), tf.constant(True))


def test_sparse_gradients_are_refused_in_torch():
    torch = pytest.importorskip("torch")
    tricks = pytest.importorskip("gradtricks.torch")
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.eye(2).to_sparse()
    with pytest.raises(TypeError, match="gradients must be dense; got layout"):
        tricks.MaskedAdam([parameter]).step()
