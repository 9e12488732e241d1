"""What a notebook's metadata say under ``gradtricks`` of how it is to be run."""

from pathlib import PurePath
from typing import Annotated, Any

from nbformat import NotebookNode
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gradtricks.lab.notebooks.schema import ParameterError, alike, shown


def _check_pattern(pattern: str) -> str:
    """Refuse what `Path.glob` doesn't take, and what could find something above the notebook's folder."""
    parts = PurePath(pattern).parts
    if not parts or PurePath(pattern).anchor or any(p == ".." or ("**" in p and p != "**") for p in parts):
        raise ValueError(pattern)
    return pattern


class Settings(BaseModel):
    """How a notebook is to be run; CONTRIBUTING.md has the keys in a table."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    threads: int = Field(1, ge=1, le=1024, description="a whole number from 1 to 1024")
    alone: bool = Field(False, description="true or false")
    expected_s: float | None = Field(None, ge=0, allow_inf_nan=False, description="a number of seconds")
    fresh_kernel: bool = Field(False, description="true or false")
    reads: list[Annotated[str, AfterValidator(_check_pattern)]] = Field(
        [], description="a list of patterns such as data/*.csv, of files beside the notebook"
    )
    quick: dict[str, Any] | None = Field(None, description="parameters by name")
    # Of each file that it reads the digest, and where these files lie, seen from where the run was planned.
    read: dict[str, str] = Field({}, description="what planning a run writes there")
    folder: str = Field("", description="what planning a run writes there")


def read_settings(notebook: NotebookNode, path: str, **instead: Any) -> Settings:
    """Read how a notebook is to be run; ``instead`` holds instead of what it says.

    A ParameterError lists the keys that are unknown, and what doesn't fit.
    """
    said = notebook.metadata.get("gradtricks", {})
    if not isinstance(said, dict):
        raise ParameterError(
            f"{path}: expected metadata named gradtricks to hold settings by name; got {shown(said)}"
        )
    given = {**said, **instead}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        wrong = dict.fromkeys(str(each["loc"][0]) for each in error.errors())
    fields = Settings.model_fields
    known = [name for name in fields if name not in ("read", "folder")]
    problems = [
        f"{name}: expected {fields[name].description}; got {shown(given[name])}"
        if name in fields
        else f"{name}: unknown{alike(name, known)}; the metadata take {', '.join(known)}"
        for name in wrong
    ]
    raise ParameterError("\n".join(f"{path}: {problem}" for problem in problems))
