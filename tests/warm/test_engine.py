"""papermill's engine "warm": how notebooks end, what is left of them, and what papermill's users ask for."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest.mock import Mock

import papermill
import psutil
import pytest
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import write
from papermill.engines import NotebookExecutionManager
from papermill.exceptions import PapermillExecutionError

from gradtricks.warm.saving import Manager
from gradtricks.warm.servers import Servers, ServersClosed
from sweeping import wait_for
from warming import HANGS, SOURCE, code, execute, is_gone, notebook, read, text, write_entry_points

FAILURES = {
    "raise": ("raise RuntimeError('as asked')", PapermillExecutionError, "RuntimeError: as asked"),
    "sys.exit": ("import sys; sys.exit(3)", PapermillExecutionError, "SystemExit: 3"),
    "os._exit": ("import os; os._exit(3)", DeadKernelError, "exit status 3"),
    "group": ("raise ExceptionGroup('g', [ValueError(1)])", PapermillExecutionError, "ExceptionGroup: g (1"),
    "tasks": (
        "import asyncio\nasync def fail(): 1 / 0\nasync with asyncio.TaskGroup() as g: g.create_task(fail())",
        PapermillExecutionError,
        "ExceptionGroup: unhandled errors",
    ),
    "after a group": (
        "try:\n    raise ExceptionGroup('g', [ValueError(1)])\nexcept* ValueError:\n    raise KeyError(2)",
        PapermillExecutionError,
        "KeyError: 2",
    ),
    "handled": (
        "get_ipython().set_custom_exc((KeyError,), lambda *_, **__: None)\nraise KeyError(2)",
        PapermillExecutionError,
        "KeyError: 2",
    ),
    "magic": ("%there_is_none", PapermillExecutionError, "UsageError: Line magic function"),
    "segfault": ("import ctypes; ctypes.string_at(0)", DeadKernelError, "ended by SIGSEGV"),
    "other signal": ("import os; os.kill(os.getpid(), 40)", DeadKernelError, "ended by signal 40"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_says_why_and_marks_its_cell(tmp_path, how):
    source, kind, message = FAILURES[how]
    path, cells = tmp_path / "a.ipynb", notebook("print('before')", source, "1")
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with (tmp_path / "log").open("wb") as log, pytest.raises(kind) as caught:
        execute(cells, path, log=log.fileno(), environment=environment)
    error = caught.value
    assert message in (f"{error.ename}: {error.evalue}" if kind is PapermillExecutionError else str(error))
    node = read(path)
    cells = code(node)
    assert [cell.metadata.papermill.status for cell in cells] == ["completed", "failed", "pending"]
    assert text(cells[0]) == "before\n"
    assert "error" in [output.output_type for output in cells[1].outputs]
    assert "An Exception was encountered" in node.cells[0].source
    assert "In [2]" in node.cells[0].source
    if how == "segfault":
        assert "Fatal Python error: Segmentation fault" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize("way", ["raise SystemExit(0)", "exit()"])
def test_exiting_is_no_failure_and_only_what_reports_follows(tmp_path, way, reports):
    late = "import time; time.sleep(.3); 2"  # IPython's own kernel lives for 0.1 s
    node = execute(notebook(way, "1", late), tmp_path / "a.ipynb", reports=reports)
    assert [text(cell) for cell in code(node)[1:]] == ["", "2" * reports]


@pytest.mark.parametrize(
    ("end", "failure"),
    [("", None), ("time.sleep(.5); os.abort()", DeadKernelError), ("time.sleep(1000)", TimeoutError)],
)
def test_a_run_ends_with_all_that_it_started(tmp_path, end, failure):
    late = failure is TimeoutError
    message = r"longer than 1\.5 s and was ended" if late else None
    with pytest.raises(failure, match=message) if failure else nullcontext():
        execute(notebook(HANGS + end), tmp_path / "a.ipynb", timeout_s=1.5 if late else None)
    (cell,) = code(read(tmp_path / "a.ipynb"))
    assert cell.metadata.papermill.status == ("failed" if failure else "completed")
    assert failure is None or cell.outputs[-1].ename == failure.__name__
    pids = [int(pid) for pid in text(cell).split()[1:5]]
    assert len(pids) == 4
    assert all(map(is_gone, pids))  # what hears that the run has ended may end everything else at once


@pytest.mark.parametrize(("longest", "transport"), [(0, "tcp"), (100, "ipc")])
def test_no_port_takes_code_where_sockets_can_have_names(tmp_path, monkeypatch, longest, transport):
    monkeypatch.setattr("gradtricks.warm.engine._LONGEST_FOLDER", longest)
    about = (
        "from ipykernel.connect import get_connection_info as about; print(about(unpack=True)['transport'])"
    )
    node = execute(notebook(about), tmp_path / "a.ipynb")
    assert text(node.cells[0]) == f"{transport}\n"


def test_a_run_leaves_no_descriptors_and_no_files(tmp_path):
    servers = Servers()
    execute(notebook("1"), tmp_path / "a.ipynb", servers=servers)
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        execute(notebook("1"), tmp_path / "none" / "a.ipynb", servers=servers)
    for source in ("1", "import os; os._exit(1)"):
        with suppress(DeadKernelError):
            execute(notebook(source), tmp_path / "a.ipynb", servers=servers)
    assert psutil.Process().num_fds() == before
    assert list(servers.folder.iterdir()) == []
    servers.close()
    assert not servers.folder.exists()


def test_closing_ends_the_runs_that_go_on(tmp_path):
    def hang(servers, path):
        source = f"import pathlib, time; pathlib.Path({str(path)!r}).touch(); time.sleep(1000)"
        return execute(notebook(source), path.with_suffix(".ipynb"), servers=servers)

    with ThreadPoolExecutor() as pool:
        servers = Servers()
        started = [tmp_path / f"{i}.started" for i in range(3)]
        runs = [pool.submit(hang, servers, path) for path in started]
        wait_for(lambda: all(path.exists() for path in started))
        servers.close()
        for one in runs:
            with pytest.raises(ServersClosed, match="the run was interrupted"):
                one.result(timeout=20)
        with pytest.raises(ServersClosed):
            execute(notebook("1"), tmp_path / "a.ipynb", servers=servers)
        servers, before = Servers(), psutil.Process().children()
        waiting = pool.submit(execute, notebook("1"), tmp_path / "a.ipynb", servers=servers)
        wait_for(lambda: set(psutil.Process().children()) - set(before))  # it imports
        servers.close()
        with pytest.raises(ServersClosed):
            waiting.result(timeout=20)


DRIVER = """\
import sys
from warming import execute, notebook
with open("log", "wb") as log:
    execute(notebook(sys.argv[1]), "a.ipynb", log=log.fileno())
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_driver(tmp_path, how):
    cell = HANGS + "os.write(1, b'%d %d %d %d\\n' % (os.getpid(), *pids)); time.sleep(1000)"
    log, command = tmp_path / "log", [sys.executable, "-c", DRIVER, cell]
    (tmp_path / "tmp").mkdir()
    places = {"PYTHONPATH": os.pathsep.join([str(SOURCE / "tests"), str(SOURCE / "src")])}
    environment = {**os.environ, **places, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE
    ) as driver:
        wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
        left = [int(pid) for pid in log.read_text().split()]
        left += [process.pid for process in psutil.Process(driver.pid).children()]
        assert len(left) == 5
        driver.send_signal(how)
        errors = driver.communicate(timeout=20)[1]
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)
    wait_for(lambda: all(map(is_gone, left)))
    wait_for(lambda: not list((tmp_path / "tmp").iterdir()))


