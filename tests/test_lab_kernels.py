"""Where cells run: forks of warm processes and fresh kernels show and compute the same, and end cleanly."""

import asyncio
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import nbformat
import psutil
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from gradtricks.lab.kernels import choosing as kernels_module
from gradtricks.lab.kernels.choosing import LOG, KernelInterrupted, Kernels
from gradtricks.lab.kernels.limits import DATA_LIMIT, LOG_LIMIT, TEXT_LIMIT
from gradtricks.lab.kernels.logs import log_to
from gradtricks.lab.recording import REPORT_MIME, RESULTS_MIME

KINDS = pytest.mark.parametrize("fresh", [False, True], ids=["warm", "fresh"])


@pytest.fixture(scope="module")
def kernels():
    """Keep warm processes from test to test."""
    with closing(Kernels()) as kernels:
        yield kernels


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


def text(cell):
    """Return what a cell printed, and the value of its last line."""
    return "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)


def wait_until(condition, seconds=60):
    """Wait for something that other processes do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def is_gone(pid):
    """Return whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# A fork shows what a fresh kernel shows: each of these is a cell of one notebook, which both kinds run.

CELLS = {
    "streams": """\
import sys
from IPython.display import HTML, clear_output, display
print("one", flush=True); print("two", file=sys.stderr, flush=True); print("three", end="")
display(HTML("<b>four</b>"), metadata={"five": 6})
7
""",
    "last value": "_",
    "update": 'handle = display("old", display_id=True); handle.update("new")',
    "cleared": 'print("gone"); clear_output(); print("stays")',
    "cleared later": 'print("gone"); clear_output(wait=True); print("stays")',
    "cleared for nothing": 'print("stays"); clear_output(wait=True)',
    "update of another cell": "print('one'); print('two', flush=True); late = display(3, display_id=True)",
    "late update": 'late.update("new")',
    "figure": "import matplotlib.pyplot as plt\nplt.plot([0, 1])\nplt.gca().get_title()",
    "inline": "%matplotlib inline\nplt.plot([1, 0]);",
    "long": "print('x' * 200_000)",
    "too long": "for i in range(60):\n    print(str(i % 10) * 99_999)\nprint('the end', file=sys.stderr)",
    "too large": f"'x' * {DATA_LIMIT}",
    "too many": f"for i in range(4):\n    display({{'text/plain': 'x' * {DATA_LIMIT // 5 * 2}}}, raw=True)",
    "large error": "raise ValueError('x' * 1_000_000)",
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
    "picture": "from IPython.display import Image\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\n', format='png'))",
    "quiet": "3;",
    "variables": "[In[1][:6], Out[1], __name__, Out[1]]",
}


@pytest.fixture(scope="module")
def both(kernels, tmp_path_factory):
    """Run the cells in both kinds of kernels."""
    folder = tmp_path_factory.mktemp("both")
    found = []
    for fresh in (False, True):
        source = notebook(*CELLS.values(), fresh=fresh, may_fail=True)
        kernels.run(source, {}, folder / f"{fresh}.ipynb")
        found.append(read(folder / f"{fresh}.ipynb"))
    return found


@pytest.mark.parametrize("name", CELLS)
def test_a_fork_shows_what_a_fresh_kernel_shows(both, name):
    warm, fresh = (node.cells[list(CELLS).index(name)] for node in both)
    assert [shown(o) for o in warm.outputs] == [shown(o) for o in fresh.outputs]
    assert warm.execution_count == fresh.execution_count


def shown(output):
    """Leave out what differs by design: tracebacks, names of cells, and why nobody answers."""
    if output.get("ename") == "StdinNotImplementedError":
        return output.ename
    return {
        key: re.sub(r"\(\S+, line", "(cell, line", value) if key == "evalue" else value
        for key, value in output.items()
        if key != "traceback"
    }


