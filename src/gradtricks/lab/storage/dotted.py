"""Dotted names of what is nested, as columns have them."""

import re

Path = tuple[str, ...]

_PART = re.compile(r'"(?:[^"]|"")*"|[^.]+')


def join_name(path: Path) -> str:
    """Write the name of a column: a group and the keys within it, joined by dots.

    A key that holds a dot or a quotation mark itself stands in quotation marks, as it has to in SQL:
    ``results.share."0.1"``.
    """
    return ".".join(part if part and not set('."') & set(part) else quote(part) for part in path)


def split_name(name: str) -> Path:
    """Undo `join_name`."""
    parts = _PART.findall(name)
    return tuple(part[1:-1].replace('""', '"') if part[0] == '"' else part for part in parts)


def quote(name: str) -> str:
    """Write a name for SQL, in quotation marks."""
    return '"' + name.replace('"', '""') + '"'
