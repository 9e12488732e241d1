"""The commands: each asks a function of `gradtricks.lab`, shows its answer, and exits with how it went."""

from pathlib import Path

import typer

from gradtricks.lab.commands import options as given
from gradtricks.lab.commands.options import DEFAULT_STORE, examples

# The commands import what they need when they are called: --help needs neither papermill nor dask.
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
)

_LOOK, _RUN, _RESULTS = "Look", "Run", "Results"


@app.callback(
    epilog=examples(
        "gradtricks describe experiments/unrolling.ipynb",
        "gradtricks run experiments/unrolling.ipynb -p seed=3",
        "gradtricks sweep experiments/unrolling.sweep.yaml",
        "gradtricks sweep --help",
        exit_codes=True,
    )
)
def main() -> None:
    """Rerun, sweep and reproduce the notebooks of gradtricks, and build the book that shows them.

    What is finished is kept in a store, and not done again while its notebook,
    its parameters, the files of the package that it imported and its libraries
    stay the same. What is interrupted or killed goes on with the same command.
    """


@app.command(
    "list",
    rich_help_panel=_LOOK,
    epilog=examples("gradtricks list", "gradtricks list --experiments my/notebooks"),
)
def list_(
    experiments: given.Experiments = Path("experiments"), store: given.StoreLocation = DEFAULT_STORE
) -> None:
    """List the experiments: how long a run takes, how many are finished, which sweeps there are."""
    from gradtricks.lab.commands.overviews import list_experiments
    from gradtricks.lab.commands.printing import experiments_table
    from gradtricks.lab.commands.terminal import explained, output

    with explained():
        output.print(experiments_table(list_experiments(experiments, store=store)))


@app.command(rich_help_panel=_LOOK, epilog=examples("gradtricks describe experiments/unrolling.ipynb"))
def describe(notebook: given.Notebook) -> None:
    """Show what a notebook takes: each parameter's type and range, default and meaning."""
    from gradtricks.lab.commands import overviews
    from gradtricks.lab.commands.printing import description
    from gradtricks.lab.commands.terminal import explained, output

    with explained():
        output.print(description(overviews.describe(notebook)))


@app.command(
    rich_help_panel=_RUN,
    epilog=examples(
        "gradtricks run experiments/masking.ipynb",
        "gradtricks run experiments/masking.ipynb -p backend=tensorflow -p seed=3",
        "gradtricks run experiments/unrolling.ipynb -p unroll_lengths=[1,5] -p num_unroll_steps=5",
        exit_codes=True,
    ),
)
def run(
    notebook: given.Notebook,
    parameters: given.Parameters = None,
    threads: given.Threads = None,
    timeout: given.Timeout = None,
    store: given.StoreLocation = DEFAULT_STORE,
    mlflow: given.Mlflow = None,
) -> None:
    """Run a notebook, unless the same run is finished already, and say where it is kept.

    Values are read by the types that the notebook declares; lists and dicts
    are JSON. All that is wrong with them is said before anything starts.
    """
    from gradtricks.lab.commands import running
    from gradtricks.lab.commands.terminal import explained, near, output, say
    from gradtricks.lab.notebooks.schema import parse_values

    with explained():
        stored = running.run(
            notebook,
            parse_values(notebook, parameters or []),
            threads=threads,
            timeout_s=timeout,
            store=store,
            mlflow=mlflow,
            console=output,
        )
        say(f"Finished: {near(stored.location)}")


