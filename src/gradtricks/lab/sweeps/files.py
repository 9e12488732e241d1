"""Sweep files: what may stand in one, for a sweep and for a search."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradtricks.lab.notebooks.schema import shown
from gradtricks.lab.notebooks.texts import MAX_CHARACTERS, TextError, read_yaml
from gradtricks.lab.sweeps.sampling import Axis
from gradtricks.lab.sweeps.spaces import Space

ENDING = ".sweep.yaml"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_RESULT = re.compile(r"(results|varying)(\.\w+)+")
_SHORT_RESULT = re.compile(r"\w+(\.\w+)*")


class Optuna(BaseModel):
    """How to search for good parameters.

    Attributes:
        objective: Result to improve, such as ``results.loss``.
        direction: Whether less or more is better.
        trials: How many.
        sampler: That proposes the next trial.
        seed: Of the sampler.
        storage: SQLAlchemy URL of the study; None where nothing is said.
        parameters: What is searched.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    objective: str
    direction: Literal["minimize", "maximize"]
    trials: Annotated[int, Field(ge=1)]
    sampler: Literal["tpe", "random", "gp"] = "tpe"
    seed: Annotated[int, Field(ge=0)] = 0
    storage: str | None = None
    parameters: Annotated[dict[str, Axis], Field(min_length=1)]


class SweepFile(Space):
    """What a sweep file may hold: a space, and what is to be done with it.

    Attributes:
        notebook: Path of the notebook, relative to the file.
        title: Of the sweep's page.
        question: That it answers.
        shown: Results to plot, such as ``results.loss``; as a mapping, with what each means.
        threads: Of a run.
        timeout_s: Seconds that a run may take.
        published: Its runs take too long for the book's build, which shows those that are kept.
        optuna: Makes it a search.
    """

    notebook: str
    title: str = ""
    question: str = ""
    shown: tuple[str, ...] | dict[str, str] = ()
    threads: Annotated[int, Field(ge=1)] | None = None
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    published: bool = False
    optuna: Optuna | None = None


def read_file(path: Path) -> tuple[str, SweepFile | None, list[str]]:
    """Read a sweep file, whatever is wrong with it.

    Args:
        path: Of the file.

    Returns:
        The sweep's name; what the file holds, without what can't be understood; and what is wrong so far.

    Raises:
        FileNotFoundError: There is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"expected a sweep file at {path}; got nothing there")
    name = path.name.removesuffix(ENDING)
    problems = []
    if name == path.name or not _NAME.fullmatch(name):
        problems.append(
            f"expected a file named NAME{ENDING}, NAME of letters, digits, '_', '-' and '.'; got {path.name}"
        )
    try:
        with path.open(encoding="utf-8") as stream:
            raw = read_yaml(stream.read(MAX_CHARACTERS + 1))
    except (TextError, UnicodeDecodeError) as error:
        return name, None, [*problems, str(error)]
    if not isinstance(raw, dict):
        return name, None, [*problems, f"expected 'notebook: PATH' and what varies; got {shown(raw)}"]
    file, wrong = _validate(raw)
    problems += [*wrong, *(_unlike(file) if file else ())]
    return name, file, problems


def _unlike(file: SweepFile) -> Iterator[str]:
    """Yield what can be seen to be wrong without the notebook."""
    yield from unreadable(file.shown, "shown")
    if file.optuna:
        yield from unreadable([file.optuna.objective], "optuna.objective")
        parts = ("exclude", "only_if", "max_runs", "published")
        yield from (f"{part}: not for a search" for part in parts if part in file.model_fields_set)


def _validate(raw: Mapping[str, Any]) -> tuple[SweepFile | None, list[str]]:
    """Understand as much as can be: what is wrong is listed and left out."""
    try:
        return SweepFile.model_validate(raw), []
    except ValidationError as error:
        problems = list(dict.fromkeys(explain(error)))
        wrong = {str(detail["loc"][0]) for detail in error.errors()}
    try:
        return SweepFile.model_validate(
            {key: part for key, part in raw.items() if key not in wrong}
        ), problems
    except ValidationError:  # without a notebook there is nothing to check against
        return None, problems


def explain(error: ValidationError) -> Iterator[str]:
    """Say what is wrong with a file, or with what stands for one.

    Args:
        error: Of `SweepFile` or `Space`.

    Yields:
        One message after another.
    """
    keys = [field.alias or name for name, field in SweepFile.model_fields.items()]
    for detail in error.errors(include_url=False):
        # Where several types are possible, pydantic says after which of them it looked.
        where = ".".join(str(place) for place in detail["loc"] if "[" not in str(place))
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            near = get_close_matches(where, keys, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            yield f"{where}: unknown{hint}; expected {', '.join(keys)}"
        elif detail["type"] == "missing":
            yield f"{where}: missing"
        else:
            said = detail["msg"].replace("Input should be", "expected")
            yield f"{where}: {said}; got {shown(detail['input'])}"


def unreadable(results: Iterable[str], part: str, *, short: bool = False) -> list[str]:
    """Say which of the names can't be those of results.

    Args:
        results: Names.
        part: Of the file, for messages.
        short: Whether ``loss`` stands for ``results.loss``.

    Returns:
        Messages.
    """
    pattern = _SHORT_RESULT if short else _RESULT
    return [
        f"{part}: expected the name of a result, such as results.loss; got {shown(name)}"
        for name in results
        if not pattern.fullmatch(name)
    ]
