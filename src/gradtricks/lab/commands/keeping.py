"""Publish runs, reproduce them, and clean a store."""

from typing import Any

import typer

from gradtricks import lab
from gradtricks.lab.commands import options as given
from gradtricks.lab.commands.options import Printed, command
from gradtricks.lab.commands.running import forecast, report
from gradtricks.lab.commands.terminal import output
from gradtricks.lab.notebooks.texts import ParameterError
from gradtricks.lab.storage import DEFAULT_STORE


@command(
    "Keep",
    "gradtricks publish --dry-run",
    "gradtricks publish",
    "gradtricks publish experiments/pong.sweep.yaml --workers 1",
    "gradtricks publish experiments/muzero_momentum.sweep.yaml --missing",
)
def publish(
    files: given.SweepFiles = None,
    workers: given.Workers = None,
    timeout: given.Timeout = None,
    retry: given.Retry = None,
    missing: given.Missing = False,
    dry_run: given.DryRun = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Run the sweeps that are too long for the book's build, and keep their records with the sources.

    They are those whose files say [bold]published: true[/bold]. When all runs of one have
    finished, they replace its former ones in experiments/published, which belongs
    into git, and which [bold]--store experiments/published[/bold] shows. Runs that a
    [bold]sweep[/bold] has done in the same store, on a cluster for example, aren't done again.
    With [bold]--missing[/bold] a grid that has grown costs only what is new.
    A sweep that says [bold]gpu: true[/bold] is left out where there is no GPU.
    """
    from gradtricks.lab.commands import publishing

    if dry_run:
        for planned in publishing.plan_published(files or ()):
            yield f"{planned.name}:"
            yield forecast(planned, store=store, workers=workers)
        return
    how = {"workers": workers, "timeout_s": timeout, "retry_failed": retry == "failed", "store": store}
    failed = 0
    for found in publishing.publish(files or (), missing=missing, console=output, **how):
        yield report(found)
        failed += len(found.failed)
    raise typer.Exit(1 if failed else 0)


@command("Keep", "gradtricks reproduce masking-torch", "gradtricks reproduce --book")
def reproduce(
    name: given.OptionalStoredName = None,
    book: given.Book = False,
    timeout: given.Timeout = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Run a recorded run again, and say value by value: identical, within tolerance, or different.

    It also says what differs in the environment. It keeps nothing. Results that were recorded and files that
    were kept are compared: of a notebook that does neither it only says that it ran again.
    """
    from gradtricks.lab.commands.publishing import verdict_of

    if book == (name is not None):
        raise ParameterError("expected either a run or --book")
    how: dict[str, Any] = {"timeout_s": timeout, "store": store}
    code = 0
    for found in lab.reproduce_book(**how) if name is None else [lab.reproduce(name, **how)]:
        yield verdict_of(found)
        code |= found.verdict == "different"
    raise typer.Exit(code)


@command("Keep", "gradtricks clean --stale --dry-run", "gradtricks clean --failed")
def clean(
    failed: given.Failed = False,
    stale: given.Stale = False,
    dry_run: given.DryRun = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Delete from a store what killed processes left behind, damaged records, and what is asked for."""
    from gradtricks.lab.storage.store import store_of_runs

    gone = store_of_runs(store).clean(failed=failed, stale=stale, dry_run=dry_run)
    yield from gone
    yield f"{len(gone)} {'would be deleted' if dry_run else 'deleted'}."
