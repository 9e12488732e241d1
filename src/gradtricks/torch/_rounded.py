"""Steps of parameters of 16 bits: taken in float32, then rounded as a group's option says."""

from typing import Any

import torch

from gradtricks._core.checks import check_choice
from gradtricks.torch._addresses import is_plain
from gradtricks.torch._in_place import Given, portions, step_in_place
from gradtricks.torch._joining import join, part, write
from gradtricks.torch._launching import Adam
from gradtricks.torch.rounding import add_compensated, round_stochastically

_HALVES = torch.bfloat16, torch.float16


def check_rounding(rounding: object, parameter: torch.Tensor) -> None:
    """Raise unless ``rounding`` is one of a group's options, and this parameter can be rounded so."""
    check_choice("rounding", rounding, (None, "stochastic", "compensated"))
    if rounding is not None and parameter.dtype not in _HALVES:
        raise TypeError(
            f"rounding={rounding!r} takes parameters in bfloat16 or float16; got {parameter.dtype}; "
            "remedy: a group of their own for others, with rounding=None"
        )


def step_rounded(
    adam: Adam, given: list[Given], group: dict[str, Any], found_inf: torch.Tensor | None
) -> None:
    """Take a group's step as `step_in_place` does, with its ``rounding``, from copies in float32."""
    kinds: dict[object, list[Given]] = {}
    for one in given:
        parameter, gradient, _ = one
        alone = torch.compiler.is_compiling() or not (is_plain(parameter) and is_plain(gradient))
        kind = id(parameter) if alone else (parameter.device, parameter.dtype)
        kinds.setdefault(kind, []).append(one)
    for alike in kinds.values():
        for some in portions(alike):
            _step(adam, some, group, found_inf)


def _step(adam: Adam, given: list[Given], group: dict[str, Any], found_inf: torch.Tensor | None) -> None:
    parameters, gradients, states = zip(*given, strict=True)
    before = join(parameters)
    moved = before.float()
    copies = part(moved, parameters)
    step_in_place(adam, [*zip(copies, gradients, states, strict=True)], group, found_inf)
    still = moved == before
    if group["rounding"] == "stochastic":
        after = round_stochastically(moved, torch.rand_like(moved), before.dtype)
    else:
        owed = [state["compensation"] for state in states]
        rest = join(owed)
        after, new = add_compensated(before, moved - before, rest)
        write(torch.where(still, rest, new), owed)
    # What is owed to a frozen element mustn't move it.
    write(torch.where(still, before, after), parameters)
