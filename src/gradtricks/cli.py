"""The command ``gradtricks``: those of the lab, those of the book, and one that plays."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gradtricks.lab.cli import app
from gradtricks.lab.commands.options import DEFAULT_STORE, StoreLocation, Workers, examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gradtricks.agents.evaluation import FrozenPolicy
    from gradtricks.agents.frozen import FrozenAgent


class _Play(NamedTuple):
    """How agents are to play; of what isn't given, each game has its own default."""

    games: int
    seed: int | None
    sticky: float | None
    temperature: float | None


class _Played(NamedTuple):
    game: str
    returns: "NDArray[Any]"
    decisions: "NDArray[Any] | None" = None


@app.command(
    rich_help_panel="Run",
    epilog=examples("gradtricks book", "gradtricks book --workers 1", exit_codes=True),
)
def book(workers: Workers = None, store: StoreLocation = DEFAULT_STORE) -> None:
    """Run what the book shows and what hasn't been run with the same inputs before; then build the book."""
    from gradtricks.book.building import build_book
    from gradtricks.lab.commands.terminal import explained, output, say

    with explained():
        site = build_book(workers=workers, store=store, console=output)
        say(f"The book is built: open {(site / 'index.html').resolve().as_uri()}")


@app.command(rich_help_panel="Run", epilog=examples("gradtricks pdf", exit_codes=True))
def pdf() -> None:
    """Print the chapters of the built book into one PDF, with Chromium."""
    from gradtricks.book.building import print_book
    from gradtricks.lab.commands.terminal import explained, say

    with explained():
        say(f"The chapters are in {print_book().resolve().as_uri()}")


@app.command(
    rich_help_panel="Results",
    epilog=examples(
        "gradtricks evaluate policy.safetensors",
        "gradtricks evaluate experiments/published/muzero/*.safetensors",
        "gradtricks evaluate experiments/published/pong/*.safetensors --sticky 0.25",
    ),
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
) -> None:
    """Let trained agents play games with seeds that training never used.

    A return is, in Pong, the points won minus the points lost, from -21 to 21; in
    CartPole, the steps until the pole falls, at most 500; in tic-tac-toe, 1 for a
    win and -1 for a loss against a perfect player, moving first in half of the
    games; in Connect Four, the same against one who looks four moves ahead. All
    follows from the seed: the same agent returns the same.
    """
    from rich.table import Table

    from gradtricks.lab.commands.terminal import near, output, say

    how = _Play(games, seed, sticky, temperature)
    try:
        loaded = [_load(path) for path in agents]
        for agent in loaded:
            _check(agent, how)
        played = [(path, _play(agent, how)) for path, agent in _shown(agents, loaded)]
    except (FileNotFoundError, ValueError) as error:
        typer.secho(str(error), err=True, fg="red")
        raise typer.Exit(2) from error
    table = Table("Agent", "Game", "Mean return", "Lowest", "Highest", "Decisions a game", box=None)
    for path, (game, returns, decisions) in played:
        row = (f"{returns.mean():+.2f}", f"{returns.min():+.0f}", f"{returns.max():+.0f}")
        table.add_row(
            near(str(path.resolve())), game, *row, "" if decisions is None else f"{decisions.mean():,.0f}"
        )
    output.print(table)
    say(f"{games} games each.")


@app.command(
    rich_help_panel="Results",
    epilog=examples(
        "gradtricks watch policy.safetensors", "gradtricks watch policy.safetensors --sticky 0.25"
    ),
)
def watch(
    agent: Annotated[Path, typer.Argument(help="A file that a run of pong.ipynb kept.", metavar="AGENT")],
    film: Annotated[Path, typer.Option(help="The file to write, an animated PNG.")] = Path("game.png"),
    seconds: Annotated[
        float, typer.Option(min=1, help="After which the film ends, if the game hasn't.")
    ] = 60,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the game and the moves.")] = 2_000_000,
    sticky: Annotated[
        float, typer.Option(min=0, max=1, help="Probability that a frame repeats the last move.")
    ] = 0.0,
) -> None:
    """Film a trained agent in a game of Pong, for a browser to show; the agent is on the right."""
    from gradtricks.agents.evaluation import FrozenPolicy
    from gradtricks.agents.evaluation import film as play
    from gradtricks.lab.commands.terminal import say
    from gradtricks.lab.films import encode_film

    try:
        if not film.absolute().parent.is_dir():
            raise ValueError(f"--film must be a file in a folder that exists; got {film}")
        policy = FrozenPolicy.load(agent)
    except (FileNotFoundError, ValueError) as error:
        typer.secho(str(error), err=True, fg="red")
        raise typer.Exit(2) from error
    skipped = policy.about.get("frame_skip", 4)
    game = play(policy, seconds=seconds, seed=seed, frame_skip=skipped, sticky=sticky)
    film.write_bytes(encode_film(game.screens, game.frames_per_second))
    won, lost = (int((sign * game.rewards > 0).sum()) for sign in (1, -1))
    say(f"{won} points won and {lost} lost: open {film.resolve().as_uri()}")


