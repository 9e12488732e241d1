"""Ids of the kinds of findings, which stay what they are, and the page of each."""

from collections.abc import Iterator
from importlib.resources import files

# By what is wrong: 1 the path of a gradient, 2 numbers, 3 the update, 4 layers and batches, 5 the loss.
IDS = {
    "backward fails": "GT101",
    "no backward pass": "GT102",
    "cut": "GT103",
    "cut by a checkpoint": "GT104",
    "not in the graph": "GT105",
    "kept graph": "GT106",
    "dead term": "GT107",
    "zero everywhere": "GT108",
    "zero factor": "GT109",
    "not finite, forward": "GT201",
    "not finite, backward": "GT202",
    "not finite, data": "GT203",
    "skipped updates": "GT204",
    "underflow": "GT205",
    "rounded away": "GT206",
    "vanishing": "GT207",
    "exploding": "GT208",
    "spread of one": "GT209",
    "not in the optimizer": "GT301",
    "not registered": "GT302",
    "twice in the optimizer": "GT303",
    "never updated": "GT304",
    "never zeroed": "GT305",
    "learning rate of 0": "GT306",
    "frozen but moving": "GT307",
    "clip of nothing": "GT308",
    "clip unused": "GT309",
    "clip after the update": "GT310",
    "clip before unscaling": "GT311",
    "nothing to update": "GT312",
    "zeroed too early": "GT313",
    "scaled gradients used": "GT314",
    "rate dies": "GT315",
    "training in evaluation mode": "GT401",
    "evaluation in training mode": "GT402",
    "coupled samples": "GT403",
    "drifting statistics": "GT404",
    "padding not 0": "GT405",
    "parts not averaged": "GT406",
    "parts of unequal weight": "GT407",
    "state not carried": "GT408",
    "identical units": "GT409",
    "broadcast": "GT501",
    "logits expected": "GT502",
    "loss of 0": "GT503",
    "log-probabilities expected": "GT504",
    "penalty left out": "GT505",
}


def explain(rule: str) -> str:
    """Return the page of a rule as Markdown: the cause, a script that has it, one that doesn't, the chapter.

    Args:
        rule: An id such as ``"GT305"``, or a kind such as ``"never zeroed"``.

    Raises:
        ValueError: There is no such rule.
    """
    name = IDS.get(rule.lower(), rule.upper())
    if name not in IDS.values():
        known = ", ".join(f"{name} ({kind})" for kind, name in IDS.items())
        raise ValueError(f"expected one of: {known}; got {rule!r}")
    return files("gradtricks.doctor").joinpath("pages", f"{name}.md").read_text(encoding="utf-8")


def matching(begins: str) -> Iterator[str]:
    """Yield the ids that begin so; several beginnings are separated by commas.

    Raises:
        ValueError: No id begins so.
    """
    for begin in filter(None, (part.strip().upper() for part in begins.split(","))):
        names = [name for name in IDS.values() if name.startswith(begin)]
        if not names:
            raise ValueError(f"expected ids or beginnings of them, such as GT305 or GT3; got {begin!r}")
        yield from names
