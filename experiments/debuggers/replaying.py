"""Train one of the replayed threads or healthy trainings of the tests, as a script does.

``replay_torch.py issues_torch NAME`` trains what that module of the tests calls ``NAME``; with ``--cured``,
after its thread's remedy.
"""

import importlib
import inspect
import sys
from pathlib import Path

NUM_STEPS = 30  # enough for a tool that wants statistics, and a second at most

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "doctor"), str(TESTS)]


def train():
    """Take the steps of the training that the command line names."""
    module_name, name, *cured = sys.argv[1:]
    module = importlib.import_module(module_name)
    if cured:
        _, old, new = module.CURES[name]
        namespace = dict(vars(module))
        body = inspect.getsource(module.CASES[name][-1]).split("\ndef ", 1)[1]
        exec(compile(f"def {body.replace(old, new)}", module.__file__, "exec"), namespace)  # noqa: S102  # ours
        script = namespace[name]
    else:
        entry = module.CASES[name]
        script = entry[-1] if isinstance(entry, tuple) else entry
    step, *_ = script()
    for _ in range(NUM_STEPS):
        step()
