"""Messages of a notebook to the lab: results, figures and, at its end, the machine and the versions."""

import hashlib
import io
import json
import os
import re
import resource
import sys
import tempfile
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from gradtricks.lab.encoding import LARGE_BITS, decode, encode
from gradtricks.lab.identity import SOURCES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS_MIME = "application/vnd.gradtricks.results+json"
VARYING_MIME = "application/vnd.gradtricks.varying+json"
FILES_MIME = "application/vnd.gradtricks.files+json"
REPORT_MIME = "application/vnd.gradtricks.report+json"
REPORT_CELL = "import gradtricks.lab.recording\n\ngradtricks.lab.recording.report()"

# Variables of the environment in which the lab tells a run's process its folders.
CHECKPOINTS = "GRADTRICKS_CHECKPOINTS"
FILES = "GRADTRICKS_FILES"
BEGUN = "begun.json"  # beside the state: the sources that the first attempt had read

# sys.path before the notebook runs: later lookups won't have what it adds.
_PATH = list(sys.path)
_SHOWN = 6  # elements of a list
FIGURE_NAME = re.compile(r"[a-z][a-z0-9_]*")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
LARGEST_FILE = 32 << 20  # bytes


def record(**results: Any) -> None:
    """Keep results under their names; the book quotes them and sweeps tabulate them.

    Args:
        **results: Numbers, strings, bools, None, dates, NumPy scalars and arrays, and lists and dicts of
            them. Floats are kept exactly, NaN and the infinities too.

    Raises:
        TypeError: A value is of another type.

    Example:
        >>> record(final_accuracy=0.5)
        final_accuracy = 0.5
    """
    _show_results(results, RESULTS_MIME)


def record_varying(**results: Any) -> None:
    """Keep results that are never the same twice, such as seconds: ``reproduce`` doesn't judge them.

    They are as for `record`; a name may be in one of the two only.

    Example:
        >>> record_varying(seconds=0.5)
        seconds = 0.5
    """
    _show_results(results, VARYING_MIME)


def record_figure(name: str, figure: "Figure", *, alt: str) -> None:
    """Show a figure and keep it under a name, so that chapters can show it too.

    Args:
        name: Lower-case letters, digits and underscores; the file's name in the book.
        figure: A matplotlib figure; it is closed.
        alt: What the figure shows, for those who can't see it.

    Raises:
        ValueError: ``name`` has another form, or ``alt`` is empty.
    """
    about = name_figure(name, alt)
    from matplotlib import pyplot

    buffer = io.StringIO()
    # No date: equal figures are equal files.
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    show({"image/svg+xml": buffer.getvalue(), "text/plain": alt}, about)


def name_figure(name: str, alt: str) -> dict[str, Any]:
    """Return the metadata of a figure's output; a ValueError says what is wrong with its name or words."""
    if not FIGURE_NAME.fullmatch(name):
        raise ValueError(f"name must be lower-case letters, digits and underscores; got {name!r}")
    if not alt.strip():
        raise ValueError(f"alt must say what the figure {name!r} shows; got an empty text")
    return {"gradtricks": {"figure": name, "alt": alt}}


def record_file(path: str | Path, *, name: str | None = None) -> None:
    """Keep a file with the run, such as a trained policy.

    Args:
        path: Of the file, of at most 32 MiB; it is copied.
        name: What the copy is called: letters, digits, ``_``, ``-`` and ``.``; None means as the file is.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The name has another form or was used before, or the file is too large.
    """
    source = Path(path)
    name = source.name if name is None else name
    if not FILE_NAME.fullmatch(name):
        raise ValueError(f"name must be letters, digits, '_', '-' and '.', at most 100; got {name!r}")
    if not source.is_file():
        got = "a folder" if source.is_dir() else "nothing"
        raise FileNotFoundError(f"expected a file at {source}; got {got}")
    with source.open("rb") as stream:
        data = stream.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(
            f"expected a file of at most {LARGEST_FILE:,} bytes; got {source.stat().st_size:,} in {source}; "
            "remedy: keep less, such as weights without the optimizer's state"
        )
    if FILES in os.environ:
        folder = Path(os.environ[FILES])
        folder.mkdir(exist_ok=True)
        try:
            with (folder / name).open("xb") as stream:
                stream.write(data)
        except FileExistsError:
            remedy = "remedy: give each file its own name"
            raise ValueError(f"recorded twice: the file {name}; {remedy}") from None
    about = {"bytes": len(data), "sha256": _digest(data)}
    show({FILES_MIME: {name: about}, "text/plain": f"{name}: {len(data):,} bytes"})


