"""Whatever is killed, and whenever: the sweep that is started again ends as if nothing had happened."""

import contextlib
import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from gradtricks.lab.storage.store import Store
from sweeping import Cluster, end, execute_all, plan, start_driver, wait_for, write_sweep

SEEDS = 8
PAUSE_S = 0.05
_LONG_S = 300  # a driver on a busy machine may import for a minute
LOCAL = ("driver", "fork server", "kernel")
REMOTE = ("driver of a cluster", "kernel of a cluster", "worker", "scheduler")

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="forks runs on Linux only")


def finished(store):
    """Return what lies in the store: inode and time of each finished run's record, by seed."""
    found = {}
    for path in Path(store).glob("small-*/*/record.json"):
        record = json.loads(path.read_text())
        if record["status"] == "finished":
            seed = record["parameters"]["seed"]
            assert seed not in found, f"seed {seed} is there twice"
            found[seed] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found


def results(store):
    """Return what the runs found, by seed."""
    return {stored.parameters["seed"]: stored.results for stored in Store(store).runs()}


def find_victim(kind, driver, cluster, dice):
    """Return the process to be killed, or None while there is none."""
    if kind.startswith("driver"):
        return psutil.Process(driver.pid)
    if kind == "scheduler":
        return psutil.Process(cluster.scheduler.pid)
    if kind == "worker":
        return psutil.Process(cluster.workers[dice.integers(len(cluster.workers))].pid)
    parents = [process.pid for process in cluster.workers.values()] if "cluster" in kind else [driver.pid]
    with contextlib.suppress(psutil.NoSuchProcess):
        below = [child for pid in parents for child in psutil.Process(pid).children(recursive=True)]
        servers = [p for p in below if any("gradtricks.warm.forkserver" in each for each in p.cmdline())]
        pids = {server.pid for server in servers}
        kernels = [p for p in servers if p.ppid() in pids]
        found = kernels if "kernel" in kind else [p for p in servers if p.ppid() not in pids]
        return dice.choice(found) if found else None
    return None


class Sweep:
    """One sweep that is killed and started again until it is finished.

    Args:
        folder: For the notebook, the store and the log.
        notebook: To be swept.
    """

    def __init__(self, folder, notebook):
        folder.mkdir()
        self.notebook = notebook
        self.store, self.log = folder / "runs", folder / "starts"
        self.given = {"pause": PAUSE_S, "log": str(self.log)}
        self.done, self.seen = {}, 0

    def round(self, kind, cluster, dice):
        """Start the sweep, kill something, and return whether that happened and whether all is finished."""
        scheduler = cluster.known_as if kind in REMOTE else None
        driver = start_driver(self.notebook, self.store, SEEDS, given=self.given, scheduler=scheduler)
        try:
            killed = kind is not None and self._kill(kind, driver, cluster, dice)
            _, errors = driver.communicate(timeout=_LONG_S)
        finally:
            end(driver)
        if killed and kind.startswith("driver"):
            assert driver.returncode == -9, errors
        elif killed and kind == "scheduler":
            assert driver.returncode in (0, 3), errors
            said = any(
                text in errors for text in ("gone; finished runs are kept", "expected a dask scheduler")
            )
            assert driver.returncode == 0 or said, errors
        else:
            assert driver.returncode == 0, errors  # what lost its process was tried again
            assert "Traceback" not in errors
        self._check()
        return killed, driver.returncode == 0

    def _kill(self, kind, driver, cluster, dice):
        deadline = time.monotonic() + _LONG_S
        wait_for(lambda: driver.poll() is not None or find_victim(kind, driver, cluster, dice), _LONG_S)
        time.sleep(dice.uniform(0, 2))
        while driver.poll() is None and time.monotonic() < deadline:
            victim = find_victim(kind, driver, cluster, dice)
            if victim is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()
                    return True
            time.sleep(0.01)
        return False

    def _check(self):
        """See that what was finished before this round is as it was, and wasn't even started again."""
        now = finished(self.store)
        assert self.done.items() <= now.items()
        starts = self.log.read_text().split() if self.log.exists() else []
        redone = {int(seed) for seed in starts[self.seen :]} & self.done.keys()
        assert not redone
        # First what is finished, then the starts: each of those was started before it was finished.
        self.done, self.seen = finished(self.store), len(self.log.read_text().split()) if starts else 0


def test_kills_lose_nothing(tmp_path, request, warm):
    kills, seed = request.config.getoption("--kills"), request.config.getoption("--kill-seed")
    dice = np.random.default_rng(seed)
    notebook = write_sweep(tmp_path)
    undisturbed = Store(tmp_path / "undisturbed")
    execute_all(plan(notebook, SEEDS), undisturbed)
    expected = results(undisturbed.location)
    assert expected.keys() == set(range(SEEDS))

    every = (*REMOTE, *LOCAL)  # each of the latter is killed in a test of its own too
    kinds = [str(kind) for kind in dice.permutation([every[n % len(every)] for n in range(kills)])]
    counted, sweeps, rounds, wasted = Counter(), 0, 0, 0
    report = os.environ.get("GRADTRICKS_KILLS_REPORT")
    with Cluster(tmp_path) as cluster:
        while kinds:
            sweep, complete = Sweep(tmp_path / f"sweep-{sweeps}", notebook), False
            while not complete:
                kind = kinds[-1] if kinds else None
                killed, complete = sweep.round(kind, cluster, dice)
                rounds += 1
                if killed:
                    counted[kinds.pop()] += 1
                cluster.mend()
                if report:
                    told = {"kills": counted, "sweeps": sweeps, "rounds": rounds, "starts in vain": wasted}
                    Path(report).write_text(json.dumps(told, indent=1))
            assert results(sweep.store) == expected
            assert not list((sweep.store / ".unfinished").glob("*/"))
            sweeps, wasted = sweeps + 1, wasted + sweep.seen - SEEDS
    assert counted.total() == kills
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == "", "processes that still have to do with it"