@app.command(
    rich_help_panel=_RUN,
    epilog=examples(
        "gradtricks sweep experiments/unrolling.sweep.yaml --dry-run",
        "gradtricks sweep experiments/unrolling.sweep.yaml",
        "gradtricks sweep experiments/unrolling.sweep.yaml --retry failed --timeout 600",
        "gradtricks sweep experiments/unrolling.ipynb --grid hidden_gradient_scale=0,0.5,1 --seeds 10",
        "gradtricks sweep experiments/unrolling.ipynb --zip episodes=64,256 --zip batch_size=128,512",
        "gradtricks sweep experiments/unrolling.sweep.yaml --scheduler tls://head:8786 --tls-ca ca.pem "
        "--tls-cert me.pem --tls-key me.key --store /shared/runs",
        exit_codes=True,
    ),
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
    dry_run: given.DryRun = False,
    scheduler: given.SchedulerAddress = None,
    tls_ca: given.TlsCa = None,
    tls_cert: given.TlsCert = None,
    tls_key: given.TlsKey = None,
    plain_tcp: given.PlainTcp = False,
    store: given.StoreLocation = DEFAULT_STORE,
    mlflow: given.Mlflow = None,
) -> None:
    """Run a notebook over many values, several runs at once, and draw what came out.

    A file says what varies; the book's chapter on sweeps says how. A run that
    fails doesn't stop the others. Interrupted or killed, the same command goes
    on: what is finished isn't done again.
    """
    from gradtricks.lab.commands import arguments, running
    from gradtricks.lab.commands.reporting import dry_run_of, summary
    from gradtricks.lab.commands.terminal import explained, output

    with explained():
        cluster = arguments.cluster(scheduler, tls_ca, tls_cert, tls_key, plain_tcp=plain_tcp)
        planned = arguments.plan(
            source,
            grid=grid or (),
            zip=zip_ or (),
            seeds=seeds,
            given=parameters or (),
            shown=shown or (),
            threads=threads,
        )
        if dry_run:
            output.print(dry_run_of(planned, store=store, workers=workers))
            return
        found = running.sweep(
            planned,
            workers=workers,
            scheduler=cluster,
            timeout_s=timeout,
            retry_failed=retry == "failed",
            store=store,
            mlflow=mlflow,
            console=output,
        )
        output.print(summary(found))
        raise typer.Exit(1 if found.failed else 0)


@app.command(
    rich_help_panel=_RUN,
    epilog=examples(
        "gradtricks publish --dry-run",
        "gradtricks publish",
        "gradtricks publish experiments/pong.sweep.yaml --workers 1",
        exit_codes=True,
    ),
)
def publish(
    files: given.SweepFiles = None,
    workers: given.Workers = None,
    timeout: given.Timeout = None,
    retry: given.Retry = None,
    dry_run: given.DryRun = False,
    scheduler: given.SchedulerAddress = None,
    tls_ca: given.TlsCa = None,
    tls_cert: given.TlsCert = None,
    tls_key: given.TlsKey = None,
    plain_tcp: given.PlainTcp = False,
    store: given.StoreLocation = DEFAULT_STORE,
    mlflow: given.Mlflow = None,
) -> None:
    """Run the sweeps that are too long for the book's build, and keep their records with the sources.

    They are those whose files say [bold]published: true[/bold]. When all runs of one have
    finished, they replace its former ones in experiments/published, which belongs
    into git, and which [bold]--store experiments/published[/bold] shows.
    """
    from gradtricks.lab.commands import arguments, publishing
    from gradtricks.lab.commands.reporting import dry_run_of, summary
    from gradtricks.lab.commands.terminal import explained, output, say

    with explained():
        cluster = arguments.cluster(scheduler, tls_ca, tls_cert, tls_key, plain_tcp=plain_tcp)
        if dry_run:
            for planned in publishing.plan_published(files or ()):
                say(f"{planned.name}:")
                output.print(dry_run_of(planned, store=store, workers=workers))
            return
        found = publishing.publish(
            files or (),
            workers=workers,
            scheduler=cluster,
            timeout_s=timeout,
            retry_failed=retry == "failed",
            store=store,
            mlflow=mlflow,
            console=output,
        )
        failed = False
        for result in found:
            output.print(summary(result))
            failed = failed or bool(result.failed)
        raise typer.Exit(1 if failed else 0)


@app.command(rich_help_panel=_RESULTS, epilog=examples("gradtricks status", "gradtricks status --watch"))
def status(watch: given.Watch = False, store: given.StoreLocation = DEFAULT_STORE) -> None:
    """Show how far each sweep of a store is, whichever process runs it: done, failed, running now, left."""
    from gradtricks.lab.commands import overviews
    from gradtricks.lab.commands.printing import statuses_table
    from gradtricks.lab.commands.terminal import explained, output
    from gradtricks.lab.commands.terminal import watch as watch_it

    with explained():
        if watch:
            watch_it(lambda: overviews.status(store=store), statuses_table)
        else:
            output.print(statuses_table(overviews.status(store=store)))


