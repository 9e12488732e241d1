"""diagnose: what is wrong with the gradients of a training, and what isn't."""

import ast
import importlib
import inspect
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import gradtricks
from backends import made
from gradtricks._load import BACKENDS
from gradtricks.cli import app
from gradtricks.doctor.diagnosing import diagnosed
from gradtricks.doctor.history import Backward, Event, History, Update, Weight
from gradtricks.doctor.operations import SourceLine
from gradtricks.doctor.reference.diagnosing import moving
from gradtricks.doctor.reports import Finding, GradientReport, InputReport
from gradtricks.doctor.watching import Watching


@pytest.fixture(autouse=True, scope="module")
def one_thread(request):
    """Small networks on several threads mostly wait."""
    if request.config.option.framework != "torch" or importlib.util.find_spec("torch") is None:
        yield
        return
    torch = importlib.import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


BAD_STEPS = {"torch": "root_of_zero", "tensorflow": "norm_of_zero"}
USUAL = ["mlp_sgd", "mlp_momentum", "mlp_adam", "mlp_adamw", "mlp_rmsprop"]
USUAL += ["cnn_adam", "rnn_adam", "transformer_adam"]


def scripts(kind, framework, *, cured=False):
    """Return what registers each script, read without importing the framework: arguments by name."""
    body = ast.parse((Path(__file__).parent / f"{kind}_{framework}.py").read_text()).body
    registered = [node for node in body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    registered = [node for node in registered if not cured or node.decorator_list[0].keywords]
    return {
        node.name: [*map(ast.literal_eval, getattr(node.decorator_list[0], "args", []))]
        for node in registered
    }


def cases(kind, **which):
    """Return the names of the scripts for each framework."""
    found = []
    for framework in BACKENDS:
        names = [*scripts(kind, framework, **which), *(USUAL if kind == "trainings" else [])]
        found += [pytest.param(framework, name, id=f"{framework}-{name}") for name in names]
    return found


@pytest.mark.parametrize(("framework", "name"), cases("issues"))
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
def test_the_cause_is_named(framework, name):
    doctor = made(framework).doctor
    _, kind, code, script = importlib.import_module(f"issues_{framework}").CASES[name]
    diagnosis = doctor.diagnose(*script())
    assert diagnosis.kinds[:1] == (kind,), str(diagnosis)
    place = diagnosis.causes[0].place
    assert code in (place.code if place else "")
    assert kind in str(diagnosis)


@pytest.mark.parametrize(("framework", "name"), cases("issues", cured=True))
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_the_printed_remedy_cures_its_case(framework, name):
    doctor, module = made(framework).doctor, importlib.import_module(f"issues_{framework}")
    script, (words, old, new) = module.CASES[name][-1], module.CURES[name]
    assert words in doctor.diagnose(*script()).causes[0].remedy
    source = inspect.getsource(script)
    head, body = source.split("\ndef ", 1)
    assert head.startswith("@")
    assert body.count(old) == 1
    namespace = {**vars(module)}
    exec(f"def {body.replace(old, new)}", namespace)  # noqa: S102  # ours
    diagnosis = doctor.diagnose(*namespace[name]())
    assert diagnosis.healthy, str(diagnosis)


@pytest.mark.parametrize(("framework", "name"), cases("trainings"))
@pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`")
def test_a_healthy_training_is_left_in_peace(framework, name):
    doctor = made(framework).doctor
    module = importlib.import_module(f"trainings_{framework}")
    step, *things = module.CASES[name]()
    for _ in range(2):
        step()
    unwatched = module.state(*things)
    watched_step, *watched = module.CASES[name]()
    diagnosis = doctor.diagnose(watched_step, *watched, num_steps=2)
    assert diagnosis.healthy, str(diagnosis)
    assert str(diagnosis).endswith("nothing found")
    for one, other in zip(unwatched, module.state(*watched), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("framework", BACKENDS)
def test_every_script_has_a_test(framework):
    made(framework)
    for kind in ("issues", "trainings"):
        names = {*importlib.import_module(f"{kind}_{framework}").CASES}
        assert {(framework, name) for name in names} == {
            case.values for case in cases(kind) if case.values[0] == framework
        }


def test_twenty_public_issues_are_replayed():
    registered = [said for framework in BACKENDS for said in scripts("issues", framework).values()]
    assert len({address for address, *_, code in registered if address.startswith("https:")}) >= 20


def test_the_page_lists_every_kind():
    page = (Path(__file__).parents[2] / "book/api/diagnosing.md").read_text()
    kinds = {said[-2] for framework in BACKENDS for said in scripts("issues", framework).values()}
    for framework in BACKENDS:
        module = Path(*gradtricks.__path__, "doctor", framework, "diagnosing.py")
        (remedies,) = (
            node.value
            for node in ast.parse(module.read_text()).body
            if isinstance(node, ast.Assign) and node.targets[0].id == "REMEDIES"
        )
        kinds |= {key.value for key in remedies.keys}
    assert set(page.split("A `kind` is one of")[1].split(".")[0].split("`")[1::2]) == kinds


def test_weights_of_16_bits_move_as_their_format_says(backend):
    module, doctor = importlib.import_module(f"issues_{backend.name}"), backend.doctor
    weights = np.array([1.0, 1.0, 1.0, -1.0, 0.75, 3.0, 0.01, 200.0])
    updates = np.array([2**-8, 2**-9, -(2**-9), 2**-8, 2**-9, 2**-7, 1e-5, 0.9])
    step, model, optimizer = module.rounding(weights, updates)
    share = moving(weights, updates, mantissa=7).mean()
    diagnosis = doctor.diagnose(step, model, optimizer, num_steps=2)
    assert diagnosis.kinds == ("rounded away",)
    assert diagnosis.causes[0].seen.startswith(f"{share:.0%} of ")


def test_a_wrapped_optimizer_is_watched_once_in_torch(in_torch):
    torch, doctor = in_torch.framework, in_torch.doctor
    model, x = torch.nn.Linear(2, 1), torch.ones(4, 2)
    optimizer = in_torch.tricks.MaskedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    optimizer.set_trainable_mask(model.weight, torch.tensor([True, False]))

    def step():  # and nobody resets the gradients
        model(x).square().mean().backward()
        optimizer.step()

    diagnosis = doctor.diagnose(step, model, optimizer, num_steps=3)
    assert diagnosis.num_updates == 3
    assert diagnosis.kinds == ("never zeroed",)


def test_a_failed_pass_leaves_parameters_in_its_graph_in_torch(in_torch):
    torch = in_torch.framework
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])

    def step():
        hidden = model[0](torch.ones(4, 2)).tanh()
        for head in model[1:]:
            head(hidden).square().mean().backward()

    diagnosis = in_torch.doctor.diagnose(step, model, torch.optim.SGD(model.parameters(), 0.1))
    assert diagnosis.kinds == ("backward fails", "never updated")


