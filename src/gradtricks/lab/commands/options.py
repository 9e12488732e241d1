"""The options of the commands, and the manual at the end of their help."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

DEFAULT_STORE = "_build/runs"

WHAT = "What to run"
HOW = "How to run"
WHERE = "Where it goes"
CLUSTER = "On a cluster"

_EXIT_CODES = """\
[bold]Exit codes[/bold]
  0  all that was asked for is there
  1  a run failed, or a result differs
  2  the request is wrong, and nothing was started
  130  interrupted; the same command goes on later"""


def examples(*commands: str, exit_codes: bool = False) -> str:
    """Write the end of a command's help.

    Args:
        *commands: Each a command line, as it is typed.
        exit_codes: Whether to say what they mean.

    Returns:
        Markup for Rich.
    """
    shown = "\n".join(f"  {command}" for command in commands).replace("[", r"\[")
    return "\n\n".join([f"[bold]Examples[/bold]\n{shown}", *([_EXIT_CODES] if exit_codes else [])])


def _option(*names: str, text: str, panel: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


_RUN_HELP = "Its path, its title or the beginning of that, or the beginning of its request's digest."

Notebook = Annotated[Path, typer.Argument(help="Source notebook, such as experiments/masking.ipynb.")]
Source = Annotated[
    Path, typer.Argument(help="A sweep's file, or a notebook with --grid, --zip or --seeds.", metavar="FILE")
]
StoredName = Annotated[str, typer.Argument(help=_RUN_HELP, metavar="RUN")]
OptionalStoredName = Annotated[str | None, typer.Argument(help=_RUN_HELP, metavar="RUN")]
SweepName = Annotated[str | None, typer.Argument(help="Name of a sweep, or its file.", metavar="SWEEP")]

SweepFiles = Annotated[
    list[Path] | None,
    typer.Argument(help="Files of published sweeps; none means all in experiments.", metavar="FILES"),
]
Parameters = Annotated[
    list[str] | None,
    _option("--set", "-p", text="The value of a parameter; once for each.", panel=WHAT, metavar="NAME=VALUE"),
]
Grid = Annotated[
    list[str] | None,
    _option("--grid", text="Every combination of these values.", panel=WHAT, metavar="NAME=V1,V2"),
]
Zip = Annotated[
    list[str] | None,
    _option("--zip", text="Values that change together.", panel=WHAT, metavar="NAME=V1,V2"),
]
Seeds = Annotated[
    int | None,
    _option(
        "--seeds",
        text="Each configuration with seed = 0, 1, … as often as this.",
        panel=WHAT,
        min=1,
        metavar="N",
    ),
]
Book = Annotated[
    bool, _option("--book", text="All runs that the book's build runs, instead of one.", panel=WHAT)
]
OfNotebook = Annotated[
    str | None, _option("--notebook", text="Only runs of this notebook, such as unrolling.", panel=WHAT)
]
Sql = Annotated[
    str | None, _option("--sql", text="A query for DuckDB; the table is called runs.", panel=WHAT)
]
All = Annotated[bool, _option("--all", text="Every run in a row, with all that is known of it.", panel=WHAT)]
Failed = Annotated[bool, _option("--failed", text="Delete failed runs too.", panel=WHAT)]
Stale = Annotated[
    bool,
    _option("--stale", text="Delete finished runs too whose code or libraries changed.", panel=WHAT),
]

Results = Annotated[
    list[str] | None,
    _option("--show", text="A result to draw, such as results.loss.", panel=WHAT, metavar="RESULT"),
]

Workers = Annotated[
    int | None,
    _option(
        "--workers",
        text="Runs at once; without it, as many as there are cores for.",
        panel=HOW,
        min=1,
        metavar="N",
    ),
]
Threads = Annotated[
    int | None,
    _option("--threads", text="Threads of a run. Results depend on it.", panel=HOW, min=1, metavar="N"),
]
Timeout = Annotated[
    float | None,
    _option("--timeout", text="Ends a run that takes longer.", panel=HOW, min=0.001, metavar="SECONDS"),
]
Retry = Annotated[
    Literal["failed"] | None, _option("--retry", text="Run those again that failed before.", panel=HOW)
]
DryRun = Annotated[
    bool, _option("--dry-run", text="Show what would be done and how long it takes; do nothing.", panel=HOW)
]
Watch = Annotated[bool, _option("--watch", text="Go on showing it until nothing is left.", panel=HOW)]
NoOpen = Annotated[bool, _option("--no-open", text="Only say where it is.", panel=HOW)]

SchedulerAddress = Annotated[
    str | None,
    _option("--scheduler", text="A dask scheduler, tls://host:port.", panel=CLUSTER, metavar="ADDRESS"),
]
TlsCa = Annotated[Path | None, _option("--tls-ca", text="Certificate of the authority.", panel=CLUSTER)]
TlsCert = Annotated[Path | None, _option("--tls-cert", text="Our certificate.", panel=CLUSTER)]
TlsKey = Annotated[Path | None, _option("--tls-key", text="Its private key.", panel=CLUSTER)]
PlainTcp = Annotated[
    bool,
    _option("--plain-tcp", text="Trust whoever reaches a scheduler at tcp://.", panel=CLUSTER),
]

Experiments = Annotated[Path, _option("--experiments", text="Folder of the source notebooks.", panel=WHERE)]
StoreLocation = Annotated[
    str, _option("--store", text="Folder of the runs, or a URL such as s3://bucket/runs.", panel=WHERE)
]
Mlflow = Annotated[
    str | None,
    _option("--mlflow", text="Log the runs to this MLflow server too.", panel=WHERE, metavar="URI"),
]
To = Annotated[Literal["parquet", "csv"] | None, _option("--to", text="Form of the table.", panel=WHERE)]
Output = Annotated[
    Path | None, _option("--output", "-o", text="File to write; without it, the terminal.", panel=WHERE)
]
Folder = Annotated[
    Path | None, _option("--folder", text="Of the files; without it, _build/sweeps/SWEEP.", panel=WHERE)
]
