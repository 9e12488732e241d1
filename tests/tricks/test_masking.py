"""masked_adam_step, MaskedAdam and MaskedOptimizer."""

import copy
import io
import pickle
import unittest.mock

import numpy as np
import pytest

from agreeing import assert_close, assert_compiled_for_all_numbers
from backends import TRACER
from domains import LONG, bools, floating, integers, number
from gradtricks import reference
from suites import Row, Step, Suite

TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}
RATE = 2**-7  # which Keras keeps as it is, in float32
DECAY = {"weight_decay": 0.1}


def first(results):
    return results[0]


def stepped(random, shape):
    """Draw a parameter, its gradient, moments, steps and a mask."""
    gradient, m = random.normal(size=(2, *shape))
    steps = random.integers(0, 5000, shape).astype(np.int32)
    return [
        random.normal(size=shape),
        gradient,
        m,
        random.uniform(0.1, 3, shape),
        steps,
        random.random(shape) < 0.5,
    ]


def moments(name):
    """Take floating-point tensors, float32 or wider, in the shape of the parameter."""
    yield from floating("parameter")(name)
    yield np.zeros(3, np.float16), TypeError, f"{name} must be float32 or wider.*got .*float16; remedy"


def rates(name):
    """Take numbers, and tensors that broadcast."""
    yield -0.1, ValueError, rf"{name} must lie in \[0, inf\); got -0.1"
    yield LONG, ValueError, rf"{name} must {FITTING}.*; got \(7,\)"


FITTING = "broadcast to the shape of parameter"


class TestStep(Step):
    given = {"parameter": floating(), "gradient": floating("parameter"), "step": integers(FITTING)}
    given |= {"m": moments, "v": moments, "v_max": moments, "learning_rate": rates}
    given |= {"trainable_mask": bools(r"be bool \(True = trainable\); got", FITTING)}
    given |= {"beta_1": number(0, 1), "beta_2": number(0, 1), "epsilon": number(0), "weight_decay": number(0)}
    rows = (
        Row(
            "masked_adam_step", stepped, 2, 6, {"learning_rate": 0.5}, domains=given, widens=False, part=first
        ),
    )


OPTIONS = [{}, DECAY, {"amsgrad": True}, {"maximize": True}, {"beta_1": 0.0, "beta_2": 0.0}]


class TestOptions(Suite):
    rows = tuple(
        Row("masked_adam_step", stepped, 2, 6, options, part=first)
        for options in OPTIONS
        if "amsgrad" not in options
    )


def reference_run(start, gradients, masks, amsgrad=False, **options):
    """Return the parameter after every step of the reference."""
    zero = np.zeros_like(start)
    state, path = [start, zero, zero, np.zeros(start.shape, int), zero if amsgrad else None], []
    options = {"learning_rate": RATE, **options}
    for gradient, mask in zip(gradients, masks, strict=True):
        parameter, *moments, v_max = state
        state = reference.masked_adam_step(parameter, gradient, *moments, mask, v_max=v_max, **options)
        path.append(state[0])
    return path


@pytest.mark.parametrize("largest", [0.5, 2.0])
def test_all_that_a_step_of_amsgrad_returns_agrees(backend, largest):
    *arguments, mask = TestStep.rows[0].example()
    v_max = largest * arguments[3]  # never a tie, where either slope would do
    given = [backend.tensor(x) for x in (*arguments, mask)]
    results = backend.tricks.masked_adam_step(*given, v_max=backend.tensor(v_max))
    expected = reference.masked_adam_step(*arguments, mask, v_max=v_max)
    assert_close(map(backend.array, results), expected, **TOLERANCE)
    _, gradients = backend.value_and_vjp(
        lambda *both: backend.tricks.masked_adam_step(*both, *given[2:], v_max=backend.tensor(v_max))[0],
        arguments[:2],
        np.cos(arguments[0]),
    )
    slopes = reference.masked_adam_step_vjp(np.cos(arguments[0]), *arguments, mask, v_max=v_max)
    assert_close(gradients, slopes, **TOLERANCE)


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
    assert_close(gradients, reference.masked_adam_step_vjp(np.ones(3), *arguments), **TOLERANCE)
    rest = [backend.tensor(x) for x in (parameter, parameter, zero, np.zeros(3, np.int32), ~mask)]
    _, (to_m,) = backend.value_and_vjp(
        lambda m: backend.tricks.masked_adam_step(*rest[:2], m, *rest[2:], epsilon=0.0)[0], [zero], np.ones(3)
    )
    assert np.isfinite(to_m).all()
    assert to_m[2] == 0


STATE = [  # m, v, step, trainable_mask
    np.array([[0.5, -0.25], [1.0, 0.0]]),
    np.array([[0.25, 1.5], [0.5, 0.75]]),
    np.array([[0, 7], [3, 1]], np.int32),
    np.array([[True, False], [True, True]]),
]
START, GRADIENT = np.array([[1.0, -2.0], [0.5, 3.0]]), np.array([[0.5, 1.0], [-1.5, 0.25]])


@pytest.mark.parametrize("dtypes", ["bfloat16 float32 float64 float32", "float32 float64 float64 float64"])
def test_moments_keep_their_own_dtypes(backend, dtypes):
    parameter, *moments = (
        backend.cast(backend.tensor(x), d) for x, d in zip([START, *STATE[:2], STATE[1]], dtypes.split())
    )
    rest = [backend.tensor(x) for x in STATE[2:]]
    found = backend.tricks.masked_adam_step(parameter, parameter, *moments[:2], *rest, v_max=moments[2])
    found, wanted = [*found[:3], found[4]], reference.masked_adam_step(START, START, *STATE, v_max=STATE[1])
    for new, old, exact in zip(found, [parameter, *moments], [*wanted[:3], wanted[4]], strict=True):
        assert new.dtype == old.dtype
        np.testing.assert_allclose(backend.array(new), exact, rtol=1e-2 if new is found[0] else 1e-6)


@pytest.mark.parametrize(
    ("shape", "options"),
    [*(((4, 5), o) for o in OPTIONS if "maximize" not in o), ((), {}), ((0, 3), {}), ((200, 100), {})],
)
def test_the_optimizer_agrees_with_the_reference_under_changing_masks(backend, shape, options):
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=shape), random.normal(size=(8, *shape))
    masks = random.random((8, *shape)) < 0.4
    masks[:3] = masks[0]  # set again and again, as some do
    masks[5] = masks[4]
    parameter = backend.parameter(start)
    optimizer = backend.masked_adam(parameter, RATE, **options)
    path = reference_run(start, gradients, masks, **options)
    for gradient, mask, wanted in zip(gradients, masks, path, strict=True):
        optimizer.set_trainable_mask(parameter, backend.tensor(mask))
        before = backend.array(parameter).copy()
        backend.apply(optimizer, parameter, np.where(mask, gradient, np.nan))
        np.testing.assert_allclose(backend.array(parameter), wanted, **TOLERANCE)
        np.testing.assert_array_equal(backend.array(parameter)[~mask], before[~mask])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_keeps_wide_moments(backend, dtype):
    parameter = backend.parameter(np.ones(3), dtype)
    optimizer = backend.masked_adam(parameter, RATE)
    backend.apply(optimizer, parameter, np.full(3, 1e-4))
    # In float16 the square of 1e-4 would be 0 and the step infinite.
    np.testing.assert_allclose(backend.array(parameter), 1 - RATE, rtol=0.001)