def test_weights_that_a_wrapper_puts_back_are_still_in_tensorflow(in_tensorflow):
    tf, doctor = in_tensorflow.framework, in_tensorflow.doctor
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    optimizer = in_tensorflow.tricks.MaskedOptimizer(tf.keras.optimizers.AdamW(0.1))
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    optimizer.set_trainable_mask(model.layers[0].kernel, tf.constant([[True], [False]]))
    x, y = np.random.default_rng(0).normal(size=(2, 8, 2)).astype(np.float32)
    diagnosis = doctor.diagnose(lambda: model.train_on_batch(x, y[:, :1]), model, optimizer, num_steps=3)
    assert diagnosis.num_updates == 3
    assert diagnosis.healthy, str(diagnosis)


def test_arguments_are_checked(backend):
    module, diagnose = importlib.import_module(f"issues_{backend.name}"), backend.doctor.diagnose
    step, model, optimizer = module.CASES["never_updated"][-1]()
    with pytest.raises(TypeError, match="step must be callable; got int"):
        diagnose(3, model, optimizer)
    with pytest.raises(TypeError, match=r"model must be a .*, or several; got function; remedy: "):
        diagnose(step, [model, step], optimizer)
    with pytest.raises(TypeError, match=r"optimizer must be a .*, or several; got none; remedy: "):
        diagnose(step, model, [])
    with pytest.raises(TypeError, match=r"model must be a .*, or several; got int"):
        diagnose(step, 3, optimizer)
    with pytest.raises(ValueError, match="num_steps must be at least 1; got 0"):
        diagnose(step, model, optimizer, num_steps=0)
    with pytest.raises(RuntimeError, match="diagnose must be called eagerly"):
        backend.traced(lambda x: diagnose(step, model, optimizer) and x, np.ones((2, 2)))


