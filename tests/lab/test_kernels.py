"""Where cells run: forks show and compute what papermill's own kernels do, and end cleanly."""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import nbformat
import papermill
import psutil
import pytest
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.engines import NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError

from gradtricks.lab.identity import PACKAGE
from gradtricks.lab.kernels import WarmEngine
from gradtricks.lab.kernels.cells import _Manager
from gradtricks.lab.kernels.choosing import LOG, Kernels, KernelsClosed
from gradtricks.lab.kernels.imports import modules_of
from gradtricks.lab.kernels.outbox import TEXT_LIMIT
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.planning import plan_runs
from sweeping import wait_for

papermill_engines.register("warm", WarmEngine)  # as the entry point does where the package is installed


def notebook(*sources, fresh=False, may_fail=False):
    """Make a notebook of code cells."""
    about = {"tags": ["raises-exception"]} if may_fail else {}
    cells = [nbformat.v4.new_code_cell(source, metadata=about) for source in sources]
    return nbformat.v4.new_notebook(cells=cells, metadata={"gradtricks": {"fresh_kernel": fresh}})


def read(path):
    """Read an executed notebook."""
    return nbformat.read(path, as_version=4)


def run(kernels, path, *sources, fresh=False, **options):
    """Run cells, and return the executed notebook."""
    kernels.run(notebook(*sources, fresh=fresh), {}, path, **options)
    return read(path)


def execute(source, path, engine="warm", **options):
    """Execute a notebook as papermill's users do, and return it."""
    options = {"kernel_name": "python3", "progress_bar": False} | options
    papermill.execute_notebook(source, path, engine_name=engine, **options)
    return read(path)


def code(node):
    """Return the cells of an executed notebook without what papermill says of a failure."""
    return [cell for cell in node.cells if cell.cell_type == "code"]


def text(cell):
    """Return what a cell printed, and the value of its last line."""
    return "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)


def is_gone(pid):
    """Return whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# A fork shows what a kernel of papermill's shows: each of these is a cell of one notebook, which both run.

CELLS = {
    "streams": """\