@app.command(
    rich_help_panel="Run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=examples("gradtricks doctor train.py", "gradtricks doctor --updates 5 train.py --epochs 1"),
)
def doctor(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A training script; what follows is given to it.")],
    updates: Annotated[int, typer.Option(min=2, help="After how many of each optimizer to stop.")] = 3,
) -> None:
    """Run a training script for some updates; say what is wrong with its gradients, where, and what to do.

    The script may use PyTorch or Keras with TensorFlow, and isn't changed. It is stopped after the updates,
    so what it saves at the end isn't saved. Exit code 1 means that something was found.
    """
    from gradtricks.doctor import examine
    from gradtricks.lab.commands.terminal import output

    try:
        diagnosis = examine(script, context.args, updates)
    except (FileNotFoundError, ValueError) as error:
        typer.secho(str(error), err=True, fg="red")
        raise typer.Exit(2) from error
    output.print(str(diagnosis), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if diagnosis.healthy else 1)


def _load(path: Path) -> "FrozenPolicy | FrozenAgent":
    from gradtricks.agents.checkpoints import load_checkpoint
    from gradtricks.agents.evaluation import FrozenPolicy
    from gradtricks.agents.frozen import FrozenAgent

    kind = load_checkpoint(path).about.get("kind")
    return FrozenAgent.load(path) if kind == FrozenAgent.kind else FrozenPolicy.load(path)


def _shown(
    paths: list[Path], agents: "list[FrozenPolicy | FrozenAgent]"
) -> "Iterator[tuple[Path, FrozenPolicy | FrozenAgent]]":
    """Say on a terminal whose turn it is: a hundred games of Pong take an agent a minute."""
    from rich.progress import Progress

    from gradtricks.lab.commands.terminal import make_console, near

    console = make_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(paths))
        for path, agent in zip(paths, agents, strict=True):
            progress.update(task, description=near(str(path.resolve())))
            yield path, agent
            progress.advance(task)


def _check(agent: "FrozenPolicy | FrozenAgent", how: _Play) -> None:
    from gradtricks.agents.frozen import FrozenAgent

    given = [name for name in ("sticky", "temperature") if getattr(how, name) is not None]
    if given and isinstance(agent, FrozenAgent):
        raise ValueError(f"expected --{given[0]} with Pong only; got {agent.game}; remedy: leave it out")


def _play(agent: "FrozenPolicy | FrozenAgent", how: _Play) -> _Played:
    from gradtricks.agents.evaluation import FrozenPolicy

    return _play_pong(agent, how) if isinstance(agent, FrozenPolicy) else _play_by_search(agent, how)


def _play_pong(policy: "FrozenPolicy", how: _Play) -> _Played:
    from gradtricks.agents.checkpoints import EVALUATION_SEED
    from gradtricks.agents.evaluation import TEMPERATURE
    from gradtricks.agents.evaluation import evaluate as play

    sticky = how.sticky or 0.0
    temperature = TEMPERATURE if how.temperature is None else how.temperature
    returns, decisions = play(
        policy,
        games=how.games,
        seed=EVALUATION_SEED if how.seed is None else how.seed,
        frame_skip=policy.about.get("frame_skip", 4),
        sticky=sticky,
        temperature=temperature,
    )
    return _Played(f"Pong, temperature {temperature:g}, sticky {sticky:g}", returns, decisions)


def _play_by_search(agent: "FrozenAgent", how: _Play) -> _Played:
    returns = agent.play(how.games) if how.seed is None else agent.play(how.games, how.seed)
    # In CartPole there is a point for each decision.
    return _Played(agent.game, returns, returns if agent.game == "CartPole-v1" else None)


if __name__ == "__main__":
    app()