@pytest.mark.parametrize("error", [ZeroDivisionError, ValueError, RuntimeError])
def test_an_error_of_the_step_itself_is_the_users(backend, error):
    _, model, optimizer = importlib.import_module(f"issues_{backend.name}").CASES["never_updated"][-1]()

    def step():
        raise error("of the step's own")

    with pytest.raises(error, match="of the step's own"):
        backend.doctor.diagnose(step, model, optimizer)


def test_an_error_comes_with_what_was_found_until_then(backend):
    step, *things = importlib.import_module(f"issues_{backend.name}").CASES[BAD_STEPS[backend.name]][-1]()

    def failing():
        step()
        raise ValueError("of the step's own")

    with pytest.raises(ValueError, match="of the step's own") as raised:
        backend.doctor.diagnose(failing, *things)
    (note,) = raised.value.__notes__
    assert note.startswith("Until then: 1 update watched, 1 found\n1. not finite, backward")


# The command.

SCRIPT = """
import sys
import issues_{framework} as issues
import trainings_{framework} as trainings

step, model, optimizer = {script}
{before}
step()
{after}
"""
LOOP = "for _ in range(int(sys.argv[1])):\n    step()\nraise SystemExit('not reached')"


def examined(tmp_path, backend, script, *, first="import {framework}", before="", after=""):
    path = tmp_path / "train.py"
    text = (first + SCRIPT).format(framework=backend.name, script=script, before=before, after=after)
    path.write_text(text)
    return CliRunner().invoke(app, ["doctor", str(path), "99"])


def looped(tmp_path, backend, name, **options):
    return examined(tmp_path, backend, f"issues.CASES['{name}'][-1]()", before=LOOP, **options)


KINDS = {"learning_rate_of_zero": "learning rate of 0", "model_made_twice": "not in the optimizer"}
KINDS |= {"sorted_orders_compared": "cut"}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
def test_the_command_examines_a_script(backend, tmp_path, name, kind):
    result = looped(tmp_path, backend, name)
    assert result.exit_code == 1
    assert f"1 found\n1. {kind}" in result.stdout


def test_the_command_says_what_it_needs(backend, tmp_path):
    missing = CliRunner().invoke(app, ["doctor", "nowhere.py"])
    assert missing.stderr.strip() == "script must be a file; got nowhere.py, which isn't there"
    neither = looped(tmp_path, backend, "never_updated", first="import math")
    assert "imports neither; remedy: call gradtricks.doctor.<framework>.diagnose" in neither.stderr
    broken = looped(tmp_path, backend, "never_updated", first="import torch, keras, (")
    assert "script must be Python" in broken.stderr
    assert {missing.exit_code, neither.exit_code, broken.exit_code} == {2}


def test_a_healthy_script_says_so_and_keeps_its_errors(backend, tmp_path):
    path = tmp_path / "train.py"
    trainings = f"import {backend.name}, trainings_{backend.name} as t\n"
    path.write_text(trainings + "step = t.CASES['mlp_adam']()[0]\nwhile True:\n    step()\n")
    result = CliRunner().invoke(app, ["doctor", str(path), "--updates", "2"])
    assert (result.exit_code, result.stdout) == (0, "2 updates watched, nothing found\n")
    path.write_text(f"import {backend.name}\nraise RuntimeError('of its own')")
    result = CliRunner().invoke(app, ["doctor", str(path)])
    assert (result.exit_code, result.stdout) == (3, "0 updates watched, nothing found\n")
    head, where, code, last = result.stderr.splitlines()
    assert (head, where) == ("Traceback (most recent call last):", f'  File "{path}", line 2, in <module>')
    assert (code, last) == ("    raise RuntimeError('of its own')", "RuntimeError: of its own")


