"""List experiments, and describe one."""

from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from gradtricks import lab
from gradtricks.lab.commands import options as given
from gradtricks.lab.commands.options import Printed, command
from gradtricks.lab.commands.terminal import table
from gradtricks.lab.notebooks.texts import duration
from gradtricks.lab.storage import DEFAULT_STORE


@command("Look", "gradtricks list", "gradtricks list --experiments my/notebooks")
def list_(
    experiments: given.Experiments = Path("experiments"), store: given.StoreLocation = DEFAULT_STORE
) -> Printed:
    """List the experiments: how long a run takes, how many are finished, and below each what sweeps it."""
    rows: list[tuple[Any, ...]] = []
    for *about, sweeps in lab.list_experiments(experiments, store=store):
        rows.append(tuple(about))
        rows += [(f"  {experiments / name}", "", "", "") for name in sweeps.split(", ") if name]
    yield table(
        ("notebook", "question", "expected", "finished"), rows, right={2, 3}, whole=True, unbroken={0}
    )


@command("Look", "gradtricks describe experiments/unrolling.ipynb")
def describe(notebook: given.Notebook) -> Printed:
    """Show what a notebook takes: each parameter's type and range, default and meaning."""
    found = lab.describe(notebook)
    how = found.settings
    about = [f"about {duration(how.expected_s)} a run"] if how.expected_s else []
    about += [f"{how.threads} thread{'' if how.threads == 1 else 's'} a run"]
    about += ["nothing else runs meanwhile"] if how.alone else []
    rows = [(each.name, each.expected, each.written, each.meaning) for each in found.parameters]
    taken = table(("parameter", "type", "default", "meaning"), rows, whole=True)
    yield Group(Text(found.title, style="bold"), Text(f"{', '.join(about)}\n"), taken)
