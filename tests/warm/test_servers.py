"""Processes that fork: what a fork inherits, and what it doesn't; how many there are, and how they end."""

import os
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import nbformat
import psutil
import pytest
from nbclient.exceptions import DeadKernelError

from gradtricks.warm.imports import modules_of
from gradtricks.warm.libraries import LIBRARIES, Library, all_may_fork
from gradtricks.warm.servers import Servers
from sweeping import wait_for
from warming import execute, is_gone, notebook, text

WHO = "import os; os.getppid()"
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


def test_nothing_leaks_from_run_to_run(tmp_path):
    first, second = (execute(notebook(LEAKS, "drawn"), tmp_path / "a.ipynb") for _ in range(2))
    assert text(first.cells[0]) == text(second.cells[0])
    assert text(first.cells[1]) != text(second.cells[1]), "two runs drew the same unseeded number"


def test_a_run_has_its_driver_s_folder_and_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("x = 1")
    for given in "12":
        cell = "import beside, os\nprint(os.environ['GIVEN'], os.getcwd(), beside.x, os.getppid())"
        node = execute(notebook(cell), tmp_path / "a.ipynb", variables={"GIVEN": given})
        *found, server = text(node.cells[0]).split()
        assert found == [given, str(tmp_path), "1"]
    assert text(execute(notebook(WHO), tmp_path / "a.ipynb").cells[0]) == server


def test_a_fork_has_the_variables_of_papermills_own_kernel(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)  # which the process that forks has set
    source = "import numpy, os\nprint(sorted(os.environ.items()))"
    warm, plain = (execute(notebook(source), tmp_path / "a.ipynb", engine) for engine in ("warm", None))
    assert "OPENBLAS" not in text(warm.cells[0])
    assert text(warm.cells[0]) == text(plain.cells[0])


def test_threads_share_one_server_that_outlives_them(tmp_path):
    def work(index):
        return int(text(execute(notebook(WHO), tmp_path / f"{index}.ipynb").cells[0]))

    with ThreadPoolExecutor(4) as pool:
        (server,) = set(pool.map(work, range(16)))
    assert work(0) == server
    assert psutil.Process(server).ppid() == os.getpid()


def test_few_servers_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("gradtricks.warm.servers._SERVERS", 1)
    with closing(Servers()) as servers:
        options = {"servers": servers, "environment": dict(os.environ)}
        nodes = [execute(notebook(WHO), tmp_path / "a.ipynb", state=state, **options) for state in (1, 2)]
        pids = [int(text(node.cells[0])) for node in nodes]
        assert list(map(is_gone, pids)) == [True, False]
    assert all(map(is_gone, pids))


def test_a_killed_server_ends_its_runs_and_is_replaced(tmp_path):
    killed = int(text(execute(notebook(WHO), tmp_path / "a.ipynb").cells[0]))
    started = tmp_path / "started"
    with ThreadPoolExecutor() as pool:
        source = f"import time; open({str(started)!r}, 'w'); time.sleep(1000)"
        going = pool.submit(execute, notebook(source), tmp_path / "b.ipynb")
        wait_for(started.exists)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(DeadKernelError, match=r"Kernel died: .* with the one that it was forked from"):
            going.result(timeout=20)
    wait_for(lambda: is_gone(killed))
    assert int(text(execute(notebook(WHO), tmp_path / "a.ipynb").cells[0])) != killed


