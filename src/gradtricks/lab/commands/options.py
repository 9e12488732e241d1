"""Declarations of commands: the application, its options, and the manual at the end of each help."""

from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

Printed = Iterator[Any]  # texts and renderables of Rich, which a command yields

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
)

_EXIT_CODES = """\
[bold]Exit codes[/bold]
  0  all that was asked for is there
  1  a run failed, or a result differs or is missing
  2  the request is wrong, and nothing was started
  130  interrupted; the same command goes on later"""


def manual(*examples: str) -> str:
    """Write the end of a command's help: command lines, as they are typed, and the exit codes."""
    lines = "\n".join(f"  {line}" for line in examples).replace("[", r"\[")
    return f"[bold]Examples[/bold]\n{lines}\n\n{_EXIT_CODES}"


@app.callback(
    epilog=manual(
        "gradtricks describe experiments/unrolling.ipynb",
        "gradtricks run experiments/unrolling.ipynb -p seed=3",
        "gradtricks sweep experiments/unrolling.sweep.yaml",
        "gradtricks sweep --help",
    )
)
def main() -> None:
    """Rerun, sweep and reproduce the notebooks of gradtricks, and build the book that shows them.

    Finished runs are kept in a store, and not done again while their cells and
    parameters, the modules that they imported and the libraries mean the same.
    A command that was interrupted or killed goes on when it is given again.
    """


_NAMED = ("-p", "--set", "--grid", "--zip")  # options that take a name and values


class _Command(TyperCommand):
    """A command that takes ``-p name value``, as papermill has it, for ``-p name=value``; its like too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        for word in args:
            takes_two = given[-2:-1] and given[-2] in _NAMED and "=" not in given[-1]
            if takes_two and word != "-p" and not word.startswith("--"):
                given[-1] += f"={word}"
            else:
                given.append(word)
        return super().parse_args(ctx, given)


def command(panel: str, *examples: str) -> Callable[..., Any]:
    """Declare a function as the command of its name; the command prints what the function yields.

    The help lists it in a ``panel``; at the end of its own are command lines as ``examples``.
    """

    def declare(function: Callable[..., Printed]) -> Callable[..., Printed]:
        name = function.__name__.rstrip("_")  # as in ``list_``

        @app.command(name, cls=_Command, rich_help_panel=panel, epilog=manual(*examples))
        @wraps(function)
        def called(*arguments: Any, **options: Any) -> None:
            from gradtricks.lab.commands.terminal import explained, show

            with explained():
                for part in function(*arguments, **options):
                    show(part)

        return function

    return declare


_what: Any = partial(typer.Option, rich_help_panel="What to run")
_how: Any = partial(typer.Option, rich_help_panel="How to run")
_cluster: Any = partial(typer.Option, rich_help_panel="On a cluster")
_where: Any = partial(typer.Option, rich_help_panel="Where it goes")

_RUN = typer.Argument(help="Its path, its title or the beginning of that.", metavar="RUN")
StoredName = Annotated[str, _RUN]
OptionalStoredName = Annotated[str | None, _RUN]
Notebook = Annotated[Path, typer.Argument(help="Source notebook, such as experiments/masking.ipynb.")]
Source = Annotated[
    Path, typer.Argument(help="A sweep's file, or a notebook with --grid, --zip or --seeds.", metavar="FILE")
]
SweepName = Annotated[str | None, typer.Argument(help="Name of a sweep, or its file.", metavar="SWEEP")]
SweepFiles = Annotated[
    list[Path] | None,
    typer.Argument(help="Files of published sweeps; none means all in experiments.", metavar="FILES"),
]

Parameters = Annotated[
    list[str] | None,
    _what("--set", "-p", help="The value of a parameter; once for each.", metavar="NAME=VALUE"),
]
Grid = Annotated[
    list[str] | None, _what("--grid", help="Every combination of these values.", metavar="NAME=V1,V2")
]
Zip = Annotated[list[str] | None, _what("--zip", help="Values that change together.", metavar="NAME=V1,V2")]
Seeds = Annotated[
    int | None,
    _what("--seeds", help="Each configuration with seed = 0, 1, … as often as this.", min=1, metavar="N"),
]
Results = Annotated[
    list[str] | None, _what("--show", help="A result to draw, such as results.loss.", metavar="RESULT")
]
Book = Annotated[bool, _what("--book", help="All runs that the book's build runs, instead of one.")]
All = Annotated[bool, _what("--all", help="Every run in a row, with all that is known of it.")]
Failed = Annotated[bool, _what("--failed", help="Delete failed runs too.")]
Stale = Annotated[bool, _what("--stale", help="Delete finished runs too whose code or libraries changed.")]

Missing = Annotated[
    bool, _what("--missing", help="Only what isn't published yet, if the quick runs give the same numbers.")
]

Workers = Annotated[
    int | None,
    _how("--workers", help="Runs at once; without it, as many as there are cores for.", min=1, metavar="N"),
]
Threads = Annotated[
    int | None, _how("--threads", help="Threads of a run. Results depend on it.", min=1, metavar="N")
]
Timeout = Annotated[
    float | None, _how("--timeout", help="Ends a run that takes longer.", min=0.001, metavar="SECONDS")
]
Again = Annotated[
    bool, _how("--again", help="Run what is kept too; each is replaced when its new run has finished.")
]
Retry = Annotated[Literal["failed"] | None, _how("--retry", help="Run those again that failed before.")]
DryRun = Annotated[bool, _how("--dry-run", help="Show what would be done and how long it takes; do nothing.")]

SchedulerAddress = Annotated[
    str | None, _cluster("--scheduler", help="A dask scheduler, tls://host:port.", metavar="ADDRESS")
]
TlsCa = Annotated[Path | None, _cluster("--tls-ca", help="Certificate of the authority.")]
TlsCert = Annotated[Path | None, _cluster("--tls-cert", help="Our certificate.")]
TlsKey = Annotated[Path | None, _cluster("--tls-key", help="Its private key.")]
PlainTcp = Annotated[bool, _cluster("--plain-tcp", help="Trust anybody who reaches a scheduler at tcp://.")]

Experiments = Annotated[Path, _where("--experiments", help="Folder of the source notebooks.")]
StoreLocation = Annotated[str, _where("--store", help="Folder of the runs; plots go beside it.")]
To = Annotated[Literal["parquet", "csv"] | None, _where("--to", help="Form of the table.")]
Output = Annotated[Path | None, _where("--output", "-o", help="File to write; without it, the terminal.")]
