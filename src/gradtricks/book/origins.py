"""Origins of runs, from their records: when they ran, how long they took, on what, from which sources."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

__all__ = ["costs_of", "origin_of", "period_of"]

# Libraries whose versions a reader is shown; the record holds all of them.
_SHOWN = ("torch", "tensorflow", "keras", "numpy", "ale-py", "envpool", "gymnasium", "scikit-learn")


def origin_of(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Say what produced a run, or the runs of a sweep; where they differ, all that there is."""
    sources = [record["provenance"] for record in records]
    used = [record["inputs"]["versions"] for record in records]
    versions = {name: _distinct(each.get(name) for each in used) for name in _SHOWN}
    return {
        "started": period_of(records),
        "took": _took(records),
        "commit": _distinct(map(_commit, sources)),
        "processor": _distinct(source["processor"] for source in sources),
        "threads of a run": _distinct(source["threads"] for source in sources),
        "Python": _distinct(source["python"] for source in sources),
        "libraries": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }


def costs_of(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Measure what a run took; one that was resumed says nothing of its time.

    Medians of time and processor time in seconds, and the largest memory in MiB; None where nothing is known.
    """
    finished = [record for record in records if record["status"] == "finished"]
    timed = [record for record in finished if not record["provenance"].get("resumed")]
    wall_s = [record["duration_s"] for record in timed]
    cpu_s = [record["provenance"]["cpu_s"] for record in timed if "cpu_s" in record["provenance"]]
    peaks = [record["provenance"].get("peak_memory_mib") for record in finished]
    return {
        "median_wall_s": median(wall_s) if wall_s else None,
        "median_cpu_s": median(cpu_s) if cpu_s else None,
        "peak_memory_mib": max((peak for peak in peaks if peak is not None), default=None),
    }


def period_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Say in which minutes the first and the last of some runs were started."""
    times = sorted(datetime.fromisoformat(record["started"]).astimezone(UTC) for record in records)
    return " to ".join(dict.fromkeys(f"{time:%Y-%m-%d %H:%M} UTC" for time in (*times[:1], *times[-1:])))


def _commit(provenance: Mapping[str, Any]) -> str:
    edited = " with uncommitted changes" if provenance.get("dirty") else ""
    return f"{(provenance.get('commit') or 'unknown')[:12]}{edited}"


def _took(records: Sequence[Mapping[str, Any]]) -> str:
    least = "at least " if any(record["provenance"].get("resumed") for record in records) else ""
    took = f"{least}{sum(record['duration_s'] for record in records):.0f} s"
    if len(records) < 2:
        return took if records else ""
    costs = costs_of(records)
    units = {"median_wall_s": "s", "median_cpu_s": "s of processor time"}
    medians = [f"{costs[name]:.1f} {unit}" for name, unit in units.items() if costs[name] is not None]
    of_a_run = f"; medians of a run: {', '.join(medians)}" if medians else ""
    return f"{took} in all runs together{of_a_run}"


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value is not None}))
