"""The flight recorder: it changes nothing, and says what broke a step before its gradient was used."""

import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

from gradtricks.cli import app
from gradtricks.doctor.flight import BrokenTrainingError

DATA = np.random.default_rng(0).normal(size=(6, 8, 4)).astype(np.float32)
BAD = DATA[0] - 100  # the root of something negative


def torch_training(backend, *, scaled=False):
    """Train with batch normalization, dropout and a draw of Python's; ``state`` is compared."""
    torch = backend.framework
    torch.manual_seed(0)
    random.seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)

    def step(x):
        optimizer.zero_grad()
        loss = (random.random() * model(x).square() + x.sum().clamp(max=0) + 100).sqrt().mean()  # noqa: S311
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    def state():
        moments = [value for s in optimizer.state_dict()["state"].values() for value in s.values()]
        tensors = [*model.state_dict().values(), *moments, torch.get_rng_state()]
        return [random.getstate(), *(tensor.tolist() for tensor in tensors)]

    return SimpleNamespace(model=model, optimizer=optimizer, scaler=scaler, step=step, state=state)


def tensorflow_training(backend, *, in_graph=False):
    tf = backend.framework
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(0)
    dropout = layers.Dropout(0.3, seed=1)
    model = tf.keras.Sequential(
        [layers.Input([4]), layers.Dense(8), layers.BatchNormalization(), dropout, layers.Dense(1)]
    )
    optimizer = tf.keras.optimizers.Adam(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = tf.reduce_mean(tf.sqrt(outputs**2 + tf.minimum(tf.reduce_sum(x), 0) + 100))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def state():
        generator = tf.random.get_global_generator().state
        variables = [*model.variables, *optimizer.variables, generator]
        return [random.getstate(), *(v.numpy().tolist() for v in variables)]

    step = tf.function(step) if in_graph else step
    return SimpleNamespace(model=model, optimizer=optimizer, step=step, state=state)


def made(backend, **options):
    make = {"torch": torch_training, "tensorflow": tensorflow_training}[backend.name]
    return make(backend, **options)


def check_nothing_changes(backend, **options):
    plain = made(backend, **options)
    for batch in DATA:
        plain.step(backend.tensor(batch))
    expected = plain.state()
    watched = made(backend, **options)
    more = {"scaler": watched.scaler} if options.get("scaled") else {}
    with backend.doctor.FlightRecorder(watched.model, watched.optimizer, folder=None, **more) as recorder:
        for batch in DATA:
            recorder.step(watched.step, backend.tensor(batch))
    assert watched.state() == expected
    assert recorder.num_steps == len(recorder.norms) == 6
    assert all(0 < norm < 1e6 for norm in recorder.norms)


def test_nothing_of_a_training_changes(backend):
    check_nothing_changes(backend)


def test_nothing_of_a_scaled_training_changes_in_torch(in_torch):
    check_nothing_changes(in_torch, scaled=True)


def test_nothing_of_a_training_in_a_graph_changes_in_tensorflow(in_tensorflow):
    check_nothing_changes(in_tensorflow, in_graph=True)


def check_broken_step(backend, tmp_path, **options):
    training = made(backend, **options)
    with backend.doctor.FlightRecorder(training.model, training.optimizer, folder=tmp_path) as recorder:
        for batch in DATA[:3]:
            recorder.step(training.step, backend.tensor(batch))
        before = training.state()
        with pytest.raises(
            BrokenTrainingError, match=r"gradient of step 3 isn't finite, .*\n1 update"
        ) as raised:
            recorder.step(training.step, backend.tensor(BAD))
        assert training.state() == before
        assert not np.isfinite(recorder.norms.pop())
        # Who leaves the batch out goes on.
        recorder.step(training.step, backend.tensor(DATA[3]))
    assert recorder.num_steps == 4
    (cause,) = raised.value.diagnosis.causes
    assert (cause.id, "sqrt" in cause.place.code) == ("GT201", True)
    assert raised.value.snapshot.parent == tmp_path
    return recorder, training, raised.value


def test_a_broken_step_is_named_before_its_gradient_is_used(backend, tmp_path):
    check_broken_step(backend, tmp_path)


def test_a_broken_step_of_a_graph_is_named_in_tensorflow(in_tensorflow, tmp_path):
    check_broken_step(in_tensorflow, tmp_path, in_graph=True)


def test_determinism_may_forbid_a_global_generator_in_tensorflow(in_tensorflow, monkeypatch):
    refused = Mock(side_effect=RuntimeError("cannot be called if determinism is enabled"))
    training = made(in_tensorflow)
    monkeypatch.setattr(in_tensorflow.framework.random, "get_global_generator", refused)
    with in_tensorflow.doctor.FlightRecorder(training.model, training.optimizer, folder=None) as recorder:
        recorder.step(training.step, in_tensorflow.tensor(DATA[0]))
    assert recorder.num_steps == 1


def test_a_loop_of_others_begins_and_ends_steps_in_torch(in_torch):
    training = made(in_torch)
    with in_torch.doctor.FlightRecorder(training.model, training.optimizer, folder=None) as recorder:
        fine, bad = in_torch.tensor(DATA[0]), in_torch.tensor(BAD)
        recorder.begin(lambda: training.step(fine), [])
        training.step(fine)
        recorder.end()
        before = training.state()
        recorder.begin(lambda: training.step(bad), [])
        with pytest.raises(BrokenTrainingError, match="gradient of step 1 isn't finite") as raised:
            training.step(bad)  # the update itself says so
    assert raised.value.diagnosis.kinds == ("not finite, forward",)
    assert training.state() == before


def test_a_closed_recorder_looks_no_more(backend):
    training = made(backend)
    recorder = backend.doctor.FlightRecorder(training.model, training.optimizer, folder=None)
    recorder.close()
    recorder.step(training.step, backend.tensor(BAD))
    assert not recorder.norms


def test_steps_between_looks_go_by(backend):
    training = made(backend)
    with backend.doctor.FlightRecorder(training.model, training.optimizer, every=2, folder=None) as recorder:
        for batch in DATA:
            recorder.step(training.step, backend.tensor(batch))
        recorder.num_steps += 1
        recorder.step(training.step, backend.tensor(BAD))
    assert len(recorder.norms) == 3


def test_large_finite_gradients_are_fine(backend):
    training = made(backend)
    parameter = backend.parameter(np.ones(2), "float32")
    gradient = np.full(2, 3e38, np.float32)
    if backend.name == "torch":
        optimizer = backend.framework.optim.SGD([parameter], 0.0)
    else:
        optimizer = backend.framework.keras.optimizers.SGD(0.0)
    with backend.doctor.FlightRecorder(training.model, optimizer, folder=None) as recorder:
        recorder.step(lambda: backend.apply(optimizer, parameter, gradient))
    assert recorder.num_steps == 1
    assert list(recorder.norms) == [np.inf]


def test_sparse_gradients_are_looked_at_too(backend):
    training = made(backend)
    table = backend.parameter(np.ones((3, 2)), "float32")
    gradient = backend.sparse_gradient(table, np.array([0, 2]))
    if backend.name == "torch":
        optimizer = backend.framework.optim.SGD([table], 0.0)

        def step():
            table.grad = gradient
            optimizer.step()
    else:
        optimizer = backend.framework.keras.optimizers.SGD(0.0)

        def step():
            optimizer.apply([gradient], [table])

    with backend.doctor.FlightRecorder(training.model, optimizer, folder=None) as recorder:
        recorder.step(step)
    assert list(recorder.norms) == [2.0]


def test_updates_left_out_by_a_scaler_are_fine_in_torch(in_torch):
    torch = in_torch.framework
    training = made(in_torch, scaled=True)
    with in_torch.doctor.FlightRecorder(
        training.model, training.optimizer, scaler=training.scaler, folder=None
    ) as recorder:
        recorder.step(training.step, in_torch.tensor(BAD))
        assert not recorder.norms
        assert training.scaler.get_scale() == 32
        for _ in range(18):
            recorder.step(training.step, in_torch.tensor(BAD))
        with pytest.raises(BrokenTrainingError, match="not finite, forward") as raised:
            recorder.step(training.step, in_torch.tensor(BAD))
    assert "skipped updates" in raised.value.diagnosis.kinds
    assert training.scaler.get_scale() == 64 / 2**19
    for _ in range(19):  # who goes on is told again after twenty more
        recorder.step(training.step, in_torch.tensor(BAD))
    with pytest.raises(BrokenTrainingError):
        recorder.step(training.step, in_torch.tensor(BAD))
    training.optimizer.found_inf = torch.ones(())
    recorder._look(training.optimizer)
    assert not recorder.norms


@pytest.mark.parametrize("named", [False, True])
def test_gradients_of_a_closure_are_looked_at_in_torch(in_torch, named):
    training = made(in_torch)
    model, optimizer = training.model, training.optimizer

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = (model(x).square() + x.sum().clamp(max=0) + 100).sqrt().mean()
            loss.backward()
            return loss

        return optimizer.step(closure=closure) if named else optimizer.step(closure)

    with in_torch.doctor.FlightRecorder(model, optimizer, folder=None) as recorder:
        assert recorder.step(step, in_torch.tensor(DATA[0])) > 0
        before = training.state()
        with pytest.raises(BrokenTrainingError, match="not finite"):
            recorder.step(step, in_torch.tensor(BAD))
    assert training.state() == before


def test_a_step_left_within_a_scaler_is_forgotten_in_torch(in_torch):
    training = made(in_torch, scaled=True)
    model, optimizer, scaler = training.model, training.optimizer, training.scaler

    def step(x, factor):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        model[0].weight.grad *= factor  # after the scaler has looked
        scaler.step(optimizer)
        scaler.update()

    with in_torch.doctor.FlightRecorder(model, optimizer, scaler=scaler, folder=None) as recorder:
        with pytest.raises(BrokenTrainingError):
            recorder.step(step, in_torch.tensor(DATA[0]), float("nan"))
        recorder.step(step, in_torch.tensor(DATA[0]), 1.0)
    plain = made(in_torch, scaled=True)
    model, optimizer, scaler = plain.model, plain.optimizer, plain.scaler
    step(in_torch.tensor(DATA[0]), 1.0)
    assert training.state() == plain.state()


def test_devices_random_states_are_kept_too_in_torch(in_torch, monkeypatch):
    cuda, put_back = in_torch.framework.cuda, []
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "get_rng_state_all", lambda: ["a state"])
    monkeypatch.setattr(cuda, "set_rng_state_all", put_back.append)
    training = made(in_torch, scaled=True)
    recorder = in_torch.doctor.FlightRecorder(training.model, training.optimizer, scaler=training.scaler)
    recorder.step(training.step, in_torch.tensor(DATA[0]))
    training.scaler.update(7.0)
    recorder._restore()
    assert put_back == [["a state"]]
    assert training.scaler.get_scale() == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": 3}, "model must be a .*, or several; got int"),
        ({"optimizer": 3}, "optimizer must be a .*, or several; got int"),
        ({"every": 0}, "every must be at least 1; got 0"),
    ],
)
def test_a_recorder_checks_what_it_is_given(backend, change, message):
    training = made(backend)
    given = {"model": training.model, "optimizer": training.optimizer} | change
    with pytest.raises((TypeError, ValueError), match=message):
        backend.doctor.FlightRecorder(given.pop("model"), given.pop("optimizer"), **given)
    recorder = backend.doctor.FlightRecorder(training.model, training.optimizer)
    with pytest.raises(TypeError, match="function must be callable; got int"):
        recorder.step(3)
    recorder.close()


