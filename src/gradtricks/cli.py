"""The command ``gradtricks``: those of the lab, those of the book, and those that play or diagnose."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
except ModuleNotFoundError as missing:
    sys.stderr.write(
        "expected typer, which gradtricks' commands need; got none installed; remedy: install gradtricks "
        "with its extra [lab] too, or for the doctor alone with [doctor], as in "
        "pip install '.[torch,doctor]'\n"
    )
    raise SystemExit(2) from missing  # 1 would say that the doctor found something

from gradtricks import __version__
from gradtricks.lab.commands.options import Printed, StoreLocation, Workers, app, command, manual
from gradtricks.lab.storage import DEFAULT_STORE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gradtricks.agents.evaluation import FrozenPolicy
    from gradtricks.agents.muzero import FrozenAgent

for _group in ("looking", "running", "views", "keeping"):  # in the order of the help
    import_module(f"gradtricks.lab.commands.{_group}")


@command("Run", "gradtricks book", "gradtricks book --workers 1")
def book(workers: Workers = None, store: StoreLocation = DEFAULT_STORE) -> Printed:
    """Run what the book shows and what hasn't been run with the same inputs before; then build the book."""
    from gradtricks.lab.commands.terminal import output

    _expect_checkout()
    from gradtricks.book.building import build_book

    site = build_book(workers=workers, store=store, console=output)
    yield f"The book is built: open {(site / 'index.html').resolve().as_uri()}"


@command("Run", "gradtricks pdf")
def pdf() -> Printed:
    """Print the chapters of the built book into one PDF, with Chromium."""
    _expect_checkout()
    from gradtricks.book.building import print_book

    yield f"The chapters are in {print_book().resolve().as_uri()}"


@command(
    "Results",
    "gradtricks evaluate policy.safetensors",
    "gradtricks evaluate experiments/published/muzero/*.safetensors",
    "gradtricks evaluate experiments/published/pong/*.safetensors --sticky 0.25",
)
def evaluate(
    agents: Annotated[
        list[Path],
        typer.Argument(help="Files that a run of pong, muzero or tictactoe.ipynb kept.", metavar="AGENT…"),
    ],
    games: Annotated[int, typer.Option(min=1, help="How many games each plays, to their ends.")] = 100,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31 - 1, help="Of games and moves; never the default in training."),
    ] = None,
    sticky: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Pong: probability that a frame repeats the last move; none given: 0."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, help="Pong: 1 draws moves as in training, 0 takes the likeliest; none given: 0.5."
        ),
    ] = None,
) -> Printed:
    """Let trained agents play games with seeds that training never used.

    A return is, in Pong, the points won minus the points lost, from -21 to 21; in
    CartPole, the steps until the pole falls, at most 500; in tic-tac-toe, 1 for a
    win and -1 for a loss against a perfect player, moving first in half of the
    games; in Connect Four, the same against one who looks four moves ahead. All
    follows from the seed: the same agent returns the same.
    """
    from rich.progress import Progress
    from rich.table import Table

    from gradtricks.lab.commands.terminal import make_console, requested
    from gradtricks.lab.notebooks.texts import near

    given = {"seed": seed, "sticky": sticky, "temperature": temperature}
    how = {name: value for name, value in given.items() if value is not None}
    table = Table("Agent", "Game", "Sees", "Mean return", "Lowest", "Highest", "Decisions a game", box=None)
    console = make_console(stderr=True)
    # A hundred games of Pong take an agent a minute.
    with requested(), Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        loaded = {near(str(path.resolve())): _load(path, how) for path in agents}
        task = progress.add_task("", total=len(loaded))
        for number, (name, agent) in enumerate(loaded.items(), 1):
            progress.update(task, description=name)
            if progress.disable:
                console.print(f"{number}/{len(loaded)} {name}")
            game, returns, decisions = _play(agent, games, **how)
            row = (f"{returns.mean():+.2f}", f"{returns.min():+.0f}", f"{returns.max():+.0f}")
            table.add_row(
                name, game, agent.seen, *row, "" if decisions is None else f"{decisions.mean():,.0f}"
            )
            progress.advance(task)
    yield table
    yield f"{games} games each."


