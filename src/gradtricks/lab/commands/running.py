"""Run a notebook, or a sweep of one."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gradtricks import lab
from gradtricks.lab.commands import options as given
from gradtricks.lab.commands.options import Printed, command
from gradtricks.lab.commands.terminal import output, requested, table
from gradtricks.lab.notebooks.texts import ParameterError, duration, near, together
from gradtricks.lab.storage import DEFAULT_STORE

if TYPE_CHECKING:
    from gradtricks.lab.runs.schedulers import Scheduler
    from gradtricks.lab.sweeps.outcomes import SweepResult
    from gradtricks.lab.sweeps.sweep import Sweep


@command(
    "Run",
    "gradtricks run experiments/masking.ipynb",
    "gradtricks run experiments/masking.ipynb -p backend=tensorflow -p seed=3",
    "gradtricks run experiments/unrolling.ipynb -p unroll_lengths=[1,5] -p num_unroll_steps=5",
)
def run(
    notebook: given.Notebook,
    parameters: given.Parameters = None,
    threads: given.Threads = None,
    timeout: given.Timeout = None,
    again: given.Again = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Run a notebook, unless the same run is finished already, and say where it is kept.

    Values are read by the types that the notebook declares; lists and dicts
    are JSON. All that is wrong with them is said before anything starts. It
    runs in the folder where you give the command, as with papermill, and in
    this Python: there is no choice of a kernel.
    """
    how: dict[str, Any] = {"threads": threads, "timeout_s": timeout, "again": again, "store": store}
    stored = lab.run(notebook, parameters or (), console=output, **how)
    yield f"Notebook: {near(stored.location)}/notebook.ipynb"