def test_a_slow_decay(backend):
    gradients = np.random.default_rng(0).normal(size=(3, 2))
    parameter = backend.parameter(np.ones(2))
    optimizer = backend.masked_adam(parameter, RATE, beta_2=0.9999999)
    path = reference_run(np.ones(2), gradients, np.ones((3, 2), bool), beta_2=0.9999999)
    for gradient, wanted in zip(gradients, path, strict=True):
        backend.apply(optimizer, parameter, gradient)
        np.testing.assert_allclose(backend.array(parameter), wanted, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_options_of_numpy_are_computed_with_in_full(backend, dtype):
    # In float16 1 - RATE * 1e-2 is 1.
    given = {"beta_1": np.float16(0.9), "beta_2": np.float16(0.999), "weight_decay": np.float16(1e-2)}
    paths = []
    for chosen in (given, {name: float(half) for name, half in given.items()}):
        parameter = backend.parameter(np.ones(3), dtype)
        optimizer = backend.masked_adam(parameter, RATE, **chosen)
        backend.apply(optimizer, parameter, np.full(3, 1e-3))
        ones, count, mask = map(backend.tensor, (np.ones(3), np.int32(3), np.ones(3, bool)))
        step = backend.tricks.masked_adam_step(*[ones] * 4, count, mask, learning_rate=RATE, **chosen)
        paths.append([backend.array(parameter), *(backend.array(x) for x in step[:3])])
    for one, other in zip(*paths, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rate": -1.0}, ValueError, r"learning_rate must lie in \[0, inf\); got -1"),
        ({"beta_1": 1.0}, ValueError, r"beta_1 must lie in \[0, 1\); got 1"),
        ({"beta_2": "x"}, TypeError, "beta_2 must be a real number; got str"),
        ({"epsilon": -1e-8}, ValueError, "epsilon must lie in"),
        ({"weight_decay": float("nan")}, ValueError, "weight_decay must be finite"),
    ],
)
def test_bad_options_say_what_is_expected(backend, options, error, message):
    with pytest.raises(error, match=message):
        backend.masked_adam(backend.parameter(np.zeros(2)), **{"rate": 0.1, **options})


def test_a_rate_of_several_elements_is_refused(backend):
    parameter = backend.parameter(np.zeros(2))
    with pytest.raises(
        ValueError, match=r"learning_rate must be a number or have one element; got shape \(2,\)"
    ):
        backend.masked_adam(parameter, backend.tensor([0.1, 0.2]))


@pytest.mark.parametrize("shape", [(), (3,), (2**16,)])
def test_rates_of_one_element_and_of_several_in_torch(in_torch, shape):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.zeros(shape))
    optimizer = tricks.MaskedAdam([parameter], torch.tensor([0.1]))
    parameter.grad = torch.ones(shape)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full(shape, -0.1))
    optimizer.param_groups[0]["lr"] = torch.ones(3)
    with pytest.raises(
        ValueError, match=r"learning_rate must be a number or have one element; got shape \(3,\)"
    ):
        optimizer.step()


@pytest.mark.parametrize("make", [lambda b, p: b.masked_adam(p, 0.1), lambda b, p: b.masked("SGD", p, 0.1)])
def test_bad_masks_say_what_is_expected(backend, make):
    parameter = backend.parameter(np.zeros((2, 3)))
    optimizer = make(backend, parameter)
    with pytest.raises(TypeError, match=r"trainable_mask must be bool \(True = trainable\); got"):
        optimizer.set_trainable_mask(parameter, backend.tensor(np.ones((2, 3))))
    with pytest.raises(ValueError, match=r"must broadcast to the shape of parameter, \(2, 3\); got \(3, 2\)"):
        optimizer.set_trainable_mask(parameter, backend.tensor(np.ones((3, 2), bool)))
    with pytest.raises(ValueError, match="parameter must be one that the optimizer was given"):
        optimizer.set_trainable_mask(backend.parameter(np.zeros(2)), None)


OTHERS = [("SGD", {"momentum": 0.9}), ("SGD", DECAY | {"momentum": 0.9}), ("RMSprop", {}), ("Adagrad", {})]


@pytest.mark.parametrize(("name", "options"), OTHERS)
def test_any_optimizer_leaves_frozen_elements_and_their_state(backend, name, options):
    gradients = np.random.default_rng(0).normal(size=(6, 2, 3))
    masked, whole = (backend.parameter(np.ones((2, 3))) for _ in range(2))
    optimizer = backend.masked(name, masked, RATE, **options)
    unmasked = backend.masked(name, whole, RATE, **options)  # no mask is set, so this is the optimizer itself
    mask = np.array([[True, False, True], [False, True, True]])
    optimizer.set_trainable_mask(masked, backend.tensor(mask))
    for gradient in gradients[:3]:
        backend.apply(optimizer, masked, np.where(mask, gradient, np.nan))
        backend.apply(unmasked, whole, gradient)
        np.testing.assert_array_equal(backend.array(masked), np.where(mask, backend.array(whole), 1))
    states = list(zip(backend.state(optimizer, masked), backend.state(unmasked, whole), strict=True))
    assert states
    for ours, theirs in states:
        np.testing.assert_array_equal(ours[mask], theirs[mask])
        assert len(set(ours[~mask])) == 1  # as it was in the beginning
    # Elements that were frozen from the beginning thaw as if they had their first step now.
    optimizer.set_trainable_mask(masked, None)
    fresh = backend.parameter(np.ones((2, 3)))
    first = backend.masked(name, fresh, RATE, **options)
    backend.apply(optimizer, masked, gradients[3])
    backend.apply(first, fresh, gradients[3])
    np.testing.assert_allclose(backend.array(masked)[~mask], backend.array(fresh)[~mask], rtol=1e-12)


FORMS = {"one": (), "rows": (6, 1), "columns": (1, 5), "each": (6, 5)}


def frozen_by_hand(torch, inner, parameters, masks):
    """Take a step of an optimizer, and put back what is frozen."""

    def tensors():
        shaped = [[t for t in inner.state[p].values() if t.shape == p.shape] for p in parameters]
        return [[p, *state] for p, state in zip(parameters, shaped, strict=True)]

    before = [[t.detach().clone() for t in each] for each in tensors()]
    for parameter, mask in zip(parameters, masks, strict=True):
        parameter.data[~mask.expand_as(parameter)] = 0
        parameter.grad = torch.where(mask, parameter.grad, 0)
    inner.step()
    for each, old, mask in zip(tensors(), before, masks, strict=True):
        for tensor, kept in zip(each, old):
            tensor.data.copy_(torch.where(mask, tensor, kept))


