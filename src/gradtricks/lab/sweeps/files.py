"""Sweep files: what may stand in one, for a sweep and for a search."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradtricks.lab.notebooks.schema import ParameterError, alike, shown
from gradtricks.lab.notebooks.texts import MAX_CHARACTERS, Problems, read_yaml
from gradtricks.lab.sweeps.sampling import Axis
from gradtricks.lab.sweeps.spaces import Space

ENDING = ".sweep.yaml"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_RESULT = re.compile(r"(results|varying)(\.\w+)+")
_SHORT_RESULT = re.compile(r"\w+(\.\w+)*")


class Optuna(BaseModel):
    """How to search for good parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    objective: str  # result to improve, such as ``results.loss``
    direction: Literal["minimize", "maximize"]
    trials: Annotated[int, Field(ge=1)]
    sampler: Literal["tpe", "random", "gp"] = "tpe"  # that proposes the next trial
    seed: Annotated[int, Field(ge=0)] = 0  # of the sampler
    storage: str | None = None  # SQLAlchemy URL of the study
    parameters: Annotated[dict[str, Axis], Field(min_length=1)]


class SweepFile(Space):
    """What a sweep file may hold: a space, and what is to be done with it."""

    notebook: str  # its path, relative to the file
    title: str = ""  # of the sweep's page
    question: str = ""  # that it answers
    shown: tuple[str, ...] | dict[str, str] = ()  # results to plot; as a mapping, with what each means
    # Words for results, parameters and their values, ``name=value``, that stand on the sweep's page instead.
    labels: dict[str, str] = Field(default_factory=dict)
    threads: Annotated[int, Field(ge=1)] | None = None  # of a run
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    published: bool = False  # its runs take too long for the book's build, which shows those that are kept
    optuna: Optuna | None = None  # makes it a search


def read_file(path: Path) -> tuple[str, SweepFile | None, Problems]:
    """Read a sweep file, whatever is wrong with it.

    Returns the sweep's name; what the file holds, without what can't be understood; and what is wrong so far.
    """
    if not path.is_file():
        raise FileNotFoundError(f"expected a sweep file at {path}; got nothing there")
    name, file, problems = path.name.removesuffix(ENDING), None, Problems()
    if name == path.name or not _NAME.fullmatch(name):
        problems.append(
            f"expected a file named NAME{ENDING}, NAME of letters, digits, '_', '-' and '.'; got {path.name}"
        )
    with problems.noted():
        file = _understand(_read(path), problems)
    problems += _unlike(file) if file else ()
    return name, file, problems


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as stream:
            raw = read_yaml(stream.read(MAX_CHARACTERS + 1))
    except UnicodeDecodeError as error:
        raise ParameterError(str(error)) from error
    if not isinstance(raw, dict):
        raise ParameterError(f"expected 'notebook: PATH' and what varies; got {shown(raw)}")
    return raw


def _understand(raw: Mapping[str, Any], problems: Problems) -> SweepFile | None:
    """Understand as much as can be: what is wrong is listed and left out."""
    try:
        return SweepFile.model_validate(raw)
    except ValidationError as error:
        problems += dict.fromkeys(explain(error))
        wrong = {detail["loc"][0] for detail in error.errors()}
    with suppress(ValidationError):  # without a notebook there is nothing to check against
        return SweepFile.model_validate({key: part for key, part in raw.items() if key not in wrong})
    return None


def _unlike(file: SweepFile) -> Iterator[str]:
    """Yield what can be seen to be wrong without the notebook."""
    yield from unreadable(file.shown, "shown")
    if file.optuna:
        yield from unreadable([file.optuna.objective], "optuna.objective")
        wrong = {*Space.model_fields, "published"} - {"fixed", "seeds"}
        for name in (name for name in SweepFile.model_fields if name in wrong & file.model_fields_set):
            yield f"{SweepFile.model_fields[name].alias or name}: not for a search"


def explain(error: ValidationError) -> Iterator[str]:
    """Say what is wrong with a file, or with what stands for one."""
    keys = [field.alias or name for name, field in SweepFile.model_fields.items()]
    for detail in error.errors(include_url=False):
        # Where several types are possible, pydantic says after which of them it looked.
        where = ".".join(str(place) for place in detail["loc"] if "[" not in str(place))
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            yield f"{where}: unknown{alike(where, keys)}; expected {', '.join(keys)}"
        elif detail["type"] == "missing":
            yield f"{where}: missing"
        else:
            said = re.sub(r"^\w+ should (be|have)", "expected", detail["msg"])
            yield f"{where}: {said}; got {shown(detail['input'])}"


def unreadable(results: Iterable[str], part: str, *, short: bool = False) -> list[str]:
    """Say which names can't be those of results; a short one is ``loss`` for ``results.loss``."""
    pattern = _SHORT_RESULT if short else _RESULT
    return [
        f"{part}: expected the name of a result, such as results.loss; got {shown(name)}"
        for name in results
        if not pattern.fullmatch(name)
    ]
