"""How dask workers that somebody else has started are reached, and whether they fit."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.comm.core import CommClosedError

from gradtricks.lab.engine import environments, tasks
from gradtricks.lab.engine.cluster import Scheduler, SchedulerError, gone, no_workers, unfit
from gradtricks.lab.engine.embedded import quiet
from gradtricks.lab.storage.troubles import explained

_OF_SCHEDULER = ("python", "dask", "distributed", "gradtricks.lab as imported")


@contextmanager
def connected(scheduler: Scheduler, store: str) -> Iterator[Client]:
    """Connect, wait for a worker, and check that all of them can do what is to be done.

    Args:
        scheduler: Where it is.
        store: Location of the store, which the workers have to see.

    Yields:
        A client.

    Raises:
        SchedulerError: Nobody answers, there is no worker, or one doesn't fit.
        StoreError: The store can't be written to.
    """
    security = scheduler.security()
    with quiet():
        try:
            client = Client(
                scheduler.address, security=security, timeout=scheduler.patience_s, set_as_default=False
            )
        except OSError as error:
            raise SchedulerError(
                f"expected a dask scheduler at {scheduler.address}; got none within "
                f"{scheduler.patience_s:.0f} s ({_cause(error)}); remedy: start one with `dask scheduler`, "
                "and see that address and certificates are right"
            ) from error
        try:
            _wait_for_workers(client, scheduler)
            _check_workers(client, scheduler, store)
            yield client
        except SchedulerError:
            raise
        except Exception as error:  # what distributed raises here depends on when the connection broke
            if isinstance(error, CommClosedError) or client.status != "running":
                raise gone(scheduler) from error
            raise
        finally:
            with suppress(Exception):  # whatever it was, it is over
                client.close(timeout=5)


def count_threads(client: Client, scheduler: Scheduler) -> int:
    """Count the threads of all workers.

    Args:
        client: From `connected`.
        scheduler: Where it is.

    Returns:
        How many runs can go on at once; 0 where there is no worker.

    Raises:
        SchedulerError: The scheduler doesn't answer.
    """
    try:
        return sum(client.nthreads().values())
    except Exception as error:  # as above
        raise gone(scheduler) from error


def _wait_for_workers(client: Client, scheduler: Scheduler) -> None:
    try:
        client.wait_for_workers(1, timeout=scheduler.patience_s)
    except TimeoutError as error:
        raise no_workers(scheduler) from error


def _check_workers(client: Client, scheduler: Scheduler, store: str) -> None:
    with _probe(store) as probe:
        answers: dict[str, Any] = client.run(tasks.inspect, probe, on_error="return")
    problems = _problems_of_scheduler(client)
    for address, answer in answers.items():
        if isinstance(answer, BaseException):
            problems.append(f"{address}: {type(answer).__name__}: {answer}")
            continue
        theirs, sees = answer
        difference = environments.describe_difference(environments.environment(), theirs)
        problems += [f"{address}: {difference}"] * bool(difference)
        problems += [f"{address}: doesn't see the store {store}"] * (not sees)
    if problems:
        raise unfit(scheduler, problems)


def _problems_of_scheduler(client: Client) -> list[str]:
    """See whether it understands what it passes on: it unpacks each task, though it runs none."""
    try:
        theirs, _ = client.run_on_scheduler(tasks.inspect, None)
    except Exception as error:  # whatever it is that keeps it from answering
        return [f"the scheduler: {type(error).__name__}: {error}"]
    ours, theirs = (
        {name: every[name] for name in _OF_SCHEDULER} for every in (environments.environment(), theirs)
    )
    difference = environments.describe_difference(ours, theirs)
    return [f"the scheduler: {difference}"] * bool(difference)


@contextmanager
def _probe(store: str) -> Iterator[str | None]:
    """Put a file in the store for a moment, where it is a folder."""
    if "://" in store:
        yield None
        return
    folder = Path(store)
    path = folder / f".probe-{secrets.token_hex(8)}"
    with explained(store):
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _cause(error: BaseException) -> str:
    """Find the first reason: distributed wraps it several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
