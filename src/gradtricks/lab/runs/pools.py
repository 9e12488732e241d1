"""Who executes runs: an executor, and what has to be known of it."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from gradtricks.lab.storage.store import StoredRun

_PATIENCE_S = 5.0  # for threads whose runs were ended


@dataclass(frozen=True)
class Pool:
    """Who executes runs.

    Attributes:
        executor: That is given them, as `concurrent.futures` says.
        perform: Executes a run, told what is to be run, and whether that is given here again if it is lost.
        room: Counts the runs that can go on at once; 0 while nobody is there.
        end: Ends what goes on; nothing more begins.
        gone: Says why runs are cancelled that nobody has cancelled here.
        cores: That runs share; infinite where that is left to those who start workers.
        lost: What is raised where something else than the run has ended its process.
    """

    executor: Executor
    perform: Callable[..., StoredRun]
    room: Callable[[], int]
    end: Callable[[], None]
    gone: Callable[[], Exception]
    cores: float
    lost: tuple[type[Exception], ...]


class Threads(Executor):
    """An executor with a thread for each call.

    Unlike those of the standard library, its threads don't keep a process from ending: one may be waiting
    for what another process does.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        """Call a function in a thread of its own."""
        future: Future[Any] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args, **options))
                except BaseException as error:
                    future.set_exception(error)

        thread = threading.Thread(target=call, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait a while for the threads."""
        deadline = time.monotonic() + _PATIENCE_S
        for thread in self._threads if wait else ():
            thread.join(max(0.0, deadline - time.monotonic()))


class Places:
    """Numbers for those who work at once, from 1 on, each the lowest that is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[int] = set()

    @contextmanager
    def one(self) -> Iterator[int]:
        """Take a number, for as long as the block lasts."""
        with self._lock:
            number = next(n for n in count(1) if n not in self._taken)
            self._taken.add(number)
        try:
            yield number
        finally:
            self._taken.discard(number)
