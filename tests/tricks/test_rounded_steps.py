"""MaskedAdam with weights of 16 bits, in PyTorch."""

import copy
import pickle

import numpy as np
import pytest

from gradtricks import reference

HALVES = ["bfloat16", "float16"]
DIGITS = {"bfloat16": 8, "float16": 11}
WAYS = ["stochastic", "compensated"]


def parameter_of(torch, array, dtype):
    return torch.nn.Parameter(torch.tensor(array).to(getattr(torch, dtype)))


@pytest.mark.parametrize("dtype", HALVES)
def test_the_mean_over_all_noise_is_exactly_the_wide_step(in_torch, monkeypatch, dtype):
    from gradtricks.torch import _rounded

    torch, tricks = in_torch.framework, in_torch.tricks
    noises = 2 ** (24 - DIGITS[dtype])  # as many numbers has float32 in a gap

    def rounded(x, noise, dtype):
        assert noise.shape == x.shape
        return tricks.round_stochastically(x, (torch.arange(noises) / noises).expand_as(x), dtype)

    monkeypatch.setattr(_rounded, "round_stochastically", rounded)
    narrow = parameter_of(torch, np.full((3, noises), [[1.25], [-1.5], [1.75]]), dtype)
    wide = torch.nn.Parameter(narrow.detach()[:, 0].float())
    mask = torch.tensor([True, True, False])
    optimizers = [tricks.MaskedAdam([narrow], 1e-3, rounding="stochastic"), tricks.MaskedAdam([wide], 1e-3)]
    optimizers[0].set_trainable_mask(narrow, mask[:, None])
    optimizers[1].set_trainable_mask(wide, mask)
    wide.grad = torch.tensor([0.5, -2.0, 1.0])
    narrow.grad = wide.grad[:, None].expand_as(narrow).to(narrow.dtype)
    before = wide.detach().clone()
    for optimizer in optimizers:
        optimizer.step()
    assert (wide != before).tolist() == mask.tolist()
    assert torch.equal(narrow.detach().double().mean(1), wide.detach().double())


@pytest.mark.parametrize("dtype", HALVES)
def test_each_step_is_the_oracle_s_rounded_by_the_oracle(in_torch, dtype):
    torch, tricks = in_torch.framework, in_torch.tricks
    random, shape = np.random.default_rng(0), (40, 50)
    parameter = parameter_of(torch, random.normal(size=shape), dtype)
    optimizer = tricks.MaskedAdam([parameter], 1e-3, rounding="stochastic")
    moments, decided = [np.zeros(shape), np.zeros(shape), np.zeros(shape, int)], []
    for step in range(6):
        gradient, mask = random.normal(size=shape), random.random(shape) < 0.5
        parameter.grad = torch.tensor(gradient).to(parameter.dtype)
        before, gradient = (x.detach().double().numpy() for x in (parameter, parameter.grad))
        moved, *moments, _ = reference.masked_adam_step(before, gradient, *moments, mask)
        torch.manual_seed(step)
        noise = torch.rand_like(parameter, dtype=torch.float32).numpy()
        # Where the noise is near the limit, float32 may decide otherwise than float64.
        sides = [reference.round_stochastically(moved, noise + near, dtype) for near in (1e-3, -1e-3)]
        optimizer.set_trainable_mask(parameter, torch.tensor(mask))
        torch.manual_seed(step)
        optimizer.step()
        value = parameter.detach().double().numpy()
        assert ((value == sides[0]) | (value == sides[1])).all()
        np.testing.assert_array_equal(value[~mask], before[~mask])
        decided.append((sides[0] == sides[1]).mean())
    assert min(decided) > 0.95


def kept(optimizer, parameter):
    """Return the compensation, once there is one."""
    return [x for name, x in optimizer.state[parameter].items() if name == "compensation"]


