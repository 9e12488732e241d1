"""The reported trainings for comparing debuggers: each is complete, small, and collected by the rule."""

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "experiments" / "debuggers"
CASES = {path.parent.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("cases/*/case.json"))}
FIELDS = {"url", "title", "date", "framework", "set", "kind", "line", "remedy", "symptom"}


def looked_at():
    with (FOLDER / "looked_at.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_complete(name):
    case = CASES[name]
    faulty, healthy = ((FOLDER / "cases" / name / f"{kind}.py").read_text() for kind in ("faulty", "healthy"))
    lines = case["line"] if isinstance(case["line"], list) else [case["line"]]
    imports = "torch" if case["framework"] == "torch" else "keras|tensorflow"
    assert case.keys() == FIELDS
    assert case["set"] in {"collected", "collected2", "traincheck"}
    assert case["framework"] in {"torch", "tensorflow"}
    assert case["symptom"].keys() == {"seen", "faulty", "healthy"}
    assert faulty != healthy
    assert len(faulty.splitlines()) <= 80
    assert re.search(rf"^(from|import) ({imports})\b", faulty, re.MULTILINE)
    assert all(faulty.splitlines()[line - 1].strip() for line in lines)
    compile(faulty, "faulty.py", "exec")
    compile(healthy, "healthy.py", "exec")


def test_cases_are_those_that_the_table_says_were_taken():
    taken = [row["url"] for row in looked_at() if row["result"] == "taken"]
    assert Counter(case["url"] for case in CASES.values()) == Counter(taken)


def test_a_repository_has_at_most_two_collected_cases():
    collected = [case["url"].split("/")[3:5] for case in CASES.values() if case["set"] != "traincheck"]
    assert max(Counter(map(tuple, collected)).values()) <= 2


def test_the_readme_counts_what_the_table_holds():
    rows = looked_at()
    counts = Counter(row["result"] for row in rows)
    page = " ".join((FOLDER / "README.md").read_text().split())
    assert len({row["url"] for row in rows}) == len(rows)
    assert f"In all there are {len(rows)}: {counts['taken']} were taken" in page
    assert (
        f"{counts['a']} were rejected by a, {counts['b']} by b, {counts['c']} by c and {counts['d']} by d"
        in page
    )
    assert f"and {counts['full']} are `full`" in page
    assert f"{counts['taken']} trainings" in (FOLDER.parents[1] / "CHANGELOG.md").read_text()
