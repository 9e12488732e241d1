"""Run recorded runs again: one of them, or all that the book shows."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.commands.views import find_run
from gradtricks.lab.kernels.choosing import Kernels
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.tables import planned_runs, runs_of
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.reproduction import Difference, Verdict
from gradtricks.lab.runs.reproduction import reproduce as repeat
from gradtricks.lab.storage.opening import open_store
from gradtricks.lab.storage.records import StoredRun, path_of, read_record
from gradtricks.lab.storage.store import Store, StoreError
from gradtricks.lab.storage.troubles import public

PAGES = Path("book", "experiments")
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
    pages: str | Path = PAGES,
    timeout_s: float | None = None,
    store: str | Path = DEFAULT_STORE,
) -> Iterator[Verdict]:
    """Run again what the book's build runs, one after another. One that fails this time counts as different.

    Published sweeps take hours: `reproduce` runs one of their runs again.

    Args:
        pages: Folder of the generated pages, with their records.
        timeout_s: How long each may take.
        store: Of the runs.

    Yields:
        A verdict each, as `reproduce`.

    Raises:
        ParameterError: There are no records, they are of another version, or the store doesn't hold what they
            are of as it is run now.
        StoreError: Somebody edited the plan of a sweep.
    """
    with closing(Kernels()) as kernels:
        for stored in _shown(Path(pages), Store(store)):
            try:
                yield repeat(stored, kernels, timeout_s=timeout_s)
            except RunError as error:
                failure = Difference("run", "finished", str(error))
                yield Verdict(stored.title, "different", 0, (failure,), (), 0.0)


def _shown(pages: Path, store: Store) -> list[StoredRun]:
    found, missing = [], []
    plans = store.plans()
    for path in sorted(pages.glob("*.json")):
        text = path.read_bytes()
        record = read_record(text)
        if record is None:  # a sweep's numbers, or the record of an older book
            sweep, published = _sweep_of(text)
            if published:
                continue
            if sweep is None or sweep not in plans:
                missing.append(path.name)
                continue
            planned = planned_runs(plans[sweep])
            there = runs_of(store, planned)
            found += [run for run in there if run.status == "finished"]
            known = {run.request for run in there}
            missing += [run.title for run in planned if run.request not in known]
            continue
        try:
            found.append(store.lookup(f"{store.location}/{path_of(record)}"))
        except StoreError:
            missing.append(record["title"])
    found = list({run.location: run for run in found}.values())  # a sweep may hold what has a page of its own
    if missing or not found:
        listed = ", ".join(missing[:_LISTED]) + (", …" if len(missing) > _LISTED else "")
        raise ParameterError(
            f"expected the runs of {pages} in {public(store.location)}; got none of {listed or 'any'}; "
            "remedy: gradtricks book"
        )
    return found


def _sweep_of(text: bytes) -> tuple[str | None, bool]:
    """Return the sweep whose numbers a file holds, or None for anything else, and whether it is published."""
    try:
        numbers = json.loads(text)
    except (ValueError, RecursionError):
        return None, False
    name = numbers.get("sweep") if isinstance(numbers, dict) else None
    return (name, numbers.get("published") is True) if isinstance(name, str) else (None, False)