LEAVES = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bonus = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(2))

    def loss(self):
        return (self.first(torch.ones(4, 2)) + self.bonus).square().mean()

net, w = Net(), torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(10):
    {step}
"""
STEPS = {
    "optimizer.zero_grad(); net.loss().backward(); optimizer.step()": "3 updates watched, nothing found",
    "w.square().sum().backward(); w = (w - w.grad).detach().requires_grad_()": "3 updates watched, nothing",
    "w.square().sum().backward(); w.data -= 0.1 * w.grad; w.grad = None": "3 updates watched, nothing found",
    "w.square().sum().backward(); w.data -= 0.1 * w.grad": "3 updates watched, 1 found\n1. never zeroed",
    "w.square().sum().backward()": "0 updates watched, 1 found\n1. never updated",
}


@pytest.mark.parametrize(("step", "said"), STEPS.items(), ids=range(len(STEPS)))
def test_weights_of_no_called_model_are_known_in_torch(in_torch, tmp_path, step, said):
    path = tmp_path / "train.py"
    path.write_text(LEAVES.format(step=step))
    assert CliRunner().invoke(app, ["doctor", "--updates", "3", str(path)]).stdout.startswith(said)


LATER = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def update():
    optimizer.zero_grad()
    model(torch.ones(4, 2)).square().mean().backward()
    optimizer.step()

for epoch in range(2):
    for _ in range(10):
        update()
    {evaluate}
    with torch.no_grad():
        model(torch.ones(4, 2))
"""
EVALUATE = {
    "pass": ("12 updates watched, 1 found\n1. evaluation in training", "model(torch"),
    "model.eval()": ("12 updates watched, 1 found\n1. training in evaluation", "model.eval()"),
    "model.eval(); model.train()": ("12 updates watched, 1 found\n1. evaluation in", "model.train()"),
    "torch.nn.Dropout.forward = lambda self, x: (0 * x).log()": (
        "12 updates watched, 2 found\n1. not f",
        "lambda",
    ),
}


@pytest.mark.parametrize(("evaluate", "said"), EVALUATE.items(), ids=range(len(EVALUATE)))
def test_an_evaluation_and_what_follows_are_watched_in_torch(in_torch, tmp_path, monkeypatch, evaluate, said):
    dropout = in_torch.framework.nn.Dropout
    monkeypatch.setattr(dropout, "forward", dropout.forward)
    path = tmp_path / "train.py"
    path.write_text(LATER.format(evaluate=evaluate))
    result = CliRunner().invoke(app, ["doctor", str(path)])
    assert result.stdout.startswith(said[0])
    assert said[1] in result.stdout


ENDS = {
    "raise ValueError('of its own')": (3, "ValueError: of its own"),
    "assert not model, 'of its own'": (3, "AssertionError: of its own"),
    "raise KeyboardInterrupt": (3, "KeyboardInterrupt"),
    "sys.exit('the loss is NaN')": (1, "the loss is NaN"),
    "sys.exit(1)": (1, "the script left with exit code 1"),
    "sys.exit()": (1, ""),
}


@pytest.mark.parametrize(("end", "expected"), ENDS.items(), ids=range(len(ENDS)))
def test_a_script_that_ends_itself_is_diagnosed(backend, tmp_path, end, expected):
    script = f"issues.CASES['{BAD_STEPS[backend.name]}'][-1]()"
    result = examined(tmp_path, backend, script, after=end)
    assert result.exit_code == expected[0]
    assert result.stdout.startswith("1 update watched, 1 found\n1. not finite, backward")
    assert (result.stderr.strip().splitlines() or [""])[-1] == expected[1]
    assert "gradtricks" not in result.stderr


