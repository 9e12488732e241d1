"""Many runs at once: on this machine's cores, and on a dask cluster of separate processes."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from distributed import Client

from gradtricks.lab.runs import cluster as clusters
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.local import count_cores, count_workers
from gradtricks.lab.runs.many import execute_missing, look_up
from gradtricks.lab.runs.schedulers import Scheduler, SchedulerError
from gradtricks.lab.storage.store import Store, StoredRun, StoreError
from sweeping import (
    Cluster,
    end,
    execute_all,
    plan,
    start_driver,
    wait_for,
    write_certificates,
    write_sweep,
)


@pytest.fixture
def notebook(tmp_path):
    """Return the notebook of a small sweep."""
    return write_sweep(tmp_path)


@pytest.fixture
def drive(notebook, store):
    """Return a function that starts a process that sweeps; it is ended with the test."""
    with contextlib.ExitStack() as left:

        def drive(seeds, **options):
            driver = start_driver(notebook, store.location, seeds, **options)
            left.callback(end, driver)
            return driver

        yield drive


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that puts another one in the place of executing notebooks."""

    def put(function):
        monkeypatch.setattr("gradtricks.lab.runs.execution.execute_run", lambda run, *_, **__: function(run))

    return put


def listening():
    """Return the addresses that this process and those below it listen at."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [c.laddr for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN]
    return found


def below(process):
    """Return the processes below one."""
    return psutil.Process(process.pid).children(recursive=True)


def test_one_failure_stops_nothing_and_nothing_is_done_twice(notebook, store):
    specs = [*plan(notebook, 1), *plan(notebook, 1, fate="raise"), *plan(notebook, 3)[1:]]
    seen, listened, before = [], [], listening()  # other tests may keep a server

    def hear(run):
        seen.append((run.spec, run.state, run.worker))
        listened.extend(listening())

    runs = execute_all([*specs, specs[0]], store, workers=2, on_change=hear)
    assert [run.spec for run in runs] == [*specs, specs[0]]
    assert [run.state for run in runs] == ["finished", "failed", "finished", "finished", "finished"]
    assert "RuntimeError: as asked" in runs[1].error
    assert runs[2].stored.results["seed"] == 1
    # There a kernel hears what its own forks print, by a secret.
    assert {address.ip for address in {*listened} - {*before}} <= {"127.0.0.1"}

    for run in runs:
        began, ended = (each for each in seen if each[0] is run.spec)
        assert (began[1:], ended[1:]) == (("going", run.worker), (run.state, run.worker))
        assert run.seconds > 0
        assert run.worker in ("1", "2")
    assert threading.active_count() < 10

    seen.clear()
    again = execute_all(specs, store, on_change=hear)
    assert seen == []
    assert [run.stored for run in again][::2] == [run.stored for run in runs[:4]][::2]
    assert "RuntimeError: as asked\n  It failed before, and is kept in " in again[1].error
    execute_all(specs, store, retry_failed=True, on_change=hear)
    assert [state for _, state, _ in seen] == ["going", "failed"]


def test_the_search_for_listening_sockets_finds_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname() in [tuple(address) for address in listening()]


def test_a_run_takes_its_cores_or_the_whole_machine(notebook, store, stand_in, monkeypatch):
    monkeypatch.setattr("gradtricks.lab.runs.local.count_cores", lambda: 4)
    lock, busy, most, order = threading.Lock(), [], [], []

    def execute(run):
        with lock:
            busy.append(run)
            order.append(run)
            most.append((sum(r.threads for r in busy), len(busy), any(r.alone for r in busy)))
        time.sleep(0.05)
        with lock:
            busy.remove(run)
        return StoredRun("", {})

    stand_in(execute)
    runs = [
        replace(run, threads=1 + seed % 3, alone=seed == 2) for seed, run in enumerate(plan(notebook, 20))
    ]
    runs[5] = replace(runs[5], expected_s=99.0)
    assert count_workers(runs) == 4
    execute_all(runs, store)
    assert {run.request for run in order} == {run.request for run in runs}
    assert max(threads for threads, _, _ in most) in (3, 4)
    assert all(number == 1 for _, number, alone in most if alone)
    assert order[0].request == runs[5].request, "the longest first"
    assert order[-1].request == runs[2].request, "those that want to be alone last"
    assert count_workers([replace(runs[0], threads=8)]) == 1

    most.clear()
    execute_all([replace(run, alone=False) for run in runs], store, workers=7)
    assert max(number for _, number, _ in most) > 4, "who says how many knows better"
    with pytest.raises(ValueError, match="workers must be at least 1; got 0"):
        execute_all(runs, store, workers=0)


def test_whatever_goes_wrong_with_one_run_the_others_go_on(notebook, store, stand_in):
    wrong = [ZeroDivisionError("in the lab itself"), RunError("all is said"), StoreError("full"), None]

    def execute(run):
        if error := wrong[run.parameters["seed"]]:
            raise error
        return StoredRun("", {})

    stand_in(execute)
    runs = look_up(plan(notebook, 4), store, retry_failed=False)
    with pytest.raises(ZeroDivisionError, match=r"itself\nThat is a mistake of the lab's own, in small\."):
        execute_missing(runs, store, workers=1)
    assert [run.error for run in runs] == [None, "all is said", "full", None]
    assert [run.state for run in runs] == ["waiting", "failed", "failed", "finished"]


def test_what_goes_wrong_here_ends_what_was_started(notebook, store):
    def fail(run):
        raise KeyError(run.state)

    before = below(psutil.Process())  # whatever other tests keep
    with pytest.raises(KeyError, match="going"):
        execute_all(plan(notebook, 2, pause=60.0), store, on_change=fail)
    assert wait_for(lambda: set(below(psutil.Process())) <= set(before), 10)
    assert list(store.runs()) == []


def test_a_run_that_takes_too_long_is_ended(notebook, store, warm):
    (run,) = execute_all(plan(notebook, 1, pause=60.0), store, timeout_s=0.5)
    assert run.state == "failed"
    assert "TimeoutError" in run.error


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("fate", "said"),
    [
        ("kill its server", "its process ended with the one that it was forked from"),
        ("kill itself", "its process was ended by SIGKILL"),
    ],
)
def test_a_run_that_loses_its_process_is_done_again_alone(notebook, store, tmp_path, fate, said, times):
    kill = tmp_path / "kill"
    kill.write_text("." * times)
    specs = [*plan(notebook, 1, fate=fate, log=str(kill)), *plan(notebook, 3, pause=0.2)]
    runs = execute_all(specs, store, workers=2)
    assert [run.state for run in runs[1:]] == ["finished"] * 3
    assert runs[0].state == ("finished" if times == 1 else "failed")
    assert (store.failure(specs[0]) is None) == (times == 1)
    if times == 2:
        assert said in runs[0].error
        assert execute_all(specs[:1], store)[0].state == "finished", "the same command tries again"


def test_the_cores_of_a_container_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr("gradtricks.lab.runs.local._QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert count_cores() == 8
    for text, cores in [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("990000 100000", 8)]:
        (tmp_path / "cpu.max").write_text(text)
        assert count_cores() == cores


def started(driver, number):
    """Wait until so many runs have started, and return their titles."""
    titles = []
    while len(titles) < number:
        kind, title, _ = driver.stdout.readline().split()
        titles += [title] * (kind == "going")
    return titles


def test_a_first_signal_lets_runs_finish(drive, store):
    driver = drive(8, given={"pause": 1.0}, workers=2)
    titles = started(driver, 2)
    wait_for(lambda: len(below(driver)) >= 3)
    for process in (driver, *psutil.Process(driver.pid).children()):  # other tests send what Ctrl-C does
        process.send_signal(signal.SIGTERM)  # as SLURM does, to all of them
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert errors.startswith("interrupted: 6 of 8 runs are left; the same command does them\n")
    assert sorted(stored.title for stored in store.runs()) == sorted(titles)


def test_a_signal_while_the_last_one_goes_on_interrupts_nothing(notebook, store, warm):
    def hear(run):
        if (run.state, run.spec.parameters["seed"]) == ("going", 1):
            os.kill(os.getpid(), signal.SIGTERM)

    runs = execute_all(plan(notebook, 2), store, workers=1, on_change=hear)
    assert [run.state for run in runs] == ["finished", "finished"]


def test_a_second_signal_ends_them(drive, store):
    driver = drive(4, given={"pause": 60.0}, workers=2)
    started(driver, 2)
    kernels = wait_for(lambda: len(below(driver)) >= 3 and below(driver))

    other = drive(2, given={"pause": 60.0})
    wait_for(lambda: catches(other, signal.SIGTERM))
    time.sleep(0.5)
    assert below(other) == [], "another process is doing these already"
    other.send_signal(signal.SIGINT)
    assert other.communicate(timeout=20)[1].startswith("interrupted: 2 of 2 runs are left;")

    driver.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert driver.poll() is None
    clock = time.monotonic()
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=60)
    assert time.monotonic() - clock < 8
    assert driver.returncode == 130
    assert "4 of 4 runs are left" in errors
    assert psutil.wait_procs(kernels, timeout=5)[1] == []
    assert list(store.runs()) == [], "what was ended hasn't failed"
    assert store.claimed() == set()
    assert list(Path(store.location, ".unfinished").iterdir()) == []


def catches(process, number):
    """Say whether a process has a handler for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return int(mask, 16) >> (number - 1) & 1


