"""Cells in a fork show what they show in a kernel of papermill's own: it is ipykernel in both."""

import re

import pytest
from papermill.exceptions import PapermillExecutionError

from gradtricks.warm.engine import TEXT_LIMIT
from warming import code, execute, notebook, read, text

# Each is a cell of one notebook, which both run. The first ones are what a kernel that isn't ipykernel, or is
# forked, has shown otherwise; the last ones are what a notebook may do to its process.
CELLS = {
    "imports": (
        "import asyncio, ctypes, getpass, json, os, sys, threading\nimport matplotlib.pyplot as plt\n"
        "import numpy as np\nimport pandas as pd\nimport rich.console\n"
        "from IPython.display import HTML, JSON, clear_output, display"
    ),
    "streams": (
        'print("one", flush=True); print("two", file=sys.stderr, flush=True); print("three", end="")\n'
        'display(HTML("<b>four</b>"), metadata={"five": 6})\n7'
    ),
    "in turns": "for i in range(3):\n    print(i, flush=True); print(i, file=sys.stderr, flush=True)",
    "update": 'handle = display("old", display_id=True); handle.update("new")',
    "update by the kernel": (
        "content = {'data': {'text/plain': 'by hand'}, 'metadata': {}, 'transient': {'display_id': 'id'}}\n"
        "display('old', display_id='id')\n"
        "get_ipython().display_pub.publish(content['data'], transient=content['transient'], update=True)"
    ),
    "cleared": 'print("gone"); clear_output(); print("stays")',
    "cleared later": 'print("gone"); clear_output(wait=True); print("stays")',
    "late display": "print('one'); print('two', flush=True); late = display(3, display_id=True)",
    "late update": 'late.update("new")',
    "figure": "plt.plot([0, 1])\nplt.gca().get_title()",
    "inline": "%matplotlib inline\nplt.plot([1, 0]);",
    "notebook": "%matplotlib notebook",
    "back": "%matplotlib inline",
    "formats": (
        "from matplotlib_inline.backend_inline import set_matplotlib_formats\nset_matplotlib_formats('svg')\n"
        "plt.plot([1, 1]); plt.gcf().canvas.draw()"
    ),
    "debugger": "%pdb on",
    "no debugger": "%pdb off",
    "where no debugger goes": (
        "[path for path in get_ipython().kernel._kernel_modules if '/numpy/' in path or '/pandas/' in path]"
    ),
    "history": "get_ipython().history_manager.hist_file, len(In), In[2][:5]",
    "completion": "get_ipython().complete('prin')[1]",
    "table": "pd.DataFrame({'a': [1.5, None]})",
    "columns": "pd.get_option('display.max_columns')",
    "console": "rich.console.Console().is_jupyter",
    "shell": (
        "shell = get_ipython()\ntype(shell).__name__, 'IPKernelApp' in shell.config, hasattr(shell, 'kernel')"
    ),
    "numbers of NumPy": "display(JSON({'a': [np.float32(.25), np.int64(2)], 'b': np.arange(2.)}))",
    "descriptors": "n = os.write(1, b'by the descriptor'); __import__('time').sleep(.3)",
    "library": (
        "n = ctypes.CDLL(None).puts(b'by C'); ctypes.CDLL(None).fflush(None)\n__import__('time').sleep(.3)"
    ),
    "system": "status = os.system('echo out'); __import__('time').sleep(.3)",
    "magic": "%there_is_none",
    "cell magic": "%%bash\necho out",
    "capture": "%%capture caught\nprint(1); display(2); 3",
    "captured": "caught.stdout, [list(output.data) for output in caught.outputs]",
    "lines": "lines = !printf 'a\\nb'\nlines",
    "await": "await asyncio.sleep(0, 'slept')",
    "task": "task = asyncio.create_task(asyncio.sleep(0, 'task'))",
    "await a task": "await task",
    "widget": (
        "from comm import create_comm\n"
        "state = {'_model_name': 'IntSliderModel', '_model_module': 'm', '_model_module_version': '1'}\n"
        "comm = create_comm(target_name='jupyter.widget', data={'state': state}, comm_id='ab')"
    ),
    "input": "input('who? ')",
    "password": "getpass.getpass()",
    "exit": "sys.exit(3)",
    "error": "1 / 0",
    "syntax error": "1 +",
    "error in the standard library": "os.environ['NO']",
    "group": "raise ExceptionGroup('g', [ValueError(1)])",
    "handler": (
        "get_ipython().set_custom_exc((KeyError,), lambda *_, **__: print('handled'))\nraise KeyError(2)"
    ),
    "thread": "t = threading.Thread(target=print, args=['from a thread'])\nt.start(); t.join()",
    "processes": (
        "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print(sum(pool.map(abs, range(-9, 0))))"
    ),
    "fork": "child = os.fork() or os._exit(7)\nos.waitstatus_to_exitcode(os.waitpid(child, 0)[1])",
    "empty": "   ",
    "environment": "[os.getcwd(), sys.path[0], os.environ['OMP_NUM_THREADS'], sys.argv[1], __name__]",
    "numbers": "x = np.random.default_rng(0).normal(size=(300, 300))\nnp.tanh(x @ x / 300).sum().hex()",
    "quiet": "3;",
    "skipped": "1 / 0",
    "variables": "[In[1][:6], Out[2], __name__]",
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Run the cells with our engine and with papermill's own."""
    folder, found = tmp_path_factory.mktemp("both"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)  # with it, ipykernel lets descriptors be
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.setenv(name, "1")
        for engine in ("warm", None):
            path = folder / f"{engine}.ipynb"
            source = notebook(*CELLS.values(), may_fail=True)
            source.cells[list(CELLS).index("skipped")].metadata["tags"] = ["skip-execution"]
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
    """Put printed texts together; leave out colours and names of cells."""
    texts, found = {}, []
    for output in cell.outputs:
        if output.output_type == "stream":
            texts[output.name] = texts.get(output.name, "") + tidy(output.text)
        else:
            found.append({key: tidy(repr(value)) for key, value in output.items()})
    return texts, found


def tidy(said):
    """Leave out what is another one in each process."""
    said = re.sub(r"ipykernel_\d+/\d+|0x[0-9a-f]+|kernel-\S+json|\S+tmp\w+[.]json", "*", said)
    return re.sub(r"<dc:date>.*?<|(?<=id=.)\w+|(?<=#)\w+|url\(#\w+\)", "", said)


def test_what_both_show_is_right(both):
    warm, plain = both
    cells = dict(zip(CELLS, warm.cells))
    assert "by the descriptor" in text(cells["descriptors"])
    assert text(cells["library"]) == "by C\n"
    assert text(cells["system"]) == "out\n"
    assert text(cells["columns"]) == "20"
    assert text(cells["where no debugger goes"]) == "[]"
    assert text(cells["console"]) == "True"
    assert text(cells["late display"]) == "one\ntwo\n'new'"
    assert "image/png" in cells["figure"].outputs[-1].data
    assert "image/svg+xml" in cells["formats"].outputs[-1].data
    assert cells["numbers of NumPy"].outputs[0].data["application/json"] == {"a": [0.25, 2], "b": [0.0, 1.0]}
    assert cells["input"].outputs[0].ename == "StdinNotImplementedError"
    assert cells["group"].outputs[-1].output_type == "stream"
    assert text(cells["await a task"]) == "'task'"
    assert warm.metadata.widgets == plain.metadata.widgets
    assert "ab" in warm.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert warm.metadata.language_info == plain.metadata.language_info
    assert warm.metadata.papermill.keys() | {"input_path"} == plain.metadata.papermill.keys() | {"input_path"}


PRINTED = {
    "too long": (
        "import sys\nfor i in range(60):\n    print(str(i % 10) * 99_999)\nprint('end', file=sys.stderr)"
    ),
    "flushed": "for i in range(5_000):\n    print(i, flush=True)",
    "room again": (
        "from IPython.display import clear_output\n"
        f"print('x' * {TEXT_LIMIT + 1}); clear_output(); print('there is room again')"
    ),
}


def test_what_a_cell_prints_is_put_together_and_bounded(tmp_path):
    node = execute(notebook(*PRINTED.values()), tmp_path / "a.ipynb")
    cells = dict(zip(PRINTED, node.cells))
    printed = text(cells["too long"])
    assert printed[:5] == "00000"
    assert TEXT_LIMIT < len(printed) < TEXT_LIMIT + 200
    assert "[left out: 4,000,004 more characters; a cell may print 2,000,000]\n" in printed
    (flushed,) = cells["flushed"].outputs
    assert flushed.text.split() == [str(i) for i in range(5_000)]
    assert text(cells["room again"]) == "there is room again\n"