@pytest.mark.parametrize(("end", "code"), [("sys.exit()", 0), ("sys.exit(1)", 3), ("1 / 0", 3)])
def test_steps_that_a_script_never_reached_are_no_finding(backend, tmp_path, end, code):
    script = "trainings.CASES['mlp_adam']()"
    early = examined(
        tmp_path, backend, script, before=f"model.loss() if hasattr(model, 'loss') else 0\n{end}"
    )
    late = examined(tmp_path, backend, script, after=end)
    assert "nothing found" in late.stdout
    assert late.exit_code == code
    if code:  # who leaves as if all were done has trained nothing
        assert (early.exit_code, early.stdout) == (3, "0 updates watched, nothing found\n")


GUARD = """
y = {framework}.ones((2, 2)) * 0
bad = {framework}.{log}(y) * 0
sys.exit('the loss is NaN')
"""


def test_a_guard_before_the_backward_pass_hides_nothing(backend, tmp_path):
    log = {"torch": "log", "tensorflow": "math.log"}[backend.name]
    script = "trainings.CASES['mlp_adam']()"
    result = examined(tmp_path, backend, script, after=GUARD.format(framework=backend.name, log=log))
    assert result.exit_code == 1
    assert "1 update watched, 1 found\n1. not finite, forward" in result.stdout
    assert "|  bad = " in result.stdout


def test_a_script_of_skipped_steps_is_left(backend, tmp_path):
    name = {"torch": "root_of_zero_under_a_scaler", "tensorflow": "norm_of_zero_under_a_scale"}[backend.name]
    result = looped(tmp_path, backend, name)
    assert result.exit_code == 1
    skipped = {"torch": 50, "tensorflow": 3}[backend.name]
    assert (
        f"0 updates watched, {skipped} skipped by the scaling of the loss, 2 found\n1. not fin"
        in result.stdout
    )
    assert "\n2. skipped updates [GT204]: " in result.stdout
    assert "seen: no update was made: gradients were NaN" in result.stdout


@pytest.mark.parametrize("name", ["root_of_zero_before_a_fused_step", "root_of_zero_under_a_scaler"])
def test_steps_that_a_scaler_skips_are_counted_in_torch(in_torch, name):
    script = importlib.import_module("issues_torch").CASES[name][-1]
    diagnosis = in_torch.doctor.diagnose(*script(), num_steps=4)
    assert (diagnosis.num_updates, diagnosis.num_skipped) == (0, 4)
    assert diagnosis.kinds == ("not finite, backward", "skipped updates")


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_detecting_anomalies_hides_no_cause_in_torch(in_torch):
    torch, doctor = in_torch.framework, in_torch.doctor
    script = importlib.import_module("issues_torch").CASES["root_of_zero"][-1]
    with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(UserWarning, match="Error detected"):
        diagnosis = doctor.diagnose(*script())
    assert diagnosis.kinds == ("not finite, backward",)
    assert "sqrt" in diagnosis.causes[0].place.code


@pytest.mark.parametrize(
    "write",
    ["b.masked_fill_(x, -inf)", "b[x] = -inf", "b.copy_(b.masked_fill(x, -inf))", "b = (~x).log()"],
)
def test_infinities_written_on_purpose_are_not_blamed_in_torch(in_torch, write):
    torch = in_torch.framework
    torch.manual_seed(0)
    model, masked = torch.nn.Linear(4, 3), torch.tensor([[False, False, True], [True, True, True]])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        scores = model(torch.ones(2, 4))
        given = {"b": torch.zeros_like(scores), "x": masked, "inf": float("inf")}
        exec(write, given)  # noqa: S102  # ours
        weights = torch.softmax(scores + given["b"], -1)
        weights[0].square().sum().backward()
        optimizer.step()

    (cause,) = in_torch.doctor.diagnose(step, model, optimizer).causes
    assert "softmax" in cause.place.code
    assert "isn't -inf" in cause.remedy


# The rules themselves, on records that no framework made.

PLACE = SourceLine("train.py", 7, "step")
REMEDIES = defaultdict(lambda: "remedy")


def kinds(**seen):
    """Return what is found in a record of one trainable weight that a gradient reaches."""
    return diagnosed(History(["w"], {"w"}, {"w": 1}, **seen), REMEDIES).kinds


def updated(*weights):
    """Updates of one weight."""
    return [Update([weight], 0.1, PLACE) for weight in weights]