def test_a_child_that_lives_on_hides_no_death(tmp_path):
    source = (
        "import os, time\nif not os.fork():\n    os.setsid(); time.sleep(1000)\ntime.sleep(.1); os._exit(5)"
    )
    with pytest.raises(DeadKernelError, match="exit status 5"):
        execute(notebook(source), tmp_path / "a.ipynb")


def test_files_and_exit_functions_are_looked_after(tmp_path):
    source = (
        "import atexit, threading, time\n"
        f"atexit.register(lambda: open({str(tmp_path / 'left')!r}, 'w').write('1'))\n"
        f"file = open({str(tmp_path / 'open')!r}, 'w'); n = file.write('2')\n"
        "threading.Thread(target=time.sleep, args=[1000]).start()"
    )
    execute(notebook(source), tmp_path / "a.ipynb")
    assert [(tmp_path / name).read_text() for name in ("left", "open")] == ["1", "2"]


# The file.


def test_what_is_printed_is_saved_before_a_cell_ends(tmp_path):
    path = tmp_path / "a.ipynb"
    source = f"""\
import time
for i in range(1000):
    print("tick" * 2)
    time.sleep(.01)
    if "tick" * 2 in open({str(path)!r}).read():
        break
else:
    raise RuntimeError("never saved")
"""
    execute(notebook(source), path, autosave_cell_every=1)


