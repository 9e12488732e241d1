"""Threads that share a compiled loop."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise


def share(work: Callable[[int, int], None], length: int, *, least: int, threads: int) -> None:
    """Call ``work(start, stop)`` on parts of ``range(length)``, in at most so many threads at once.

    Parts get smaller, because a thread may begin late; but for the last, none has fewer than ``least``.
    """
    if threads == 1 or length <= least:
        work(0, length)
        return
    bounds = [0]
    while (left := length - bounds[-1]) > 0:
        bounds.append(bounds[-1] + min(left, max(least, left // (2 * threads - 1))))
    parts = iter([*pairwise(bounds)])  # of which no two threads can take the same

    def take() -> None:
        for start, stop in parts:
            work(start, stop)

    helpers = [_pool().submit(take) for _ in range(min(threads, len(bounds) - 1) - 1)]
    take()
    for helper in helpers:
        helper.cancel() or helper.result()  # one that hasn't begun has nothing left to do


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "gradtricks")  # kept, because a start is dear


getattr(os, "register_at_fork", dict)(after_in_child=_pool.cache_clear)  # its threads stay behind