def test_ctrl_c_while_a_server_forks_confuses_nobody(tmp_path, monkeypatch):
    # Here and not a moment later, as a signal might.
    monkeypatch.setattr("socket.send_fds", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        execute(notebook("1"), tmp_path / "a.ipynb")
    monkeypatch.undo()
    assert text(execute(notebook("1 + 1"), tmp_path / "a.ipynb").cells[0]) == "2"


def run_preloaded(monkeypatch, folder, name, source, *cells):
    """Run cells in a fork of a process that has imported a module, and return what each shows."""
    (folder / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    with closing(Servers()) as servers:
        options = {"servers": servers, "modules": (name, "no_such_module")}
        return list(map(text, execute(notebook(*cells), folder / "a.ipynb", **options).cells))


def test_a_server_with_threads_gives_way_to_an_empty_one(tmp_path, monkeypatch):
    sleeper = "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()"
    cell = "import sys; 'threaded' in sys.modules"
    assert run_preloaded(monkeypatch, tmp_path, "threaded", sleeper, cell) == ["False"]


def test_loggers_of_preloaded_modules_print_into_the_notebook(tmp_path, monkeypatch):
    loud = "import logging\nlogger = logging.getLogger('loud')\nlogger.addHandler(logging.StreamHandler())\n"
    cells = "import sys\nprint('loud' in sys.modules)", "import loud\nloud.logger.warning('a warning')"
    said = run_preloaded(monkeypatch, tmp_path, "loud", f"{loud}print('hello')", *cells)
    assert said == ["True\n", "a warning\n"]


def test_modules_are_imported_as_in_a_kernel(tmp_path, monkeypatch):
    asks = "from IPython import get_ipython as ask\nfound = type(ask()).__name__, hasattr(ask(), 'kernel')"
    cells = "import asks; asks.found", "asks.ask() is get_ipython()"
    said = run_preloaded(monkeypatch, tmp_path, "asks", asks, *cells)
    assert said == ["('ZMQInteractiveShell', True)", "True"]


def test_a_module_beside_the_notebook_may_hide_a_standard_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("signal", "token", "random", "socket"):
        Path(f"{name}.py").write_text("raise RuntimeError('this one')")
    with closing(Servers()) as servers:
        node = execute(notebook("import signal\n1 + 1"), tmp_path / "a.ipynb", servers=servers)
    assert text(node.cells[0]) == "2"


def test_a_module_beside_the_notebook_is_imported_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for own in (1, 2):
        Path("yaml.py").write_text(f"own = {own}")  # as an installed one is called
        assert text(execute(notebook("import yaml\nyaml.own"), tmp_path / "a.ipynb").cells[0]) == str(own)


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    with (
        closing(Servers()) as servers,
        pytest.raises(DeadKernelError, match=r"is gone, .*\nno such library$"),
    ):
        execute(notebook("1"), tmp_path / "a.ipynb", servers=servers)


DRAWN = {
    "numpy": "import numpy as np; np.random.random()",
    "torch": "import torch; torch.rand(1).item()",
    "tensorflow": "import tensorflow as tf; tf.random.uniform([1]).numpy().item()",
    "keras": "import keras; keras.random.uniform([1]).numpy().item()",
    "sympy": "from sympy.core.random import rng; rng.random()",
}


@pytest.mark.parametrize("name", DRAWN)
def test_each_fork_draws_anew_what_a_fresh_process_draws_anew(tmp_path, name):
    if not find_spec(name):
        pytest.skip(f"{name} isn't installed")
    drawn = [text(execute(notebook(DRAWN[name]), tmp_path / "a.ipynb").cells[0]) for _ in range(2)]
    assert float(drawn[0]) != float(drawn[1])


def test_generators_that_a_module_has_seeded_keep_their_seed(tmp_path, monkeypatch):
    module = "from random import Random\nseeded, later, own = Random(7), Random(), Random()\nlater.seed(8)\n"
    module += "with_dict = {'own': Random()}"
    drawn = "import drawing as d; [d.{0}.random() for _ in range(2)]".format
    cells = [drawn("seeded"), drawn("later"), drawn("own"), drawn("with_dict['own']")]
    before, after = (run_preloaded(monkeypatch, tmp_path, "drawing", module, *cells) for _ in range(2))
    assert before[0] == repr([(dice := random.Random(7)).random(), dice.random()])  # noqa: S311
    assert [old == new for old, new in zip(before, after)] == [True, True, False, False]


def test_a_library_may_forbid_forks(monkeypatch):
    monkeypatch.setitem(LIBRARIES, "random", Library(may_fork=lambda module: module is not random))
    assert not all_may_fork()
    monkeypatch.delitem(sys.modules, "random")
    assert all_may_fork()


def test_imports_made_before_are_those_made_in_any_case():
    source = """\
import json, numpy.linalg as la
from scipy import stats
from matplotlib_inline import backend_inline
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
import no_such_module, warming
"""
    node = notebook("backend: str = 'torch'", source, "not python", "%%bash\nimport rich", "1 +")
    expected = {"numpy.linalg", "scipy", "psutil", "packaging.version"}
    assert set(modules_of(node)) == expected
    node.cells.insert(1, nbformat.v4.new_code_cell("backend = 'other'"))
    assert set(modules_of(node)) == expected - {"psutil"} | {"yaml"}
    node.cells.append(nbformat.v4.new_code_cell("import matplotlib.pyplot as plt"))
    assert {"matplotlib.pyplot", "matplotlib.backends.backend_svg"} <= set(modules_of(node))
