"""Text that comes from outside, as Markdown that shows it and nothing else."""

import re

from gradtricks.lab.results.tables import one_line

# What may begin markup anywhere, and the numbers that begin a list.
_SPECIAL = re.compile(r"[#$%&*+\-:<>\[\\\]^_`{|}~]")
_LIST = re.compile(r"^(\d+)([.)])(?=\s|$)")
_TARGET = re.compile(r"^(?=\()")  # (name)= is a target of MyST


def escape(text: str) -> str:
    """Write a text as one line of Markdown that shows it as it is: no markup, HTML, roles, ends of cells."""
    escaped = _SPECIAL.sub(r"\\\g<0>", one_line(text))
    return _TARGET.sub(r"\\", _LIST.sub(r"\1\\\2", escaped))


def code(text: str) -> str:
    """Write a text as code in Markdown, also within a table: every sign is shown, none is made prettier."""
    shown = one_line(text) or '""'
    longest = max(map(len, re.findall("`+", shown)), default=0)
    ticks = "`" * (longest + 1)
    space = " " if "`" in (shown[0], shown[-1]) else ""
    # In a table a bar ends the cell even within code, unless a backslash stands before it.
    return f"{ticks}{space}{shown}{space}{ticks}".replace("|", "\\|")