import sys
from IPython.display import HTML, clear_output, display
print("one", flush=True); print("two", file=sys.stderr, flush=True); print("three", end="")
display(HTML("<b>four</b>"), metadata={"five": 6})
7
""",
    "last value": "_",
    "in turns": "for i in range(3):\n    print(i); print(i, file=sys.stderr)",
    "update": 'handle = display("old", display_id=True); handle.update("new")',
    "cleared": 'print("gone"); clear_output(); print("stays")',
    "cleared later": 'print("gone"); clear_output(wait=True); print("stays")',
    "cleared for nothing": 'print("stays"); clear_output(wait=True)',
    "update of another cell": "print('one'); print('two', flush=True); late = display(3, display_id=True)",
    "late update": 'late.update("new")',
    "figure": "import matplotlib.pyplot as plt\nplt.plot([0, 1])\nplt.gca().get_title()",
    "inline": "%matplotlib inline\nplt.plot([1, 0]);",
    "long": "print('x' * 200_000)",
    "magic": "%pwd",
    "magic that there is none": "%there_is_none",
    "cell magic": "%%bash\necho out; echo err >&2",
    "capture": "%%capture caught\nprint(1); display(2); 3",
    "captured": "caught.stdout, [list(output.data) for output in caught.outputs]",
    "replay": "caught.show()",
    "table": "import pandas as pd\npd.DataFrame({'a': [1.5, None]})",
    "formula": "from IPython.display import Latex\nLatex('$x$')",
    "shell": "!echo out; echo err >&2",
    "assignment from a shell": "lines = !printf 'a\\nb'\nlines",
    "progress": "for i in range(3):\n    print(f'\\r{i}', end='', file=sys.stderr)",
    "await": "import asyncio\nawait asyncio.sleep(0, 'slept')",
    "task": "task = asyncio.create_task(asyncio.sleep(0, 'task'))",
    "await a task": "await task",
    "no second loop": (
        "try:\n    c = asyncio.sleep(0); asyncio.run(c)\nexcept RuntimeError as e:\n    print(e)\nc.close()"
    ),
    "input": "input('who? ')",
    "password": "import getpass; getpass.getpass()",
    "nothing to read": "sys.stdin.read()",
    "exit": "sys.exit(3)",
    "error": "1 / 0",
    "syntax error": "1 +",
    "thread": (
        "import threading\nt = threading.Thread(target=print, args=['from a thread'])\nt.start(); t.join()"
    ),
    "processes": (
        "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print(sum(pool.map(abs, range(-9, 0))))"
    ),
    "not text": "import os; n = os.write(1, b'\\xff\\xfe')\n!printf '\\xff'",
    "empty": "   ",
    "comment": "# nothing",
    "environment": "[os.getcwd(), sys.path[0], os.environ['OMP_NUM_THREADS'], os.environ['PYTHONHASHSEED']]",
    "numbers": (
        "import numpy as np\nx = np.random.default_rng(0).normal(size=(300, 300))\n"
        "for _ in range(20):\n    x = np.tanh(x @ x / 300)\nx.sum().hex()"
    ),
    "json": "from IPython.display import JSON\ndisplay(JSON({'a': [1, None]}))",
    "numbers of NumPy": (
        "said = {'a': [np.float32(.25), np.int64(2)], 'b': np.arange(2.), 'c': np.float64(.1)}\n"
        "display(JSON(said))"
    ),
    "group": (
        "def print_name(shell, kind, *_, **__):\n    print(kind.__name__)\n"
        "get_ipython().set_custom_exc((ExceptionGroup,), print_name)\n"
        "raise ExceptionGroup('g', [ValueError(1)])"
    ),
    "picture": "from IPython.display import Image\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\n', format='png'))",
    "quiet": "3;",
    "skipped": "1 / 0",
    "variables": "[In[1][:6], Out[1], __name__, Out[1]]",
}
# What a cell prints is bounded here; papermill's kernel would take its time with these.
LARGE = {
    "too long": "for i in range(60):\n    print(str(i % 10) * 99_999)\nprint('the end', file=sys.stderr)",
    "flushed": "for i in range(1_000):\n    print(i, flush=True)",
    "no text": "print('a\\ud800b')\n'c\\ud800'",
    "room again": f"print('x' * {TEXT_LIMIT + 1}); clear_output(); print('there is room again')",
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Run the cells with our engine and with papermill's own."""
    folder, found = tmp_path_factory.mktemp("both"), []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1"), ("PYTHONHASHSEED", "0")):
            patch.setenv(name, value)
        for engine, cells in (("warm", CELLS | LARGE), (None, CELLS)):
            path = folder / f"{engine}.ipynb"
            source = notebook(*cells.values(), may_fail=True)
            source.cells[list(cells).index("skipped")].metadata["tags"] = ["skip-execution"]
            with pytest.raises(PapermillExecutionError):  # at the end, of the cells that may fail
                execute(source, path, engine)
            found.append(read(path))
            found[-1].cells = code(found[-1])
    return found


@pytest.mark.parametrize("name", CELLS)
def test_a_fork_shows_what_a_kernel_of_papermill_shows(both, name):
    warm, plain = (node.cells[list(CELLS).index(name)] for node in both)
    assert shown(warm) == shown(plain)
    assert warm.execution_count == plain.execution_count
    assert warm.metadata.papermill.keys() == plain.metadata.papermill.keys()


def shown(cell):
    """Put printed texts together; leave out tracebacks, names of cells, and why nobody answers."""
    texts, found = {}, []
    for output in cell.outputs:
        if output.output_type == "stream":
            texts[output.name] = texts.get(output.name, "") + output.text
        elif output.get("ename") == "StdinNotImplementedError":
            found.append(output.ename)
        else:
            said = {key: value for key, value in output.items() if key != "traceback"}
            if "evalue" in said:
                said["evalue"] = re.sub(r"\(\S+, line", "(cell, line", said["evalue"])
            found.append(said)
    return texts, found