@pytest.mark.parametrize("dtype", HALVES)
def test_compensated_steps_stay_near_those_in_float64(in_torch, dtype):
    torch, tricks = in_torch.framework, in_torch.tricks
    random, steps, digits = np.random.default_rng(0), 200, DIGITS[dtype]
    start = 1.125 + np.arange(64) / 128  # away from 1 and 2, where the gap changes
    gradients = random.normal(size=(steps, 64)) + 0.5
    masks = (random.random((steps // 50, 64)) < 0.5).repeat(50, axis=0)
    paths = []
    for kind, rounding in ((dtype, "compensated"), ("float64", None), (dtype, None)):
        parameter = parameter_of(torch, start, kind)
        options = {"weight_decay": 1e-2, "decoupled_weight_decay": True, "rounding": rounding}
        optimizer = tricks.MaskedAdam([parameter], 1e-4, **options)
        for gradient, mask in zip(gradients, masks, strict=True):
            optimizer.set_trainable_mask(parameter, torch.tensor(mask))
            before = [x.clone() for x in (parameter.detach(), *kept(optimizer, parameter))]
            parameter.grad = torch.tensor(gradient).bfloat16().to(parameter.dtype)
            optimizer.step()
            for old, new in zip(before, (parameter, *kept(optimizer, parameter))):
                assert torch.equal(old[~mask], new[~mask])
        value = parameter.detach().double()
        paths.append([value.numpy(), sum(kept(optimizer, parameter), value).numpy()])
    (weights, sums), (exact, _), (nearest, _) = paths
    gap = 2.0 ** (1 - digits)
    assert np.abs(exact - start).max() > 2e-3
    # A compensation of 8 digits, at most half a gap, errs by 1/512 of that in each step.
    assert np.abs(sums - exact).max() < steps * gap / 2 / 512 + 1e-5
    assert np.abs(weights - exact).max() < gap / 2 + steps * gap / 2 / 512 + 1e-5
    if dtype == "bfloat16":
        np.testing.assert_array_equal(nearest, start)  # where all of these steps are lost


@pytest.mark.parametrize("portion", [2**24, 8])
def test_many_parameters_round_as_each_does_alone(in_torch, monkeypatch, portion):
    from gradtricks.torch import _in_place

    torch, tricks = in_torch.framework, in_torch.tricks
    monkeypatch.setattr(_in_place, "_JOINED", portion)
    kinds = [(dtype, shape) for dtype in HALVES for shape in [(3, 2), (), (7,), (0,)]]
    torch.manual_seed(0)
    starts = [torch.randn(shape).numpy() for _, shape in kinds]
    together, alone = (
        [parameter_of(torch, start, dtype) for start, (dtype, _) in zip(starts, kinds, strict=True)]
        for _ in range(2)
    )
    optimizers = [tricks.MaskedAdam(ps, 1e-3, rounding="compensated") for ps in [together, *zip(alone)]]
    for _ in range(5):
        for one, other in zip(together, alone, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, optimizer in zip(together, alone, optimizers[1:], strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(optimizers[0].state[one], optimizer.state[other], rtol=0, atol=0)


@pytest.mark.parametrize("rounding", WAYS)
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_an_overflow_that_is_not_looked_at_rounds_nothing(in_torch, rounding, found):
    from gradtricks.torch._rounded import step_rounded

    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = parameter_of(torch, [1 + 2.0**-7, 3.0], "bfloat16")
    optimizer = tricks.MaskedAdam([parameter], 0.1, rounding=rounding, capturable=True)
    state = optimizer._checked_state_of(parameter, optimizer.param_groups[0])
    if rounding == "compensated":
        state["compensation"].fill_(2.0**-8)  # half a gap, with which the first would go to its neighbour
    before = copy.deepcopy((parameter.detach(), state))
    given = [(parameter, torch.ones_like(parameter), state)]
    with torch.no_grad():
        group = optimizer.param_groups[0]
        step_rounded(tricks.masked_adam_step, given, group, torch.tensor(found))
    if found:
        torch.testing.assert_close((parameter.detach(), state), before, rtol=0, atol=0)
    else:
        assert (parameter < before[0]).all()


@pytest.mark.parametrize("rounding", WAYS)
@pytest.mark.parametrize("how", ["pickle", "state_dict"])
def test_rounded_steps_go_on_from_a_copy(in_torch, rounding, how):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = parameter_of(torch, [1.0, -2.0, 3.0], "float16")
    optimizer = tricks.MaskedAdam([parameter], 1e-4, rounding=rounding)
    optimizer.set_trainable_mask(parameter, torch.tensor([True, False, True]))

    def train(parameter, optimizer):
        for seed in range(5):
            torch.manual_seed(seed)
            parameter.grad = torch.randn(3).half()
            optimizer.step()
        return parameter.detach().clone(), optimizer.state_dict()["state"]

    train(parameter, optimizer)
    if how == "pickle":
        other, twin = pickle.loads(pickle.dumps((parameter, optimizer)))  # noqa: S301  # they are our own
    else:
        other = torch.nn.Parameter(parameter.detach().clone())
        twin = tricks.MaskedAdam([other], 1.0)
        twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    torch.testing.assert_close(train(other, twin), train(parameter, optimizer), rtol=0, atol=0)
    compensation = twin.state[other].get("compensation", torch.zeros(0, dtype=torch.float16))
    assert compensation.dtype == (torch.bfloat16 if rounding == "compensated" else torch.float16)


def test_a_state_of_adam_begins_without_a_compensation(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = parameter_of(torch, [1.0, 2.0], "bfloat16")
    adam, ours = torch.optim.Adam([parameter]), tricks.MaskedAdam([parameter], rounding="compensated")
    parameter.grad = torch.ones_like(parameter)
    adam.step()
    ours.load_state_dict(adam.state_dict())
    ours.step()
    assert ours.param_groups[0]["rounding"] == "compensated"
    assert ours.state[parameter]["compensation"].abs().min() > 0


@pytest.mark.parametrize("rounding", WAYS)
def test_wide_parameters_are_not_rounded(in_torch, rounding):
    torch, tricks = in_torch.framework, in_torch.tricks
    wide, narrow = (parameter_of(torch, [1.0], dtype) for dtype in ("float32", "bfloat16"))
    refusal = rf"rounding='{rounding}' takes .*bfloat16 or float16; got torch.float32; remedy: a group of"
    with pytest.raises(TypeError, match=refusal):
        tricks.MaskedAdam([narrow, wide], rounding=rounding)
    optimizer = tricks.MaskedAdam(
        [{"params": [wide], "rounding": None}, {"params": narrow}], rounding=rounding
    )
    for p in (wide, narrow):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert wide < 1
    optimizer.param_groups[0]["rounding"] = rounding
    with pytest.raises(TypeError, match=refusal):
        optimizer.step()


def test_other_ways_of_rounding_are_refused(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = parameter_of(torch, [1.0], "bfloat16")
    with pytest.raises(
        ValueError, match="rounding must be one of None, 'stochastic', 'compensated'; got 'up'"
    ):
        tricks.MaskedAdam([parameter], rounding="up")


def test_a_compensation_of_another_shape_is_refused(in_torch):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = parameter_of(torch, [1.0, 2.0], "bfloat16")
    parameter.grad = torch.ones_like(parameter)
    optimizer = tricks.MaskedAdam([parameter], rounding="compensated")
    optimizer.state[parameter]["compensation"] = torch.zeros(3, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"compensation must have the shape of its parameter, \(2,\); got"):
        optimizer.step()
    assert parameter.tolist() == [1, 2]


@pytest.mark.parametrize("rounding", WAYS)
def test_on_a_device_rounded_steps_neither_wait_nor_multiply(in_torch, rounding):
    from devices_torch import OneDevice, calls_of

    torch, tricks = in_torch.framework, in_torch.tricks
    counts = []
    for many in (2, 20):
        shape = {"size": (4, 3), "device": "meta", "dtype": torch.bfloat16}
        parameters = [torch.nn.Parameter(torch.ones(**shape)) for _ in range(many)]
        optimizer = tricks.MaskedAdam(parameters, rounding=rounding)
        for p in parameters:
            p.grad = torch.ones(**shape)
        with OneDevice():
            optimizer.step()  # makes the state
            counts.append(len(calls_of(optimizer.step)))
    assert counts[0] == counts[1] < 100


@pytest.mark.parametrize("rounding", WAYS)
def test_a_compiled_step_rounds_too(in_torch, rounding):
    torch, tricks = in_torch.framework, in_torch.tricks
    parameter = parameter_of(torch, np.ones(1000), "bfloat16")
    optimizer = tricks.MaskedAdam([parameter], 1e-3, rounding=rounding)
    mask = torch.arange(1000) < 500
    optimizer.set_trainable_mask(parameter, mask)
    parameter.grad = torch.ones_like(parameter)
    compiled = torch.compile(optimizer.step, backend="aot_eager")
    for _ in range(16):
        compiled()
    assert (parameter.detach()[~mask] == 1).all()
    # Below 1 the gap is 1/256, and the deviation of the mean over 500 weights about 1e-4.
    assert parameter.detach()[mask].double().mean().item() == pytest.approx(1 - 0.016, abs=1e-3)
