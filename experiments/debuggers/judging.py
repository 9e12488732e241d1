"""Say what a tool found in a case, by the rules of the comparison and by what was judged by reading."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from scipy.stats import binomtest

from comparing import Finding, new_findings, right_lines
from gradtricks.lab import table
from reports import HERE, Case

# From the best to the worst. The first two name the cause; for the last one a row is missing in judged.csv.
LEVELS = ("cause and line", "cause", "half", "something else", "nothing", "not judged yet")
VERDICTS = {"yes": "cause", "half": "half", "no": "something else"}


def read_verdicts(path: Path = HERE / "judged.csv") -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return what was judged by reading: rules and verdict, by tool, framework and case.

    Raises:
        ValueError: A verdict is none of yes, half and no.
    """
    verdicts = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["verdict"] not in VERDICTS:
                raise ValueError(
                    f"verdict must be one of {', '.join(VERDICTS)}; got {row['verdict']} for {row['tool']} "
                    f"on {row['case']} in {path.name}"
                )
            verdicts[row["tool"], row["framework"], row["case"]] = row["rules"], row["verdict"]
    return verdicts


def read_runs(published: Path | str) -> list[dict]:
    """Return the rows of the tables of all sweeps of the comparison that are published."""
    sweeps = [path.stem for path in sorted(Path(published).glob("debuggers*.json"))]
    return [run for sweep in sweeps for run in table(sweep, store=published).to_dict("records")]


def read_findings(runs: Iterable[Mapping]) -> dict[tuple[str, str], dict[str, list[Finding]]]:
    """Return what was found, by framework and tool, then by training, from rows of a table of runs."""
    found = defaultdict(dict)
    for run in runs:
        for row in run["results.reports"]:
            found[run["parameters.backend"], row["tool"]][row["training"]] = row["findings"]
    return found


def counted(case: Case, reports: Mapping[str, list[Finding]]) -> list[Finding]:
    """Return those of a tool's findings on a case that count, by the name of each training."""
    return new_findings(reports[f"faulty {case.name}"], reports.get(f"healthy {case.name}, cured", []))


def rules_of(findings: list[Finding]) -> str:
    """Return the tool's names of the rules that spoke, in alphabetical order."""
    return " ".join(sorted({each["rule"] for each in findings}))


def level(case: Case, tool: str, reports: Mapping[str, list[Finding]], verdicts: Mapping) -> str:
    """Return which of `LEVELS` a tool reached in a case.

    A verdict counts only while the same rules speak, so that none outlives the finding that it was passed on.
    """
    new = counted(case, reports)
    if not new:
        return "nothing"
    rules, verdict = verdicts.get((tool, case.framework, case.name), ("", ""))
    if rules != rules_of(new):
        return "not judged yet"
    named = VERDICTS[verdict]
    return "cause and line" if named == "cause" and (right_lines(case, new) or not case.lines) else named


def share(count: int, total: int) -> list[float]:
    """Return a share, and the ends of its 95 % interval by Wilson; NaN of nothing."""
    if not total:
        return [float("nan")] * 3
    interval = binomtest(count, total).proportion_ci(method="wilson")
    return [count / total, float(interval.low), float(interval.high)]
