"""How long runs will take: as long as similar ones that are recorded, then as long as those just done."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from statistics import fmean, median
from typing import Any

from gradtricks.lab.runs.planning import Run
from gradtricks.lab.storage.store import Store, StoredRun

_RECENT = 64  # records of each notebook and backend that are compared with
_ENOUGH = 3  # runs that were just done say more than any record


class Pace:
    """Knows how long runs take.

    Args:
        runs: To be asked about.
        store: Has records of earlier ones.
    """

    def __init__(self, runs: Sequence[Run], store: Store) -> None:
        self._done: defaultdict[str, list[float]] = defaultdict(list)
        earlier = _earlier(runs, store)
        self._recorded = {run.request: _of_similar(run, earlier[run.name]) for run in runs}

    def learn(self, run: Run, seconds: float) -> None:
        """Take note of a run that has just finished.

        Args:
            run: Which one.
            seconds: How long it took.
        """
        self._done[run.name].append(seconds)

    def expected_s(self, run: Run) -> float | None:
        """Say how long a run takes.

        Args:
            run: Which one.

        Returns:
            Seconds; None where nothing is known.
        """
        done = self._done[run.name]
        recorded = self._recorded.get(run.request)
        if len(done) >= _ENOUGH or (done and recorded is None):
            return fmean(done)
        return run.expected_s if recorded is None else recorded

    def left_s(
        self, waiting: Iterable[Run], going: Iterable[tuple[Run, float]], workers: int
    ) -> float | None:
        """Say how long it takes until all is done.

        Args:
            waiting: Runs that haven't started.
            going: Those that have, with the seconds since.
            workers: How many go on at once.

        Returns:
            Seconds; None where a run is among them of which nothing is known.
        """
        lengths = [(self.expected_s(run), 0.0) for run in waiting]
        lengths += [(self.expected_s(run), since) for run, since in going]
        left = [max(expected - since, 0.0) for expected, since in lengths if expected is not None]
        if len(left) < len(lengths):
            return None
        # No worker can help with the longest one.
        return max(sum(left) / workers, max(left, default=0.0))


def estimate_s(runs: Sequence[Run], store: Store, workers: int) -> float | None:
    """Say how long it takes to execute what isn't finished yet.

    Args:
        runs: What is to be run.
        store: Where runs are kept.
        workers: How many go on at once.

    Returns:
        Seconds; None where nothing is known of one of them.
    """
    finished = store.find_all(runs)
    missing = [run for run in runs if run.request not in finished]
    return Pace(missing, store).left_s(missing, (), workers)


def _earlier(runs: Iterable[Run], store: Store) -> defaultdict[str, list[StoredRun]]:
    """Collect the newest finished runs of each notebook and backend."""
    found: defaultdict[str, list[StoredRun]] = defaultdict(list)
    for stem in {run.stem for run in runs}:
        for stored in store.runs(stem):
            if stored.status == "finished":
                found[stored.record["name"]].append(stored)
    for name, each in found.items():
        found[name] = nlargest(_RECENT, each, key=lambda stored: stored.record["started"])
    return found


def _of_similar(run: Run, earlier: Sequence[StoredRun]) -> float | None:
    """Take the median of those with the most parameters in common: a quick run tells little of a full one."""
    alike = [_count_equal(run.parameters, stored.record["parameters"]) for stored in earlier]
    most = max(alike, default=0)
    best = [stored for stored, count in zip(earlier, alike) if count == most]
    return median(float(stored.record["duration_s"]) for stored in best) if best else None


def _count_equal(parameters: Mapping[str, Any], recorded: Mapping[str, Any]) -> int:
    return sum(name in recorded and recorded[name] == value for name, value in parameters.items())