def checkpoint_folder() -> Path:
    """Return a folder of this run, in which its next attempt finds what this one left when it was killed.

    What is in it was written by an attempt at the same run: the same cells, parameters and threads. An
    attempt that failed is gone on with too, and so is one whose sources were edited since, which the record
    then calls ``dirty``; ``gradtricks clean`` deletes the folders of all runs that aren't going on. When the
    run is finished, its folder is deleted. A process can be killed while it writes, so write beside and
    rename.

    Returns:
        The folder; outside of the lab each call makes a temporary one.
    """
    if CHECKPOINTS not in os.environ:
        return Path(tempfile.mkdtemp(prefix="gradtricks-"))
    place = Path(os.environ[CHECKPOINTS])
    folder, begun = place / "state", place / BEGUN
    folder.mkdir(parents=True, exist_ok=True)
    if not begun.exists():
        new = begun.with_suffix(".new")
        new.write_text(json.dumps(SOURCES.named()), encoding="utf-8")
        os.replace(new, begun)
    return folder


def report() -> None:
    """Say what this kernel ran on; the lab calls it in a last cell of its own, `REPORT_CELL`."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss counts bytes there, KiB elsewhere
    installed = installed_versions()
    details = {
        "read": SOURCES.named(),
        "versions": {name: version for name, version in installed.items() if name in sys.modules},
        "edited": _edited_since_begun(),
        "cpu_s": time.process_time(),
        "peak_memory_mib": usage.ru_maxrss * unit / 2**20,
    }
    show({REPORT_MIME: details, "text/plain": "report"})


def _edited_since_begun() -> bool:
    """Say whether a source isn't what it was when an earlier attempt asked for the checkpoints' folder."""
    begun = Path(os.environ.get(CHECKPOINTS, ""), BEGUN)
    then = json.loads(begun.read_text(encoding="utf-8")) if begun.is_file() else {}
    return any(SOURCES.named().get(name, digest) != digest for name, digest in then.items())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _show_results(results: dict[str, Any], mime: str) -> None:
    encoded = {name: encode(value, name) for name, value in results.items()}
    text = "\n".join(f"{name} = {_as_text(decode(value))}" for name, value in encoded.items())
    show({mime: encoded, "text/plain": text})


def check_claims(claims: dict[str, bool]) -> None:
    """Raise ValueError unless each sentence of the chapters about these results is true."""
    untrue = [sentence for sentence, true in claims.items() if not true]
    if untrue:
        raise ValueError(f"expected the chapters to be true; got {untrue}; remedy: rewrite these sentences")


def show(data: dict[str, Any], about: dict[str, Any] | None = None) -> None:
    """Show something in the notebook, with metadata; in plain Python, print its text."""
    if InteractiveShell.initialized():
        display(data, metadata=about, raw=True)
    else:
        sys.stdout.write(f"{data['text/plain']}\n")


def _as_text(value: Any) -> str:
    """Show a result in a line or a few: four digits, and of a long list its beginning."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        shown = ", ".join(_as_text(item) for item in value[:_SHOWN])
        return f"[{shown}]" if len(value) <= _SHOWN else f"[{shown}, … {len(value)} in all]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_as_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, int) and value.bit_length() >= LARGE_BITS:
        return f"an integer of {value.bit_length():,} bits"
    return str(value)


@cache
def installed_versions() -> dict[str, dict[str, str]]:
    """List the distributions of each module that can be imported, with their versions.

    It takes a while, so a warm process does it before it forks.
    """
    before, sys.path[:] = list(sys.path), _PATH
    try:
        distributions = metadata.packages_distributions()
        versions = {name: metadata.version(name) for names in distributions.values() for name in names}
    finally:
        sys.path[:] = before
    return {module: {name: versions[name] for name in names} for module, names in distributions.items()}