@pytest.mark.parametrize("looped", [True, False])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Rprop"])
def test_many_masks_of_any_optimizer_are_put_back_bit_for_bit(in_torch, monkeypatch, looped, name):
    from gradtricks.torch import _freezing

    torch, tricks = in_torch.framework, in_torch.tricks
    torch.manual_seed(0)
    dtypes = torch.float16, torch.bfloat16, torch.float32, torch.float64
    kinds = [(dtype, shape) for dtype in dtypes for shape in FORMS.values()]
    made = [torch.randn(6, 5, dtype=dtype) for dtype, _ in kinds]
    made[-1] = made[-1].T.contiguous().T  # has gaps
    masks = [torch.rand(shape) < 0.5 for _, shape in kinds]
    made.append(torch.ones(0, 5))
    masks.append(torch.ones(0, 1, dtype=torch.bool))
    ours, theirs = ([torch.nn.Parameter(x.clone()) for x in made] for _ in range(2))
    options = {"weight_decay": 0.1, "momentum": 0.9} if name == "SGD" else {}
    plain, inner = (getattr(torch.optim, name)(ps, 0.1, **options) for ps in (theirs, ours))
    optimizer = tricks.MaskedOptimizer(inner)
    if not looped:
        monkeypatch.setattr(_freezing, "_fits_the_loop", lambda *_: False)
    for step in range(4):
        if step == 2:
            masks = [~mask for mask in masks]
        for p, mask in zip(ours, masks, strict=True):
            optimizer.set_trainable_mask(p, mask)
        gradients = [torch.randn(p.shape).to(p.dtype) for p in ours]
        gradients[0] = torch._neg_view(gradients[0].T.contiguous().T)
        for one, other, gradient, mask in zip(ours, theirs, gradients, masks, strict=True):
            one.grad = torch.where(mask, gradient, torch.nan) if one.dtype == torch.float32 else gradient
            other.grad = gradient
        shown = [p.grad for p in ours]
        optimizer.step()
        assert all(p.grad is gradient for p, gradient in zip(ours, shown, strict=True))
        frozen_by_hand(torch, plain, theirs, masks)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
            for key, value in plain.state[other].items():
                torch.testing.assert_close(inner.state[one][key], value, rtol=0, atol=0)


def test_what_an_optimizer_keeps_or_replaces_is_its_own(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks

    class Odd(torch.optim.SGD):
        def step(self):
            (p,) = self.param_groups[0]["params"]
            state = self.state[p]
            state.setdefault("gradients", []).append(p.grad.detach())
            dtype = (torch.float32, torch.float64)[len(state["gradients"]) % 2]
            state["twice"] = 2 * state.get("twice", torch.ones(3)).to(dtype)
            super().step()

    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = tricks.MaskedOptimizer(Odd([parameter], 1.0))
    optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))
    for value in (1.0, 2.0, 3.0):
        parameter.grad = torch.full((3,), value)
        optimizer.step()
    state = optimizer.state[parameter]
    assert [g.tolist() for g in state["gradients"]] == [[n, 0, n] for n in (1, 2, 3)]
    assert state["twice"].tolist() == [8, 2, 8]
    assert parameter.tolist() == [-5, 1, -5]


def test_on_a_device_nothing_waits_and_many_tensors_take_no_more_calls(in_torch):
    from devices_torch import OneDevice, calls_of

    torch, tricks = in_torch.framework, in_torch.tricks
    counts = []
    for many in (2, 20):
        parameters = [torch.nn.Parameter(torch.ones(4, 3, device="meta")) for _ in range(many)]
        optimizer = tricks.MaskedOptimizer(torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=True))
        for p in parameters:
            optimizer.set_trainable_mask(p, torch.ones(4, 3, dtype=torch.bool, device="meta"))
            p.grad = torch.ones(4, 3, device="meta")
        optimizer.step()  # makes the state
        with OneDevice():
            counts.append(calls_of(optimizer.step))
    assert counts[0] == counts[1]
    assert len(counts[0]) < 25


KERAS = "Adadelta Adafactor Adagrad Adam Adamax AdamW Ftrl Lamb Lion Muon Nadam RMSprop ScheduleFreeAdamW SGD"


@pytest.mark.parametrize(
    ("name", "shape"), [*((name, (2, 3)) for name in KERAS.split()), ("Muon", (3,)), ("Adafactor", (3,))]
)
def test_every_optimizer_of_keras_leaves_frozen_elements_and_their_state(in_tensorflow, name, shape):
    parameter = in_tensorflow.framework.keras.Variable(np.ones(shape), dtype="float32")
    optimizer = in_tensorflow.masked(name, parameter, RATE)
    mask = np.arange(parameter.numpy().size).reshape(shape) % 2 == 0
    optimizer.set_trainable_mask(parameter, in_tensorflow.tensor(mask))
    before = in_tensorflow.state(optimizer, parameter)
    for gradient in np.random.default_rng(0).normal(size=(3, *shape)):
        in_tensorflow.apply(optimizer, parameter, np.where(mask, gradient, np.nan))
    np.testing.assert_array_equal(parameter.numpy() != 1, mask)
    for old, new in zip(before, in_tensorflow.state(optimizer, parameter), strict=True):
        np.testing.assert_array_equal(old != new, mask)


def test_what_isnt_an_optimizer_is_refused(backend):
    with pytest.raises(TypeError, match=r"optimizer must be a .*Optimizer; got str"):
        backend.tricks.MaskedOptimizer("SGD")


def follow(torch, make, gradients, dtype="float64", make_scheduler=None, transposed=False):
    """Return a parameter after every step of an optimizer of PyTorch."""
    tensor = torch.tensor(np.ones_like(gradients[0]), dtype=getattr(torch, dtype))
    parameter = torch.nn.Parameter(tensor.T.contiguous().T if transposed else tensor)
    optimizer = make([parameter])
    scheduler = make_scheduler and make_scheduler(optimizer)
    path = []
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=parameter.dtype)
        optimizer.step()
        path.append(parameter.detach().numpy().copy())
        if scheduler is not None:
            scheduler.step()
    return np.array(path)


