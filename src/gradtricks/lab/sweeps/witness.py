"""Whether the code still gives what was published: the notebook's quick run, as it was then and is now."""

import json
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from gradtricks.lab.encoding import decode
from gradtricks.lab.runs.reproduction import compare, is_near
from gradtricks.lab.storage.manifests import Witness
from gradtricks.lab.storage.records import StoredRun

# From the best to the worst.
Standing = Literal["the same numbers", "the same within tolerance", "", "another processor", "other numbers"]


def witnesses_of(runs: Iterable[StoredRun]) -> dict[str, Witness]:
    """Keep of the quick runs of a notebook what today's code is judged by, by their backend."""
    return {
        run.parameters.get("backend", ""): Witness(
            parameters=run.record["parameters"],
            results=json.dumps(run.record["results"], ensure_ascii=False),
            commit=run.record["provenance"]["commit"],
            processor=run.record["provenance"]["processor"],
        )
        for run in runs
    }


def judge(witnesses: Mapping[str, Witness], runs: Iterable[StoredRun]) -> Standing:
    """Say how the quick runs of a notebook came out, beside those that were made when it was published.

    A parameter or a result that is new doesn't count; a result that is gone is another number. Of several
    backends the worst one is said. Nothing is known where the numbers are others on another processor, and
    nothing is said where no result was recorded, a parameter has another value, or no run has finished.
    """
    now = {run.parameters.get("backend", ""): run for run in runs}
    found = [_standing(then, now.get(backend)) for backend, then in witnesses.items()]
    return max(found, key=get_args(Standing).index, default="")


def _standing(then: Witness, run: StoredRun | None) -> Standing:
    if run is None:
        return ""
    before, now = decode(json.loads(then.results)), run.results
    asked = run.record["parameters"]
    if not before or any(asked.get(name, value) != value for name, value in then.parameters.items()):
        return ""
    differences = list(compare(before, {name: now[name] for name in before if name in now}, "results"))
    if not differences:
        return "the same numbers"
    if all(map(is_near, differences)):
        return "the same within tolerance"
    same_machine = run.record["provenance"]["processor"] == then.processor
    return "other numbers" if same_machine else "another processor"