def test_another_thread_can_execute_too(notebook, store, stand_in):
    stand_in(lambda run: StoredRun("", {}))
    with ThreadPoolExecutor() as pool:
        runs = pool.submit(execute_all, plan(notebook, 2), store).result(30)
    assert [run.state for run in runs] == ["finished", "finished"]


# Clusters


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Start a scheduler and two workers, with TLS."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    """Return the cluster, of which some tests leave only ruins."""
    shared.mend()
    return shared


def test_a_cluster_does_the_same_as_this_machine(cluster, notebook, store, tmp_path, warm):
    specs = [*plan(notebook, 3), *plan(notebook, 1, fate="raise")]
    seen = []
    scheduler = Scheduler(**cluster.known_as)
    runs = execute_all(
        specs, store, scheduler=scheduler, on_change=lambda run: seen.append((run.spec, run.state))
    )
    here = execute_all(specs[:3], Store(tmp_path / "here"))
    assert [run.stored.results for run in runs[:3]] == [run.stored.results for run in here]
    assert "RuntimeError: as asked" in runs[3].error
    assert {run.worker for run in runs} == {"w0/1", "w1/1"}
    for run in runs:
        assert [state for spec, state in seen if spec is run.spec] == ["going", run.state]
    seen.clear()
    execute_all(specs, store, scheduler=scheduler, on_change=seen.append)
    assert seen == []
    assert not list((tmp_path / "runs").glob(".probe*"))


def test_a_cluster_heeds_a_limit(cluster, notebook, store):
    going, most = set(), []

    def hear(run):
        (going.add if run.state == "going" else going.discard)(run)
        most.append(len(going))

    specs = plan(notebook, 3)
    runs = execute_all(specs, store, workers=1, scheduler=Scheduler(**cluster.known_as), on_change=hear)
    assert [run.worker[2:] for run in runs] == ["/1"] * 3
    assert max(most) == 1


def test_an_ended_sweep_ends_no_other_with_it(cluster, drive, store):
    ended = drive(1, given={"pause": 60.0}, scheduler=cluster.known_as)
    other = drive(99, given={"pause": 0.5}, scheduler=cluster.known_as)
    started(ended, 1)
    begun = started(other, 1)
    for _ in range(2):
        ended.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert ended.communicate(timeout=60)[1].startswith("interrupted")
    assert ended.returncode == 130
    other.send_signal(signal.SIGINT)
    begun += [line.split()[1] for line in other.stdout if line.startswith("going")]
    _, errors = other.communicate(timeout=60)
    assert errors.startswith(f"interrupted: {99 - len(begun)} of 99 runs are left;")
    assert sorted(stored.title for stored in store.runs()) == sorted(begun)


def test_other_packages_are_refused(cluster, notebook, store, monkeypatch):
    here, seen = clusters.environment() | {"numpy": "0.1", "distributed": "0.1"}, []
    monkeypatch.setattr(clusters, "environment", lambda: here)
    options = {"scheduler": Scheduler(**cluster.known_as), "on_change": seen.append}
    with pytest.raises(SchedulerError, match=r"(?s)numpy: expected 0.1, got \d.*remedy: install") as caught:
        execute_all(plan(notebook, 2), store, **options)
    assert "the scheduler: distributed: expected 0.1, got 2" in str(caught.value)
    # A worker that comes later isn't asked before, and says so itself.
    monkeypatch.setattr(clusters, "_check_workers", lambda *_: None)
    with pytest.raises(SchedulerError, match=r"(?s)w\d/1 must .* numpy: expected 0.1, got \d"):
        execute_all(plan(notebook, 2), store, **options)
    assert seen == []


def test_a_store_that_no_cluster_can_write_is_said(cluster, notebook, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"expected a store .*/file/runs; got: Not a directory; remedy: "):
        execute_all(plan(notebook, 1), Store(tmp_path / "file/runs"), scheduler=Scheduler(**cluster.known_as))


def test_workers_that_see_another_store_are_refused(cluster, notebook, store, monkeypatch):
    monkeypatch.setattr(clusters, "_probe", lambda _: contextlib.nullcontext("/nowhere/at/all"))
    with pytest.raises(SchedulerError, match="doesn't see the store"):
        execute_all(plan(notebook, 1), store, scheduler=Scheduler(**cluster.known_as))


def test_certificates_of_others_are_refused(cluster, notebook, store, tmp_path):
    scheduler = Scheduler(cluster.address, **write_certificates(tmp_path), patience_s=1)
    clock = time.monotonic()
    with pytest.raises(SchedulerError, match=r"got none within 1 s .*certificates are right"):
        execute_all(plan(notebook, 1), store, scheduler=scheduler)
    assert time.monotonic() - clock < 15


def test_a_run_that_kills_its_workers_fails_alone(notebook, store, tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    with Cluster(tmp_path, workers=1, nanny=True) as cluster:
        specs = [*plan(notebook, 1, fate="kill its worker"), *plan(notebook, 3)]
        runs = execute_all(specs, store, scheduler=Scheduler(**cluster.known_as))
    assert [run.state for run in runs] == ["failed", "finished", "finished", "finished"]
    assert "its process was ended each time" in runs[0].error


# distributed drops the socket of a connection that is refused.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_a_scheduler_and_workers_that_go_are_missed(cluster, drive, notebook, store, monkeypatch):
    known, sweep = cluster.known_as | {"patience_s": 1}, {"given": {"pause": 60.0}}
    driver = drive(2, scheduler=known, **sweep)
    started(driver, 1)
    for worker in cluster.workers.values():
        end(worker)
    clock = time.monotonic()
    _, errors = driver.communicate(timeout=60)
    assert (driver.returncode, time.monotonic() - clock < 20) == (3, True)
    assert "expected a worker at tls://127.0.0.1" in errors
    with pytest.raises(SchedulerError, match=r"expected a worker at .*; got none within 1 s"):
        execute_all(plan(notebook, 1), store, scheduler=Scheduler(**known))

    cluster.mend()
    known["patience_s"] = 3
    driver = drive(2, scheduler=known, **sweep)
    started(driver, 1)
    ask, clock = Client.run_on_scheduler, time.monotonic()
    monkeypatch.setattr(Client, "run_on_scheduler", lambda *args: end(cluster.scheduler) or ask(*args))
    with pytest.raises(SchedulerError, match="is gone; finished runs are kept; remedy: start it"):
        execute_all(plan(notebook, 1), store, scheduler=Scheduler(**known))
    _, errors = driver.communicate(timeout=60)
    assert (driver.returncode, time.monotonic() - clock < 20) == (3, True)
    assert "is gone; finished runs are kept; remedy: start it" in errors


@pytest.fixture
def namespaces():
    """Return the names of two network namespaces that see each other and nothing else, and an address."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    near, far = (f"gradtricks-{os.getpid()}-{side}" for side in ("near", "far"))
    commands = [
        f"netns add {near}",
        f"netns add {far}",
        f"-n {near} link add veth0 type veth peer name veth1 netns {far}",
        f"-n {near} address add 198.51.100.1/30 dev veth0",
        f"-n {far} address add 198.51.100.2/30 dev veth1",
        *(f"-n {name} link set {device} up" for name, device in ((near, "veth0"), (far, "veth1"))),
        *(f"-n {name} link set lo up" for name in (near, far)),
    ]
    try:
        for command in commands:
            made = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"network namespaces aren't to be had here: {made.stderr.strip()}")
        yield near, far, "198.51.100.2"
    finally:
        for name in (near, far):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_a_cluster_across_a_network(namespaces, drive, store, tmp_path):
    near, far, address = namespaces
    prefix = ["ip", "netns", "exec"]
    with Cluster(tmp_path, workers=1, host=address, prefix=[*prefix, far]) as cluster:
        driver = drive(2, scheduler=cluster.known_as, prefix=[*prefix, near])
        _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
    assert len(list(store.runs())) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"address": "127.0.0.1:8786"}, "scheduler must look like tls://host:port; got '127.0.0.1:8786'"),
        ({"address": "tls://somewhere"}, "scheduler must look like"),
        ({"address": "tcp://somewhere:x"}, "scheduler must look like"),
        ({"address": "tcp://[::1:8786"}, "scheduler must look like"),
        ({"address": "tcp://192.0.2.1:1"}, r"can run any code there; remedy: tls://.*plain_tcp=True"),
        ({"address": "tcp://somewhere:1"}, "can run any code there"),
        ({"address": "tcp://127.0.0.1:1", "cert": "c"}, "certificates are for tls://"),
        (
            {"address": "tls://a:1", "cert": "c"},
            "needs ca_file, cert and key, each a file; got ca_file=None, cert=c, key=None",
        ),
        (
            {"address": "tls://a:1", "ca_file": "a", "cert": "b", "key": "c"},
            "each a file; got ca_file=a, cert=b, key=c",
        ),
    ],
)
def test_a_scheduler_that_cannot_be_meant_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Scheduler(**given)


def test_a_scheduler_that_can_be_meant():
    for address in ("tcp://localhost:1", "tcp://127.0.0.2:1", "tcp://[::1]:1"):
        assert Scheduler(address).security() is None
    assert Scheduler("tcp://192.0.2.1:1", plain_tcp=True).security() is None


def test_certificates_that_are_none_are_refused(tmp_path):
    paths = {name: tmp_path / name for name in ("ca_file", "cert", "key")}
    for path in paths.values():
        path.write_text("nothing")
    with pytest.raises(ValueError, match="the certificates for tls://a:1 can't be used"):
        Scheduler("tls://a:1", **paths).security()
