"""``%%doctor``: a cell of a notebook, run as ``gradtricks doctor`` runs a script."""

import ast
import sys
from typing import Any

from gradtricks.doctor.examining import examine_code, frameworks_in


def doctor(shell: Any, line: str, cell: str) -> None:
    """Run a cell until its optimizers have made some updates each, and print what is wrong with them.

    Args:
        shell: IPython's, whose names the cell shares.
        line: How many updates, what stands behind ``%%doctor``; 3 unless given.
        cell: The code.

    Raises:
        ValueError: The line isn't a number, or not exactly one framework is imported.
        BaseException: Whatever the cell failed of, after the report.
    """
    if line and not (line.isdecimal() and int(line)):
        raise ValueError(f"expected %%doctor, or a number of updates behind it; got {line!r}")
    source = shell.transform_cell(cell)
    code = compile(source, shell.compile.cache(source, shell.execution_count, cell), "exec")
    found = frameworks_in(ast.parse(source)) or frameworks_in(sys.modules)
    if len(found) != 1:
        got = "both" if found else "neither"
        raise ValueError(
            f"expected a notebook that imports torch, or tensorflow or keras; got {got}; "
            "remedy: import one of them in the cell"
        )
    examination = examine_code(lambda: exec(code, shell.user_ns), found.pop(), int(line or 3))  # noqa: S102  # as asked
    said = examination.trace if examination.exit_code == 4 else examination.diagnosis
    sys.stdout.write(f"{said}\n")
    if examination.failure:
        raise examination.failure