def test_what_is_shown_is_right(both):
    cells = dict(zip(CELLS, both[0].cells))
    assert text(cells["shell"]).split() == ["out", "err"]
    assert sorted(text(cells["cell magic"]).split()) == ["err", "out"]
    assert text(cells["await"]) == "'slept'"
    assert text(cells["await a task"]) == "'task'"
    assert cells["input"].outputs[0].ename == "StdinNotImplementedError"
    assert cells["input"].outputs[0].evalue.endswith("remedy: a parameter, or --in-process")
    assert text(cells["update of another cell"]) == "one\ntwo\n'new'"
    printed = text(cells["too long"])
    assert printed[:5] == "00000"
    assert TEXT_LIMIT < len(printed) < TEXT_LIMIT + 200
    assert printed.endswith("[left out: 4,000,008 more characters; a cell may print 2,000,000]\n")
    assert "[left out: an output of 20,000,002 characters" in text(cells["too large"])
    first, second, note, rest = (o.get("text") or o.data["text/plain"] for o in cells["too many"].outputs)
    assert len(first) == len(second) == DATA_LIMIT // 5 * 2
    assert (note[:10], rest) == ("[left out:", "\n[left out: 1 more outputs]\n")
    assert len(cells["large error"].outputs[0].evalue) < 110_000
    assert len(str(cells["large error"].outputs)) < 2_000_000
    traces = ["\n".join(dict(zip(CELLS, node.cells))["error"].outputs[0].traceback) for node in both]
    warm, fresh = (re.sub(r"\x1b\[[\d;]*m", "", trace) for trace in traces)  # colours differ
    assert warm == fresh
    assert [node.metadata.language_info.name for node in both] == ["python"] * 2


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


def test_a_record_names_what_the_notebook_imports_and_not_what_the_kernel_does(tmp_path, kernels):
    node = run(kernels, tmp_path / "a.ipynb", "1")
    (report,) = (output.data for output in node.cells[-1].outputs)
    files = {name for name in report[REPORT_MIME]["files"] if name[-3:] == ".py"}
    assert {name for name in files if name.startswith("lab/")} == {"lab/__init__.py", "lab/recording.py"}


# What fails says so, in both kinds of kernels.

FAILURES = {
    "raise": ("raise RuntimeError('as asked')", PapermillExecutionError, "RuntimeError: as asked"),
    "sys.exit": (
        "import sys; sys.exit()",
        PapermillExecutionError,
        "SystemExit: 0; expected a notebook that runs to its end",
    ),
    "magic": ("%there_is_none", PapermillExecutionError, "UsageError: Line magic function"),
    "os._exit": ("import os; os._exit(3)", DeadKernelError, "exit status 3"),
    "quit": ("quit()\n", DeadKernelError, "exit status 0"),
    "segfault": ("import ctypes; ctypes.string_at(0)", DeadKernelError, "ended by SIGSEGV"),
    "channel": (
        "import os, time; os.closerange(3, 99); time.sleep(1000)",
        DeadKernelError,
        "closed the channel",
    ),
    "other signal": ("import os; os.kill(os.getpid(), 40)", DeadKernelError, "ended by signal 40"),
    "kill": ("import os; os.kill(os.getpid(), 9)", DeadKernelError, "ended by SIGKILL"),
}


@pytest.mark.parametrize(
    ("how", "fresh"),
    [
        *((how, False) for how in FAILURES),
        *((how, True) for how in ("sys.exit", "magic", "quit", "segfault")),
    ],
)
def test_a_failure_says_why_and_marks_its_cell(tmp_path, kernels, how, fresh):
    source, kind, message = FAILURES[how]
    with pytest.raises(kind) as caught:
        run(kernels, tmp_path / "a.ipynb", "print('before')", source, "1", fresh=fresh)
    error = caught.value
    assert message in (f"{error.ename}: {error.evalue}" if kind is PapermillExecutionError else str(error))
    node = read(tmp_path / "a.ipynb")
    cells = [cell for cell in node.cells if cell.cell_type == "code"]
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
    assert text(run(kernels, tmp_path / "a.ipynb", "1 + 1").cells[0]) == "2"


HANGS = """\
import os, subprocess, sys, time
print("hanging")
pids = [subprocess.Popen(["sleep", "1000"], start_new_session=new).pid for new in (False, True)]
forget = "import subprocess as s; print(s.Popen(['sleep', '1000'], process_group=0, stdout=s.DEVNULL).pid)"
pids.append(int(subprocess.run([sys.executable, "-c", forget], stdout=subprocess.PIPE).stdout))
print(os.getpid(), *pids)
time.sleep(1000)
"""


