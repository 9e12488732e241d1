"""How long runs will take: as long as similar ones that are recorded, then as long as those just done."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from statistics import median

from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.store import Store, StoredRun

_RECENT = 64  # records of each notebook and backend that are compared with
_ENOUGH = 3  # runs that were just done say more than any record

# Of runs that are expected to take equally long: name, seconds of similar ones, seconds that its author says.
Kind = tuple[str, float | None, float | None]


class Pace:
    """Knows how long runs take, from a store that has records of earlier ones."""

    def __init__(self, specs: Sequence[Spec], store: Store) -> None:
        self._done: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        earlier = _earlier(specs, store)
        self._recorded = {spec.request: _of_similar(spec, earlier[spec.name]) for spec in specs}

    def learn(self, spec: Spec, seconds: float) -> None:
        """Take note of a run that has just finished."""
        self._done[spec.name] += 1
        self._seconds[spec.name] += seconds

    def kind(self, spec: Spec) -> Kind:
        """Say what kind a run is of."""
        return spec.name, self._recorded.get(spec.request), spec.expected_s

    def expected_s(self, kind: Kind) -> float | None:
        """Say how many seconds a run takes; None where nothing is known."""
        name, recorded, said = kind
        done = self._done[name]
        if done >= _ENOUGH or (done and recorded is None):
            return self._seconds[name] / done
        return said if recorded is None else recorded

    def left_s(
        self, waiting: Mapping[Kind, int], going: Iterable[tuple[Kind, float]], workers: int
    ) -> float | None:
        """Say in how many seconds all is done, of those that wait and those that go on.

        Of the former it takes how many there are of a kind, for there may be thousands; of the latter the
        seconds since each began. None where nothing is known of one of them.
        """
        each = [(self.expected_s(kind), 0.0, count) for kind, count in waiting.items() if count]
        each += [(self.expected_s(kind), since, 1) for kind, since in going]
        left = [(max(takes - since, 0.0), count) for takes, since, count in each if takes is not None]
        if len(left) < len(each):
            return None
        # No worker can help with the longest one.
        longest = max((seconds for seconds, _ in left), default=0.0)
        return max(sum(seconds * count for seconds, count in left) / workers, longest)


def estimate_s(specs: Sequence[Spec], store: Store, workers: int) -> float | None:
    """Say in how many seconds all that isn't finished is done; None where nothing is known of one of them."""
    finished = store.find_all(specs)
    missing = [spec for spec in specs if spec.request not in finished]
    pace = Pace(missing, store)
    return pace.left_s(Counter(map(pace.kind, missing)), (), workers)


def _earlier(specs: Iterable[Spec], store: Store) -> defaultdict[str, list[StoredRun]]:
    """Collect the newest finished runs of each notebook and backend."""
    found: defaultdict[str, list[StoredRun]] = defaultdict(list)
    for stem in {spec.stem for spec in specs}:
        for stored in store.runs(stem):
            if stored.status == "finished":
                found[stored.record["name"]].append(stored)
    for each in found.values():
        each[:] = nlargest(_RECENT, each, key=lambda stored: stored.record["started"])
    return found


def _of_similar(spec: Spec, earlier: Sequence[StoredRun]) -> float | None:
    """Take the median of those with the most parameters in common: a quick run tells little of a full one."""
    alike: defaultdict[int, list[float]] = defaultdict(list)
    for stored in earlier:
        recorded = stored.record["parameters"]
        equal = sum(name in recorded and recorded[name] == value for name, value in spec.parameters.items())
        alike[equal].append(float(stored.record["duration_s"]))
    return median(alike[max(alike)]) if alike else None
