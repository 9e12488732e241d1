"""What produced runs: when they ran, how long they took, on what, and from which sources."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from gradtricks.lab.storage.records import StoredRun

__all__ = ["SHOWN_LIBRARIES", "commit_of", "costs_of", "origin_of", "period_of"]

# Libraries whose versions a reader is shown; the record holds all of them.
SHOWN_LIBRARIES = ("torch", "tensorflow", "keras", "numpy", "envpool", "gymnasium", "scikit-learn")


def commit_of(provenance: Mapping[str, Any]) -> str:
    """Say which commit a run was made from, and whether it was edited."""
    edited = " with uncommitted changes" if provenance.get("dirty") else ""
    return f"{(provenance.get('commit') or 'unknown')[:12]}{edited}"


def origin_of(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Say what produced the runs of a sweep; where they differ, all that there is."""
    sources = [run.record["provenance"] for run in runs]
    used = [run.record["inputs"]["versions"] for run in runs]
    versions = {name: _distinct(each.get(name) for each in used) for name in SHOWN_LIBRARIES}
    return {
        "started": period_of(runs),
        "took": _took(runs),
        "commit": _distinct(map(commit_of, sources)),
        "processor": _distinct(source["processor"] for source in sources),
        "threads of a run": _distinct(source["threads"] for source in sources),
        "Python": _distinct(source["python"] for source in sources),
        "libraries": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }


def costs_of(runs: Sequence[StoredRun]) -> dict[str, float | None]:
    """Measure what a run took; one that was resumed says nothing of its time.

    Medians of time and processor time in seconds, and the largest memory in MiB; None where nothing is known.
    """
    finished = [run.record for run in runs if run.status == "finished"]
    timed = [record for record in finished if not record["provenance"].get("resumed")]
    wall_s = [record["duration_s"] for record in timed]
    cpu_s = [record["provenance"]["cpu_s"] for record in timed if "cpu_s" in record["provenance"]]
    peaks = [record["provenance"].get("peak_memory_mib") for record in finished]
    return {
        "median_wall_s": median(wall_s) if wall_s else None,
        "median_cpu_s": median(cpu_s) if cpu_s else None,
        "peak_memory_mib": max((peak for peak in peaks if peak is not None), default=None),
    }


def period_of(runs: Sequence[StoredRun]) -> str:
    """Say in which minutes the first and the last of some runs were started."""
    times = sorted(datetime.fromisoformat(run.record["started"]).astimezone(UTC) for run in runs)
    return " to ".join(dict.fromkeys(f"{time:%Y-%m-%d %H:%M} UTC" for time in (*times[:1], *times[-1:])))


def _took(runs: Sequence[StoredRun]) -> str:
    least = "at least " if any(run.record["provenance"].get("resumed") for run in runs) else ""
    took = f"{least}{sum(run.record['duration_s'] for run in runs):.0f} s in all runs together"
    costs = costs_of(runs)
    units = {"median_wall_s": "s", "median_cpu_s": "s of processor time"}
    medians = [f"{costs[name]:.1f} {unit}" for name, unit in units.items() if costs[name] is not None]
    return f"{took}; medians of a run: {', '.join(medians)}" if medians else took


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value is not None}))
