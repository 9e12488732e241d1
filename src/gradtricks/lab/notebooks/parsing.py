"""The cell tagged ``parameters``, as Python sees it: statements and comments."""

import ast
import io
import re
import tokenize

_LEFT_OUT = 100  # lines, after which a cell isn't Python
_UNREADABLE = (ValueError, RecursionError, MemoryError)


def parse_cell(source: str) -> tuple[list[ast.stmt], dict[int, str], str | None]:
    """Parse a cell; what IPython reads otherwise than Python, such as ``%matplotlib inline``, is no obstacle.

    Returns its statements, its comments by their lines, and what can't be read, or None. Lines that can't be
    read are left out, as papermill's inspection does.
    """
    source = re.sub(r"\A\s*%%.*", "", source)
    trouble = None
    for attempt in range(_LEFT_OUT):
        try:
            return ast.parse(source).body, _comments(source), trouble
        except SyntaxError as error:
            if attempt == 0:
                from IPython.core.inputtransformer2 import TransformerManager  # slow to import

                source = TransformerManager().transform_cell(source)
                continue
            lines = source.splitlines()
            trouble = trouble or f"line {error.lineno}: {error.msg}"
            wrong = [i for i in range(min(error.lineno or len(lines), len(lines))) if lines[i].strip()]
            lines[wrong[-1] if wrong else 0] = ""
            source = "\n".join(lines)
        except _UNREADABLE as error:
            return [], {}, str(error)
    return [], {}, trouble


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