@KINDS
def test_a_run_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path, kernels, fresh):
    with pytest.raises(TimeoutError, match=r"longer than 1\.5 s and was ended"):
        run(kernels, tmp_path / "a.ipynb", "1 + 1", HANGS, "3", fresh=fresh, timeout_s=1.5)
    cells = [cell for cell in read(tmp_path / "a.ipynb").cells if cell.cell_type == "code"]
    assert [cell.metadata.papermill.status for cell in cells[:3]] == ["completed", "failed", "pending"]
    assert text(cells[0]) == "2"
    assert cells[1].outputs[-1].ename == "TimeoutError"
    pids = [int(pid) for pid in text(cells[1]).split()[1:]]
    assert len(pids) == 4
    wait_until(lambda: all(map(is_gone, pids)))


@KINDS
def test_what_a_run_started_ends_with_it(tmp_path, kernels, fresh):
    source = HANGS.replace("time.sleep(1000)\n", "")
    node = run(kernels, tmp_path / "a.ipynb", source, fresh=fresh)
    wait_until(lambda: all(map(is_gone, map(int, text(node.cells[0]).split()[1:]))))


def test_what_a_crash_leaves_is_ended(tmp_path, kernels):
    with pytest.raises(DeadKernelError):
        run(kernels, tmp_path / "a.ipynb", HANGS.replace("time.sleep(1000)", "time.sleep(.1); os.abort()"))
    cells = [cell for cell in read(tmp_path / "a.ipynb").cells if cell.cell_type == "code"]
    wait_until(lambda: all(map(is_gone, map(int, text(cells[0]).split()[1:]))))


def test_a_log_that_cannot_be_written_leaves_no_descriptors(tmp_path):
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError), log_to(tmp_path / "none" / LOG):
        pass
    assert psutil.Process().num_fds() == before


@KINDS
def test_a_cell_that_is_tagged_so_is_passed_by(tmp_path, kernels, fresh):
    source = notebook("1 / 0", "2", fresh=fresh)
    source.cells[0].metadata["tags"] = ["skip-execution"]
    kernels.run(source, {}, tmp_path / "a.ipynb")
    assert [text(cell) for cell in read(tmp_path / "a.ipynb").cells[:2]] == ["", "2"]


def test_a_timeout_leaves_quick_runs_alone(tmp_path, kernels):
    assert text(run(kernels, tmp_path / "a.ipynb", "1 + 1", timeout_s=60).cells[0]) == "2"
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_interrupting_ends_the_runs_that_go_on(tmp_path, kernels):
    def hang(path, fresh):
        source = f"import pathlib, time; pathlib.Path({str(path)!r}).touch(); time.sleep(1000)"
        return run(kernels, path.with_suffix(".ipynb"), source, fresh=fresh)

    with ThreadPoolExecutor() as pool:
        started = [tmp_path / f"{i}.started" for i in range(3)]
        runs = [pool.submit(hang, path, fresh) for path, fresh in zip(started, [False, False, True])]
        wait_until(lambda: all(path.exists() for path in started))
        kernels.interrupt()
        for one in runs:
            with pytest.raises(KernelInterrupted, match="the run was interrupted"):
                one.result(timeout=20)
        waiting = pool.submit(run, kernels, tmp_path / "a.ipynb", "1 + 1")
        wait_until(lambda: kernels._servers)  # it imports
        kernels.interrupt()
        with pytest.raises(KernelInterrupted):
            waiting.result(timeout=20)
    assert text(run(kernels, tmp_path / "a.ipynb", "1 + 1").cells[0]) == "2"


DRIVER = """\
import sys, nbformat
from pathlib import Path
from gradtricks.lab.kernels.choosing import Kernels
cell = nbformat.v4.new_code_cell(sys.argv[1])
Kernels(in_process=len(sys.argv) > 2).run(nbformat.v4.new_notebook(cells=[cell]), {}, Path("a.ipynb"))
"""