def test_a_slow_disk_is_saved_to_more_seldom(monkeypatch, caplog):
    saved = []

    def save(manager):
        saved.append(manager)
        manager.last_save_time = manager.now()
        time.sleep(0.2)

    monkeypatch.setattr(NotebookExecutionManager, "save", save)
    manager = Manager(notebook("1"), autosave_cell_every=0.01, progress_bar=False)
    for _ in range(3):
        time.sleep(0.02)
        manager.autosave_cell()
    assert len(saved) == 1
    assert caplog.text == ""


def test_a_full_disk_is_an_error_and_ends_the_run(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("os.replace", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left"):
        execute(notebook("import time; time.sleep(1000)"), tmp_path / "a.ipynb")


TORN = """\
from warming import execute, notebook
execute(notebook(*["print('x' * 400_000)"] * 100), "a.ipynb")
"""


def test_a_notebook_is_never_torn(tmp_path):
    path, seen = tmp_path / "a.ipynb", None
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE / 'tests'}{os.pathsep}{SOURCE / 'src'}"}
    command = [sys.executable, "-c", TORN]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as driver:
        wait_for(lambda: path.exists() and path.stat().st_size > 2_000_000)
        for _ in range(2):
            wait_for(lambda seen=seen: path.stat().st_ino != seen)  # another file each time
            seen = path.stat().st_ino
            assert len(read(path).cells) == 100
        driver.kill()
    assert len(read(path).cells) == 100


# By papermill's users.

SAMPLE = "alpha = 0.6\nseed = 0"
BODY = "import random\nrandom.seed(seed)\nprint(alpha, random.random())\nseed * 2"


@pytest.fixture
def sample(tmp_path):
    """Write a notebook as papermill's documentation has them."""
    node = notebook(SAMPLE, BODY)
    node.cells[0].metadata["tags"] = ["parameters"]
    node.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    node.metadata["language_info"] = {"name": "python"}
    path = tmp_path / "a sample.ipynb"
    write(node, path)
    return path


def test_the_command_of_papermill_needs_neither_lab_nor_tricks(tmp_path, sample):
    places = [write_entry_points(tmp_path / "installed"), SOURCE / "src"]
    absent = (
        "pydantic",
        "distributed",
        "dask",
        "duckdb",
        "typer",
        "rich",
        "torch",
        "tensorflow",
        "gradtricks.lab",
    )
    block = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))"
    Path(tmp_path / "installed" / "sitecustomize.py").write_text(block)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-m", "papermill", "--engine", "warm", sample.name, "out.ipynb"]
    command += ["-p", "seed", "3"]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    node = read(tmp_path / "out.ipynb")
    assert [cell.source for cell in node.cells] == [SAMPLE, "# Parameters\nseed = 3\n", BODY]
    assert [cell.execution_count for cell in node.cells] == [1, 2, 3]
    assert text(node.cells[2]) == f"0.6 {random.Random(3).random()}\n6"  # noqa: S311
    assert node.metadata.papermill.parameters == {"seed": 3}
    assert node.metadata.papermill.input_path == sample.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a sample.ipynb", "installed", "out.ipynb"]


def test_options_of_papermill_are_heeded(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    with Path("printed").open("w") as printed:
        source = notebook("import os\nprint(os.getcwd())", "import time; time.sleep(1000)")
        with pytest.raises(CellTimeoutError):  # the path is meant from where papermill was called
            execute(source, "a.ipynb", execution_timeout=1, stdout_file=printed, cwd="elsewhere")
    assert Path("printed").read_text() == f"{tmp_path}/elsewhere\n"
    assert caplog.text == ""
    cells = code(read("a.ipynb"))
    assert [cell.metadata.papermill.status for cell in cells] == ["completed", "failed"]
    assert list(Path("elsewhere").iterdir()) == []
    options = {"engine_name": "warm", "kernel_name": "python3", "progress_bar": False}
    assert text(papermill.execute_notebook(notebook("1 + 1"), None, **options).cells[0]) == "2"


def test_the_users_profile_is_heeded(tmp_path, monkeypatch):
    (tmp_path / "profile_default").mkdir()
    config = "c.IPKernelApp.exec_lines = ['of_profile = 3']"
    (tmp_path / "profile_default" / "ipython_kernel_config.py").write_text(config)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert text(execute(notebook("of_profile"), tmp_path / "a.ipynb").cells[0]) == "3"


def test_a_kernel_of_another_python_is_left_to_papermill(tmp_path, monkeypatch):
    folder = tmp_path / "kernels" / "other"
    folder.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "Other", "language": "other"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="Kernel died before replying to kernel_info"):
        execute(notebook("1"), tmp_path / "a.ipynb", kernel_name="other", language="other")
