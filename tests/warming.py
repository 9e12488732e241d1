"""Notebooks for the tests of warm kernels, and how they are run and read."""

import tomllib
from pathlib import Path

import nbformat
import papermill
import psutil
from papermill.engines import papermill_engines

from gradtricks.warm import WarmEngine

SOURCE = Path(__file__).resolve().parents[1]

papermill_engines.register("warm", WarmEngine)  # as the entry point does where the package is installed


# Starts processes that outlive their parents, and says which.
HANGS = """\
import os, subprocess, sys, time
print("hanging")
pids = [subprocess.Popen(["sleep", "1000"], start_new_session=new).pid for new in (False, True)]
forget = "import subprocess as s; print(s.Popen(['sleep', '1000'], process_group=0, stdout=s.DEVNULL).pid)"
pids.append(int(subprocess.run([sys.executable, "-c", forget], stdout=subprocess.PIPE).stdout))
print(os.getpid(), *pids, flush=True)
"""


def notebook(*sources, may_fail=False):
    """Make a notebook of code cells."""
    about = {"tags": ["raises-exception"]} if may_fail else {}
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(each, metadata=about) for each in sources]
    )


def read(path):
    """Read an executed notebook."""
    return nbformat.read(path, as_version=4)


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


def write_entry_points(folder):
    """Let Python find in a folder what the installed package registers, and return that folder."""
    about = folder / "gradtricks-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: gradtricks\nVersion: 0\n")
    groups = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in groups.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return folder
