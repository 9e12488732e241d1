"""Runs while they go on: who does what, what is done, what has failed, and how long the rest will take."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gradtricks.lab.commands.printing import duration
from gradtricks.lab.engine.estimates import Pace, estimate_s
from gradtricks.lab.engine.executing import (
    Event,
    Outcome,
    count_workers,
    execute_missing,
    look_up,
)
from gradtricks.lab.runs.planning import Run
from gradtricks.lab.storage.store import Store

__all__ = ["Board", "estimate_s", "run_shown"]

_LINES = 100  # that finished runs get altogether
_QUIET_S = 30.0  # after which a finished run gets a line in any case
_WORKERS = 16  # that are shown at once
_EXPLAINED = 5  # failures that are printed in full


def run_shown(runs: Sequence[Run], store: Store, console: Console, **options: Any) -> list[Outcome]:
    """Execute runs, and show how far they are.

    Args:
        runs: What is to be run.
        store: Where runs are kept.
        console: Where to show it: on a terminal a line for each worker that changes, elsewhere lines only.
        **options: As in `gradtricks.lab.engine.executing.execute_all`.

    Returns:
        What came of each run, in the order of ``runs``.

    Raises:
        Interrupted: By Ctrl-C or SIGTERM.
        SchedulerError: The cluster can't be used, or is gone.
    """
    on_event = options.pop("on_event", None)
    outcomes = look_up(runs, store, retry_failed=options.pop("retry_failed", False))
    board = Board(outcomes, store, console, workers=options.get("workers"))
    chosen = {"workers": None, "scheduler": None, "timeout_s": None} | options

    def tell(event: Event) -> None:
        board.tell(event)
        if on_event is not None:
            on_event(event)

    with board.shown():
        return execute_missing(outcomes, store, tell=tell, **chosen)


class Board:
    """What is shown of runs that go on.

    Args:
        outcomes: From `gradtricks.lab.engine.executing.look_up`.
        store: Where runs are kept.
        console: Where to show it.
        workers: How many go on at once; None means as many as there are cores for.
    """

    def __init__(
        self, outcomes: Sequence[Outcome], store: Store, console: Console, *, workers: int | None = None
    ) -> None:
        self._console = console
        self._all = len(outcomes)
        self._left = {o.run.request: o.run for o in outcomes if o.stored is None and o.error is None}
        self._total = len(self._left)
        self._found = sum(outcome.stored is not None for outcome in outcomes)
        self._failed_before = self._all - self._total - self._found
        self._failed = 0
        self._going: dict[str, tuple[str, float]] = {}  # by request: worker and start
        self._workers = workers or count_workers(self._left.values())
        self._pace = Pace(list(self._left.values()), store)
        self._stopping = False
        self._printed = monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it for as long as it takes.

        Yields:
            Nothing.
        """
        self._greet()
        if not self._console.is_terminal or not self._total:
            yield
            return
        with Live(console=self._console, get_renderable=self._render, transient=True, refresh_per_second=4):
            yield

    def tell(self, event: Event) -> None:
        """Take an event.

        Args:
            event: From `gradtricks.lab.engine.executing.execute_all`.
        """
        if event.kind == "stopping":
            self._stopping = True
            self._print("Stopping: what is going on is finished and kept. Ctrl-C again ends that too.")
        elif event.kind == "started":
            self._going[event.request] = event.worker, monotonic()
        else:
            self._end(event)

    def _end(self, event: Event) -> None:
        self._going.pop(event.request, None)
        run, seconds = self._left.pop(event.request, None), event.seconds or 0.0
        if run is None:  # it was asked for twice
            return
        place = f"{self._total - len(self._left)}/{self._total} {event.run}"
        if event.kind == "finished":
            self._pace.learn(run, seconds)
            if self._is_due():
                self._print(f"{place}: {duration(seconds)}{self._outlook()}")
            return
        self._failed += 1
        if self._all == 1:  # whoever wants only this one says why
            self._print(f"{place}: failed", style="red")
        elif self._failed <= _EXPLAINED:
            self._print(f"{place}: failed\n{event.error}", style="red")
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
        going, left = dict(self._going), dict(self._left)
        waiting = [run for request, run in left.items() if request not in going]
        since = [(left[request], now - start) for request, (_, start) in going.items() if request in left]
        return self._pace.left_s(waiting, since, max(self._workers, len(going)))

    def _greet(self) -> None:
        if self._found and self._all > 1:
            self._print(f"{self._found} of {self._all} runs are finished already.")
        if self._failed_before:
            self._print(f"{self._failed_before} have failed before; --retry failed tries them again.")

    def _print(self, text: str, style: str = "") -> None:
        self._printed = monotonic()
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _render(self) -> RenderableType:
        now = monotonic()
        grid = Table.grid(padding=(0, 1))
        grid.add_column(justify="right")
        grid.add_column(overflow="ellipsis", no_wrap=True)
        grid.add_column(justify="right")
        left = dict(self._left)
        going = sorted((*who, left[key].title) for key, who in dict(self._going).items() if key in left)
        for worker, start, title in going[:_WORKERS]:
            grid.add_row(Text(worker, style="dim"), Text(title), Text(duration(now - start)))
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
