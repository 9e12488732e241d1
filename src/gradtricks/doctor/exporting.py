"""A diagnosis for programs: JSON, SARIF 2.1.0, and what of it is new to a baseline."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradtricks.doctor.reports import Cause, Diagnosis
from gradtricks.doctor.rules import IDS, explain, matching

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(diagnosis: Diagnosis, failure: str = "") -> str:
    """Return a diagnosis as one JSON object.

    Its ``causes`` have ``id``, ``kind``, ``subjects``, ``seen``, ``remedy``, and ``place``, which is null or
    has ``file``, ``line``, ``function`` and ``code``. ``failure`` is what the script failed of.
    """
    told = {"num_updates": diagnosis.num_updates, "num_skipped": diagnosis.num_skipped, "failure": failure}
    return json.dumps(told | {"causes": list(map(_plain, diagnosis.causes))}, indent=2)


def as_sarif(diagnosis: Diagnosis, version: str) -> str:
    """Return a diagnosis in the Static Analysis Results Interchange Format, for code hosts.

    References:
        SARIF 2.1.0, https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    kinds = {cause.id: cause.kind for cause in diagnosis.causes}
    rules = [
        {"id": name, "shortDescription": {"text": kind}, "help": {"text": kind, "markdown": explain(name)}}
        for name, kind in sorted(kinds.items())
    ]
    driver = {"name": "gradtricks doctor", "version": version, "rules": rules}
    run = {"tool": {"driver": driver}, "results": list(map(_result, diagnosis.causes))}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def choose(select: str = "", ignore: str = "", baseline: str = "") -> Callable[[Diagnosis], Diagnosis]:
    """Return what leaves out the causes of a diagnosis that weren't asked for, or that a baseline has.

    Args:
        select: Ids or beginnings of them, separated by commas; empty means all.
        ignore: Those to leave out.
        baseline: What `as_json` returned before. A cause is known where id and line of code are the same,
            wherever that line stands now; where no line is to blame, id and subjects.

    Raises:
        ValueError: No id begins so, or the baseline is no such text.
    """
    wanted = set(matching(select) if select else IDS.values()) - set(matching(ignore))
    known = _known(baseline) if baseline else []

    def chosen(diagnosis: Diagnosis) -> Diagnosis:
        causes = [c for c in diagnosis.causes if c.id in wanted and _identity(_plain(c)) not in known]
        return replace(diagnosis, causes=tuple(causes))

    return chosen


def _known(baseline: str) -> list[Any]:
    try:
        return list(map(_identity, json.loads(baseline)["causes"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            "expected a baseline that gradtricks doctor --json has printed; got something else; "
            "remedy: gradtricks doctor --json train.py > baseline.json"
        ) from error


def _identity(cause: dict[str, Any]) -> tuple[str, object]:
    return cause["id"], cause["place"]["code"] if cause["place"] else list(cause["subjects"])


def _plain(cause: Cause) -> dict[str, Any]:
    place = cause.place
    return {
        "id": cause.id,
        "kind": cause.kind,
        "subjects": list(cause.subjects),
        "seen": cause.seen,
        "remedy": cause.remedy,
        "place": place
        and {"file": place.file, "line": place.line, "function": place.function, "code": place.code},
    }


def _result(cause: Cause) -> dict[str, Any]:
    named = f" ({', '.join(cause.subjects)})" if cause.subjects else ""
    text = f"{cause.kind}{named}: {cause.seen}. Remedy: {cause.remedy}"
    return {
        "ruleId": cause.id,
        "level": "warning",
        "message": {"text": text},
        "locations": list(_located(cause)),
    }


def _located(cause: Cause) -> Iterable[dict[str, Any]]:
    if cause.place:
        path = Path(cause.place.file)
        near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        uri = near.as_posix() if not near.is_absolute() else near.as_uri()
        region = {"startLine": cause.place.line}
        yield {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
