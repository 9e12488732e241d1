"""How much a cell may show: beyond that, its output is cut, and a line says so."""

import json
from typing import Any

TEXT_LIMIT = 2_000_000  # characters that a cell prints
DATA_LIMIT = 20_000_000  # characters of figures, tables and values that a cell shows
_OVERHEAD = 500  # what an output costs, however small it is
_ERROR_LIMIT = 100_000  # characters of a message, or of one frame of a traceback
# What the lab reads from the notebook is never cut.
_RECORDED = ("application/vnd.gradtricks.", "application/scrapbook.scrap.")


class OutputLimit:
    """What one cell may still show."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start again: a new cell, or one that has cleared its output."""
        self._text = self._data = self._left_out = self._dropped = 0

    def cut(self, text: str) -> str:
        """Take printed text, and return as much of its beginning as there is room for."""
        room = max(0, TEXT_LIMIT - self._text)
        self._text += len(text)
        self._left_out += max(0, len(text) - room)
        return text[:room]

    def trim(self, kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
        """Take one of Jupyter's messages, and return its content or a smaller one; None leaves it out."""
        if kind == "error":
            short = [_shortened(line) for line in content["traceback"]]
            return content | {"evalue": _shortened(content["evalue"]), "traceback": short}
        if "data" not in content:
            return content
        data = content["data"]
        size = sum(len(v if isinstance(v, str) else json.dumps(v, default=repr)) for v in data.values())
        note = {"text/plain": f"[left out: an output of {size:,} characters; a cell may show {DATA_LIMIT:,}]"}
        if kind == "update_display_data":  # it takes the place of another one
            return content if size <= DATA_LIMIT else content | {"data": note}
        if self._data + size + _OVERHEAD <= DATA_LIMIT:
            self._data += size + _OVERHEAD
            return content
        kept = {mime: value for mime, value in data.items() if mime.startswith(_RECORDED)}
        self._dropped += 1
        # A figure that was recorded and got lost mustn't go unnoticed.
        if self._dropped == 1 or "gradtricks" in content.get("metadata", {}):
            kept |= note
        return content | {"data": kept} if kept else None

    def note(self) -> str:
        """Say what was cut; an empty text where nothing was."""
        note = ""
        if self._left_out:
            note += f"\n[left out: {self._left_out:,} more characters; a cell may print {TEXT_LIMIT:,}]\n"
        if self._dropped > 1:
            note += f"\n[left out: {self._dropped - 1:,} more outputs]\n"
        return note


def _shortened(text: str) -> str:
    left_out = len(text) - _ERROR_LIMIT
    return text if left_out <= 0 else f"{text[:_ERROR_LIMIT]} [left out: {left_out:,} more characters]"
