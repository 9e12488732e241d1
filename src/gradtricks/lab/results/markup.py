"""Text that comes from outside: in one line, and as Markdown that shows it and nothing else."""

import re

# What may begin markup anywhere, and the numbers that begin a list.
_SPECIAL = re.compile(r"[#$%&*+\-:<>\[\\\]^_`{|}~]")
_LIST = re.compile(r"^(\d+)([.)])(?=\s|$)")
_TARGET = re.compile(r"^(?=\()")  # (name)= is a target of MyST
_LINE_ENDS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def one_line(text: str) -> str:
    """Write a text in one line, with a space for each line's end.

    Signs that can't be seen, or that turn the direction of writing, are shown by their number.
    """
    joined = _LINE_ENDS.sub(" ", text.strip())
    return "".join(sign if sign.isprintable() else _number(sign) for sign in joined)


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


def _number(sign: str) -> str:
    return sign.encode("unicode_escape").decode()
