"""Keep what each tool reached when it first saw a case: an unseen set is unseen once.

``python experiments/debuggers/sighting.py`` reads the published records and adds rows to ``first_sight.csv``.
It changes no row that is there. The version of ``gradtricks`` is the commit that its record was made on.
"""

import csv
import io
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import shorten

from comparing import Finding, right_lines
from environments import COMMON, VERSIONS
from judging import LEVELS, counted, level, read_findings, read_runs, read_verdicts, rules_of
from reports import HERE, Case, read_cases

PATH = HERE / "first_sight.csv"
LONGEST = 200  # characters of a finding's words


def read_first_sight(path: Path = PATH) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return the rows by tool, framework and case."""
    with path.open(newline="") as file:
        return {(row["tool"], row["framework"], row["case"]): row for row in csv.DictReader(file)}


def first_sights(runs: Iterable[Mapping], verdicts: Mapping, known: Iterable) -> list[tuple[str, ...]]:
    """Make a row for each case of a round that a tool was run on, where none is known yet.

    Args:
        runs: Rows of the table of the notebook's runs.
        verdicts: Of `read_verdicts`.
        known: Tool, framework and case of the rows that are there.

    Raises:
        ValueError: A finding isn't judged yet. The text has the rows that ``judged.csv`` lacks.
    """
    rows, unjudged = [], []
    for run in runs:
        for (framework, tool), told in read_findings([run]).items():
            version = VERSIONS.get(tool, COMMON[0] if tool == "detect_anomaly" else run["provenance.commit"])
            for case in read_cases(framework):
                key = (tool, framework, case.name)
                if not case.round or f"faulty {case.name}" not in told or key in known:
                    continue
                new, reached = counted(case, told), level(case, tool, told, verdicts)
                rules, words = rules_of(new), _words(case, new)
                rows.append((*key, str(case.round), version, reached, rules, words))
                if reached == LEVELS[-1]:
                    unjudged.append((*key, rules, "", words, ""))
    if unjudged:
        raise ValueError(
            f"expected a verdict on each finding; got none on {len(unjudged)}; remedy: append these rows "
            "to judged.csv with yes, half or no before the words, and who says so behind them\n"
            + _lines(unjudged)
        )
    return rows


def _words(case: Case, findings: list[Finding]) -> str:
    """Return the words of a finding: one that shows a line to blame, if there is one."""
    shown = [*right_lines(case, findings), *findings]
    return shorten(shown[0]["words"], LONGEST, placeholder=" ...") if shown else ""


def _lines(rows: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def main() -> None:
    """Add what is new."""
    rows = first_sights(read_runs(HERE.parent / "published"), read_verdicts(), read_first_sight())
    with PATH.open("a", newline="") as file:
        file.write(_lines(sorted(rows)))
    sys.stdout.write(f"{len(rows)} rows added to {PATH.name}\n")


if __name__ == "__main__":
    main()
