"""Run recorded runs again: one of them, or all that the book shows."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.commands.views import find_run, planned_runs
from gradtricks.lab.kernels.choosing import Kernels
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.tables import runs_of
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.reproduction import Difference, Verdict
from gradtricks.lab.runs.reproduction import reproduce as repeat
from gradtricks.lab.storage.records import StoredRun, folder_name, inputs_digest, read_record
from gradtricks.lab.storage.store import Store, StoreError
from gradtricks.lab.storage.troubles import public

PAGES = Path("book", "experiments")


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
    stored = find_run(Store(store), name)
    with closing(Kernels()) as kernels:
        return repeat(stored, kernels, timeout_s=timeout_s)


def reproduce_published(
    *,
    pages: str | Path = PAGES,
    timeout_s: float | None = None,
    store: str | Path = DEFAULT_STORE,
) -> Iterator[Verdict]:
    """Run again what the book shows, one after another. One that fails this time counts as different.

    Args:
        pages: Folder of the generated pages, with their records.
        timeout_s: How long each may take.
        store: Of the runs.

    Yields:
        A verdict each, as `reproduce`.

    Raises:
        ParameterError: There are no records, or the store doesn't hold what they are of.
    """
    with closing(Kernels()) as kernels:
        for stored in _published(Path(pages), Store(store)):
            try:
                yield repeat(stored, kernels, timeout_s=timeout_s)
            except RunError as error:
                failure = Difference("run", "finished", str(error))
                yield Verdict(stored.title, "different", 0, (failure,), (), 0.0)


def _published(pages: Path, store: Store) -> list[StoredRun]:
    found, missing = [], []
    plans = store.plans()
    for path in sorted(pages.glob("*.json")):
        record = read_record(path.read_bytes())
        if record is None:  # a sweep's numbers, or the record of an older book
            planned = plans.get(path.stem.removesuffix("-sweep"), {"runs": []})
            found += [run for run in runs_of(store, planned_runs(planned)) if run.status == "finished"]
            continue
        folder = f"{folder_name(record['title'], record['request'])}/{inputs_digest(record['inputs'])}"
        try:
            found.append(store.lookup(f"{store.location}/{folder}"))
        except StoreError:
            missing.append(record["title"])
    found = list({run.location: run for run in found}.values())  # a sweep may hold what has a page of its own
    if missing or not found:
        raise ParameterError(
            f"expected the runs of {pages} in {public(store.location)}; got none of "
            f"{', '.join(missing) or 'any'}; remedy: gradtricks book"
        )
    return found
