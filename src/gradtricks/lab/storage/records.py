"""The record of a run: what it must hold to be believed, and whether it still holds."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import nbformat
from nbformat import NotebookNode
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat
from pydantic_core import from_json

from gradtricks.lab.encoding import decode, encode
from gradtricks.lab.identity import Installed
from gradtricks.lab.recording import FIGURE_NAME, FILE_NAME, LARGEST_FILE
from gradtricks.lab.storage.places import KEPT, Place, StoreError, explained

SCHEMA_VERSION = 3
LONGEST_TITLE = 100
IN_NAME = 12  # digits of a request
LISTED = 5  # that a message shows
FAILED = "failed"  # folder of a request's last failure, beside those of finished runs

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TITLE = re.compile(rf"[A-Za-z0-9_=,+-][A-Za-z0-9_.=,+-]{{0,{LONGEST_TITLE - 1}}}")
STEM = re.compile(r"[^\x00-\x1f/\\]*[^\x00-\x1f/\\.][^\x00-\x1f/\\]*")


def _like(pattern: re.Pattern[str]) -> Any:
    return Field(pattern=rf"^(?:{pattern.pattern})$")  # as a text, which Rust takes, and is fast at


def _has_zone(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"expected a time with its zone; got {text}")
    return text


Digest = Annotated[str, _like(_DIGEST)]
_Stem = Annotated[str, _like(STEM)]
_Count = Annotated[int, Field(gt=0, lt=1 << 20)]


class Strict(BaseModel):
    """Parts of which each is of exactly its type, and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class KeptFile(Strict):
    """Size and digest of a file that a run kept."""

    bytes: Annotated[int, Field(ge=0, le=LARGEST_FILE)]
    sha256: Digest


class Inputs(Strict):
    """Inputs of a run, as `gradtricks.lab.identity.inputs_of` lists them."""

    modules: dict[str, Digest]
    versions: dict[str, str | None]
    python: str


class Provenance(Strict, extra="allow"):
    """Where and on what a run was done; all else in it are measurements."""

    __pydantic_extra__: dict[str, FiniteFloat]

    commit: str | None
    dirty: bool | None
    python: str
    platform: str
    processor: str
    cores: _Count
    threads: _Count


class Record(Strict, extra="ignore"):
    """All that others rely on in a record."""

    schema_version: Literal[3]
    stem: _Stem
    name: _Stem
    title: Annotated[str, _like(_TITLE)]
    status: Literal["finished", "failed"]
    parameters: dict[str, Any]
    results: dict[str, Any]
    varying: dict[str, Any]
    figures: dict[Annotated[str, _like(FIGURE_NAME)], str]
    files: dict[Annotated[str, _like(FILE_NAME)], KeptFile] = Field(default_factory=dict)
    request: Digest
    provenance: Provenance
    started: Annotated[str, AfterValidator(_has_zone)]
    inputs: Any  # `Inputs`, which many records share
    duration_s: Annotated[FiniteFloat, Field(ge=0)]


@dataclass(frozen=True)
class StoredRun:
    """A run that the store holds.

    Attributes:
        location: Folder of the run.
        record: Its record, as `gradtricks.lab.encoding.encode` left it.
    """

    location: str
    record: dict[str, Any]

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.record["title"]

    @property
    def request(self) -> str:
        """Digest of what was asked for."""
        return self.record["request"]

    @property
    def status(self) -> str:
        """``finished`` or ``failed``."""
        return self.record["status"]

    @property
    def parameters(self) -> dict[str, Any]:
        """A value for every parameter."""
        return decode(self.record["parameters"])

    @property
    def results(self) -> dict[str, Any]:
        """Its recorded results."""
        return decode(self.record["results"])

    @property
    def varying(self) -> dict[str, Any]:
        """Its recorded values that are never the same twice, such as seconds."""
        return decode(self.record["varying"])

    @property
    def executed(self) -> bool:
        """Whether its executed notebook is kept: where no process could be started, there is none."""
        with explained(self.location):
            return "notebook.ipynb" in Place(self.location).names()

    def read_notebook(self) -> NotebookNode:
        """Read the executed notebook; a StoreError says that it isn't there, or torn."""
        with explained(self.location):
            text = Place(self.location).read("notebook.ipynb")
        try:
            return nbformat.reads((text or b"").decode(), as_version=4)
        except Exception as error:  # whatever nbformat meets in a file that isn't a notebook
            raise StoreError(
                f"expected a notebook in {self.location}; got none that can be read; remedy: run it again"
            ) from error

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Of each file that it kept, by name, ``bytes`` and ``sha256``."""
        return self.record.get("files", {})

    def read_file(self, name: str) -> bytes:
        """Read a file that it kept; a StoreError says that it kept none, or that this isn't what it was."""
        if name not in self.files:
            there = ", ".join(self.files) or "none"
            raise StoreError(f"expected one of the files of {self.title}: {there}; got {name!r}")
        data = self._read_kept(name)
        if data is None or hashlib.sha256(data).hexdigest() != self.files[name]["sha256"]:
            raise StoreError(
                f"expected the file {name} in {self.location} as it was recorded; "
                f"got {'none' if data is None else 'another one'}; remedy: delete that folder and run again"
            )
        return data

    def _read_kept(self, name: str) -> bytes | None:
        with explained(self.location):
            return Place(self.location).read(f"{KEPT}/{name}")

    def valid(self) -> bool:
        """Say whether what it computed with means the same as then."""
        return Installed().matches(self.record["inputs"])