@pytest.mark.parametrize("transposed", [False, True])  # in one pass, and by tensors
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [{}, DECAY, DECAY | {"decoupled_weight_decay": True}, {"amsgrad": True}, DECAY | {"maximize": True}],
)
def test_without_a_mask_it_is_the_adam_of_pytorch(in_torch, options, dtype, transposed):
    torch, tricks = in_torch.framework, in_torch.tricks
    gradients = np.random.default_rng(0).normal(size=(50, 7, 5))
    ours, theirs = (
        follow(torch, lambda ps, k=kind: k(ps, RATE, **options), gradients, dtype, transposed=transposed)
        for kind in (tricks.MaskedAdam, torch.optim.Adam)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-12 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("wrapped", [False, True])
def test_schedulers_of_pytorch(in_torch, wrapped):
    torch, tricks = in_torch.framework, in_torch.tricks
    gradients = np.random.default_rng(0).normal(size=(12, 3))

    def adam(parameters):
        return torch.optim.Adam(parameters, 1e-3)

    def scheduled(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)  # turns betas too

    ours = (lambda ps: tricks.MaskedOptimizer(adam(ps))) if wrapped else tricks.MaskedAdam
    path, theirs = (follow(torch, make, gradients, make_scheduler=scheduled) for make in (ours, adam))
    np.testing.assert_allclose(path, theirs, rtol=1e-12)


def optimizers_of(in_torch, parameter):
    """Make one of each of our kinds, with a mask."""
    torch, tricks = in_torch.framework, in_torch.tricks
    mask = torch.tensor([True, False, True])
    adam = tricks.MaskedAdam([parameter], 0.01, amsgrad=True)
    wrapped = tricks.MaskedOptimizer(torch.optim.NAdam([parameter], 0.01))
    for optimizer in (adam, wrapped):
        optimizer.set_trainable_mask(parameter, mask)
    return {"adam": adam, "wrapped": wrapped}


def copied(how, in_torch, parameter, optimizer, kind):
    """Copy a parameter and its optimizer."""
    torch, file = in_torch.framework, io.BytesIO()
    if how == "deepcopy":
        return copy.deepcopy((parameter, optimizer))
    if how == "pickle":
        return pickle.loads(pickle.dumps((parameter, optimizer)))  # noqa: S301  # they are our own
    torch.save((parameter.data, optimizer.state_dict()), file)
    file.seek(0)
    data, state = torch.load(file)
    other = torch.nn.Parameter(data)
    loaded = optimizers_of(in_torch, other)[kind]
    loaded.load_state_dict(state)
    return other, loaded


@pytest.mark.parametrize("kind", ["adam", "wrapped"])
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "state_dict"])
def test_copies_go_on_as_the_original(in_torch, how, kind):
    torch = in_torch.framework
    dtype = torch.bfloat16 if kind == "adam" else torch.float32
    gradients = torch.tensor(np.random.default_rng(0).normal(size=(8, 3)), dtype=dtype)
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer = optimizers_of(in_torch, parameter)[kind]
    for step, gradient in enumerate(gradients[:5]):
        if step == 3:
            optimizer.set_trainable_mask(parameter, torch.tensor([False, True, True]))
        parameter.grad = gradient
        optimizer.step()
    other, twin = copied(how, in_torch, parameter, optimizer, kind)
    frozen = parameter[0].item()
    for gradient in gradients[5:]:
        parameter.grad, other.grad = gradient, gradient.clone()
        optimizer.step()
        twin.step()
        assert torch.equal(parameter, other)
        assert parameter[0].item() == frozen
    twin.param_groups[0]["lr"] = 0.0  # one and the same for both halves of a masked optimizer
    before = other.detach().clone()
    twin.step()
    assert torch.equal(before, other)


def test_the_state_says_the_truth_and_keeps_its_dtypes(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = optimizers_of(in_torch, parameter)["adam"]
    parameter.grad = torch.ones(3)
    for _ in range(4):
        optimizer.step()
    state = optimizer.state[parameter]
    assert (state["step"].item(), "own_steps" in state) == (4, False)
    optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))
    assert "own_steps" not in state  # it is the same mask
    optimizer.set_trainable_mask(parameter, None)
    optimizer.step()
    assert (state["step"].item(), state["own_steps"].tolist()) == (5, [5, 1, 5])
    narrow = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    loaded = tricks.MaskedAdam([narrow])
    loaded.load_state_dict(optimizer.state_dict())
    dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in loaded.state[narrow].items()}
    assert dtypes.pop("trainable_mask") == "bool"
    assert dtypes.pop("own_steps") == "int32"
    assert set(dtypes.values()) == {"float32"}


def test_the_state_of_pytorchs_adam_can_be_loaded(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    adam, ours = torch.optim.Adam(parameters[:1], 0.1), tricks.MaskedAdam(parameters[1:])
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    adam.step()
    with torch.no_grad():
        parameters[1].copy_(parameters[0])
    state = adam.state_dict()
    del state["param_groups"][0]["decoupled_weight_decay"]  # older versions have none
    state["state"][0] = {**state["state"][0], "step": 1}
    ours.load_state_dict(state)
    for optimizer in (adam, ours):
        optimizer.step()
    torch.testing.assert_close(*parameters)
    ours.param_groups[0]["amsgrad"] = True  # midway
    ours.step()
    assert ours.state[parameters[1]]["max_exp_avg_sq"].min() > 0


def test_a_state_comes_back_as_it_was(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = tricks.MaskedAdam([parameter], 0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))
    optimizer.step()
    saved = optimizer.state_dict()
    loaded = tricks.MaskedAdam([torch.nn.Parameter(torch.ones(3))])
    for _ in range(2):
        loaded.load_state_dict(copy.deepcopy(saved))
        torch.testing.assert_close(loaded.state_dict(), saved, rtol=0, atol=0)
    loaded.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    assert loaded.param_groups[0].keys() == loaded.param_groups[1].keys()


def test_a_step_is_not_captured_in_a_graph_of_cuda(in_torch, monkeypatch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = tricks.MaskedAdam([parameter], 0.1)
    parameter.grad = torch.ones(3)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    optimizer.step()  # nothing is captured where CUDA wasn't started, and a CPU-only build can't be asked
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(
        RuntimeError,
        match=r"outside of a CUDA graph unless.*; got a stream that is capturing; remedy: Masked",
    ):
        optimizer.step()
    assert optimizer.state[parameter]["step"] == 1
    optimizer.param_groups[0]["capturable"] = True
    optimizer.step()
    assert optimizer.state[parameter]["step"] == 2
    optimizer.param_groups[0]["capturable"] = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    optimizer.step()
    assert optimizer.state[parameter]["step"] == 3


def test_a_refusing_optimizer_in_a_wrapper_changes_nothing(in_torch, monkeypatch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = tricks.MaskedOptimizer(torch.optim.Adam([parameter], 0.1))
    optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))
    parameter.grad = torch.ones(3)

    def refuse(_):
        raise RuntimeError("Attempting CUDA graph capture of step()")

    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        monkeypatch.setattr(torch.optim.Adam, name, refuse, raising=False)
    with pytest.raises(RuntimeError, match="Attempting CUDA graph capture"):
        optimizer.step()
    assert (parameter.tolist(), parameter.grad.tolist()) == ([1.0] * 3, [1.0] * 3)


@pytest.mark.parametrize("name", ["exp_avg", "max_exp_avg_sq", "own_steps", "trainable_mask"])
def test_state_of_another_shape_is_refused(in_torch, name):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.grad = torch.ones(4)
    optimizer = tricks.MaskedAdam([parameter], amsgrad=True)
    optimizer.step()
    optimizer.set_trainable_mask(parameter, torch.eye(4)[0].bool())
    before, wrong = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(optimizer.state_dict())
    wrong["state"][0][name] = wrong["state"][0][name][:1]
    wrong["param_groups"][0]["lr"] = 0.5
    refusal = rf"{name} must have the shape of its parameter, \(4,\); got \(1,\)"
    with pytest.raises(ValueError, match=refusal):
        optimizer.load_state_dict(wrong)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)
    optimizer.state[parameter][name] = optimizer.state[parameter][name][:1]  # by hand
    with pytest.raises(ValueError, match=refusal):
        optimizer.step()


def test_a_mask_of_another_shape_changes_nothing_of_a_wrapper(in_torch):
    torch = in_torch.framework
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = optimizers_of(in_torch, parameter)["wrapped"]
    parameter.grad = torch.ones(3)
    optimizer.step()
    before, wrong = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(optimizer.state_dict())
    wrong["state"][0] |= {"exp_avg": torch.zeros(3), "trainable_mask": torch.ones(2).bool()}
    with pytest.raises(ValueError, match=r"trainable_mask must have the shape of its parameter, \(3,\); got"):
        optimizer.load_state_dict(wrong)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["adam", "wrapped"])