# Where trainings run.


def rooted(torch, model, x):
    return (model(x).square() + x.sum().clamp(max=0) + 100).sqrt().mean()


def check_in_torch(backend, training, step):
    """See that a step is watched, that nothing changes, and that a broken one is named."""
    with backend.doctor.FlightRecorder(
        training.model, training.optimizer, scaler=training.scaler, folder=None
    ) as recorder:
        for batch in DATA[:2]:
            recorder.step(step, backend.tensor(batch))
        assert len(recorder.norms) == 2
        before = training.state()
        with pytest.raises(BrokenTrainingError) as raised:
            recorder.step(step, backend.tensor(BAD))
    assert training.state() == before
    (cause,) = raised.value.diagnosis.causes
    assert (cause.id, "sqrt" in cause.place.code) == ("GT201", True)


@pytest.mark.filterwarnings("ignore:Using `torch.compile\\(module\\)` when there are global hooks")
@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_compiled_step_in_bfloat16_and_in_parts_is_watched_in_torch(in_torch, num_parts):
    torch, training = in_torch.framework, made(in_torch)
    compiled = torch.compile(training.model, backend="aot_eager")

    def step(x):
        training.optimizer.zero_grad()
        for part in x.chunk(num_parts):
            with torch.autocast("cpu", torch.bfloat16):
                loss = rooted(torch, compiled, part)
            (loss / num_parts).backward()
        training.optimizer.step()

    check_in_torch(in_torch, training, step)