@pytest.fixture
def drive(tmp_path):
    """Return a function that runs a cell from another process."""
    drivers = []

    def start(*arguments):
        command = [sys.executable, "-c", DRIVER, *arguments]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        drivers.append(subprocess.Popen(command, cwd=tmp_path, text=True, **pipes))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.kill()
        driver.communicate()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_driver(tmp_path, drive, how):
    driver = drive(
        HANGS.replace("print(os.getpid(), *pids)", "os.write(1, b'%d %d %d %d\\n' % (os.getpid(), *pids))")
    )
    log = tmp_path / LOG
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    left = [int(pid) for pid in log.read_text().split()]
    left += [process.pid for process in psutil.Process(driver.pid).children()]
    assert len(left) == 5
    driver.send_signal(how)
    errors = driver.communicate(timeout=20)[1]
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)
    wait_until(lambda: all(map(is_gone, left)))


# The servers that fork.


def server_of(kernels):
    """Return the process id of the server for one thread."""
    return kernels._servers[(None,), 1]._process.pid


def test_threads_share_one_server_that_outlives_them(tmp_path, kernels):
    def work(index):
        node = run(kernels, tmp_path / f"{index}.ipynb", f"import os; [{index}, os.getppid()]")
        return json.loads(text(node.cells[0]))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(16)))
    assert found == [[index, server_of(kernels)] for index in range(16)]
    time.sleep(0.1)
    assert work(0) == found[0]


def test_each_number_of_threads_has_its_server(tmp_path, kernels):
    source = "import os\nos.environ['OMP_NUM_THREADS']"
    for threads in (1, 2):
        assert text(run(kernels, tmp_path / "a.ipynb", source, threads=threads).cells[0]) == f"'{threads}'"


def test_a_server_that_is_killed_takes_its_runs_with_it_and_is_replaced(tmp_path, kernels):
    run(kernels, tmp_path / "a.ipynb", "1")
    killed, started = server_of(kernels), tmp_path / "started"
    with ThreadPoolExecutor() as pool:
        source = f"import time; open({str(started)!r}, 'w'); time.sleep(1000)"
        going = pool.submit(run, kernels, tmp_path / "b.ipynb", source)
        wait_until(started.exists)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(DeadKernelError, match=r"Kernel died: .* with the one that it was forked from"):
            going.result(timeout=20)
    wait_until(lambda: not kernels._servers[(None,), 1].is_alive())
    assert text(run(kernels, tmp_path / "a.ipynb", "1 + 1").cells[0]) == "2"
    assert server_of(kernels) != killed