@pytest.mark.parametrize("stepped", [False, True])
def test_checkpoints_of_torch_distributed(in_torch, kind, stepped):
    from torch.distributed.checkpoint import state_dict as checkpoint

    torch = in_torch.framework
    models = [torch.nn.Linear(3, 1, bias=False) for _ in range(2)]
    optimizers = [optimizers_of(in_torch, model.weight)[kind] for model in models]
    optimizers[1].set_trainable_mask(models[1].weight, None)
    models[1].load_state_dict(models[0].state_dict())
    if stepped:
        models[0].weight.grad = torch.ones(1, 3)
        optimizers[0].step()
        models[1].load_state_dict(models[0].state_dict())
    saved = copy.deepcopy(checkpoint.get_optimizer_state_dict(models[0], optimizers[0]))
    checkpoint.set_optimizer_state_dict(models[1], optimizers[1], saved)
    for model, optimizer in zip(models, optimizers, strict=True):
        before = model.weight.detach().clone()
        model.weight.grad = torch.ones(1, 3)
        optimizer.step()
        assert (model.weight != before).tolist() == [[True, False, True]]
    assert torch.equal(models[0].weight, models[1].weight)


def test_a_mask_that_was_saved_before_the_first_step(in_torch):
    torch = in_torch.framework
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    saved, loaded = (optimizers_of(in_torch, parameter)["wrapped"] for parameter in parameters)
    loaded.set_trainable_mask(parameters[1], None)
    loaded.load_state_dict(saved.state_dict())
    parameters[1].grad = torch.ones(3)
    loaded.step()
    assert (parameters[1] != 1).tolist() == [True, False, True]


@pytest.mark.parametrize("kind", ["adam", "wrapped"])
def test_hooks_of_a_state_are_called(in_torch, kind):
    torch = in_torch.framework
    parameter, called = torch.nn.Parameter(torch.ones(3)), []
    optimizer = optimizers_of(in_torch, parameter)[kind]

    def forget(_, given):
        return {**given, "state": {0: {**given["state"][0], "exp_avg": torch.full((3,), 7.0)}}}

    optimizer.register_state_dict_pre_hook(lambda _: called.append("saving"))
    optimizer.register_state_dict_post_hook(lambda _, given: {**given, "epoch": 3})
    optimizer.register_load_state_dict_pre_hook(forget)
    optimizer.register_load_state_dict_post_hook(lambda _: called.append("loaded"))
    parameter.grad = torch.ones(3)
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    assert (state["epoch"], called) == (3, ["saving", "loaded"])
    assert optimizer.state[parameter]["exp_avg"].tolist() == [7.0] * 3