def report(gradient, *findings, connected=True):
    """Verdict on one weight."""
    return GradientReport((InputReport("w", connected, gradient, origins=findings),), "fine")


def test_one_healthy_update_is_no_finding():
    assert kinds(updates=updated(Weight("w", "float32"))) == ()


def test_infinite_gradients_that_no_update_used_are_no_finding():
    inf = [Backward(report("inf", Finding("exp", "inf", PLACE, "")))]
    used = updated(Weight("w", "float32", gradient="inf"))
    assert kinds(unwell=inf, updates=updated(Weight("w", "float32"))) == ()
    assert kinds(unwell=inf, updates=used) == ("not finite, backward",)
    assert kinds(unwell=[Backward(report("inf"))], updates=used) == ("not finite, backward",)
    # Of another process, or edited since.
    assert kinds(unwell=[Backward(report("fine"))], updates=used) == ("not finite, backward",)


def test_zeros_that_last_one_update_are_no_finding():
    zero, fine = Weight("w", "float32", gradient="zero everywhere"), Weight("w", "float32")
    assert kinds(updates=updated(zero, fine)) == ()
    # What cancels is no single operation's fault, and often meant: a bias before a normalization.
    unwell = [Backward(report("zero everywhere", Finding("", "zero everywhere", None, "")))]
    assert kinds(updates=updated(zero, zero), unwell=unwell) == ()


def test_skipped_updates_are_told_where_no_scale_helps():
    hopeless, falling = Event("skip", PLACE, subjects=("w",)), Event("skip", PLACE)
    fine = updated(Weight("w", "float32"))
    assert kinds(events=[hopeless]) == ("skipped updates",)
    assert kinds(events=[falling] * 3) == ()
    assert kinds(events=[hopeless], updates=fine) == ("skipped updates",)
    assert kinds(events=[hopeless], updates=fine * 2) == ()
    inf = [Backward(report("inf", Finding("sqrt", "inf", PLACE, "")))]
    assert kinds(events=[hopeless], unwell=inf) == ("not finite, backward", "skipped updates")
    parts = [Event("backward", PLACE, 4), hopeless, Event("backward", PLACE, 4), Event("update", PLACE)]
    assert kinds(events=parts, updates=fine * 2) == ()
    text = str(diagnosed(History(["w"], {"w"}, {"w": 1}, events=[falling]), REMEDIES))
    assert text == "0 updates watched, 1 skipped by the scaling of the loss, nothing found"


def test_underflow_is_told_by_the_steps_of_float16():
    for small, lost in ((3 * 2.0**-24, 0.5), (3 * 2.0**-16, 0.0), (3.5 * 2.0**-24, 0.0)):
        weight = Weight("w", "float32")
        weight.look_for_underflow(np.array([0, 2.0**-15, small, 0]))
        assert weight.lost == lost


def test_parts_come_from_one_line_and_are_means():
    parts = [Event("backward", PLACE, 4), Event("backward", PLACE, 4), Event("update", PLACE)]
    updates = updated(Weight("w", "float32"))
    assert kinds(events=parts, updates=updates) == ("parts not averaged",)
    sums = [Event("backward", PLACE), *parts[1:]]
    assert kinds(events=sums, updates=updates) == ()
    assert kinds(events=parts[:2], updates=updates) == ()  # what they are for isn't known yet
    shares = [Event("backward", PLACE, size, size / 10) for size in (3, 7)]
    assert kinds(events=[*shares, parts[-1]], updates=updates) == ()
    halves = [Event("backward", PLACE, size, 0.5) for size in (3, 7)]
    assert kinds(events=[*halves, parts[-1]], updates=updates) == ("parts of unequal weight",)
    two_losses = [Event("backward", SourceLine("train.py", 6, "step"), 4), *parts[1:]]
    assert kinds(events=two_losses, updates=updates) == ()


