"""Published sweeps: runs that take hours, kept with the sources so that the book need not run them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nbformat import NotebookNode

from gradtricks.lab.notebooks.schema import read_notebook
from gradtricks.lab.recording import file_digests
from gradtricks.lab.results.tables import cases_of, planned_names, planned_runs, runs_of
from gradtricks.lab.runs.planning import source_digest
from gradtricks.lab.storage.records import (
    StoredRun,
    folder_name,
    inputs_digest,
    installed_version,
    request_digest,
)
from gradtricks.lab.storage.store import Store, StoreError
from gradtricks.lab.sweeps.files import ENDING
from gradtricks.lab.sweeps.planning import Sweep, plan_of

FOLDER = "published"  # beside the sweeps' files


def published_store(sweep: Sweep) -> Store:
    """Return the store of published runs that a sweep belongs to.

    Args:
        sweep: From a file.

    Returns:
        The store.
    """
    return Store((sweep.path or sweep.notebook).parent / FOLDER)


def keep(sweep: Sweep, runs: Sequence[StoredRun]) -> Store:
    """Keep the runs of a sweep with the sources, instead of its former ones.

    Records and files are copied; executed notebooks, and with them figures, are too large for a repository.
    The former runs count until the new plan is written, in one step, and are deleted after that.

    Args:
        sweep: The sweep.
        runs: Its finished runs, all of them.

    Returns:
        The store that has them now.

    Raises:
        StoreError: It can't be written to, or somebody edited a plan in it.
    """
    store = published_store(sweep)
    inputs = {stored.request: inputs_digest(stored.record["inputs"]) for stored in runs}
    plan = plan_of(sweep) | {"notebook": os.path.relpath(sweep.notebook, store.location), "published": True}
    plan["runs"] = [run | {"inputs": inputs[run["request"]]} for run in plan["runs"]]
    with store.changing():
        others = [other for name, other in store.plans(whole=True).items() if name != sweep.name]
        meant = [run for each in (*others, plan) for run in planned_runs(each)]
        if not all(run.inputs for run in meant):
            raise StoreError(
                f"expected plans of published sweeps in {store.location}; got one of an ordinary sweep; "
                "remedy: git restore"
            )
        for stored in runs:
            store.take_over(stored)
        store.write_plan(sweep.name, plan)
        store.keep_only({f"{folder_name(run.title, run.request)}/{run.inputs}" for run in meant})
    return store


def as_published(sweep: Sweep) -> tuple[Sweep, list[StoredRun]]:
    """Look up the published runs of a sweep, whatever has changed since.

    Args:
        sweep: As its file is now.

    Returns:
        The sweep with what was varied then and what has changed since, and its runs; the sweep as it is and
        no runs where it was never published.

    Raises:
        StoreError: Not all are there, or somebody edited the plan.
    """
    store = published_store(sweep)
    plan = store.plans().get(sweep.name)
    if plan is None:
        return sweep, []
    planned = planned_runs(plan)
    runs = runs_of(store, planned)
    if not planned or len(runs) < len(planned):
        there = f"{len(runs)} of {len(planned)}" if planned else "none"
        path = sweep.path or sweep.name
        raise StoreError(
            f"expected the published runs of {path} in {store.location}; got {there}; remedy: "
            f"gradtricks publish {path}, which may take hours; or git restore, where they were there before"
        )
    varied, changed = planned_names(plan, "varied"), tuple(_changed(sweep, runs))
    return replace(sweep, varied=varied, changed=changed, cases=cases_of(planned)), runs


def source_of(stored: StoredRun) -> NotebookNode | None:
    """Read the notebook that a published run comes from.

    Args:
        stored: Of any store.

    Returns:
        The notebook as it is now; None where the run isn't a published one.

    Raises:
        FileNotFoundError: The notebook is gone.
        StoreError: Somebody edited a plan.
    """
    store = Store(stored.location.rsplit("/", 2)[0])
    for plan in store.plans().values():
        notebook = plan.get("notebook")
        mine = plan.get("published") and any(run.request == stored.request for run in planned_runs(plan))
        if mine and isinstance(notebook, str):
            return read_notebook(Path(os.path.normpath(Path(store.location, notebook))))
    return None


def _changed(sweep: Sweep, runs: Sequence[StoredRun]) -> Iterator[str]:
    """Name what the runs used and what is another one now: notebook, what varies, files, libraries."""
    source = source_digest(sweep.runs[0].source)
    requests = {
        request_digest(source, run.parameters, run.record["provenance"]["threads"]): run.request
        for run in runs
    }
    if any(now != then for now, then in requests.items()):
        yield sweep.notebook.name
    elif requests.keys() != {run.request for run in sweep.runs}:
        yield sweep.name + ENDING
    files, versions = (
        {used for run in runs for used in run.record["inputs"][part].items()}
        for part in ("files", "versions")
    )
    digests = file_digests(name for name, _ in files)
    yield from sorted({name for name, digest in files if digests[name] != digest})
    yield from sorted({name for name, version in versions if installed_version(name) != version})
