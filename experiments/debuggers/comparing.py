"""Every case under a tool, and what of its findings counts, by rules that know no tool."""

import json
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from environments import PAIRED, make_environment
from examine import FAILED
from reports import FRAMEWORKS, HERE, Case, read_cases, read_healthy

Finding = dict[str, object]  # rule, words, lines


def run_tool(tool: str, framework: str, only: Iterable[str], environments: Path) -> dict[str, dict]:
    """Run a tool on the cases, their twins and the healthy trainings.

    Args:
        tool: One of `environments`.
        framework: ``torch`` or ``tensorflow``.
        only: Names of cases and healthy trainings, of either framework; all of them where there is none.
        environments: Folder of the tools' environments.

    Returns:
        By ``faulty NAME`` and ``healthy NAME``: ``findings``, ``ended`` and ``seconds``.

    Raises:
        ValueError: A name in ``only`` is no case's.
        RuntimeError: The process of the tool ended before the last training, or the tool failed in all.
    """
    lines = {f"faulty {case.name}": case.faulty for case in read_cases(framework)}
    lines |= {f"healthy {name}": line for name, line in read_healthy(framework).items()}
    chosen = set(only)
    if unknown := chosen - _names():
        raise ValueError(
            f"only must have names of cases or healthy trainings; got {', '.join(sorted(unknown))}"
        )
    keys = [key for key in lines if not chosen or key.split(" ", 1)[1].removesuffix(", cured") in chosen]
    if tool in PAIRED:
        keys = [key for key in keys if Path(lines[key][0]).with_name("healthy.py").is_file()]
    python = make_environment(tool, environments)
    printed = subprocess.run(
        [python, str(HERE / "examine.py"), tool, framework],
        input=json.dumps([lines[key] for key in keys]),
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONHASHSEED": "0",
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    told = [json.loads(line) for line in printed.stdout.splitlines()]
    if len(told) != len(keys):
        raise RuntimeError(
            f"expected {len(keys)} reports of {tool}; got {len(told)} and {printed.stderr.strip()[-500:]}; "
            f"remedy: delete {environments / tool}, which is made anew"
        )
    # One that isn't there must not pass for one that finds nothing.
    if told and all(each["ended"].startswith(FAILED) for each in told):
        raise RuntimeError(
            f"expected {tool} to examine a training; got {told[0]['ended'][-500:]}; "
            f"remedy: delete {environments / tool}, which is made anew, or mend adapters/{tool}.py"
        )
    return dict(zip(keys, told))


def _names() -> set[str]:
    cases = {case.name for framework in FRAMEWORKS for case in read_cases(framework)}
    return cases.union(*map(read_healthy, FRAMEWORKS))


def new_findings(findings: Iterable[Finding], twin: Iterable[Finding]) -> list[Finding]:
    """Return the findings that the healthy twin doesn't raise too: by rule and words, numbers aside."""
    known = {_key(each) for each in twin}
    return [each for each in findings if _key(each) not in known]


def right_lines(case: Case, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that show a line that may be blamed."""
    return [
        each
        for each in findings
        if any(
            place["file"] == case.file and any(_is_at(place, line) for line in case.lines)
            for place in each["lines"]
        )
    ]


def _is_at(place: dict, line: int | str) -> bool:
    return line == place["line"] if isinstance(line, int) else line in place["code"]


def _key(finding: Finding) -> tuple[str, str]:
    return finding["rule"], re.sub(r"\d[\d.,e+-]*", "0", finding["words"])