def test_passes_that_reach_nothing_held_are_told():
    lost, other = Event("backward", PLACE, subjects=("v",)), Event("backward", PLACE, subjects=("v", ""))
    known = {"held": {"w": 1}, "updates": updated(Weight("w", "float32"))}
    assert kinds(events=[lost] * 3, **known) == ("never updated",)
    assert kinds(events=[lost] * 2, **known) == ()  # its update may come
    assert kinds(events=[lost] * 3, **known | {"held": {}}) == ()  # updated by hand
    assert kinds(events=[other] * 3, **known) == ()  # asked for the gradient of what is no weight
    assert kinds(events=[lost, lost, Event("backward", PLACE, subjects=("w",))], **known) == ()


def test_optimizers_without_a_gradient_are_told():
    def given(**seen):
        return updated(*[Weight("w", "float32", moved=None, **seen)] * 2)

    assert kinds(updates=given(gradient="none", trainable=False)) == ("nothing to update",)
    assert kinds(updates=given(gradient="none", emptied=PLACE)) == ("zeroed too early",)
    assert kinds(updates=given(gradient="none")) == ()
    assert kinds(updates=given(emptied=PLACE)[:1]) == ()


def test_a_clip_belongs_to_some_update_before_the_next_pass():
    clip, then = Event("clip", PLACE, 1, subjects=("v",)), Event("backward", PLACE, subjects=("w",))
    used = [Event("update", PLACE, subjects=(name,)) for name in "wv"]
    updates = updated(Weight("w", "float32"))
    assert kinds(events=[clip, used[0], then], updates=updates) == ("clip unused",)
    assert kinds(events=[clip, *used, then], updates=updates) == ()
    assert kinds(events=[clip, used[0]], updates=updates) == ()  # more may follow


def test_a_loss_must_be_0_each_time_to_be_told():
    zero, other = Event("backward", PLACE, cancels=True), Event("backward", PLACE)
    assert kinds(events=[zero, zero], updates=updated(Weight("w", "float32"))) == ("loss of 0",)
    assert kinds(events=[zero, other], updates=updated(Weight("w", "float32"))) == ()
    assert kinds(events=[zero], updates=updated(Weight("w", "float32", gradient="none"))) == ()


def test_gradients_are_steep_only_where_they_grow_one_way():
    assert kinds(chain={"a": 1.0, "b": 1e-8, "c": 1.0, "d": 1e-8, "e": 1e-9, "f": 1e-8}) == ()
    assert kinds(chain={"a": 1.0, "b": 1e-3, "c": 1e-6}) == ()
    assert kinds(chain=dict(zip("abcd", [1e6, 1e4, 1e2, 1.0]))) == ("exploding",)
    assert kinds(moments=[1e-9, 1e-6, 1e-3, 1.0], chained=PLACE) == ("vanishing",)


def test_a_diagnosis_prints_like_a_compiler():
    chain = {f"layer{i}.weight": 10.0**-i for i in range(7)}
    diagnosis = diagnosed(
        History([], held={}, chain=chain, updates=updated(Weight("w", "float32"))), REMEDIES
    )
    assert not diagnosis.healthy
    assert str(diagnosis).splitlines() == [
        "1 update watched, 1 found",
        "1. exploding [GT208]: layer0.weight",
        "  seen: from the last to the first of 7 layers the gradient grows 1.0e+06 times",
        "  remedy: remedy",
    ]


def test_many_names_are_counted():
    events = [Event("checkpointed", PLACE), Event("backward", PLACE)]
    updates = updated(Weight("v", "float32"))
    history = History([f"w{i}" for i in range(6)], events=events, updates=updates)
    text = str(diagnosed(history, REMEDIES))
    assert "cut by a checkpoint [GT104]: w0, w1, w2, w3 and 2 more\n" in text
    assert "  --> train.py:7, in step\n" in text


@pytest.mark.parametrize(("spoilt", "count"), [(None, 0), (SourceLine("train.py", 3, "main"), 1)])
def test_a_failed_programs_bad_loss_needs_something_to_blame(spoilt, count):
    recorder = SimpleNamespace(worst=lambda: "nan", settle=lambda: spoilt)
    watching = SimpleNamespace(history=History(), recorder=recorder, explain=lambda outputs: None)
    Watching.look_back(watching, RuntimeError("as asked"))
    assert len(watching.history.unwell) == count