def test_what_is_shown_is_right(both):
    cells = dict(zip(CELLS | LARGE, both[0].cells))
    assert text(cells["shell"]).split() == ["out", "err"]
    assert sorted(text(cells["cell magic"]).split()) == ["err", "out"]
    assert [output.name for output in cells["in turns"].outputs] == ["stdout", "stderr"] * 3
    assert text(cells["await"]) == "'slept'"
    assert text(cells["await a task"]) == "'task'"
    assert cells["input"].outputs[0].ename == "StdinNotImplementedError"
    assert cells["input"].outputs[0].evalue.endswith("remedy: make it a parameter")
    assert text(cells["update of another cell"]) == "one\ntwo\n'new'"
    printed = text(cells["too long"])
    assert printed[:5] == "00000"
    assert TEXT_LIMIT < len(printed) < TEXT_LIMIT + 200
    assert printed.endswith("[left out: 4,000,008 more characters; a cell may print 2,000,000]\n")
    (flushed,) = cells["flushed"].outputs  # put together
    assert flushed.text.split() == [str(i) for i in range(1_000)]
    assert text(cells["no text"]) == "a?b\n'c\\ud800'"
    assert text(cells["room again"]) == "there is room again\n"
    traces = ["\n".join(dict(zip(CELLS, node.cells))["error"].outputs[0].traceback) for node in both]
    warm, plain = (re.sub(r"\x1b\[[\d;]*m", "", trace) for trace in traces)  # colours differ
    assert warm == plain
    warm, plain = (node.metadata for node in both)
    assert warm.language_info == plain.language_info
    assert warm.papermill.keys() | {"input_path"} == plain.papermill.keys() | {"input_path"}


LEAKS = """\
import builtins, os, sys, numpy as np
import matplotlib.pyplot as plt
before = [os.environ.get("LEAK"), hasattr(builtins, "leak"), "leak" in sys.modules, "/leak" in sys.path]
before += [plt.rcParams["lines.linewidth"], os.getcwd() == "/", np.geterr()["over"]]
drawn = np.random.random()
os.environ["LEAK"] = "1"; builtins.leak = 1; sys.modules["leak"] = os; sys.path.append("/leak")
plt.rcParams["lines.linewidth"] = 99; np.seterr(over="raise"); os.chdir("/")
before
"""


def test_nothing_leaks_from_run_to_run(tmp_path, kernels):
    first, second = (run(kernels, tmp_path / "a.ipynb", LEAKS, "drawn") for _ in range(2))
    assert text(first.cells[0]) == text(second.cells[0])
    assert text(first.cells[1]) != text(second.cells[1]), "two runs drew the same unseeded number"


def test_a_run_has_the_folder_and_the_environment_of_its_driver(tmp_path, kernels, monkeypatch):
    run(kernels, tmp_path / "a.ipynb", "1")  # the warm process is there already
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIVEN_LATER", "1")
    (tmp_path / "beside.py").write_text("x = 1")
    node = run(
        kernels, tmp_path / "a.ipynb", "import beside, os\n[os.environ['GIVEN_LATER'], os.getcwd(), beside.x]"
    )
    assert " ".join(text(node.cells[0]).split()) == f"['1', '{tmp_path}', 1]"  # long lists are shown in lines


# What fails says so, and marks its cell.