RANK = """
import sys
sys.path[:0] = {tests!r}
import backends, test_flight as tests
import torch
import torch.distributed as dist
from types import SimpleNamespace

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
backend = backends.TorchBackend()
training = tests.made(backend)
shared = torch.nn.parallel.DistributedDataParallel(training.model)

def step(x):
    training.optimizer.zero_grad()
    tests.rooted(torch, shared, x).backward()
    training.optimizer.step()

with backend.doctor.FlightRecorder(training.model, training.optimizer, folder=None) as recorder:
    recorder.step(step, backend.tensor(tests.DATA[rank]))
    try:
        recorder.step(step, backend.tensor(tests.BAD if rank else tests.DATA[2]))
    except tests.BrokenTrainingError as error:
        print(error)
    recorder.step(step, backend.tensor(tests.DATA[3 + rank]))  # both leave the batch out, and go on
    print("weights", sum(p.sum().item() for p in training.model.parameters()))
dist.destroy_process_group()
"""


def test_each_process_says_its_own_in_torch(in_torch, tmp_path):
    script = tmp_path / "rank.py"
    tests = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    script.write_text(RANK.format(tests=tests))
    command = [sys.executable, str(script)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    first, second = (rank.communicate(timeout=100)[0] for rank in ranks)
    assert "not finite, forward" in second
    assert "sqrt()" in second
    assert "not finite, backward" in first  # whose own loss is finite
    assert "sqrt()" not in first
    assert first.splitlines()[-1] == second.splitlines()[-1]


# The command.

SCRIPT = """
import {framework}
import sys
from types import SimpleNamespace
sys.path.insert(0, {tests!r})
import backends, test_flight as tests

backend = backends.{kind}()
training = tests.made(backend{options})
recorder = backend.doctor.FlightRecorder(training.model, training.optimizer{more}, folder=sys.argv[1])
for batch in [*tests.DATA[:2], tests.BAD]:
    recorder.step(training.step, backend.tensor(batch))
"""


def check_replay(backend, tmp_path, *, options="", more=""):
    said = {"framework": backend.name, "tests": str(Path(__file__).parent), "kind": type(backend).__name__}
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(options=options, more=more, **said))
    failed = CliRunner().invoke(app, ["doctor", str(script), str(tmp_path)])
    assert "BrokenTrainingError: the gradient of step 2 isn't finite" in failed.stderr
    (snapshot,) = tmp_path.glob("step-2.*")
    result = CliRunner().invoke(
        app, ["doctor", "--json", "--replay", str(snapshot), str(script), str(tmp_path)]
    )
    assert result.exit_code == 1, result.stderr
    assert [cause["id"] for cause in json.loads(result.stdout)["causes"]] == ["GT201"]
    script.write_text(f"import {backend.name}")
    idle = CliRunner().invoke(app, ["doctor", "--replay", str(snapshot), str(script)])
    assert idle.exit_code == 3
    assert idle.stderr.startswith("the script came to its end without a recorder's step from ")
    nothing = CliRunner().invoke(app, ["doctor", "--replay", "nowhere", str(script)])
    assert (nothing.exit_code, nothing.stderr) == (
        2,
        "replay must be a snapshot's file; got nowhere, which isn't there\n",
    )


def test_a_snapshot_is_replayed(backend, tmp_path):
    check_replay(backend, tmp_path)


def test_a_snapshot_with_a_scaler_is_replayed_in_torch(in_torch, tmp_path):
    check_replay(in_torch, tmp_path, more=", scaler=training.scaler")


def test_a_snapshot_of_a_graph_is_replayed_in_tensorflow(in_tensorflow, tmp_path):
    check_replay(in_tensorflow, tmp_path, options=", in_graph=True")
