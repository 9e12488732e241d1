"""Dask inside of this process: a scheduler, and a worker whose threads wait for forks. Nothing listens."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import dask
from distributed import Client, Scheduler, SpecCluster, Worker

_SETTINGS = {
    "distributed.worker.profile.enabled": False,  # it looks at every thread's stack, a hundred times a second
    "distributed.diagnostics.nvml": False,
    "distributed.admin.low-level-log-length": 0,
}


_LOGGERS = ("distributed", "distributed.client", "tornado.application", "asyncio")


class _SilentScheduler(Scheduler):
    def start_http_server(self, *args: Any, **options: Any) -> None:
        """Don't: distributed has no setting for it, and would listen on every interface."""


class _SilentWorker(Worker):
    def start_http_server(self, *args: Any, **options: Any) -> None:
        """Don't."""


@contextmanager
def embedded(threads: int, cores: int) -> Iterator[Client]:
    """Start a scheduler and one worker.

    Args:
        threads: Runs that can be going on at once.
        cores: That they can ask for, as the resource "cores".

    Yields:
        A client.
    """
    common = {"protocol": "inproc://", "dashboard": False}
    with TemporaryDirectory(prefix="gradtricks-") as folder, dask.config.set(_SETTINGS), quiet():
        worker = {
            "nthreads": threads,
            "resources": {"cores": cores},
            "memory_limit": 0,  # the runs' memory isn't this process's
            "local_directory": folder,
        }
        with (
            SpecCluster(
                scheduler={
                    "cls": _SilentScheduler,
                    "options": {"dashboard_address": None, "port": 0, **common},
                },
                workers={0: {"cls": _SilentWorker, "options": {**worker, **common}}},
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client


@contextmanager
def quiet() -> Iterator[None]:
    """Keep dask from printing tracebacks of what is said in a sentence here, or is none of a user's business.

    Yields:
        Nothing.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)