def test_ctrl_c_while_a_server_imports_confuses_nobody(tmp_path, kernels, monkeypatch):
    monkeypatch.setattr("socket.send_fds", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run(kernels, tmp_path / "a.ipynb", "1", threads=2)
    monkeypatch.undo()
    wait_until(lambda: not kernels._servers[(None,), 2].is_alive())
    assert text(run(kernels, tmp_path / "a.ipynb", "1 + 1", threads=2).cells[0]) == "2"


def test_when_the_package_changes_new_runs_get_a_new_server(tmp_path, kernels, monkeypatch):
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(.01)\nos.getppid()"
    with ThreadPoolExecutor() as pool:
        going = pool.submit(run, kernels, tmp_path / "old.ipynb", waits)
        wait_until(lambda: (tmp_path / "old.ipynb").exists())
        old = server_of(kernels)
        monkeypatch.setattr(kernels_module, "package_digests", lambda: {"scaling.py": "another"})
        new = int(text(run(kernels, tmp_path / "new.ipynb", "import os; os.getppid()").cells[0]))
        assert new == server_of(kernels) != old
        assert not is_gone(old)
        go.touch()
        assert int(text(going.result(timeout=20).cells[0])) == old
        assert is_gone(old)


def test_a_server_that_may_not_fork_gives_way_to_fresh_kernels(tmp_path, monkeypatch):
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for module in ("threaded", "no_such_module"):
        monkeypatch.setattr(kernels_module, "modules_for", lambda *_, module=module: (module,))
        with closing(Kernels()) as kernels:
            assert text(run(kernels, tmp_path / "a.ipynb", "get_ipython().kernel and 1").cells[0]) == "1"


# What is printed and shown is bounded, whatever writes it.


@KINDS
def test_a_hundred_megabytes_cost_little(tmp_path, kernels, fresh):
    clock = time.monotonic()
    prints = "for i in range(1000):\n    print('x' * 99_999)\nimport os, resource\n"
    writes = "for i in range(1000):\n    os.write(1, b'y' * 100_000)"
    node = run(kernels, tmp_path / "a.ipynb", prints, writes, fresh=fresh)
    assert time.monotonic() - clock < 10
    assert len(text(node.cells[0])) < TEXT_LIMIT + 200
    log = (tmp_path / LOG).read_bytes()
    assert len(log) < LOG_LIMIT + 200
    assert b"more bytes]" in log[-100:]


def test_many_flushed_prints_are_put_together(tmp_path, kernels):
    clock = time.monotonic()
    node = run(kernels, tmp_path / "a.ipynb", "for i in range(20_000):\n    print(i, flush=True)")
    assert time.monotonic() - clock < 10
    assert text(node.cells[0]).split() == [str(i) for i in range(20_000)]
    assert len(node.cells[0].outputs) == 1


@KINDS
def test_results_are_kept_whatever_else_is_shown(tmp_path, kernels, fresh):
    source = (
        "from IPython.display import clear_output, display\n"
        f"display({{'text/plain': 'x' * {DATA_LIMIT}, '{RESULTS_MIME}': {{'a': 1}}}}, raw=True)\n"
        f"print('x' * {TEXT_LIMIT + 1}); clear_output(); print('there is room again')"
    )
    node = run(kernels, tmp_path / "a.ipynb", source.replace("; clear_output()", ""), source, fresh=fresh)
    assert node.cells[0].outputs[0].data[RESULTS_MIME] == {"a": 1}
    assert text(node.cells[0]).endswith("[left out: 22 more characters; a cell may print 2,000,000]\n")
    assert text(node.cells[1]) == "there is room again\n"


def test_what_is_printed_is_there_before_a_cell_ends(tmp_path, kernels, monkeypatch):
    monkeypatch.setattr("gradtricks.lab.kernels.bookkeeping._SAVE_EVERY_S", 0.05)
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


def test_loggers_of_preloaded_modules_print_into_the_notebook(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text(
        "import logging, sys\nlogger = logging.getLogger('loud')\n"
        "logger.addHandler(logging.StreamHandler()); print('a greeting')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(kernels_module, "modules_for", lambda *_: ("loud",))
    with closing(Kernels()) as kernels:
        node = run(kernels, tmp_path / "a.ipynb", "import loud\nloud.logger.warning('a warning')")
    assert text(node.cells[0]) == "a warning\n"


def test_text_that_cannot_be_written_loses_nothing_else(tmp_path, kernels):
    node = run(kernels, tmp_path / "a.ipynb", "print('a\\ud800b')\n'c\\ud800'")
    assert text(node.cells[0]) == "a?b\n'c\\ud800'"


def test_a_notebook_may_fork(tmp_path, kernels):
    source = """\
import os
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
    clock = time.monotonic()
    with pytest.raises(DeadKernelError, match="exit status 5"):
        run(kernels, tmp_path / "a.ipynb", source)
    assert time.monotonic() - clock < 5


@KINDS
def test_files_and_exit_functions_are_looked_after(tmp_path, kernels, fresh):
    source = (
        "import atexit, threading, time\n"
        f"atexit.register(lambda: open({str(tmp_path / 'left')!r}, 'w').write('1'))\n"
        f"file = open({str(tmp_path / 'open')!r}, 'w'); file.write('2')\n"
        "threading.Thread(target=time.sleep, args=[1000]).start()"
    )
    run(kernels, tmp_path / "a.ipynb", source, fresh=fresh)
    assert [(tmp_path / name).read_text() for name in ("left", "open")] == ["1", "2"]


# The file.


def test_paths_are_taken_as_they_are_and_nothing_is_left_beside(tmp_path, kernels):
    folder = tmp_path / "{seed} ü"
    folder.mkdir()
    node = run(kernels, folder / "{a}.ipynb", "1")
    assert sorted(path.name for path in folder.iterdir()) == [LOG, "{a}.ipynb"]
    assert node.metadata.papermill.output_path == str(folder / "{a}.ipynb")


def test_parameters_are_set_exactly_and_once(tmp_path, kernels):
    source = notebook("seed: int = 0\nlabel: str = ''", "[seed, label]")
    source.cells[0].metadata["tags"] = ["parameters"]
    label = "quotes \" and ' and \\ and\nlines; 雪"
    for _ in range(2):  # an executed notebook may be run again
        kernels.run(source, {"seed": 2**70, "label": label}, tmp_path / "a.ipynb")
        source = read(tmp_path / "a.ipynb")
        source.cells.pop()
    assert [cell.metadata.tags for cell in source.cells] == [["parameters"], ["injected-parameters"], []]
    assert text(source.cells[2]) == repr([2**70, label])
    about = source.metadata.papermill
    assert about.parameters.label
    assert {"start_time", "end_time", "duration", "exception", "version"} <= about.keys()


def test_a_disk_that_is_full_is_an_error_and_ends_the_run(tmp_path, kernels, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    source = notebook("import time; time.sleep(1000)")
    source.cells.insert(0, nbformat.v4.new_markdown_cell("# A title"))
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        kernels.run(source, {}, tmp_path / "a.ipynb")
    monkeypatch.undo()
    monkeypatch.setattr("gradtricks.lab.kernels.bookkeeping.Execution.cell_start", fail)
    with pytest.raises(OSError, match="No space left"):
        kernels.run(source, {}, tmp_path / "a.ipynb")
    assert "In [None]" in read(tmp_path / "a.ipynb").cells[0].source


def test_a_run_costs_little(tmp_path, kernels):
    run(kernels, tmp_path / "a.ipynb", "1")
    taken = []
    for _ in range(8):  # processor time, since other tests may run meanwhile
        clock = time.process_time()
        node = run(kernels, tmp_path / "a.ipynb", "1")
        (report,) = (output.data for output in node.cells[-1].outputs)
        taken.append(time.process_time() - clock + report[REPORT_MIME]["cpu_s"])
    assert min(taken) < 0.2


# In this very process.


def test_cells_in_this_process_share_it_and_leave_it_as_it_was(tmp_path, capsys):
    before = (sys.stdout, sys.stderr, sys.modules["__main__"], InteractiveShell.initialized())
    with closing(Kernels(in_process=True)) as kernels:
        for _ in range(2):
            node = run(
                kernels,
                tmp_path / "a.ipynb",
                "import os\nprint('aloud')\n[os.getpid(), 'x' in globals()]",
                "x = 1\nimport matplotlib.pyplot as plt; plt.plot([0, 1]); plt.show()",
                "import asyncio\nawait asyncio.sleep(0, 'slept')",
            )
            assert text(node.cells[0]) == f"aloud\n[{os.getpid()}, False]"
            assert "image/png" in node.cells[1].outputs[0].data
            assert text(node.cells[2]) == "'slept'"
            assert [cell.execution_count for cell in node.cells] == [1, 2, 3, 4]
            assert "aloud" in capsys.readouterr().out
        for source, error in (
            ("1 / 0", PapermillExecutionError),
            ("raise KeyboardInterrupt", KeyboardInterrupt),
        ):
            with pytest.raises(error):
                run(kernels, tmp_path / "a.ipynb", source)
        with pytest.raises(DeadKernelError, match="an earlier cell called exit"):
            run(kernels, tmp_path / "a.ipynb", "exit()")
    assert before == (sys.stdout, sys.stderr, sys.modules["__main__"], InteractiveShell.initialized())


def test_cells_run_in_a_process_that_is_a_notebook_itself(tmp_path):
    async def work():
        return run(Kernels(in_process=True), tmp_path / "a.ipynb", "print('inner')\n1 + 1")

    outer = InteractiveShell.instance()
    try:
        assert text(asyncio.run(work()).cells[0]) == "inner\n2"
        assert InteractiveShell.instance() is outer
    finally:
        outer.restore_sys_module_state()
        InteractiveShell.clear_instance()


def test_a_breakpoint_is_reached_in_this_process(drive):
    driver = drive("x = 6\nbreakpoint()\ny = 7", "in process")
    output, errors = driver.communicate("p x * 7\nc\n", timeout=60)
    assert driver.returncode == 0, errors
    assert "42" in output


def test_a_notebook_says_what_is_imported_before_the_fork(tmp_path, kernels):
    node = notebook("import sys\n'optuna' in sys.modules")
    for preload in ([], ["optuna"]):
        node.metadata.gradtricks["preload"] = preload
        kernels.run(node, {}, tmp_path / "a.ipynb")
        assert text(read(tmp_path / "a.ipynb").cells[0]) == str(bool(preload))
