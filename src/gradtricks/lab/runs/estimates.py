"""How long runs will take: as long as similar ones that are recorded, then as long as those just done."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from statistics import median
from typing import Any

from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.store import Store, StoredRun

_RECENT = 64  # records of each notebook and backend that are compared with
_ENOUGH = 3  # runs that were just done say more than any record


class Pace:
    """Knows how long runs take.

    Args:
        specs: Of the runs to be asked about.
        store: Has records of earlier ones.
    """

    def __init__(self, specs: Sequence[Spec], store: Store) -> None:
        self._done: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        earlier = _earlier(specs, store)
        self._recorded = {spec.request: _of_similar(spec, earlier[spec.name]) for spec in specs}

    def learn(self, spec: Spec, seconds: float) -> None:
        """Take note of a run that has just finished.

        Args:
            spec: Of the run.
            seconds: How long it took.
        """
        self._done[spec.name] += 1
        self._seconds[spec.name] += seconds

    def expected_s(self, spec: Spec) -> float | None:
        """Say how long a run takes.

        Args:
            spec: Of the run.

        Returns:
            Seconds; None where nothing is known.
        """
        done = self._done[spec.name]
        recorded = self._recorded.get(spec.request)
        if done >= _ENOUGH or (done and recorded is None):
            return self._seconds[spec.name] / done
        return spec.expected_s if recorded is None else recorded

    def left_s(
        self, waiting: Iterable[Spec], going: Iterable[tuple[Spec, float]], workers: int
    ) -> float | None:
        """Say how long it takes until all is done.

        Args:
            waiting: Of the runs that haven't started.
            going: Those that have, with the seconds since.
            workers: How many go on at once.

        Returns:
            Seconds; None where a run is among them of which nothing is known.
        """
        lengths = [(self.expected_s(spec), 0.0) for spec in waiting]
        lengths += [(self.expected_s(spec), since) for spec, since in going]
        left = [max(expected - since, 0.0) for expected, since in lengths if expected is not None]
        if len(left) < len(lengths):
            return None
        # No worker can help with the longest one.
        return max(sum(left) / workers, max(left, default=0.0))


def estimate_s(specs: Sequence[Spec], store: Store, workers: int) -> float | None:
    """Say how long it takes to execute what isn't finished yet.

    Args:
        specs: What is to be run.
        store: Where runs are kept.
        workers: How many go on at once.

    Returns:
        Seconds; None where nothing is known of one of them.
    """
    finished = store.find_all(specs)
    missing = [spec for spec in specs if spec.request not in finished]
    return Pace(missing, store).left_s(missing, (), workers)


def _earlier(specs: Iterable[Spec], store: Store) -> defaultdict[str, list[StoredRun]]:
    """Collect the newest finished runs of each notebook and backend."""
    found: defaultdict[str, list[StoredRun]] = defaultdict(list)
    for stem in {spec.stem for spec in specs}:
        for stored in store.runs(stem):
            if stored.status == "finished":
                found[stored.record["name"]].append(stored)
    for name, each in found.items():
        found[name] = nlargest(_RECENT, each, key=lambda stored: stored.record["started"])
    return found


def _of_similar(spec: Spec, earlier: Sequence[StoredRun]) -> float | None:
    """Take the median of those with the most parameters in common: a quick run tells little of a full one."""
    alike = [_count_equal(spec.parameters, stored.record["parameters"]) for stored in earlier]
    most = max(alike, default=0)
    best = [stored for stored, count in zip(earlier, alike) if count == most]
    return median(float(stored.record["duration_s"]) for stored in best) if best else None


def _count_equal(parameters: Mapping[str, Any], recorded: Mapping[str, Any]) -> int:
    return sum(name in recorded and recorded[name] == value for name, value in parameters.items())
