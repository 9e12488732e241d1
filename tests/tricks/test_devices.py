"""Data on a device: scalars may lie on the CPU, other tensors may not, and nothing is copied."""

import os
import subprocess
import sys

import numpy as np
import pytest

MATRIX, VECTOR = np.ones((2, 3)), np.ones(3)

SCALARS = {
    "scale_gradient": ([MATRIX], ["scale"]),
    "clip_gradient": ([MATRIX], ["gradient_min", "gradient_max"]),
    "clip_gradient_norm": ([MATRIX], ["max_norm"]),
    "normalize_gradient": ([MATRIX], ["norm"]),
    "project_to_max_norm": ([MATRIX], ["max_norm"]),
    "soft_floor": ([MATRIX], ["temperature"]),
    "piecewise_linear_floor": ([MATRIX], ["width"]),
    "mixture_density_nll": ([MATRIX, MATRIX, MATRIX, VECTOR[:2]], ["scale_floor"]),
    "discounted_returns": ([MATRIX], ["discount_t", "v_t"]),
    "clipped_surrogate_pg_loss": ([MATRIX, MATRIX], ["epsilon"]),
    "gradient_descent_step": ([MATRIX, MATRIX], ["learning_rate"]),
    "safe_where": ([MATRIX > 0, MATRIX], ["fallback"]),
}


def called_with(tricks, name, scalars):
    function = {"function": abs} if name == "safe_where" else {}
    return lambda *tensors: getattr(tricks, name)(*tensors, **scalars, **function), SCALARS[name][0]


@pytest.mark.parametrize("name", SCALARS)
def test_scalars_on_the_cpu_are_taken_in_torch(in_torch, name):
    from devices_torch import on_a_device

    torch = in_torch.framework
    scalars = {scalar: torch.tensor(0.5, requires_grad=True) for scalar in SCALARS[name][1]}
    on_a_device(*called_with(in_torch.tricks, name, scalars), inputs=2)


@pytest.mark.parametrize("name", ["scale_gradient", "discounted_returns", "safe_where"])
def test_other_tensors_on_the_cpu_are_refused_in_torch(in_torch, name):
    from devices_torch import on_a_device

    scalar = SCALARS[name][1][0]
    called, arrays = called_with(in_torch.tricks, name, {scalar: in_torch.tensor(MATRIX)})
    with pytest.raises(ValueError, match=rf"{scalar} must be on .*, meta; got cpu; remedy: {scalar}.to\("):
        on_a_device(called, arrays, inputs=2)


def test_a_layer_edits_on_the_device_in_torch(in_torch):
    from devices_torch import on_a_device

    on_a_device(in_torch.tricks.ScaleGradient(0.5), [MATRIX], inputs=1)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_device_that_is_missing_is_refused(framework):
    command = [sys.executable, "-m", "pytest", __file__, "--device=cuda", f"--framework={framework}"]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=hidden)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"--device cuda must name a device that {framework} sees; got none; remedy: leave" in ended.stderr


def test_tensors_are_made_on_the_device_that_is_asked_for_in_torch(in_torch):
    with in_torch.on("meta"):
        assert in_torch.variable(MATRIX).device.type == "meta"
    assert in_torch.variable(MATRIX).device.type == "cpu"


def test_tensors_are_made_on_the_device_that_is_asked_for_in_tensorflow(in_tensorflow):
    with in_tensorflow.on("cpu"):
        assert in_tensorflow.tensor(MATRIX).device.endswith("CPU:0")
