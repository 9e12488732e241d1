"""What a notebook says to the lab: results, figures and, at its end, what it ran on."""

import hashlib
import io
import math
import numbers
import re
import resource
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS_MIME = "application/vnd.gradtricks.results+json"
REPORT_MIME = "application/vnd.gradtricks.report+json"
PACKAGE = Path(__file__).resolve().parents[1]

_STYLE = Path(__file__).with_name("figures.mplstyle")
_SHOWN = 6  # elements of a list
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def record(**results: Any) -> None:
    """Keep results under their names; the book quotes them and sweeps tabulate them.

    Args:
        **results: Numbers, strings, bools, None, NumPy scalars and arrays, and lists and dicts of them.
            Floats are kept exactly, NaN and the infinities too.

    Raises:
        TypeError: A value is of another type.

    Example:
        >>> record(final_accuracy=0.5)
        final_accuracy = 0.5
    """
    encoded = {name: encode(value, name) for name, value in results.items()}
    text = "\n".join(f"{name} = {_as_text(decode(value))}" for name, value in encoded.items())
    _show({RESULTS_MIME: encoded, "text/plain": text})


def record_figure(name: str, figure: "Figure", *, alt: str) -> None:
    """Show a figure and keep it under a name, so that chapters can show it too.

    Args:
        name: Lower-case letters, digits and underscores; the file's name in the book.
        figure: A matplotlib figure; it is closed.
        alt: What the figure shows, for those who can't see it.

    Raises:
        ValueError: ``name`` has another form, or ``alt`` is empty.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name must be lower-case letters, digits and underscores; got {name!r}")
    if not alt.strip():
        raise ValueError(f"alt must say what the figure {name!r} shows; got an empty text")
    from matplotlib import pyplot

    buffer = io.StringIO()
    # No date: equal figures are equal files.
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    _show({"image/svg+xml": buffer.getvalue(), "text/plain": alt}, gradtricks={"figure": name, "alt": alt})


def use_style() -> None:
    """Draw every figure from here on in the book's style: readable on light and on dark pages."""
    from matplotlib import pyplot

    pyplot.style.use(_STYLE)


def report() -> None:
    """Say what this kernel ran on; the lab calls it in a last cell of its own."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss counts bytes there, KiB elsewhere
    details = {
        "files": file_digests(_imported_files()),
        "versions": _imported_versions(),
        "cpu_s": time.process_time(),
        "peak_memory_mib": usage.ru_maxrss * unit / 2**20,
    }
    _show({REPORT_MIME: details, "text/plain": "report"})


def file_digests(files: Iterable[str]) -> dict[str, str | None]:
    """Digest files of the package.

    Args:
        files: Paths relative to the package's folder.

    Returns:
        SHA-256 of each file in hexadecimal; None where it is gone.
    """
    paths = {name: PACKAGE / name for name in sorted(files)}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        for name, path in paths.items()
    }


def package_digests() -> dict[str, str | None]:
    """Digest every file of the package that a run could import.

    Returns:
        As `file_digests`.
    """
    return file_digests(
        str(path.relative_to(PACKAGE))
        for ending in ("py", "mplstyle")
        for path in PACKAGE.rglob(f"*.{ending}")
    )


def encode(value: Any, name: str) -> Any:
    """Turn a result into JSON that keeps it exactly.

    Args:
        value: A result.
        name: What the notebook calls it, for the message.

    Returns:
        Built-in types only; a float that JSON lacks becomes ``{"$float": "nan"}``, ``"inf"`` or ``"-inf"``.

    Raises:
        TypeError: The value is of a type that a record can't keep.
    """
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        value = value.tolist()
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else {"$float": str(number)}
    if isinstance(value, list | tuple):
        return [encode(item, name) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: encode(item, name) for key, item in value.items()}
    raise TypeError(
        f"{name} must be numbers, strings, bools, None, or lists and dicts (with string keys) of them; "
        f"got {type(value).__name__}"
    )


def decode(value: Any) -> Any:
    """Undo `encode`.

    Args:
        value: What `encode` returned.

    Returns:
        The result, in built-in types.
    """
    if isinstance(value, dict):
        if value.keys() == {"$float"}:
            return float(value["$float"])
        return {key: decode(item) for key, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value


def _show(data: dict[str, Any], **about: Any) -> None:
    """Show something in the notebook; in plain Python, print its text."""
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
    return str(value)


def _imported_files() -> list[str]:
    origins = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = {Path(origin).resolve() for origin in origins if origin} | {_STYLE}
    return [str(file.relative_to(PACKAGE)) for file in files if file.is_relative_to(PACKAGE)]


def _imported_versions() -> dict[str, str]:
    distributions = metadata.packages_distributions()
    names = {name for module in list(sys.modules) for name in distributions.get(module, ())}
    return {name: metadata.version(name) for name in sorted(names - {"gradtricks"})}