def test_groups_and_closures(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    for wrap in (False, True):
        first, second, unused = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
        groups = [{"params": [first, unused]}, {"params": [second], "lr": torch.tensor(0.5)}]
        adam = torch.optim.Adam if wrap else tricks.MaskedAdam
        optimizer = adam(groups, 0.1)
        optimizer = tricks.MaskedOptimizer(optimizer) if wrap else optimizer
        optimizer.set_trainable_mask(unused, torch.tensor(True))

        def closure(optimizer=optimizer, first=first, second=second):
            optimizer.zero_grad()
            loss = (first + second).sum()
            loss.backward()
            return loss

        assert optimizer.step(closure).item() == 0
        assert (first.item(), second.item()) == (pytest.approx(-0.1), pytest.approx(-0.5))
        assert unused.item() == 0  # it has no gradient
    with pytest.raises(ValueError, match="beta_1 must lie in"):
        tricks.MaskedAdam([{"params": [first], "betas": (2.0, 0.9)}])


def test_gradient_scalers_of_pytorch(in_torch):
    torch = in_torch.framework
    for kind in ("adam", "wrapped"):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = optimizers_of(in_torch, parameter)[kind]
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        moved = []
        for gradient in (1.0, torch.inf, 1.0):
            before = parameter.detach().clone()
            optimizer.zero_grad()
            scaler.scale((gradient * parameter).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            moved.append((parameter != before).tolist())
        assert moved == [[True, False, True], [False] * 3, [True, False, True]]


@pytest.mark.parametrize("has_openmp", [True, False])
def test_threads_share_many_elements_without_rounding(in_torch, monkeypatch, has_openmp):
    from gradtricks.torch import _in_place

    if not has_openmp:
        monkeypatch.setattr(_in_place, "parallel_region", lambda: None)
    torch, tricks = in_torch.framework, in_torch.tricks
    threads = torch.get_num_threads()
    random = np.random.default_rng(0)
    start, gradient = random.normal(size=(2, 600_001)).astype(np.float32)
    mask = random.random(start.size) < 0.5
    values = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            # A part may begin in the middle of an array that begins anywhere.
            parameters = [torch.nn.Parameter(torch.tensor(part)) for part in np.split(start, [200_003])]
            optimizer = tricks.MaskedAdam(parameters, RATE)
            parts = [map(torch.tensor, np.split(each, [200_003])) for each in (gradient, mask)]
            parts = [*zip(parameters, *parts, strict=True)]
            for masked in (False, True, True, False):
                for parameter, parameter.grad, part in parts:
                    optimizer.set_trainable_mask(parameter, part if masked else None)
                optimizer.step()
            values.append(np.concatenate([parameter.detach().numpy() for parameter in parameters]))
    finally:
        torch.set_num_threads(threads)
    for other in values[1:]:
        np.testing.assert_array_equal(other, values[0])
    masks = [np.ones_like(mask), mask, mask, np.ones_like(mask)]
    wanted = reference_run(start.astype(float), [gradient] * 4, masks)
    np.testing.assert_allclose(values[0], wanted[-1], rtol=1e-5, atol=1e-6)


def test_without_openmp_there_is_no_region_of_pytorch_s(in_torch, monkeypatch):
    from gradtricks.torch import _addresses

    _addresses.parallel_region.cache_clear()
    monkeypatch.setattr(_addresses, "Path", lambda _: in_torch.framework.zeros(0))  # which has no parent
    assert _addresses.parallel_region() is None
    _addresses.parallel_region.cache_clear()


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_many_parameters_take_the_steps_that_each_takes_alone(in_torch, kind):
    torch, tricks = in_torch.framework, in_torch.tricks
    sizes, dtype = [0, 1, 7, 40_000, 3, 20_000], getattr(torch, kind)
    torch.manual_seed(0)
    start = [torch.randn(size, dtype=dtype) for size in sizes]
    together, alone = ([torch.nn.Parameter(x.clone()) for x in start] for _ in range(2))
    optimizers = [tricks.MaskedAdam(together, RATE, amsgrad=True)]
    optimizers += [tricks.MaskedAdam([p], RATE, amsgrad=True) for p in alone]
    for step in range(4):
        for index, (one, other) in enumerate(zip(together, alone, strict=True)):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
            if index % 2 and step % 2:  # so that some have steps of their own, and some have none
                mask = torch.rand_like(one) < 0.5
                optimizers[0].set_trainable_mask(one, mask)
                optimizers[1 + index].set_trainable_mask(other, mask)
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("portion", [2**24, 8])
@pytest.mark.parametrize("capturable", [False, True])
def test_tensors_laid_end_to_end_take_the_steps_of_each(in_torch, monkeypatch, capturable, portion):
    from gradtricks.torch import _in_place

    torch, tricks = in_torch.framework, in_torch.tricks
    monkeypatch.setattr(_in_place, "_row_of", lambda *_: None)
    monkeypatch.setattr(_in_place, "_JOINED", portion)
    shapes = [(3, 2), (5,), (), (7,), (0,), (2, 2)]
    random = np.random.default_rng(0)
    parameters = [torch.nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes]
    options = {"amsgrad": True, "decoupled_weight_decay": True, "capturable": capturable, **DECAY}
    optimizer = tricks.MaskedAdam(parameters, RATE, **options)
    gradients, masks = ([random.normal(size=(4, *shape)) for shape in shapes] for _ in range(2))
    masks = [mask < 0 for mask in masks]
    masks[0][:] = masks[0][0]  # so that this one has no steps of its own, as those without a mask
    for step in range(4):
        for index, p in enumerate(parameters):
            if index % 2 == 0:
                optimizer.set_trainable_mask(p, torch.tensor(masks[index][step]))
            else:
                masks[index][step] = True
            p.grad = torch.tensor(np.where(masks[index][step], gradients[index][step], np.nan))
        optimizer.step()
    paths = [
        reference_run(np.ones(shape), gradient, mask, amsgrad=True, **DECAY)
        for shape, gradient, mask in zip(shapes, gradients, masks, strict=True)
    ]
    assert_close([p.detach().numpy() for p in parameters], [path[-1] for path in paths], **TOLERANCE)
    assert [optimizer.state[p]["step"].item() for p in parameters] == [4] * len(shapes)


@pytest.mark.parametrize("capturable", [False, True])
def test_on_a_device_a_step_of_ours_neither_waits_nor_goes_tensor_by_tensor(in_torch, capturable):
    from devices_torch import OneDevice, calls_of

    torch, tricks = in_torch.framework, in_torch.tricks
    counts = []
    for many in (2, 20):
        parameters = [torch.nn.Parameter(torch.ones(4, 3, device="meta")) for _ in range(many)]
        optimizer = tricks.MaskedAdam(parameters, capturable=capturable)
        mask = torch.ones(4, 3, dtype=torch.bool, device="meta")
        for p in parameters:
            p.grad = torch.ones(4, 3, device="meta")
        with OneDevice():
            for p in parameters:
                optimizer.set_trainable_mask(p, mask)
            optimizer.step()  # makes the state
            counts.append(calls_of(optimizer.step))
            if capturable:
                for p in parameters:
                    optimizer.set_trainable_mask(p, mask)
                calls_of(optimizer.step)
        place = {optimizer.state[p]["step"].device.type for p in parameters}
        assert place == {"meta" if capturable else "cpu"}
        assert all(("own_steps" in optimizer.state[p]) is capturable for p in parameters)
    assert len(counts[0]) < 70
    assert len(counts[1]) - len(counts[0]) == (18 if capturable else 0)  # a count on the device for each


@pytest.mark.parametrize("looped", [True, False])
def test_a_capturable_step_unscales_and_skips_by_itself(in_torch, monkeypatch, looped):
    from gradtricks.torch import _in_place

    torch, tricks = in_torch.framework, in_torch.tricks
    if not looped:
        monkeypatch.setattr(_in_place, "_row_of", lambda *_: None)
    paths = []
    for capturable in (False, True):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = tricks.MaskedAdam([parameter], 0.01, capturable=capturable)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})  # has no gradient
        optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))
        scaler, path = torch.amp.GradScaler("cpu", init_scale=4.0), []
        asked = unittest.mock.Mock(wraps=scaler.unscale_)
        monkeypatch.setattr(scaler, "unscale_", asked)
        for value in (1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale((value * parameter * torch.tensor([1.0, 2.0, 3.0])).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            path.append([*parameter.tolist(), optimizer.state[parameter]["step"].item()])
        assert asked.call_count == (0 if capturable else 3)
        paths.append(path)
    np.testing.assert_allclose(*paths, rtol=1e-6)
    assert paths[0][0] == paths[0][1]
    assert [each[3] for each in paths[0]] == [1, 1, 2]


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_overflows_that_are_not_looked_at_freeze_everything(in_torch, found):
    from gradtricks.torch._in_place import step_in_place

    torch, tricks = in_torch.framework, in_torch.tricks
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = tricks.MaskedAdam(parameters, 0.5, capturable=True)
    for p in parameters:
        p.grad = torch.ones(2)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    given = [(p, torch.full((2,), torch.inf if found else 1.0), optimizer.state[p]) for p in parameters]
    with torch.no_grad():
        step_in_place(tricks.masked_adam_step, given, optimizer.param_groups[0], torch.tensor(found))
    assert [p.tolist() for p in parameters] == [pytest.approx([0.5 if found else 0.0] * 2, abs=1e-6)] * 2
    assert [optimizer.state[p]["step"].item() for p in parameters] == [1 if found else 2] * 2
    if found:
        torch.testing.assert_close(optimizer.state_dict()["state"], before, rtol=0, atol=0)


def test_counts_move_to_the_device_where_a_group_becomes_capturable(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.ones(2, device="meta"))
    optimizer = tricks.MaskedAdam([parameter])
    parameter.grad = torch.ones(2, device="meta")
    optimizer.step()
    for capturable, place in ((True, "meta"), (False, "cpu")):
        optimizer.param_groups[0]["capturable"] = capturable
        if capturable:
            optimizer.step()
            assert optimizer.state[parameter]["step"].device.type == place
            continue
        fresh = tricks.MaskedAdam([parameter])
        fresh.step()
        assert fresh.state[parameter]["step"].device.type == place


@pytest.mark.parametrize("kind", ["adam", "wrapped"])
def test_a_plain_mask_of_a_dtensor_is_distributed(in_torch, kind):
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh

    torch = in_torch.framework
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = torch.nn.Parameter(torch.ones(2, 3))
        sharded = torch.nn.Parameter(distribute_tensor(torch.ones(2, 3), mesh))
        random = np.random.default_rng(0)
        optimizers = [optimizers_of(in_torch, p)[kind] for p in (whole, sharded)]
        for step in range(4):
            gradient = torch.tensor(random.normal(size=(2, 3)), dtype=torch.float32)
            whole.grad, sharded.grad = gradient, distribute_tensor(gradient, mesh)
            for optimizer, p in zip(optimizers, (whole, sharded), strict=True):
                if step == 2:
                    optimizer.set_trainable_mask(p, torch.tensor([[True], [False]]))
                optimizer.step()
        if kind == "adam":
            mask = optimizers[1].state[sharded]["trainable_mask"]
            assert isinstance(mask, DTensor)
            optimizers[1].set_trainable_mask(sharded, mask)
        torch.testing.assert_close(sharded.full_tensor(), whole, rtol=1e-6, atol=1e-7)
        assert whole[0, 1] != 1
    finally:
        dist.destroy_process_group()


def test_a_gradient_with_gaps_is_read_as_what_it_holds(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    gradient, found = torch.arange(6.0).reshape(2, 3) - 2.5, []
    for given in (gradient, gradient.T.contiguous().T, torch._neg_view(-gradient)):
        parameter = torch.nn.Parameter(torch.ones(2, 3))
        optimizer = tricks.MaskedAdam([parameter], 0.1)
        parameter.grad = given
        optimizer.step()
        found.append(optimizer.state[parameter]["exp_avg"])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert (found[0].sign() == gradient.sign()).all()


def test_a_step_count_of_another_dtype_goes_by_tensors(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    paths = []
    for dtype in (torch.float32, torch.int64):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = tricks.MaskedAdam([parameter], 0.1)
        parameter.grad = torch.ones(3)
        optimizer.step()
        optimizer.state[parameter]["step"] = optimizer.state[parameter]["step"].to(dtype)
        optimizer.step()
        assert optimizer.state[parameter]["step"] == 2
        paths.append(parameter.detach())
    torch.testing.assert_close(*paths)


def test_autograd_notices_that_a_parameter_was_edited(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.ones(2))
    loss = parameter.square().sum()
    loss.backward(retain_graph=True)
    tricks.MaskedAdam([parameter]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_compiled_step_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = tricks.MaskedAdam([parameter], 0.1)
        optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))
        parameter.grad = torch.tensor([1.0, 2.0, -3.0])
        step = torch.compile(optimizer.step, backend=TRACER) if compiled else optimizer.step
        for _ in range(3):
            step()
        results.append(parameter.detach())
    torch.testing.assert_close(*results)


def test_the_learning_rate_may_be_a_tensor_that_learns(backend):
    tensors = [backend.tensor(x) for x in (START, GRADIENT, *STATE)]
    rate = np.float64(0.25)
    value, (slope,) = backend.value_and_vjp(
        lambda rate: backend.tricks.masked_adam_step(*tensors, learning_rate=rate)[0], [rate], np.ones((2, 2))
    )
    expected = reference.masked_adam_step(START, GRADIENT, *STATE, learning_rate=rate)[0]
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert slope == pytest.approx((expected - START).sum() / rate)


@pytest.mark.parametrize("name", ["learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay"])
def test_a_compiler_takes_any_number(in_torch, name):
    tensors = [in_torch.tensor(x) for x in (START, GRADIENT, *STATE)]
    step = in_torch.tricks.masked_adam_step
    assert_compiled_for_all_numbers(in_torch.framework, lambda number: step(*tensors, **{name: number})[0])


def test_clipping_in_keras_ignores_frozen_elements(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    variable = tf.Variable([1.0, 1.0])
    optimizer = tricks.MaskedAdam(0.1, clipnorm=1.0, weight_decay=0.5)
    optimizer.exclude_from_weight_decay([variable])
    optimizer.build([variable])
    optimizer.set_trainable_mask(variable, tf.constant([True, False]))
    optimizer.apply([tf.constant([0.5, np.nan])])
    np.testing.assert_allclose(variable.numpy(), [0.9, 1.0], rtol=1e-6)
    with pytest.raises(ValueError, match="use_ema would move frozen elements; got True; remedy"):
        tricks.MaskedAdam(use_ema=True)
    bounded = tf.Variable([1.0], constraint=tf.keras.constraints.NonNeg())
    other = tricks.MaskedAdam(0.1)
    other.build([bounded])
    with pytest.raises(ValueError, match=r"must have no constraint, .*; got NonNeg; remedy: MaskedOptimizer"):
        other.set_trainable_mask(bounded, tf.constant([False]))
    other.set_trainable_mask(bounded, None)  # freezes nothing
    with pytest.raises(ValueError, match="parameter must be one that the optimizer was given"):
        optimizer.set_trainable_mask("variable", None)
    with pytest.raises(ValueError, match="the optimizer must be built; remedy"):
        tricks.MaskedAdam().set_trainable_mask(variable, None)


def test_without_a_mask_it_is_the_adam_of_keras(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    gradients = np.random.default_rng(0).normal(size=(20, 4))
    for options in ({}, {"amsgrad": True}, {"weight_decay": 0.1}, {"beta_1": 0.5}):
        values = []
        for kind in (tricks.MaskedAdam, tf.keras.optimizers.Adam):
            variable = tf.Variable(np.ones(4))
            optimizer = kind(RATE, **options)
            for gradient in gradients:
                optimizer.apply([tf.constant(gradient)], [variable])
            values.append(variable.numpy())
        np.testing.assert_allclose(*values, rtol=1e-5)  # Keras adds epsilon before the bias correction


@pytest.mark.parametrize("jit_compile", [False, True])
def test_large_parameters_in_a_graph_of_keras(in_tensorflow, jit_compile):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(200, 100)), random.normal(size=(4, 200, 100))
    masks = (random.random((2, 200, 100)) < 0.5).repeat(2, axis=0)
    variable = tf.Variable(start)
    optimizer = tricks.MaskedAdam(RATE, amsgrad=True, weight_decay=0.1)
    optimizer.build([variable])

    @tf.function(jit_compile=jit_compile)
    def step(gradient):
        optimizer.apply([gradient])

    path = reference_run(start, gradients, masks, True, weight_decay=0.1, epsilon=1e-7)
    for gradient, mask, wanted in zip(gradients, masks, path, strict=True):
        optimizer.set_trainable_mask(variable, tf.constant(mask))
        step(tf.constant(np.where(mask, gradient, np.nan)))
        np.testing.assert_allclose(variable.numpy(), wanted, **TOLERANCE)


@pytest.mark.parametrize("replicated", [False, True])
def test_small_parameters_of_many_shapes_step_together(in_tensorflow, replicated):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0") if replicated else tf.distribute.get_strategy()
    random, shapes = np.random.default_rng(0), [(), (3,), (2, 3)]
    starts = [random.normal(size=shape) for shape in shapes]
    gradients = [random.normal(size=(4, *shape)) for shape in shapes]
    masks = [(random.random((2, *shape)) < 0.5).repeat(2, axis=0) for shape in shapes]
    with strategy.scope():
        variables = [tf.Variable(start) for start in starts]
        optimizer = tricks.MaskedAdam(RATE, amsgrad=True, weight_decay=0.1)
        optimizer.build(variables)
    pairs = zip(starts, gradients, masks, strict=True)
    paths = [reference_run(*each, True, weight_decay=0.1, epsilon=1e-7) for each in pairs]
    for turn, wanted in enumerate(zip(*paths, strict=True)):
        given = [tf.constant(each[turn]) for each in gradients]
        for variable, mask in zip(variables, masks, strict=True):
            optimizer.set_trainable_mask(variable, tf.constant(mask[turn]))
        strategy.run(optimizer.apply, (given, variables))
        for variable, value in zip(variables, wanted, strict=True):
            np.testing.assert_allclose(variable.numpy(), value, **TOLERANCE)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_keras_mixed_precision(in_tensorflow, policy):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.layers.Input((64,))
    model = tf.keras.Sequential([inputs, tf.keras.layers.Dense(256, dtype=policy), tf.keras.layers.Dense(1)])
    optimizer = tricks.MaskedAdam(0.01)
    whole = tf.keras.optimizers.LossScaleOptimizer(optimizer) if policy == "mixed_float16" else optimizer
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


def test_an_embedding_trains_the_rows_that_the_mask_allows(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Embedding(4, 1)])
    optimizer = tricks.MaskedAdam(0.1)
    model.compile(optimizer, "mse", jit_compile=False)
    table = model.layers[0].embeddings
    optimizer.build(model.trainable_variables)
    optimizer.set_trainable_mask(table, tf.constant([[True], [True], [False], [False]]))
    before = table.numpy()
    model.fit(np.array([[0, 2]]), np.ones((1, 2, 1), np.float32), verbose=0)
    assert (table.numpy() != before)[:, 0].tolist() == [True, False, False, False]


@pytest.mark.parametrize(("jit_compile", "kind"), [(True, "adam"), (True, "wrapped"), (False, "wrapped")])
def test_keras_fit_save_and_load(in_tensorflow, jit_compile, kind, tmp_path):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(3)]
    model = tf.keras.Sequential(layers)
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    if kind == "adam":
        optimizer = tricks.MaskedAdam(schedule, weight_decay=0.1, amsgrad=True, clipnorm=1.0)
    else:
        optimizer = tricks.MaskedOptimizer(tf.keras.optimizers.Nadam(schedule, loss_scale_factor=8.0))
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    optimizer.build(model.trainable_variables)
    kernel, mask = model.layers[0].kernel, np.arange(12).reshape(4, 3) % 2 == 0
    x, y = np.random.default_rng(0).normal(size=(2, 32, 4)).astype(np.float32)
    for each in (mask, ~mask):  # seen by the graph that is compiled already
        optimizer.set_trainable_mask(kernel, tf.constant(each))
        before = kernel.numpy()
        model.fit(x, y[:, :3], batch_size=8, epochs=2, verbose=0)
        np.testing.assert_array_equal(kernel.numpy() != before, each)
    assert optimizer.iterations.numpy() == 16
    assert float(optimizer.learning_rate) == pytest.approx(0.01 * 0.9**1.6)

    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == optimizer.get_config()
    for some in (model, loaded):
        some.fit(x, y[:, :3], batch_size=8, epochs=1, verbose=0, shuffle=False)
    np.testing.assert_array_equal(loaded.layers[0].kernel.numpy(), kernel.numpy())


@pytest.mark.parametrize("way", ["loaded", "restored", "restored as a graph makes it"])
def test_the_state_of_an_earlier_version_keeps_its_counts(in_tensorflow, way, tmp_path):
    tf, random = in_tensorflow.framework, np.random.default_rng(0)
    mask, gradients = np.array([True, False, True]), random.normal(size=(6, 3))
    first, second = (in_tensorflow.parameter(np.ones(3)) for _ in range(2))
    saved, fresh = (in_tensorflow.masked_adam(each, RATE) for each in (first, second))
    saved.set_trainable_mask(first, tf.constant(mask))
    for gradient in gradients[:3]:
        in_tensorflow.apply(saved, first, gradient)
    # So it was: small parameters had one count for all of their elements until a mask changed.
    known = {v.name: v for v in saved.variables}
    known["step"].assign(3)
    known["own_steps"].assign(np.zeros(3, np.int32))
    known["differ"].assign(False)
    if way == "loaded":
        store = {}
        saved.save_own_variables(store)
        fresh.load_own_variables(store)
    else:
        if way != "restored":
            fresh = in_tensorflow.tricks.MaskedAdam.from_config(saved.get_config())
        path = tf.train.Checkpoint(optimizer=saved).write(str(tmp_path / "state"))
        status = tf.train.Checkpoint(optimizer=fresh).read(path)
        if way == "restored":
            status.assert_consumed()
    second.assign(first)
    step = tf.function(lambda gradient: fresh.apply([gradient], [second]))
    masks = [mask] * 4 + [np.ones(3, bool)] * 2
    path = reference_run(np.ones(3), gradients, masks)
    for each, gradient, wanted in zip(masks[3:], gradients[3:], path[3:], strict=True):
        if fresh.built:  # or else the first mask is the restored one
            fresh.set_trainable_mask(second, tf.constant(each))
        step(tf.constant(gradient))
        np.testing.assert_allclose(second.numpy(), wanted, **TOLERANCE)


def test_what_keras_wrapper_refuses_and_passes_on(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    sgd = tf.keras.optimizers.SGD(0.1)
    optimizer = tricks.MaskedOptimizer(sgd)
    optimizer.learning_rate = 0.5
    first, unused = (tf.Variable([1.0, 1.0]) for _ in range(2))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([tf.ones(2), None], [first, unused])
    assert (first.numpy().tolist(), unused.numpy().tolist()) == ([0.5, 0.5], [1, 1])
    optimizer.apply([tf.ones(2), tf.ones(2)])
    assert unused.numpy().tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="inner_optimizer must not be built; got one that is; remedy"):
        tricks.MaskedOptimizer(sgd)
    with pytest.raises(ValueError, match="use_ema would move frozen elements; got True; remedy"):
        tricks.MaskedOptimizer(tf.keras.optimizers.SGD(use_ema=True))


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_keras_wrapper_excludes_from_weight_decay(in_tensorflow, by_name, scaled):
    keras, tricks = in_tensorflow.framework.keras, in_tensorflow.tricks
    kernel, bias = (keras.Variable([1.0], name=name) for name in ("kernel", "bias"))
    inner = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    inner = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0) if scaled else inner
    optimizer = tricks.MaskedOptimizer(inner)
    optimizer.exclude_from_weight_decay(**({"var_names": ["bias"]} if by_name else {"var_list": [bias]}))
    optimizer.apply([in_tensorflow.framework.zeros(1)] * 2, [kernel, bias])
    assert (float(kernel.numpy()[0]), float(bias.numpy()[0])) == (pytest.approx(0.95), 1.0)


def test_keras_wrapper_freezes_state_below_a_loss_scale(in_tensorflow):
    tf, tricks = in_tensorflow.framework, in_tensorflow.tricks
    adam, variable = tf.keras.optimizers.Adam(0.1), tf.Variable([1.0, 1.0])
    optimizer = tricks.MaskedOptimizer(tf.keras.optimizers.LossScaleOptimizer(adam, initial_scale=2.0))
    optimizer.build([variable])
    for mask in ([True, True], [True, False], [False, True]):
        optimizer.set_trainable_mask(variable, tf.constant(mask))
        before = [state.numpy() for state in (variable, *adam.variables) if state.shape == variable.shape]
        optimizer.apply([optimizer.scale_loss(tf.constant([0.5, -0.5]))])
        after = [state.numpy() for state in (variable, *adam.variables) if state.shape == variable.shape]
        assert len(after) == 3
        assert all((a != b).tolist() == mask for a, b in zip(after, before, strict=True))


def test_sparse_gradients_are_refused_in_torch(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    wrapped = tricks.MaskedOptimizer(torch.optim.SGD([parameter], 0.1))
    wrapped.set_trainable_mask(parameter, torch.eye(2).bool())
    parameter.grad = torch.eye(2).to_sparse()
    for optimizer in (tricks.MaskedAdam([parameter]), wrapped):
        with pytest.raises(TypeError, match="gradients must be dense; got layout"):
            optimizer.step()


def test_a_parameter_without_a_mask_goes_along_in_torch(in_torch):
    torch = in_torch.framework
    masked, free = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    first, second = (
        in_torch.tricks.MaskedOptimizer(torch.optim.SGD([masked, free], lr=1.0, momentum=0.5)) for _ in "12"
    )
    first.set_trainable_mask(masked, torch.tensor([True, False]))
    masked.grad = free.grad = torch.ones(2)
    first.step()
    second.load_state_dict(first.state_dict())
    second.step()
    assert (masked.tolist(), free.tolist()) == ([-1.5, 1.0], [-1.5, -1.5])
