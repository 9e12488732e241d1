"""One framework a process: pytest runs itself once for each, and a test that brings in the other one fails.

PyTorch's CUDA build and TensorFlow crash in one process as soon as one of them trains without a GPU.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

FRAMEWORKS = "torch", "tensorflow"
collect_ignore = [
    "src/gradtricks/tensorflow/__init__.py",  # what it exports wraps what has the examples
    "src/gradtricks/doctor/callbacks",  # each imports a library, and has no examples
    "src/gradtricks/_core/kernels/launches.py",  # likewise
]


def pytest_addoption(parser):
    """Let one framework be chosen, and a process leave it to another one to say what was skipped."""
    said = "run its tests alone; the last one's process also has what needs neither"
    parser.addoption("--framework", choices=FRAMEWORKS, help=said)
    parser.addoption(
        "--skipped", metavar="FILE", help="add there why tests were skipped, instead of saying so"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Without `--framework`, run the same command with each, and put their results together."""
    options, status = config.option, []
    if options.framework or options.help or options.version:
        return None
    with TemporaryDirectory() as folder:
        reasons = Path(folder, "reasons")
        reasons.touch()
        for framework in FRAMEWORKS:
            command = [*config.invocation_params.args, f"--framework={framework}", f"--skipped={reasons}"]
            if getattr(options, "cov_source", None):
                command += ["--cov-append"] * (framework != FRAMEWORKS[0])
                command += ["--cov-report=", "--cov-fail-under=0"] * (framework != FRAMEWORKS[-1])
            try:
                status.append(subprocess.call([sys.executable, "-m", "pytest", *command]))
            except KeyboardInterrupt:
                status.append(pytest.ExitCode.INTERRUPTED)
            if status[-1] == pytest.ExitCode.INTERRUPTED or (status[-1] and options.maxfail):
                break
        sys.stdout.write("".join(f"{line}\n" for line in _summed(reasons.read_text().splitlines())))
    # What was asked for may have tests of one framework only; a process that crashed has a negative status.
    return max({*status} - {pytest.ExitCode.NO_TESTS_COLLECTED}, key=abs, default=status[-1])


def pytest_terminal_summary(terminalreporter, config):
    """Say why tests were skipped, and so what brings them back."""
    if hasattr(config, "workerinput"):  # whoever gave xdist's workers their tests says it
        return
    skipped = [" ".join(report.longrepr[2].split()) for report in terminalreporter.getreports("skipped")]
    reasons = [reason.removeprefix("Skipped: ") for reason in skipped]
    if config.option.skipped:
        with Path(config.option.skipped).open("a", encoding="utf-8") as file:
            file.writelines(f"{reason}\n" for reason in reasons)
    else:
        for line in _summed(reasons):
            terminalreporter.write_line(line)


def _summed(reasons):
    return [f"{count} skipped: {reason}" for reason, count in Counter(reasons).most_common()]


def pytest_ignore_collect(collection_path, config):
    """Leave the modules of other frameworks alone, which would be imported to look for doctests."""
    path = os.path.relpath(collection_path, config.rootpath)
    return _framework_of(path) not in (None, config.option.framework) or None


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of other frameworks."""
    of_others = {item for item in items if _process_of(item) != config.option.framework}
    config.hook.pytest_deselected(items=[*of_others])
    items[:] = [item for item in items if item not in of_others]


def _process_of(item):
    """Return the framework in whose process a test runs: of its parameters, else of its name or fixtures."""
    parameters = item.callspec.id if hasattr(item, "callspec") else ""
    named = _framework_of(parameters) or _framework_of(item.nodeid, *getattr(item, "fixturenames", ()))
    return named or FRAMEWORKS[-1]  # what needs none


def _framework_of(*words):
    """Return the only framework that some words have in them, or None where there is none or each."""
    named = [name for name in FRAMEWORKS if any(name in word for word in words)]
    return named[0] if len(named) == 1 else None


def pytest_collection_finish(session):
    """Fail where another framework was imported to collect tests."""
    if foreign := _foreign(session.config):
        raise pytest.UsageError(
            f"collecting the tests imported {foreign[0]} too; remedy: import it in a test"
        )


@pytest.fixture(autouse=True)
def _one_framework(pytestconfig):
    """Fail a test that imports another framework."""
    before = _foreign(pytestconfig)
    yield
    if (foreign := _foreign(pytestconfig)) != before:
        chosen = pytestconfig.option.framework
        pytest.fail(
            f"expected no framework but {chosen} in this process; this test imported {foreign[0]}; "
            "remedy: have one of them in its name or parameters, or start a process for each"
        )


def _foreign(config):
    return [name for name in FRAMEWORKS if name != config.option.framework and name in sys.modules]
