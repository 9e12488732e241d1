"""A small sweep, the command that runs it in a process of its own, and a dask cluster for it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from gradtricks.lab.runs.many import execute_missing, look_up
from gradtricks.lab.runs.planning import plan_runs
from notebooks import write_notebook

PARAMETERS = """\
seed: int = 0  # of the numbers
pause: float = 0.0  # seconds that it sleeps
log: str = ""  # file that gets a line
fate: str = "well"  # how it ends
"""
# Whoever reads the log sees which runs were started, and how often.
BODY = """\
import os, time
import numpy as np
from gradtricks.lab import record
if fate in ("kill its server", "kill itself"):  # as often as the file has characters
    import psutil
    left, itself = open(log).read(), psutil.Process()
    open(log, "w").write(left[1:])
    if left:
        (itself if fate == "kill itself" else itself.parent()).kill()
        time.sleep(60)
elif log:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{seed}\\n".encode())
    os.close(descriptor)
time.sleep(pause)
x = np.random.default_rng(seed).normal(size=(50, 50))
record(trace=float(np.trace(np.linalg.matrix_power(x / 10, 5))), seed=seed)
if fate == "kill its worker":
    import psutil, signal
    psutil.Process().parents()[1].kill()
    time.sleep(60)
"""


def write_sweep(folder):
    """Write the notebook of the sweep."""
    return write_notebook(folder / "experiments" / "small.ipynb", PARAMETERS, BODY)


def plan(notebook, seeds, **given):
    """Plan a run for each seed."""
    return plan_runs(notebook, [{"seed": seed, **given} for seed in range(seeds)])


def start_driver(notebook, store, seeds, *, given=None, scheduler=None, prefix=(), **options):
    """Start a process that executes the sweep and prints a line whenever a run begins or ends."""
    orders = {
        "notebook": str(notebook),
        "store": str(store),
        "seeds": seeds,
        "given": given or {},
        "scheduler": scheduler,
        "options": options,
    }
    quiet = ["-W", "error", "-W", "ignore::ResourceWarning"]  # asyncio's
    return subprocess.Popen(
        [*prefix, sys.executable, *quiet, __file__, json.dumps(orders)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=with_path(),
    )


def with_path():
    """Return the environment of a process that imports what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def execute_all(specs, store, *, retry_failed=False, **options):
    """Execute runs with the options of `execute_missing`, and return what came of each."""
    runs = look_up(specs, store, retry_failed=retry_failed)
    execute_missing(runs, store, **options)
    return runs


def main():
    """Be that process."""
    from gradtricks.lab.runs.many import Interrupted
    from gradtricks.lab.runs.schedulers import Scheduler, SchedulerError
    from gradtricks.lab.storage.store import Store

    orders = json.loads(sys.argv[1])
    specs = plan(Path(orders["notebook"]), orders["seeds"], **orders["given"])
    scheduler = Scheduler(**orders["scheduler"]) if orders["scheduler"] else None
    try:
        runs = execute_all(
            specs,
            Store(orders["store"]),
            scheduler=scheduler,
            on_change=lambda run: print(run.state, run.spec.title, run.worker, flush=True),  # noqa: T201
            **orders["options"],
        )
    except Interrupted as interrupted:
        sys.stderr.write(f"{interrupted}\n")
        sys.exit(130)
    except SchedulerError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(3)
    sys.exit(any(run.error for run in runs))


def write_certificates(folder):
    """Write certificates that last for an hour; return what `Scheduler` takes."""
    from distributed.security import Security  # which sweeps of one machine don't need

    made = Security.temporary()
    files = {"ca_file": made.tls_ca_file, "cert": made.tls_client_cert, "key": made.tls_client_key}
    for name, text in files.items():
        (folder / f"{name}.pem").write_text(text)
    return {name: str(folder / f"{name}.pem") for name in files}


def free_port():
    """Return a port of the loopback interface that nobody uses."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Cluster:
    """A dask scheduler and workers, each a process of its own, that talk TLS.

    Args:
        folder: For certificates and logs.
        workers: How many; each has one thread.
        host: Where the scheduler listens.
        prefix: Put before their commands.
        nanny: Whether workers that die are started again by dask.
    """

    def __init__(self, folder, workers=2, host="127.0.0.1", prefix=(), nanny=False):
        self.folder = folder
        self.certificates = write_certificates(folder)
        self.address = f"tls://{host}:{free_port()}"
        self.host, self._prefix, self._nanny = host, prefix, nanny
        self.scheduler = None
        self.workers = dict.fromkeys(range(workers))

    def __enter__(self):
        self.mend()
        return self

    def __exit__(self, *_):
        for process in (*self.workers.values(), self.scheduler):
            end(process)

    @property
    def known_as(self):
        """Take what `gradtricks.lab.runs.schedulers.Scheduler` takes."""
        return {"address": self.address, **self.certificates, "patience_s": 15}

    def mend(self):
        """Start again what has ended, and wait until the workers are known."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            for process in (*self.workers.values(), self.scheduler):
                end(process)
            port = self.address.rpartition(":")[2]
            options = ["--host", self.host, "--port", port, "--protocol", "tls"]
            self.scheduler = self._start("scheduler", *options)
        ended = [name for name, each in self.workers.items() if each is None or each.poll() is not None]
        log = self.folder / "worker.log"
        before = log.stat().st_size if log.exists() else 0
        for name in ended:
            end(self.workers[name])
            options = [self.address, "--name", f"w{name}", "--nthreads", "1"]
            nanny = "--nanny" if self._nanny else "--no-nanny"
            self.workers[name] = self._start("worker", *options, nanny)
        wait_for(lambda: not ended or log.read_bytes()[before:].count(b"Registered to") == len(ended))

    def _start(self, what, *options):
        files = [f"--tls-{name.replace('_', '-')}={path}" for name, path in self.certificates.items()]
        command = [*self._prefix, sys.executable, "-m", "distributed.cli.dask_" + what, *options, *files]
        with (self.folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--dashboard-address", "127.0.0.1:0"],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=with_path(),
            )


def end(process):
    """End a process and all that it started."""
    if process is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def wait_for(condition, seconds=60.0):
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {condition}"
        time.sleep(0.02)
    return found


if __name__ == "__main__":
    main()
