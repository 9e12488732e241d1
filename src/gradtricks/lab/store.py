"""The run store: one folder for each finished run, put in place in one step."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gradtricks.lab.recording import file_digests

SCHEMA_VERSION = 1


class Store:
    """A folder of runs.

    A run is found again by what was asked (notebook and parameters) together with what it then used (the
    package's files that it imported, and the versions of its libraries). When any of these has changed, it
    counts as not run.

    Args:
        root: The folder; made when it is first written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, stem: str, request: str) -> Path | None:
        """Return the folder of a finished run that is still valid.

        Args:
            stem: Of the notebook.
            request: What `request_digest` returned.

        Returns:
            The folder, or None.
        """
        for folder in sorted(self.root.glob(f"{stem}-*{request[:12]}-*")):
            record = read_record(folder)
            if record and record["request"] == request and _unchanged(record["inputs"]):
                return folder
        return None

    def records(self, stem: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a stem's runs, valid or not.

        Args:
            stem: Of the notebook.

        Yields:
            One record after another.
        """
        for folder in sorted(self.root.glob(f"{stem}-*")):
            record = read_record(folder)
            if record and record["stem"] == stem:
                yield record

    @contextmanager
    def claim(self, request: str) -> Iterator[Path]:
        """Claim a run that is to be done, and wait while another process has it.

        Args:
            request: What `request_digest` returned.

        Yields:
            An empty folder beside the runs, to write this one in; what is left of it at the end is deleted.
        """
        unfinished = self.root / ".unfinished"
        unfinished.mkdir(parents=True, exist_ok=True)
        _sweep(unfinished)
        folder = unfinished / request
        with FileLock(unfinished / f"{request}.lock"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, folder: Path, record: Mapping[str, Any]) -> Path:
        """Write the record and move a finished run into place, in one step.

        Args:
            folder: From `claim`.
            record: What came out.

        Returns:
            The run's folder. Where another process has just finished the same run, that one stays.
        """
        final = self.root / _folder_name(record)
        write_record(folder, record)
        for path in (*folder.iterdir(), folder):
            _flush(path)
        try:
            folder.rename(final)
        except OSError:
            if read_record(final) is None:  # torn by a crash or by hand
                shutil.rmtree(final, ignore_errors=True)
                folder.rename(final)
        _flush(self.root)
        return final


def request_digest(source: str, parameters: Mapping[str, Any], threads: int) -> str:
    """Digest what is asked of a run.

    Args:
        source: Of the notebook.
        parameters: By name.
        threads: That the kernel may use.

    Returns:
        SHA-256 in hexadecimal.
    """
    request = json.dumps([SCHEMA_VERSION, source, sorted(parameters.items()), threads])
    return hashlib.sha256(request.encode()).hexdigest()


def read_record(folder: Path) -> dict[str, Any] | None:
    """Read a run's record.

    Args:
        folder: Of the run.

    Returns:
        The record, or None where there is none that can be believed.
    """
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("schema_version") == SCHEMA_VERSION else None


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write a run's record.

    Args:
        folder: Of the run.
        record: JSON without NaN or infinities.
    """
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "record.json").write_text(text + "\n", encoding="utf-8")


def _folder_name(record: Mapping[str, Any]) -> str:
    inputs = hashlib.sha256(json.dumps(record["inputs"], sort_keys=True).encode()).hexdigest()
    return f"{record['name']}-{record['request'][:12]}-{inputs[:12]}"


def _unchanged(inputs: Mapping[str, Any]) -> bool:
    return file_digests(inputs["files"]) == inputs["files"] and all(
        _version(name) == version for name, version in inputs["versions"].items()
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _sweep(unfinished: Path) -> None:
    """Delete what killed processes left behind: a claim ends with the process that made it."""
    for folder in unfinished.iterdir():
        if folder.is_dir():
            with suppress(Timeout), FileLock(f"{folder}.lock", timeout=0):
                shutil.rmtree(folder, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
