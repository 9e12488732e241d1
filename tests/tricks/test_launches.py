"""Masked steps of Adam in one launch, read from the same table by NumPy, and by Triton's interpreter."""

import ctypes
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from agreeing import assert_close
from gradtricks import reference
from gradtricks._core import kernels

SHAPES = [(3, 2), (5,), (), (2, 1030), (0,)]  # the last but one in three blocks
OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True, "amsgrad": True},
    {"maximize": True, "capturable": True},
    {"betas": (0.0, 0.0), "capturable": True, "amsgrad": True},
]


def at(address, count, dtype):
    """Return what lies at an address as an array."""
    size = np.dtype(dtype).itemsize * count
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def steps_of_numpy(
    table, numbers, learning_rate, is_finite, *, blocks, num_rows, dtypes, largest, own, counted
):
    """Do what a launch does, by the reference."""
    _, _, _, beta_1, rest_1, beta_2, rest_2, sign, l2, decay, epsilon, *_ = numbers.tolist()
    np.testing.assert_allclose([beta_1 + rest_1, beta_2 + rest_2], 1)
    options = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "weight_decay": decay}
    rows, ends = table.reshape(num_rows, 10).tolist(), []
    for first, count, *addresses, steps in rows:
        ends.append(first + -(-count // kernels.launches.BLOCK))
        if count == 0 or (is_finite is not None and not is_finite):
            continue
        names = [*dtypes[:2], *[dtypes[2]] * 3, "int32", "bool"]
        given = [at(address, count, name) if address else None for address, name in zip(addresses, names)]
        parameter, gradient, m, v, v_max, taken, mask = given
        assert [v_max is not None, taken is not None] == [largest, own]
        steps = int(at(steps, 1, np.float32)[0]) if counted else steps
        before = np.full(count, steps) if taken is None else taken
        slope = sign * gradient + l2 * parameter
        arguments = parameter, slope, m, v, before, mask
        new = reference.masked_adam_step(
            *arguments, v_max=v_max, learning_rate=learning_rate.item(), **options
        )
        for old, value in zip((parameter, m, v, taken, v_max), new):
            if old is not None:
                old[:] = value
    assert [0, *ends[:-1]] == [row[0] for row in rows]
    assert ends[-1] == blocks


@pytest.fixture(params=["numpy", "triton"])
def launches(request, in_torch, monkeypatch):
    """Let tensors on the CPU pass for those of a GPU; count the launches that are taken."""
    from gradtricks.torch import _in_place, _launching

    if request.param == "triton":
        pytest.importorskip("triton", reason="Triton interprets the launch; PyTorch for the CPU has none")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.delitem(sys.modules, f"{kernels.__name__}.launches", raising=False)
        monkeypatch.delitem(vars(kernels), "launches", raising=False)
        found = kernels.launches
    else:
        found = SimpleNamespace(BLOCK=1024, masked_adam_steps=steps_of_numpy)
    counted = Mock(side_effect=found.masked_adam_steps)
    stand_in = SimpleNamespace(BLOCK=found.BLOCK, masked_adam_steps=counted)
    monkeypatch.setitem(vars(kernels), "launches", stand_in)
    monkeypatch.setattr(_launching, "_has_triton", lambda: True)
    monkeypatch.setattr(_in_place, "_row_of", lambda *_: None)
    monkeypatch.setattr(in_torch.framework.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(in_torch.framework.cuda, "is_current_stream_capturing", lambda: False)
    _launching._agrees.cache_clear()
    yield counted
    _launching._agrees.cache_clear()


def oracle(start, gradients, masks, options):
    """Return the parameter, its moments and own steps after all steps of the reference."""
    beta_1, beta_2 = options.get("betas", (0.9, 0.999))
    decay, decoupled = options.get("weight_decay", 0.0), options.get("decoupled_weight_decay", False)
    parameter, m, v = start, np.zeros_like(start), np.zeros_like(start)
    steps, v_max = np.zeros(start.shape, int), np.zeros_like(start) if options.get("amsgrad") else None
    for gradient, mask in zip(gradients, masks):
        gradient = -gradient if options.get("maximize") else gradient
        gradient = gradient if decoupled else gradient + decay * parameter
        parameter, m, v, steps, v_max = reference.masked_adam_step(
            parameter, np.where(mask, gradient, 0), m, v, steps, mask,
            v_max=v_max, learning_rate=0.01, beta_1=beta_1, beta_2=beta_2,
            weight_decay=decay if decoupled else 0.0,
        )  # fmt: skip
    return parameter, m, v


def as_on_a_device(torch, monkeypatch):
    """Let no tensor pass for one of a CPU, so that counts and rates are read by their addresses."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", False, raising=False)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_launch_takes_the_steps_of_all_tensors(in_torch, monkeypatch, launches, dtype, options):
    torch, random = in_torch.framework, np.random.default_rng(0)
    rate = 0.01
    if options.get("capturable"):
        as_on_a_device(torch, monkeypatch)
        rate = torch.tensor(rate, dtype=torch.float64)
    parameters = [torch.nn.Parameter(torch.ones(shape, dtype=getattr(torch, dtype))) for shape in SHAPES]
    optimizer = in_torch.tricks.MaskedAdam(parameters, rate, **options)
    gradients, draws = ([random.normal(size=(4, *shape)) for shape in SHAPES] for _ in range(2))
    masks = [draw < 0.5 for draw in draws]
    for step in range(4):
        for index, p in enumerate(parameters):
            if index % 2:
                masks[index][step] = True  # without a mask, so without steps of its own
            else:
                optimizer.set_trainable_mask(p, torch.tensor(masks[index][step]))
            given = np.where(masks[index][step], gradients[index][step], np.nan)
            p.grad = torch._neg_view(torch.tensor(-given, dtype=p.dtype))
        before = parameters[1]._version
        optimizer.step()
        assert parameters[1]._version > before
    assert (
        launches.call_count == 1 + 2 * 3 + 2
    )  # of tensors without steps of their own, then of both; two trials
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == "float64" else {"rtol": 2e-6, "atol": 1e-6}
    for p, *history in zip(parameters, gradients, masks):
        state = optimizer.state[p]
        found = [x.detach().numpy() for x in (p, state["exp_avg"], state["exp_avg_sq"])]
        assert_close(found, oracle(np.ones(p.shape), *history, options), **tolerance)
        assert state["step"] == 4


def kinds(torch):
    """Return dtypes of parameters, gradients and moments, and whether there are the two others."""
    single, double, half = torch.float32, torch.float64, torch.bfloat16
    yield single, single, single, None, None
    yield double, double, double, double, torch.int32
    yield half, half, single, None, torch.int32
    yield torch.float16, single, single, single, None


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_triton_agrees_with_operations_in_all_dtypes(in_torch, monkeypatch, launches, counted, skips):
    from gradtricks.torch import _in_place, _launching

    torch, adam = in_torch.framework, in_torch.tricks.masked_adam_step
    if counted:
        as_on_a_device(torch, monkeypatch)
    for parameter, gradient, moments, largest, own in kinds(torch):
        if parameter.itemsize < 4 and launches.side_effect is steps_of_numpy:
            continue
        dtypes = parameter, gradient, moments, moments, largest, own, torch.bool
        trial = torch.device("cpu"), dtypes, counted, skips
        with torch.no_grad():
            assert _launching._agrees(_in_place._by_tensors, adam, *trial)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_an_overflow_that_a_scaler_found_skips_the_launch(in_torch, monkeypatch, launches, found):
    torch = in_torch.framework
    as_on_a_device(torch, monkeypatch)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = in_torch.tricks.MaskedAdam([parameter], 0.5, capturable=True)
    parameter.grad = torch.full((3,), torch.inf if found else 1.0)
    optimizer.found_inf = torch.tensor(found)
    optimizer.step()
    state = optimizer.state[parameter]
    assert launches.call_count == 2
    assert state["step"] == 1 - found
    np.testing.assert_allclose(parameter.tolist(), [1.0 if found else 0.5] * 3, rtol=1e-6)
    assert bool(state["exp_avg"].any()) is not bool(found)


@pytest.mark.parametrize(
    ("fault", "said"), [(None, "its numbers are others"), (OSError("no ptxas"), "OSError: no ptxas")]
)
def test_a_launch_that_fails_its_trial_warns_once(in_torch, monkeypatch, launches, fault, said):
    torch = in_torch.framework
    launches.side_effect = fault or (lambda *_, **__: None)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = in_torch.tricks.MaskedAdam([parameter], 0.5)
    parameter.grad = torch.ones(3)
    with pytest.warns(UserWarning, match=rf"MaskedAdam doesn't.*launch.*on cpu.*{said}"):
        optimizer.step()
    optimizer.step()
    np.testing.assert_allclose(parameter.tolist(), [0.0] * 3, atol=1e-6)
    assert launches.call_count == 1


def test_what_a_launch_cannot_take_goes_by_operations(in_torch, monkeypatch, launches):
    from gradtricks.torch._launching import fits_a_launch

    torch = in_torch.framework
    row = [torch.zeros(2, 3) for _ in range(4)] + [None, None, torch.ones(2, 3, dtype=torch.bool)]
    step = torch.zeros(())
    assert fits_a_launch(row, step)
    others = {
        0: torch.zeros(2, 3, dtype=torch.complex64),
        1: torch.zeros(2, 3, device="meta"),
        2: torch.zeros(3, 2).T,
        3: torch.zeros(2, 3, dtype=torch.float64),
        5: torch.zeros(2, 3, dtype=torch.int64),
    }
    for place, other in others.items():
        assert not fits_a_launch([other if i == place else x for i, x in enumerate(row)], step)
    assert not fits_a_launch(row, step.long())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not fits_a_launch(row, step)


def test_whether_triton_is_there_is_asked_of_python(in_torch):
    from gradtricks.torch._launching import _has_triton

    assert _has_triton() is (find_spec("triton") is not None)
