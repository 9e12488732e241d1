"""Run recorded runs again: one of them, or all that the book's build runs."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.commands.publishing import EXPERIMENTS, plan_book, plan_sweeps
from gradtricks.lab.commands.views import find_run
from gradtricks.lab.kernels.choosing import Kernels
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.notebooks.texts import together
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.reproduction import Difference, Verdict
from gradtricks.lab.runs.reproduction import reproduce as repeat
from gradtricks.lab.storage.published import open_store
from gradtricks.lab.storage.store import Store
from gradtricks.lab.storage.troubles import public

_LISTED = 10  # missing runs


def reproduce(name: str, *, timeout_s: float | None = None, store: str | Path = DEFAULT_STORE) -> Verdict:
    """Run a recorded run again, and compare value by value. Nothing of the rerun is kept.

    Args:
        name: Path of the run, its title or the beginning of that, or the beginning of its request's digest.
        timeout_s: How long it may take.
        store: Of the runs.

    Returns:
        Whether it is identical, within tolerance or different, in what, and what differs in the environment.

    Raises:
        ParameterError: The text means no run, or several.
        StoreError: The run can't be repeated: it failed, or its notebook was edited.
        RunError: This time it failed.
    """
    stored = find_run(open_store(store), name)
    with closing(Kernels()) as kernels:
        return repeat(stored, kernels, timeout_s=timeout_s)


def reproduce_book(
    *,
    experiments: str | Path = EXPERIMENTS,
    timeout_s: float | None = None,
    store: str | Path = DEFAULT_STORE,
) -> Iterator[Verdict]:
    """Run again what the book's build runs, one after another. One that fails this time counts as different.

    Published sweeps take hours: `reproduce` runs one of their runs again.

    Args:
        experiments: Folder of the source notebooks.
        timeout_s: How long each may take.
        store: Of the runs.

    Yields:
        A verdict each, as `reproduce`.

    Raises:
        FileNotFoundError: The folder holds no notebook.
        ParameterError: The store doesn't hold all runs of the book as it is now.
    """
    folder, opened = Path(experiments), Store(store)
    specs, sweeps = together(partial(plan_book, folder), partial(plan_sweeps, folder))
    runs = [*specs, *(run for sweep in sweeps if not sweep.published for run in sweep.runs)]
    wanted = {run.request: run for run in runs}
    found = opened.find_all(wanted.values())
    if missing := [run.title for request, run in wanted.items() if request not in found]:
        listed = ", ".join(missing[:_LISTED]) + (", …" if len(missing) > _LISTED else "")
        raise ParameterError(
            f"expected all runs of the book in {public(opened.location)}; got none of {listed}; "
            "remedy: gradtricks book"
        )
    with closing(Kernels()) as kernels:
        for request in wanted:
            try:
                yield repeat(found[request], kernels, timeout_s=timeout_s)
            except RunError as error:
                failure = Difference("run", "finished", str(error))
                yield Verdict(found[request].title, "different", 0, (failure,), (), 0.0)