FAILURES = {
    "raise": ("raise RuntimeError('as asked')", PapermillExecutionError, "RuntimeError: as asked"),
    "sys.exit": ("import sys; sys.exit(3)", PapermillExecutionError, "SystemExit: 3"),
    "os._exit": ("import os; os._exit(3)", DeadKernelError, "exit status 3"),
    "quit": ("quit()\n", DeadKernelError, "exit status 0"),
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
    "channel": (
        "import os, time; os.closerange(3, 99); time.sleep(1000)",
        DeadKernelError,
        "closed the channel",
    ),
    "other signal": ("import os; os.kill(os.getpid(), 40)", DeadKernelError, "ended by signal 40"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_says_why_and_marks_its_cell(tmp_path, kernels, how):
    source, kind, message = FAILURES[how]
    with pytest.raises(kind) as caught:
        run(kernels, tmp_path / "a.ipynb", "print('before')", source, "1")
    error = caught.value
    assert message in (f"{error.ename}: {error.evalue}" if kind is PapermillExecutionError else str(error))
    node = read(tmp_path / "a.ipynb")
    cells = code(node)
    statuses = [cell.metadata.papermill.status for cell in cells]
    failed = 2 if how == "quit" else 1
    assert statuses[: failed + 1] == ["completed"] * failed + ["failed"]
    assert set(statuses[failed + 1 :]) == {"pending"}
    assert text(cells[0]) == "before\n"
    assert "error" in [output.output_type for output in cells[failed].outputs]
    assert "An Exception was encountered" in node.cells[0].source
    if how != "quit":
        assert "In [2]" in node.cells[0].source
    if how == "segfault":
        assert "Fatal Python error: Segmentation fault" in (tmp_path / LOG).read_text()


HANGS = """\
import os, subprocess, sys, time
print("hanging")
pids = [subprocess.Popen(["sleep", "1000"], start_new_session=new).pid for new in (False, True)]
forget = "import subprocess as s; print(s.Popen(['sleep', '1000'], process_group=0, stdout=s.DEVNULL).pid)"
pids.append(int(subprocess.run([sys.executable, "-c", forget], stdout=subprocess.PIPE).stdout))
print(os.getpid(), *pids, flush=True)
"""


@pytest.mark.parametrize(
    ("end", "failure"),
    [("", None), ("os.abort()", DeadKernelError), ("time.sleep(1000)", TimeoutError)],
)
def test_a_run_ends_with_all_that_it_started(tmp_path, kernels, end, failure):
    late = failure is TimeoutError
    message = r"longer than 1\.5 s and was ended" if late else None
    with pytest.raises(failure, match=message) if failure else nullcontext():
        run(kernels, tmp_path / "a.ipynb", HANGS + end, timeout_s=1.5 if late else None)
    (cell, *_) = code(read(tmp_path / "a.ipynb"))
    assert cell.metadata.papermill.status == ("failed" if failure else "completed")
    assert failure is None or cell.outputs[-1].ename == failure.__name__
    pids = [int(pid) for pid in text(cell).split()[1:]]
    assert len(pids) == 4
    assert all(map(is_gone, pids))  # whoever hears that the run has ended may end everything else at once


def test_exit_in_the_last_cell_is_no_death(tmp_path, kernels):
    node = run(kernels, tmp_path / "a.ipynb", "1 + 1", "exit()")
    assert text(node.cells[0]) == "2"
    assert text(node.cells[-1]) == "report"


HALF = """\
import os, signal, socket, time
if not (child := os.fork()):  # it is killed when it has sent half of what it prints
    send = socket.socket.sendall
    def half(self, data):
        send(self, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    socket.socket.sendall = half
    print("torn: ü" * 100, flush=True)
os.waitpid(child, 0)
print("whole")
"""


def test_a_child_that_is_killed_while_it_prints_tears_nothing_else(tmp_path, kernels):
    node = run(kernels, tmp_path / "a.ipynb", HALF, "1 + 1")
    assert [text(cell) for cell in node.cells[:2]] == ["whole\n", "2"]


def test_whatever_else_comes_through_the_channel_is_passed_over(tmp_path, kernels):
    said = b'\xff\xfe\n{}\n[1]\nnull\n\n\n{"msg_type": '
    source = f"get_ipython().outbox._channel.sendall({said!r})\n1 + 1"
    node = run(kernels, tmp_path / "a.ipynb", source, "2 + 2")
    assert [text(cell) for cell in node.cells[:2]] == ["2", "4"]


def test_a_run_leaves_no_descriptors(tmp_path, kernels):
    run(kernels, tmp_path / "a.ipynb", "1")
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        run(kernels, tmp_path / "none" / "a.ipynb", "1")
    for source in ("1", "import os; os._exit(1)"):
        with suppress(DeadKernelError):
            run(kernels, tmp_path / "a.ipynb", source)
    assert psutil.Process().num_fds() == before


def test_closing_ends_the_runs_that_go_on(tmp_path):
    def hang(kernels, path, fresh):
        source = f"import pathlib, time; pathlib.Path({str(path)!r}).touch(); time.sleep(1000)"
        return run(kernels, path.with_suffix(".ipynb"), source, fresh=fresh)

    with ThreadPoolExecutor() as pool:
        kernels = Kernels()
        started = [tmp_path / f"{i}.started" for i in range(3)]
        runs = [pool.submit(hang, kernels, path, fresh) for path, fresh in zip(started, [False, False, True])]
        wait_for(lambda: all(path.exists() for path in started))
        kernels.close()
        for one in runs:
            with pytest.raises(KernelsClosed, match="the run was interrupted"):
                one.result(timeout=20)
        with pytest.raises(KernelsClosed):
            run(kernels, tmp_path / "a.ipynb", "1 + 1")
        kernels, before = Kernels(), psutil.Process().children()
        waiting = pool.submit(run, kernels, tmp_path / "a.ipynb", "1 + 1")
        wait_for(lambda: set(psutil.Process().children()) - set(before))  # it imports
        kernels.close()
        with pytest.raises(KernelsClosed):
            waiting.result(timeout=20)


DRIVER = """\
import sys, nbformat
from pathlib import Path
from gradtricks.lab.kernels.choosing import Kernels
cell = nbformat.v4.new_code_cell(sys.argv[1])
Kernels().run(nbformat.v4.new_notebook(cells=[cell]), {}, Path("a.ipynb"))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_driver(tmp_path, how):
    cell = HANGS + "os.write(1, b'%d %d %d %d\\n' % (os.getpid(), *pids)); time.sleep(1000)"
    log, command = tmp_path / LOG, [sys.executable, "-c", DRIVER, cell]
    with subprocess.Popen(command, cwd=tmp_path, text=True, stderr=subprocess.PIPE) as driver:
        wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
        left = [int(pid) for pid in log.read_text().split()]
        left += [process.pid for process in psutil.Process(driver.pid).children()]
        assert len(left) == 5
        driver.send_signal(how)
        errors = driver.communicate(timeout=20)[1]
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)
    wait_for(lambda: all(map(is_gone, left)))


# The servers that fork.

WHO = "import os; os.getppid()"


def test_threads_share_one_server_that_outlives_them(tmp_path, kernels):
    def work(index):
        return int(text(run(kernels, tmp_path / f"{index}.ipynb", WHO).cells[0]))

    with ThreadPoolExecutor(4) as pool:
        (server,) = set(pool.map(work, range(16)))
    assert work(0) == server
    assert psutil.Process(server).ppid() == os.getpid()


def test_few_servers_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("gradtricks.lab.kernels.choosing._SERVERS", 1)
    with closing(Kernels()) as kernels:
        nodes = [run(kernels, tmp_path / "a.ipynb", WHO, threads=threads) for threads in (1, 2)]
        servers = [int(text(node.cells[0])) for node in nodes]
        assert list(map(is_gone, servers)) == [True, False]
    assert all(map(is_gone, servers))


def test_a_server_that_is_killed_takes_its_runs_with_it_and_is_replaced(tmp_path, kernels):
    killed = int(text(run(kernels, tmp_path / "a.ipynb", WHO).cells[0]))
    started = tmp_path / "started"
    with ThreadPoolExecutor() as pool:
        source = f"import time; open({str(started)!r}, 'w'); time.sleep(1000)"
        going = pool.submit(run, kernels, tmp_path / "b.ipynb", source)
        wait_for(started.exists)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(DeadKernelError, match=r"Kernel died: .* with the one that it was forked from"):
            going.result(timeout=20)
    wait_for(lambda: is_gone(killed))
    assert int(text(run(kernels, tmp_path / "a.ipynb", WHO).cells[0])) != killed


def test_ctrl_c_while_a_server_imports_confuses_nobody(tmp_path, kernels, monkeypatch):
    # Here and not a moment later, as a signal might.
    monkeypatch.setattr("socket.send_fds", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(kernels, tmp_path / "a.ipynb", "1", threads=2)
    monkeypatch.undo()
    assert text(run(kernels, tmp_path / "a.ipynb", "1 + 1", threads=2).cells[0]) == "2"


EDITED = """\
import sys
from contextlib import closing
from pathlib import Path
import nbformat
import gradtricks
from gradtricks.lab.kernels.choosing import Kernels
cell = nbformat.v4.new_code_cell("from gradtricks.lab import recording; print(hasattr(recording, 'new'))")
with closing(Kernels()) as kernels:
    for edit in range(2):
        kernels.run(nbformat.v4.new_notebook(cells=[cell]), {}, Path("a.ipynb"))
        print(nbformat.read("a.ipynb", 4).cells[0].outputs[0].text, end="")
        with Path(gradtricks.__file__).with_name("lab").joinpath("recording.py").open("a") as file:
            file.write("new = 1")
"""


def test_when_the_package_changes_new_runs_know_it(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "gradtricks", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.check_output([sys.executable, "-c", EDITED], cwd=tmp_path, env=environment, text=True)
    assert said.split() == ["False", "True"]


def run_preloaded(monkeypatch, folder, name, source, *cells):
    """Run cells in a fork of a process that has imported a module, and return what each shows."""
    (folder / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr("gradtricks.lab.kernels.choosing.modules_of", lambda _: (name, "no_such_module"))
    with closing(Kernels()) as kernels:
        return list(map(text, run(kernels, folder / "a.ipynb", *cells).cells))


def test_a_server_with_threads_gives_way_to_one_that_has_imported_nothing(tmp_path, monkeypatch):
    sleeper = "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()"
    cell = "import sys; 'threaded' in sys.modules"
    assert run_preloaded(monkeypatch, tmp_path, "threaded", sleeper, cell)[0] == "False"


def test_loggers_of_preloaded_modules_print_into_the_notebook(tmp_path, monkeypatch):
    loud = "import logging\nlogger = logging.getLogger('loud')\nlogger.addHandler(logging.StreamHandler())\n"
    cells = "import sys\nprint('loud' in sys.modules)", "import loud\nloud.logger.warning('a warning')"
    said = run_preloaded(monkeypatch, tmp_path, "loud", f"{loud}print('hello')", *cells)
    assert said[:2] == ["True\n", "a warning\n"]


def test_a_module_beside_the_notebook_may_be_called_as_a_standard_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("signal", "token", "random", "socket"):
        Path(f"{name}.py").write_text("raise RuntimeError('this one')")
    with closing(Kernels()) as kernels:
        assert text(run(kernels, tmp_path / "a.ipynb", "import signal\n1 + 1").cells[0]) == "2"


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    with (
        closing(Kernels()) as kernels,
        pytest.raises(DeadKernelError, match=r"is gone, .*\nno such library$"),
    ):
        run(kernels, tmp_path / "a.ipynb", "1")


DRAWN = {
    "numpy": "import numpy as np; np.random.random()",
    "torch": "import torch; torch.rand(1).item()",
    "tensorflow": "import tensorflow as tf; tf.random.uniform([1]).numpy().item()",
    "keras": "import keras; keras.random.uniform([1]).numpy().item()",
    "sympy": "from sympy.core.random import rng; rng.random()",
}


@pytest.mark.parametrize("name", DRAWN)
def test_each_fork_draws_anew_what_a_fresh_process_draws_anew(tmp_path, kernels, name):
    if not find_spec(name):
        pytest.skip(f"{name} isn't installed")
    drawn = [text(run(kernels, tmp_path / "a.ipynb", DRAWN[name]).cells[0]) for _ in range(2)]
    assert float(drawn[0]) != float(drawn[1])


def test_generators_that_a_module_has_seeded_keep_their_seed(tmp_path, monkeypatch):
    module = "from random import Random\nseeded, later, own = Random(7), Random(), Random()\nlater.seed(8)\n"
    module += "with_dict = {'own': Random()}"
    drawn = "import drawing as d; [d.{0}.random() for _ in range(2)]".format
    cells = [drawn("seeded"), drawn("later"), drawn("own"), drawn("with_dict['own']")]
    before, after = (run_preloaded(monkeypatch, tmp_path, "drawing", module, *cells)[:4] for _ in range(2))
    assert before[0] == repr([(dice := random.Random(7)).random(), dice.random()])  # noqa: S311
    assert [old == new for old, new in zip(before, after)] == [True, True, False, False]


def test_what_is_imported_before_is_what_the_notebook_imports_in_any_case(tmp_path):
    source = """\
import json, numpy.linalg as la
from scipy import stats
%matplotlib inline
if backend == "torch":
    import psutil
else:
    import yaml
if unknown:
    import rich
try:
    import packaging.version
except ImportError:
    import typer
def later():
    import pandas
from . import here
import no_such_module, notebooks
"""
    node = notebook("backend: str = 'torch'", source, "not python", "%%bash\nimport rich", "1 +")
    expected = {"numpy.linalg", "scipy", "psutil", "packaging.version"}
    assert set(modules_of(node)) == expected
    node.cells.insert(1, nbformat.v4.new_code_cell("backend = 'other'"))
    assert set(modules_of(node)) == expected - {"psutil"} | {"yaml"}
    node.cells.append(nbformat.v4.new_code_cell("import matplotlib.pyplot as plt"))
    assert {"matplotlib.pyplot", "matplotlib.backends.backend_svg"} <= set(modules_of(node))
    node.metadata.gradtricks["fresh_kernel"] = True
    assert modules_of(node) == ()


@pytest.mark.parametrize(
    ("backend", "framework"), [("torch", "torch"), ("tensorflow", "keras"), ("jax", None)]
)
def test_a_backend_stands_for_its_framework(backend, framework):
    if not find_spec(framework or "numpy"):
        pytest.skip(f"{framework} isn't installed")
    first = f"backend = {backend!r}", "import gradtricks, matplotlib.pyplot, numpy"
    modules = modules_of(notebook(*first))
    assert (framework in modules) == (framework is not None)
    assert {"gradtricks", "pytest"}.isdisjoint(modules)
    assert "matplotlib.pyplot" in modules
    others = modules_of(notebook(*first, "import scipy.stats"))
    assert (others == modules) == (framework is not None), "notebooks of a backend share a process"


# What is printed and shown.


def test_a_slow_disk_is_saved_to_more_seldom_and_without_a_word(monkeypatch, caplog):
    saved = []

    def save(manager):
        saved.append(manager)
        manager.last_save_time = manager.now()
        time.sleep(0.2)

    monkeypatch.setattr(NotebookExecutionManager, "save", save)
    manager = _Manager(notebook("1"), autosave_cell_every=0.01, progress_bar=False)
    for _ in range(3):
        time.sleep(0.02)
        manager.autosave_cell()
    assert len(saved) == 1
    assert caplog.text == ""


def test_what_is_printed_is_there_before_a_cell_ends(tmp_path, kernels):
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
    run(kernels, path, source)


def test_a_notebook_may_fork(tmp_path, kernels):
    source = """\
import os, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks of processes that have threads
print("parent", end=" ", flush=False)
if not (child := os.fork()):
    print("child", flush=True)
    display("not shown"); raise SystemExit(1 / 0)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    node = run(kernels, tmp_path / "a.ipynb", source, "os.fork() or os._exit(7)", "2")
    assert [text(cell) for cell in node.cells[:1] + node.cells[2:3]] == ["parent child\n1", "2"]
    assert len(node.cells[0].outputs) == 2


def test_a_child_that_lives_on_hides_no_death(tmp_path, kernels):
    source = (
        "import os, time\nif not os.fork():\n    os.setsid(); time.sleep(1000)\ntime.sleep(.1); os._exit(5)"
    )
    with pytest.raises(DeadKernelError, match="exit status 5"):
        run(kernels, tmp_path / "a.ipynb", source)


def test_files_and_exit_functions_are_looked_after(tmp_path, kernels):
    source = (
        "import atexit, threading, time\n"
        f"atexit.register(lambda: open({str(tmp_path / 'left')!r}, 'w').write('1'))\n"
        f"file = open({str(tmp_path / 'open')!r}, 'w'); file.write('2')\n"
        "threading.Thread(target=time.sleep, args=[1000]).start()"
    )
    run(kernels, tmp_path / "a.ipynb", source)
    assert [(tmp_path / name).read_text() for name in ("left", "open")] == ["1", "2"]


# The file.


def test_paths_are_taken_as_they_are_and_nothing_is_left_beside(tmp_path, kernels):
    folder = tmp_path / "{seed} ü"
    folder.mkdir()
    node = run(kernels, folder / "{a}.ipynb", "1")
    assert sorted(path.name for path in folder.iterdir()) == [LOG, "{a}.ipynb"]
    assert node.metadata.papermill.output_path == str(folder / "{a}.ipynb")


def test_a_disk_that_is_full_is_an_error_and_ends_the_run(tmp_path, kernels, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("os.replace", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left"):
        run(kernels, tmp_path / "a.ipynb", "import time; time.sleep(1000)")


# By papermill's users.

SAMPLE = "alpha = 0.6\nseed = 0"
BODY = "import random\nrandom.seed(seed)\nprint(alpha, random.random())\nseed * 2"


@pytest.fixture
def sample(tmp_path):
    """Write a notebook as papermill's documentation has them: nothing in it is ours."""
    node = notebook(SAMPLE, BODY)
    del node.metadata["gradtricks"]
    node.cells[0].metadata["tags"] = ["parameters"]
    node.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    node.metadata["language_info"] = {"name": "python"}
    path = tmp_path / "a sample.ipynb"
    nbformat.write(node, path)
    return path


def test_the_command_of_papermill_finds_our_engine(tmp_path, sample):
    about = tmp_path / "installed" / "gradtricks-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: gradtricks\nVersion: 0\n")
    declared = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    warm = declared["papermill.engine"]["warm"]
    (about / "entry_points.txt").write_text(f"[papermill.engine]\nwarm = {warm}\n")
    places = [str(about.parent), str(PACKAGE.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
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


def test_a_loop_of_papermill_imports_once(tmp_path, sample):
    found = [execute(sample, tmp_path / f"{seed}.ipynb", parameters={"seed": seed}) for seed in range(2)]
    assert [cell.source for cell in found[1].cells][1] == "# Parameters\nseed = 1\n"
    servers = [text(execute(notebook(WHO), tmp_path / "a.ipynb").cells[0]) for _ in range(2)]
    assert servers[0] == servers[1]


def test_options_of_papermill_are_heeded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    with Path("printed").open("w") as printed:
        source = notebook("import os\nprint(os.getcwd())", "import time; time.sleep(1000)")
        with pytest.raises(CellTimeoutError):  # the path is meant from where papermill was called
            execute(source, "a.ipynb", execution_timeout=1, stdout_file=printed, cwd="elsewhere")
    assert Path("printed").read_text() == f"{tmp_path}/elsewhere\n"
    cells = code(read("a.ipynb"))
    assert [cell.metadata.papermill.status for cell in cells] == ["completed", "failed"]
    assert list(Path("elsewhere").iterdir()) == []
    options = {"engine_name": "warm", "kernel_name": "python3", "progress_bar": False}
    assert text(papermill.execute_notebook(notebook("1 + 1"), None, **options).cells[0]) == "2"


def test_a_kernel_that_is_not_this_python_s_is_left_to_papermill(tmp_path, monkeypatch):
    folder = tmp_path / "kernels" / "other"
    folder.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "Other", "language": "other"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="Kernel died before replying to kernel_info"):
        execute(notebook("1"), tmp_path / "a.ipynb", kernel_name="other", language="other")


def test_the_lab_runs_no_notebook_of_another_environment(tmp_path, monkeypatch):
    for name, program in {"own": sys.executable, "other": "/opt/other/bin/python"}.items():
        spec = {"argv": [program, "-m", "ipykernel_launcher"], "display_name": name, "language": "python"}
        (tmp_path / "kernels" / name).mkdir(parents=True)
        (tmp_path / "kernels" / name / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    source = notebook("1")
    for name in ("own", "python3", "python", 3, "other", "none"):
        source.metadata["kernelspec"] = {"name": name}
        nbformat.write(source, tmp_path / "a.ipynb")
        refused = pytest.raises(ParameterError, match=f"this Python's kernel; got one for '{name}'; remedy")
        with refused if name in ("other", "none") else nullcontext():
            plan_runs(tmp_path / "a.ipynb", [{}])


TORN = """\
import sys, nbformat, papermill
from papermill.engines import papermill_engines
from gradtricks.lab.kernels import WarmEngine
papermill_engines.register("warm", WarmEngine)
cells = [nbformat.v4.new_code_cell("print('x' * 400_000)") for _ in range(100)]
papermill.execute_notebook(nbformat.v4.new_notebook(cells=cells), "a.ipynb", engine_name="warm",
                           kernel_name="python3", progress_bar=False)
"""


def test_a_notebook_is_never_torn(tmp_path):
    path, seen = tmp_path / "a.ipynb", None
    with subprocess.Popen([sys.executable, "-c", TORN], cwd=tmp_path, stderr=subprocess.DEVNULL) as driver:
        wait_for(lambda: path.exists() and path.stat().st_size > 2_000_000)
        for _ in range(2):
            wait_for(lambda seen=seen: path.stat().st_ino != seen)  # another file each time
            seen = path.stat().st_ino
            assert len(read(path).cells) == 100
        driver.kill()
    assert len(read(path).cells) == 100