@app.command(
    rich_help_panel="Run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=manual(
        "gradtricks doctor train.py",
        "gradtricks doctor --updates 5 train.py --epochs 1",
        "gradtricks doctor --explain GT305",
        "gradtricks doctor --json train.py > baseline.json",
        "gradtricks doctor --baseline baseline.json --sarif findings.sarif train.py",
    ),
)
def doctor(
    context: typer.Context,
    script: Annotated[
        Path | None, typer.Argument(help="A training script; what follows is given to it.")
    ] = None,
    updates: Annotated[
        int | None, typer.Option(min=2, help="How many of each optimizer to watch, if not what it takes.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds after which the script is stopped in any case.")
    ] = None,
    select: Annotated[str, typer.Option(help="Ids to report, or beginnings: GT3,GT202.")] = "",
    ignore: Annotated[str, typer.Option(help="Ids not to report, or beginnings.")] = "",
    baseline: Annotated[
        Path | None, typer.Option(help="What --json printed before; what is in it isn't reported again.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; what the script prints goes to stderr.")
    ] = False,
    sarif: Annotated[Path | None, typer.Option(help="Also write a SARIF file, for code hosts.")] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Watch one step: the one that a FlightRecorder kept in this file.")
    ] = None,
    explain: Annotated[
        str, typer.Option(help="Print what a finding means, by id or kind, with a wrong and a right script.")
    ] = "",
) -> None:
    """Run a training script for some updates; say what is wrong with its gradients, where, and what to do.

    The script may use PyTorch or Keras with TensorFlow, and isn't changed. It is stopped before its end, so
    what it saves there isn't saved: after fifty updates of each optimizer; or after three and 20 seconds; or
    two updates after its first evaluation. With TensorFlow it is stopped after three updates. Where it fails
    by itself, its error is shown, and what was found until then.

    Exit codes: 0, nothing was found; 1, something was; 2, the command can't be carried out; 3, the script
    raised an error, or left with a code of its own though nothing was found; 4, it trains nothing; 124, it
    was stopped by --timeout, and nothing was found until then.
    """
    from contextlib import redirect_stdout

    from gradtricks.doctor import exporting, rules
    from gradtricks.doctor.examining import examine
    from gradtricks.lab.commands.terminal import show

    try:
        if explain:
            show(rules.explain(explain))
            return
        if script is None:
            raise ValueError("expected a training script; got none; remedy: gradtricks doctor train.py")
        chosen = exporting.choose(select, ignore, baseline.read_text(encoding="utf-8") if baseline else "")
        with redirect_stdout(sys.stderr if json else sys.stdout):
            found = examine(script, context.args, updates, timeout, replay)
        found = replace(found, diagnosis=chosen(found.diagnosis))
        if sarif:
            sarif.write_text(exporting.as_sarif(found.diagnosis, __version__), encoding="utf-8")
    except (OSError, ValueError) as error:
        typer.secho(str(error), err=True, fg="red")
        raise typer.Exit(2) from error
    if json:
        show(exporting.as_json(found.diagnosis, found.trace))
    else:
        if found.trace:
            typer.echo(found.trace, err=True)
        show(str(found.diagnosis))
    raise typer.Exit(found.exit_code)


def _expect_checkout() -> None:
    if not Path("book", "_toc.yml").is_file():
        raise FileNotFoundError(
            f"expected a checkout of gradtricks, with book/_toc.yml; got none in {Path.cwd()}; "
            "remedy: cd into one"
        )


def _load(path: Path, how: Mapping[str, Any]) -> "FrozenPolicy | FrozenAgent":
    """Read an agent, and refuse how it can't play."""
    from gradtricks.agents.checkpoints import load_checkpoint
    from gradtricks.agents.evaluation import FrozenPolicy
    from gradtricks.agents.muzero import FrozenAgent

    if load_checkpoint(path).about.get("kind") != FrozenAgent.kind:
        return FrozenPolicy.load(path)
    agent = FrozenAgent.load(path)
    for name in how.keys() - {"seed"}:
        raise ValueError(f"expected --{name} with Pong only; got {agent.game}; remedy: leave it out")
    return agent


def _play(
    agent: "FrozenPolicy | FrozenAgent", games: int, **how: Any
) -> "tuple[str, NDArray[Any], NDArray[Any] | None]":
    """Name a game, and return what its games returned and how many decisions they took, if that is known."""
    from gradtricks.agents.evaluation import TEMPERATURE, FrozenPolicy
    from gradtricks.agents.evaluation import evaluate as play

    if not isinstance(agent, FrozenPolicy):
        returns = agent.play(games, **how)
        # In CartPole there is a point for each decision.
        return agent.game, returns, returns if agent.game == "CartPole-v1" else None
    how = {"sticky": 0.0, "temperature": TEMPERATURE} | how
    returns, decisions = play(agent, games=games, frame_skip=agent.about.get("frame_skip", 4), **how)
    return f"Pong, temperature {how['temperature']:g}, sticky {how['sticky']:g}", returns, decisions


if __name__ == "__main__":
    app()
