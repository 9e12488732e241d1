"""What commands have in common that run something: shown or not, with a plan kept, and logged elsewhere."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.planning import Run
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.lab.sweeps.planning import Search, Sweep, plan_of

if TYPE_CHECKING:
    from rich.console import Console

    from gradtricks.lab.engine.executing import Event, Outcome
    from gradtricks.lab.sweeps.adaptive import Found


def execute(runs: Sequence[Run], store: Store, console: "Console | None", **options: Any) -> "list[Outcome]":
    """Execute runs.

    Args:
        runs: What is to be run.
        store: Of the runs.
        console: Where to show how it goes; None shows nothing.
        **options: Of `gradtricks.lab.engine.executing.execute_all`.

    Returns:
        What came of each run, in the order of ``runs``.

    Raises:
        Interrupted: By Ctrl-C.
    """
    if console is None:
        from gradtricks.lab.engine.executing import execute_all

        return execute_all(runs, store, **options)
    from gradtricks.lab.commands.progress import run_shown

    return run_shown(runs, store, console, **options)


def search(spec: Search, store: Store, console: "Console | None", **options: Any) -> "Found":
    """Search for good parameters, keeping the plan as it grows.

    Args:
        spec: What is searched.
        store: Of the runs.
        console: Where to show how it goes; None shows nothing.
        **options: Of `gradtricks.lab.sweeps.adaptive.search`.

    Returns:
        What was found.

    Raises:
        SearchError: Optuna isn't installed, or the study doesn't fit.
        TrialError: Runs don't record the objective, or the notebook was edited meanwhile.
        Interrupted: By Ctrl-C.
    """
    from rich.text import Text

    from gradtricks.lab.commands.printing import duration
    from gradtricks.lab.sweeps import adaptive

    def keep(planned: Sweep) -> None:
        freeze(planned, store)

    ended = count(1)

    def tell(event: "Event") -> None:
        if console is not None and event.kind in ("finished", "failed"):
            said = event.error or duration(event.seconds)
            console.print(Text(f"{next(ended)}. {event.run}: {said}"), soft_wrap=True)

    return adaptive.search(spec, store, on_event=tell, on_planned=keep, **options)


def freeze(planned: Sweep, store: Store) -> None:
    """Write down in a store which runs belong to a sweep, for `status`, `table` and `plot`.

    Args:
        planned: The sweep.
        store: Of its runs.
    """
    store.write_plan(planned.name, plan_of(planned))


def check_mlflow(uri: str | None) -> None:
    """Find out before hours of work whether MLflow will take them.

    Args:
        uri: Of a server or a database; None asks for nothing.

    Raises:
        ParameterError: It can't be reached, or MLflow isn't installed.
    """
    if uri is not None:
        from gradtricks.lab.engine.tracking import TrackingError, log_to_mlflow

        try:
            log_to_mlflow(uri, [])
        except TrackingError as error:
            raise ParameterError(f"nothing was run.\n{error}") from error


def log(uri: str | None, outcomes: "Iterable[Outcome]", store: Store) -> None:
    """Log what is kept of runs, finished and failed, to MLflow.

    Args:
        uri: Of a server or a database; None asks for nothing.
        outcomes: What came of the runs.
        store: That holds them.

    Raises:
        TrackingError: MLflow doesn't take them.
    """
    if uri is not None:
        from gradtricks.lab.engine.tracking import log_to_mlflow

        log_to_mlflow(uri, _kept(outcomes, store))


def _kept(outcomes: "Iterable[Outcome]", store: Store) -> Iterator[StoredRun]:
    for outcome in outcomes:
        stored = outcome.stored or store.failure(outcome.run)
        if stored:
            yield stored