@app.command(
    rich_help_panel=_RESULTS,
    epilog=examples(
        "gradtricks table unrolling",
        "gradtricks table unrolling --all",
        "gradtricks table --sql \"SELECT parameters.seed, duration_s FROM runs WHERE stem = 'unrolling'\"",
        "gradtricks table unrolling --to parquet --output unrolling.parquet",
    ),
)
def table(
    sweep_name: given.SweepName = None,
    notebook: given.OfNotebook = None,
    sql: given.Sql = None,
    everything: given.All = False,
    to: given.To = None,
    path: given.Output = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> None:
    """Tabulate what a sweep found: the mean, its interval and the number of runs of each configuration.

    Without a sweep, list the runs of the store. --all, --sql and files have a row for each
    run, with the columns run, status, error, stem, parameters.NAME, results.NAME,
    varying.NAME, provenance.NAME, started and duration_s.
    """
    from gradtricks.lab.commands import views
    from gradtricks.lab.commands.reporting import table_of, write_frame
    from gradtricks.lab.commands.terminal import explained, output

    with explained():
        frame = views.table(sweep_name, notebook=notebook, sql=sql, store=store)
        if everything or sql is not None or to or path:
            write_frame(frame, to, path)
        else:
            bare = sweep_name is None or frame.empty
            output.print(table_of(frame, () if bare else views.found(sweep_name, frame, store=store)))


@app.command(
    rich_help_panel=_RESULTS,
    epilog=examples("gradtricks plot unrolling", "gradtricks plot unrolling --show results.loss_after"),
)
def plot(
    sweep_name: given.SweepName = None,
    shown: given.Results = None,
    folder: given.Folder = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> None:
    """Draw what a sweep has found so far, as SVG and PNG."""
    from gradtricks.lab.commands import views
    from gradtricks.lab.commands.terminal import explained, say

    with explained():
        for path in views.plot(sweep_name, shown=shown or (), folder=folder, store=store):
            say(str(path))


@app.command(rich_help_panel=_RESULTS, epilog=examples("gradtricks show masking-torch --no-open"))
def show(
    name: given.StoredName, no_open: given.NoOpen = False, store: given.StoreLocation = DEFAULT_STORE
) -> None:
    """Show what a run recorded, and open its executed notebook in the browser."""
    from gradtricks.lab.commands import views
    from gradtricks.lab.commands.printing import record_of
    from gradtricks.lab.commands.terminal import explained, near, output, say

    with explained():
        shown = views.show(name, open_it=not no_open, store=store)
        output.print(record_of(shown.run))
        if shown.run.executed:
            say(f"Notebook: {shown.page or near(shown.run.location) + '/notebook.ipynb'}")


@app.command(
    rich_help_panel=_RESULTS,
    epilog=examples("gradtricks reproduce masking-torch", "gradtricks reproduce --book", exit_codes=True),
)
def reproduce(
    name: given.OptionalStoredName = None,
    book: given.Book = False,
    timeout: given.Timeout = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> None:
    """Run a recorded run again, and say value by value: identical, within tolerance, or different.

    It also says what differs in the environment. Nothing of the rerun is kept.
    """
    from gradtricks.lab.commands import repeating
    from gradtricks.lab.commands.reporting import verdict_of
    from gradtricks.lab.commands.terminal import explained, output
    from gradtricks.lab.notebooks.schema import ParameterError

    with explained():
        if book == (name is not None):
            raise ParameterError("expected either a run or --book; got both or none")
        found = (
            repeating.reproduce_book(timeout_s=timeout, store=store)
            if name is None
            else [repeating.reproduce(name, timeout_s=timeout, store=store)]
        )
        verdicts = set()
        for verdict in found:
            output.print(verdict_of(verdict))
            verdicts.add(verdict.verdict)
        raise typer.Exit(1 if "different" in verdicts else 0)


@app.command(
    rich_help_panel=_RESULTS,
    epilog=examples("gradtricks clean --stale --dry-run", "gradtricks clean --failed"),
)
def clean(
    failed: given.Failed = False,
    stale: given.Stale = False,
    dry_run: given.DryRun = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> None:
    """Delete from a store what killed processes left behind, damaged records, and what is asked for."""
    from gradtricks.lab.commands import running
    from gradtricks.lab.commands.terminal import explained, say

    with explained():
        gone = running.clean(failed=failed, stale=stale, dry_run=dry_run, store=store)
        for path in gone:
            say(path)
        say(f"{len(gone)} {'would be deleted' if dry_run else 'deleted'}.")