def request_digest(source: str, parameters: Mapping[str, Any], threads: int) -> str:
    """Digest what is asked of a run: SHA-256 in hexadecimal."""
    encoded = sorted((name, encode(value, name)) for name, value in parameters.items())
    return hashlib.sha256(json.dumps([SCHEMA_VERSION, source, encoded, threads]).encode()).hexdigest()


def folder_name(title: str, request: str) -> str:
    """Name the folder of all that was run for one request; refuse what would leave the store."""
    if not _TITLE.fullmatch(title) or not _DIGEST.fullmatch(request):
        raise StoreError(f"expected a title and a digest of a planned run; got {title!r} and {request!r}")
    return f"{title}-{request[:IN_NAME]}"


def inputs_digest(inputs: Mapping[str, Any]) -> str:
    """Digest what a run used: the first twelve digits of a SHA-256."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]


def path_of(record: Mapping[str, Any], digest: str = "") -> str:
    """Name the folder of a run within its store: by its request, in there by its inputs."""
    name = FAILED if record["status"] == "failed" else digest or inputs_digest(record["inputs"])
    return f"{folder_name(record['title'], record['request'])}/{name}"


def write_record(record: Mapping[str, Any]) -> bytes:
    """Write a record as JSON; a ValueError refuses one that wouldn't be believed when it is read again."""
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    if read_record(text) is None:
        raise ValueError(
            "expected results and figures as record and record_figure write them; "
            f"got {len(text)} bytes that can't be read again: {text[:200]!r}"
        )
    return text


def read_record(text: bytes | None, inputs: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Read a record; None where it can't be believed.

    The inputs of one that was read before are shared where they are the same: thousands of runs often have
    the same ones.
    """
    text = text or b""
    try:
        record = from_json(text, allow_inf_nan=False)
        if inputs is not None and record["inputs"] == inputs:
            record["inputs"] = inputs
        else:
            Inputs.model_validate(record["inputs"])
        Record.model_validate(record)
        if b'"$' in text or b"\\u" in text:  # an escaped dollar is one too
            for part in ("parameters", "results", "varying"):
                decode(record[part])
        return record if record["status"] == "finished" or isinstance(record["error"], str) else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def only_one(
    text: str, folders: Iterable[str], read: Callable[[str], Iterable[StoredRun]], location: str
) -> StoredRun:
    """Find the run that a text means by its title or the beginning of that.

    ``folders`` are the names of all that were run, title and request, and ``read`` gives the runs in one.
    """
    folders = sorted(folders)
    same = [name for name in folders if text in (name, name[: -IN_NAME - 1])]
    names = same or [name for name in folders if name.startswith(text)]
    if len(names) > 1:
        times = [(max((run.record["started"] for run in read(name)), default=""), name) for name in same]
        said = [f"{name}, started {time}" for time, name in sorted(times, reverse=True)] or names
        listed = "".join(f"  {each}\n" for each in said[:LISTED])
        raise StoreError(
            f"expected one run in {location}; got {len(names)} called {text!r}"
            f"{', the newest first' if same else ''}:\n{listed}remedy: give more of its name"
        )
    found = [stored for name in names for stored in read(name)]
    if not found:
        raise StoreError(
            f"expected a run in {location}; got none called {text!r}; remedy: gradtricks table lists them"
        )
    return max(found, key=lambda each: (each.status == "finished", each.valid(), each.record["started"]))
