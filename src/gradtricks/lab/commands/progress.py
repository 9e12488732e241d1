"""Runs while they go on: who does what, what is done, what has failed, and how long the rest will take."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import nlargest
from statistics import median
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradtricks.lab.commands.terminal import duration
from gradtricks.lab.encoding import encode
from gradtricks.lab.runs.local import count_workers
from gradtricks.lab.runs.many import Run
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.storage.store import Store, StoredRun

_LINES = 100  # that finished runs get altogether
_QUIET_S = 30.0  # after which a finished run gets a line in any case
_WORKERS = 16  # that are shown at once
_BAR = 20  # letters
_EXPLAINED = 5  # failures that are printed in full
_RECENT = 64  # records of each notebook and backend that are compared with
_ENOUGH = 3  # runs that were just done say more than any record

# Of runs that are expected to take equally long: name, seconds of similar ones, seconds that its author says.
Kind = tuple[str, float | None, float | None]


class Board:
    """What is shown of runs that go on, so many ``workers`` at once, or as many as there are cores for."""

    def __init__(
        self, runs: Sequence[Run], store: Store, console: Console, *, workers: int | None = None
    ) -> None:
        self._runs, self._console = runs, console
        self._left = {run.spec.request: run for run in runs if run.missing}
        self._total = len(self._left)
        self._failed = 0
        specs = [run.spec for run in self._left.values()]
        self._workers = workers or count_workers(specs)
        self._pace = Pace([] if console.quiet else specs, store)
        self._waiting = Counter(map(self._pace.kind, specs))
        self._going: dict[str, Run] = {}
        self._stopping = False
        self._printed = monotonic()

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show it for as long as it takes."""
        found = sum(run.stored is not None for run in self._runs)
        if found and len(self._runs) > 1:
            self._print(f"{found} of {len(self._runs)} runs are finished already.")
        if failed := sum(run.error is not None for run in self._runs):
            self._print(f"{failed} have failed before; --retry failed tries them again.")
        if not self._console.is_terminal or not self._total:
            yield
            return
        with Live(console=self._console, get_renderable=self._render, transient=True, refresh_per_second=4):
            yield

    def stop(self) -> None:
        """Say that no further run will be started."""
        self._stopping = True
        self._print("Stopping: what is going on is finished and kept. Ctrl-C again ends that too.")

    def tell(self, run: Run) -> None:
        """Take note of a run that has begun, ended, or lost its process and waits again."""
        request = run.spec.request
        if self._console.quiet or request not in self._left:
            return
        waited = self._going.pop(request, None) is None
        self._waiting[self._pace.kind(run.spec)] += (run.state == "waiting") - waited
        if run.state == "going":
            self._going[request] = run
        if run.missing:
            return
        del self._left[request]
        place = f"{self._total - len(self._left)}/{self._total} {run.spec.title}"
        if run.stored:
            self._pace.learn(run.spec, run.seconds)
            if self._is_due():
                self._print(f"{place}: {duration(run.seconds)}{self._outlook()}")
            return
        self._failed += 1
        if len(self._runs) == 1:  # whoever wants only this one says why
            self._print(f"{place}: failed", style="red")
        elif self._failed <= _EXPLAINED:
            self._print(f"{place}: failed\n{run.error}", style="red")
        elif self._is_due():
            self._print(f"{place}: failed, {self._failed} so far", style="red")

    def _is_due(self) -> bool:
        """Say whether this one gets a line: of 10,000 runs, one in a hundred does."""
        done = self._total - len(self._left)
        step = max(1, -(-self._total // _LINES))
        return done % step == 0 or not self._left or monotonic() - self._printed > _QUIET_S

    def _outlook(self) -> str:
        """Say how long the rest takes, where no line below says it all the time."""
        left = None if self._console.is_terminal else self._left_s()
        return f", {duration(left)} left" if left else ""

    def _left_s(self) -> float | None:
        now = monotonic()
        going = [(self._pace.kind(run.spec), now - run.began) for run in list(self._going.values())]
        return self._pace.left_s(self._waiting, going, max(self._workers, len(going)))

    def _print(self, text: str, style: str = "") -> None:
        self._printed = monotonic()
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _render(self) -> RenderableType:
        now = monotonic()
        grid = Table.grid(padding=(0, 1))
        grid.add_column(justify="right", style="dim")
        grid.add_column(overflow="ellipsis", no_wrap=True)
        grid.add_column()
        grid.add_column(justify="right")
        going = list(self._going.values())
        for run in sorted(going, key=lambda run: run.worker)[:_WORKERS]:
            since, expected = now - run.began, self._pace.expected_s(self._pace.kind(run.spec))
            bar = ProgressBar(total=expected, completed=since, width=_BAR)  # pulses where nothing is known
            grid.add_row(Text(run.worker), Text(run.spec.title), bar, Text(duration(since)))
        more = [Text(f"and {len(going) - _WORKERS} more", style="dim")] * (len(going) > _WORKERS)
        return Group(grid, *more, Text(self._state(len(going)), style="bold"))

    def _state(self, going: int) -> str:
        done = self._total - len(self._left) - self._failed
        parts = [f"{done} done", *([f"{self._failed} failed"] if self._failed else [])]
        parts += [f"{going} going on", f"{len(self._left) - going} to come"]
        left = self._left_s()
        if self._stopping:
            parts.append("stopping")
        elif left is not None:
            parts.append(f"about {duration(left)} left")
        return ", ".join(parts)


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


def estimate_s(missing: Sequence[Spec], store: Store, workers: int | None) -> float | None:
    """Say in how many seconds runs are done, so many at once, or as many as there are cores for.

    None where nothing is known of one of them.
    """
    pace = Pace(missing, store)
    return pace.left_s(Counter(map(pace.kind, missing)), (), workers or count_workers(missing))


def _earlier(specs: Iterable[Spec], store: Store) -> defaultdict[str, list[StoredRun]]:
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
    wanted = {name: encode(value, name) for name, value in spec.parameters.items()}
    for stored in earlier:
        recorded = stored.record["parameters"]
        equal = sum(name in recorded and recorded[name] == value for name, value in wanted.items())
        alike[equal].append(float(stored.record["duration_s"]))
    return median(alike[max(alike)]) if alike else None