@command(
    "Run",
    "gradtricks sweep experiments/unrolling.sweep.yaml --dry-run",
    "gradtricks sweep experiments/unrolling.sweep.yaml",
    "gradtricks sweep experiments/unrolling.sweep.yaml --retry failed --timeout 600",
    "gradtricks sweep experiments/unrolling.ipynb --grid hidden_gradient_scale=0,0.5,1 --seeds 10",
    "gradtricks sweep experiments/unrolling.ipynb --zip episodes=64,256 --zip batch_size=128,512",
    "gradtricks sweep experiments/unrolling.sweep.yaml --scheduler tls://head:8786 --tls-ca ca.pem "
    "--tls-cert me.pem --tls-key me.key --store /shared/runs",
)
def sweep(
    source: given.Source,
    grid: given.Grid = None,
    zip_: given.Zip = None,
    seeds: given.Seeds = None,
    parameters: given.Parameters = None,
    shown: given.Results = None,
    workers: given.Workers = None,
    threads: given.Threads = None,
    timeout: given.Timeout = None,
    retry: given.Retry = None,
    again: given.Again = False,
    dry_run: given.DryRun = False,
    scheduler: given.SchedulerAddress = None,
    tls_ca: given.TlsCa = None,
    tls_cert: given.TlsCert = None,
    tls_key: given.TlsKey = None,
    plain_tcp: given.PlainTcp = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Run a notebook over many values, several runs at once, and draw what came out.

    A file says what varies; the book's chapter on sweeps says how. A run that
    fails doesn't stop the others. Interrupted or killed, the same command goes
    on: what is finished isn't done again. Plots go into the folder sweeps beside
    the store. All runs run in the folder where you give the command.
    """
    varied = {"grid": grid, "zip": zip_, "seeds": seeds, "given": parameters, "shown": shown}
    planned, cluster = together(
        partial(_plan, source, threads, {name: said for name, said in varied.items() if said}),
        partial(_cluster_at, scheduler, tls_ca, tls_cert, tls_key, plain_tcp),
    )
    if dry_run:
        yield forecast(planned, store=store, workers=workers)
        return
    how: dict[str, Any] = {"workers": workers, "timeout_s": timeout, "again": again}
    how |= {"retry_failed": retry == "failed", "scheduler": cluster, "store": store}
    found = lab.sweep(planned, console=output, **how)
    yield report(found)
    raise typer.Exit(1 if found.failed else 0)


def _plan(source: Path, threads: int | None, said: Mapping[str, Any]) -> "Sweep":
    """Plan a sweep: from a file, which takes no options beside it, or from a notebook and options."""
    if source.suffix == ".ipynb":
        return lab.plan_sweep(source, threads=threads, **said)
    if said:
        options = ", ".join({"given": "--set", "shown": "--show"}.get(name, f"--{name}") for name in said)
        raise ParameterError(
            f"{source}: nothing was run.\nexpected that the file says all that varies; got {options} too; "
            "remedy: write it into the file, or name the notebook instead"
        )
    return lab.read_sweep(source, threads=threads)


def _cluster_at(
    address: str | None, ca_file: Path | None, cert: Path | None, key: Path | None, plain_tcp: bool
) -> "Scheduler | None":
    """Check the options of a cluster, without connecting to it; no address means this machine."""
    from gradtricks.lab.runs.schedulers import Scheduler

    if address is None:
        if ca_file or cert or key or plain_tcp:
            raise ParameterError("expected --scheduler too, which the certificates are for; got none")
        return None
    with requested():
        found = Scheduler(address, ca_file, cert, key, plain_tcp=plain_tcp)
        found.security()  # reads the certificates
    return found


def forecast(planned: "Sweep", *, store: str, workers: int | None) -> RenderableType:
    """Show the runs of a sweep, which of them are done, and how long the others take."""
    from gradtricks.lab.runs.local import count_workers
    from gradtricks.lab.runs.progress import estimate_s
    from gradtricks.lab.storage.store import store_of_runs

    opened = store_of_runs(store)
    finished = opened.find_all(planned.specs)
    missing = [spec for spec in planned.specs if spec.request not in finished]
    rows = []
    for number, each in enumerate(planned.specs, start=1):
        values = (repr(each.parameters.get(name)) for name in planned.varied)
        rows.append((str(number), *values, "done" if each.request in finished else ""))
    at_once = workers or count_workers(planned.specs)
    seconds = estimate_s(missing, opened, at_once)
    known = f"about {duration(seconds)}" if seconds is not None else "an unknown time"
    left = f" The others take {known}, {at_once} at once." if missing else ""
    said = f"{len(rows)} runs, {len(finished)} of them done.{left}"
    return Group(table(("run", *planned.varied, ""), rows, right={0}), Text(said))


def report(result: "SweepResult") -> RenderableType:
    """Say how many runs of a sweep are done, where, and why some failed, or that it needs a GPU."""
    if result.gpus == ():
        return Text(f"{result.name}: left out. Its runs need a GPU, and nvidia-smi lists none here.")
    found = sum(run.stored is not None and not run.worker for run in result.runs)
    before = f" ({found} of them kept from before)" if found else ""
    done = f"{len(result.runs) - len(result.failed)} done{before}"
    lines = [f"{result.name}: {done}, {len(result.failed)} failed."]
    lines.append(f"Runs: {near(result.store)}")
    lines += [f"GPU: {', '.join(result.gpus)}"] if result.gpus else []
    beside = f" ({result.former} of its runs from before)" if result.former else ""
    lines += [f"Published: {near(result.published)}{beside}"] if result.published else []
    lines += [f"Plot: {path}" for path in result.plots]
    lines += [f"No plot: {result.unplotted}"] if result.unplotted else []
    said = Text("\n".join(lines))
    if not result.failed:
        return said
    rows = []
    for run in result.failed:  # a line of each error: without where, and with which parameters
        error = run.failure.record["error"] if run.failure else run.error or ""
        rows.append((run.spec.title, error.strip().partition("\n")[0].rstrip()))
    return Group(table(("failed run", "why"), rows), said)
