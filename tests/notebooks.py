"""A small experiment for tests of the lab: it records, draws, and fails in any way that is asked for."""

import nbformat

PARAMETERS = """\
backend: Literal["torch", "tensorflow"] = "torch"  # framework
seed: int = 0  # seeds nothing
rate: float = 0.1  # per step
label: str = "a"  # any text
share: float | None = None  # None takes all
sizes: list[int] = [1, 2]  # of the layers
fate: Literal["well", "raise", "exit", "sleep", "twice"] = "well"  # how it ends
"""
BODY = """\
import matplotlib.pyplot as plt
from gradtricks.lab import record, record_figure, use_style
use_style()
record(seed=seed, rate=rate, label=label, third=1 / 3, nothing=float("nan"))
figure, axes = plt.subplots()
axes.plot(sizes)
record_figure("sizes", figure, alt="the sizes")
"""
FATE = """\
if fate == "raise":
    raise RuntimeError("as asked")
if fate == "exit":
    import os; os._exit(3)
if fate == "sleep":
    import time; time.sleep(60)
if fate == "twice":
    record(seed=1)
"""


def write_notebook(path, parameters=PARAMETERS, body=BODY):
    """Write a small experiment."""
    new = nbformat.v4.new_code_cell
    cells = [
        nbformat.v4.new_markdown_cell("# A small experiment\n\nIt does little."),
        new("from typing import Literal"),
        new(parameters, metadata={"tags": ["parameters"]}),
        new(body),
        new("mine = 'torch'", metadata={"tags": ["torch"]}),
        new("mine = 'tensorflow'", metadata={"tags": ["tensorflow"]}),
        new(FATE),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.parent.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    return path
