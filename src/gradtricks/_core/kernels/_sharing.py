"""Threads that share a compiled loop."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise


def share(work: Callable[[int, int], None], length: int, *, least: int, threads: int) -> None:
    """Call ``work(start, stop)`` on parts of ``range(length)``, in at most so many threads at once.

    Parts get smaller, because a thread may begin late; none has fewer than ``least``, unless it is the only
    one. When this returns or raises, no part is being worked on any more.
    """
    bounds = [0]
    while bounds[-1] < length:  # AutoGraph, which translates this in a tf.map_fn, loses what := assigns
        left = length - bounds[-1]
        size = max(least, left // (2 * threads - 1))
        bounds.append(length if left - size < least else bounds[-1] + size)
    parts = iter([*pairwise(bounds)])  # of which no two threads take the same, by the interpreter's lock

    def take() -> None:
        for part in parts:
            work(*part)

    helpers: list[Future[None]] = []
    try:
        for _ in range(min(threads, len(bounds) - 1) - 1):
            helpers.append(_pool().submit(take))
        take()
    finally:
        list(parts)  # so that none is left to take
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "gradtricks")  # kept, because a start is dear


if hasattr(os, "register_at_fork"):  # pragma: no branch, as Windows alone has none
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork has a copy of the pool, not of its threads
