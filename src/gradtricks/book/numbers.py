"""Results as texts: in sentences, in tables and beside sliders."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from gradtricks.lab.notebooks.schema import excerpt
from gradtricks.lab.results.quoting import RecordError

__all__ = ["format_result", "markdown_table", "number_text", "result_text"]

_SCIENTIFIC = re.compile(r"(?P<mantissa>.*\d)e(?P<exponent>[+-]\d+)")
_MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPTS = str.maketrans("0123456789−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def format_result(value: Any, spec: str = "") -> tuple[str, str | None]:
    """Format one result for running text: the text, and the power of ten to set as a superscript.

    Floats have four significant digits without a format. A RecordError refuses lists and mappings, and a
    format that doesn't fit.
    """
    if isinstance(value, list | Mapping):
        raise RecordError(
            f"expected one value; got a {type(value).__name__} of {len(value)}; remedy: name a part of it"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "∞", "-inf": _MINUS + "∞"}[str(value)], None
    if value is None or isinstance(value, bool | str):
        return _apply(str(value), spec), None
    if isinstance(value, date):
        return _apply(value, spec), None
    text = _apply(value, spec or (".4g" if isinstance(value, float) else ""))
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific is None:
        return text.replace("-", _MINUS), None
    mantissa = scientific["mantissa"].replace("-", _MINUS)
    return f"{mantissa} × 10", str(int(scientific["exponent"])).replace("-", _MINUS)


def result_text(value: Any, spec: str) -> str:
    """Format one result as `format_result` does, all of it as text that no line breaks: ``1.2 × 10⁻⁵``."""
    text, exponent = format_result(value, spec)
    return text.replace(" ", "\N{NO-BREAK SPACE}") + exponent.translate(_SUPERSCRIPTS) if exponent else text


def number_text(value: float) -> str:
    """Write a number with three digits; nothing for NaN."""
    return "" if value != value else result_text(float(value), ".3g")


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Write a table of cells that are Markdown; the first row is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _apply(value: str | float | date, spec: str) -> str:
    try:
        return format(value, spec)
    except ValueError as error:
        raise RecordError(
            f"expected a format that fits {excerpt(value)}; got {spec!r} ({error}); "
            "remedy: for instance ':.3f'"
        ) from error
