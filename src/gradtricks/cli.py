"""The command ``gradtricks``: those of the lab, and one that plays."""

from pathlib import Path
from typing import Annotated

import typer

from gradtricks.lab.cli import app
from gradtricks.lab.commands.options import examples


@app.command(
    rich_help_panel="Results",
    epilog=examples(
        "gradtricks evaluate policy.safetensors",
        "gradtricks evaluate experiments/published/pong-*/*/files/policy.safetensors --sticky 0.25",
    ),
)
def evaluate(
    policies: Annotated[
        list[Path], typer.Argument(help="Files that a run of pong.ipynb kept.", metavar="POLICY…")
    ],
    games: Annotated[int, typer.Option(min=1, help="How many games each plays, to their ends.")] = 100,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31 - 1, help="Of games and moves; never the default in training."),
    ] = None,
    sticky: Annotated[
        float, typer.Option(min=0, max=1, help="Probability that a frame repeats the last move.")
    ] = 0.0,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="1 draws moves as in training, 0 takes the likeliest; none given: 0.5."),
    ] = None,
) -> None:
    """Let trained Pong policies play games with seeds that training never used.

    A return is the points won minus the points lost, from -21 to 21. The games
    and the moves follow from the seed, so that the same policy returns the same.
    """
    from rich.table import Table

    from gradtricks.agents.evaluation import EVALUATION_SEED, TEMPERATURE, FrozenPolicy
    from gradtricks.agents.evaluation import evaluate as play
    from gradtricks.lab.commands.terminal import near, output, say

    try:
        loaded = [(path, FrozenPolicy.load(path)) for path in policies]
    except (FileNotFoundError, ValueError) as error:
        typer.secho(str(error), err=True, fg="red")
        raise typer.Exit(2) from error
    temperature = TEMPERATURE if temperature is None else temperature
    table = Table("Policy", "Mean return", "Lowest", "Highest", "Decisions a game", box=None)
    for path, policy in loaded:
        returns, decisions = play(
            policy,
            games=games,
            seed=EVALUATION_SEED if seed is None else seed,
            frame_skip=policy.about.get("frame_skip", 4),
            sticky=sticky,
            temperature=temperature,
        )
        row = (f"{returns.mean():+.2f}", f"{returns.min():+.0f}", f"{returns.max():+.0f}")
        table.add_row(near(str(path.resolve())), *row, f"{decisions.mean():,.0f}")
    output.print(table)
    say(f"{games} games each, temperature {temperature:g}, sticky {sticky:g}.")


if __name__ == "__main__":
    app()
