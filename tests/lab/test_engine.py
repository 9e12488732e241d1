"""Many runs at once: on this machine's cores, and on a dask cluster of separate processes."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from distributed import Future
from distributed.comm.core import CommClosedError

from gradtricks.lab.engine import connecting, environments, pool, tasks
from gradtricks.lab.engine.dispatch import Dispatch, dispatching
from gradtricks.lab.engine.executing import (
    Outcome,
    Scheduler,
    SchedulerError,
    count_workers,
    execute_all,
)
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.storage.store import Store, StoredRun, StoreError
from sweeping import Cluster, end, free_port, plan, start_driver, wait_for, write_certificates, write_sweep


@pytest.fixture
def notebook(tmp_path):
    """Return the notebook of a small sweep."""
    return write_sweep(tmp_path)


@pytest.fixture
def store(tmp_path):
    """Return an empty store."""
    return Store(tmp_path / "runs")


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that puts another one in the place of executing notebooks."""

    def put(function):
        monkeypatch.setattr("gradtricks.lab.runs.execution.execute", lambda run, *_, **__: function(run))

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
    runs = [*plan(notebook, 1), *plan(notebook, 1, fate="raise"), *plan(notebook, 3)[1:]]
    events, listened = [], []

    def hear(event):
        events.append(event)
        listened.extend(listening())

    outcomes = execute_all(runs, store, workers=2, on_event=hear)
    assert [outcome.run for outcome in outcomes] == runs
    assert [outcome.stored is not None for outcome in outcomes] == [True, False, True, True]
    assert "RuntimeError: as asked" in outcomes[1].error
    assert outcomes[2].stored.results["seed"] == 1
    assert listened == []

    for run in runs:
        started, ended = (event for event in events if event.request == run.request)
        assert (started.kind, started.run, started.worker) == ("started", run.title, ended.worker)
        assert ended.kind == ("failed" if run is runs[1] else "finished")
        assert ended.seconds > 0
        assert ended.worker in ("1", "2")
    assert threading.active_count() < 10

    events.clear()
    again = execute_all(runs, store, on_event=hear)
    assert events == []
    assert [outcome.stored for outcome in again][::2] == [outcome.stored for outcome in outcomes][::2]
    assert "RuntimeError: as asked\n  It failed before; its notebook: " in again[1].error
    execute_all(runs, store, retry_failed=True, on_event=hear)
    assert [event.kind for event in events] == ["started", "failed"]


def test_the_search_for_listening_sockets_finds_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname() in [tuple(address) for address in listening()]


def test_a_run_takes_its_cores_and_one_that_wants_to_be_alone_is(notebook, store, stand_in, monkeypatch):
    monkeypatch.setattr("dask.system.CPU_COUNT", 4)
    monkeypatch.setattr(pool, "CPU_COUNT", 4)
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


def test_the_order_is_kept_and_time_and_memory_grow_with_the_number(notebook, store, stand_in):
    order, seconds, memory = [], [], []
    stand_in(lambda run: order.append(run.parameters["seed"]) or StoredRun("", {}))
    for number in (50, 200):
        order.clear()
        clock = time.process_time()  # others may be using this machine
        execute_all(plan(notebook, number), store, workers=1)
        seconds.append(time.process_time() - clock)
        memory.append(psutil.Process().memory_info().rss)
        assert order == list(range(number))
    assert seconds[1] < 10 * seconds[0]
    assert memory[1] - memory[0] < 50 << 20


def test_whatever_goes_wrong_with_one_run_the_others_go_on(notebook, store, stand_in):
    def execute(run):
        if run.parameters["seed"] == 1:
            raise ZeroDivisionError("in the lab itself")
        if run.parameters["seed"] == 2:
            raise RunError("all is said here")
        return StoredRun("", {})

    stand_in(execute)
    outcomes = execute_all(plan(notebook, 4), store)
    errors = [outcome.error for outcome in outcomes]
    assert errors == [None, "small-seed=1: ZeroDivisionError: in the lab itself", "all is said here", None]


def test_what_goes_wrong_here_ends_what_was_started(notebook, store):
    def fail(event):
        raise KeyError(event.kind)

    with pytest.raises(KeyError, match="started"):
        execute_all(plan(notebook, 2, pause=60.0), store, on_event=fail)
    assert wait_for(lambda: below(psutil.Process()) == [], 10)
    assert list(store.runs()) == []


def test_a_run_that_takes_too_long_is_ended_and_the_others_are_not(notebook, store):
    runs = [*plan(notebook, 1, pause=60.0), *plan(notebook, 3)]
    outcomes = execute_all(runs, store, timeout_s=8)
    assert [outcome.error is None for outcome in outcomes] == [False, True, True, True]
    assert "TimeoutError" in outcomes[0].error


def test_what_goes_wrong_in_dask_itself_is_no_reason_to_stop(notebook, store, stand_in, monkeypatch):
    stand_in(lambda run: StoredRun("", {}))
    result, troubles = Future.result, [TimeoutError(), ValueError("as asked")]
    monkeypatch.setattr(Future, "result", lambda *args, **options: fail(troubles) or result(*args, **options))
    outcomes = execute_all(plan(notebook, 3), store, workers=1)
    assert [outcome.error for outcome in outcomes].count(None) == 2
    assert any(str(outcome.error).endswith(": ValueError: as asked") for outcome in outcomes)


def fail(troubles):
    """Raise the next trouble, if there is one left."""
    if troubles:
        raise troubles.pop(0)


def test_dask_that_stops_is_said(notebook, store, stand_in):
    stand_in(lambda run: time.sleep(1))
    outcomes = [Outcome(run) for run in plan(notebook, 1)]
    with dispatching(outcomes, store, workers=1, scheduler=None) as cluster:

        def cancel(_):
            cluster.client.cancel(list(dispatch._flying.values()))

        dispatch = Dispatch(cluster, outcomes, store, timeout_s=None, tell=cancel)
        with pytest.raises(RuntimeError, match="dask inside of this process has stopped"):
            dispatch.run()


def test_further_runs_can_follow_from_what_came_of_others(notebook, store, stand_in):
    stand_in(lambda run: StoredRun("", {}))
    more = plan(notebook, 4)
    outcomes = [Outcome(more.pop(0))]
    with dispatching(outcomes, store, workers=2, scheduler=None) as cluster:
        assert cluster.room() == 2
        dispatch = Dispatch(
            cluster,
            outcomes,
            store,
            timeout_s=None,
            tell=lambda _: None,
            then=lambda _: [more.pop(0)] if more else [],
        )
        dispatch.run()
    assert [outcome.run.parameters["seed"] for outcome in dispatch.outcomes] == [0, 1, 2, 3]
    assert all(outcome.stored for outcome in dispatch.outcomes)


def test_two_sweeps_at_once_do_each_run_once(notebook, store, tmp_path):
    log = tmp_path / "starts"
    both = [
        start_driver(notebook, store.location, 8, given={"log": str(log), "pause": 0.1}) for _ in range(2)
    ]
    for driver in both:
        _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
    assert sorted(log.read_text().split()) == [str(seed) for seed in range(8)]


def started(driver, number):
    """Wait until so many runs have started, and return their titles."""
    titles = []
    while len(titles) < number:
        kind, title, _ = driver.stdout.readline().split()
        titles += [title] * (kind == "started")
    return titles


def test_a_first_signal_lets_runs_finish(notebook, store):
    given = {"pause": 1.0}
    driver = start_driver(notebook, store.location, 8, given=given, workers=2)
    try:
        titles = started(driver, 2)
        driver.send_signal(signal.SIGTERM)  # other tests send what Ctrl-C does
        _, errors = driver.communicate(timeout=60)
        assert driver.returncode == 130
        assert errors.startswith("interrupted: 6 of 8 runs are left; the same command does them\n")
        assert sorted(stored.title for stored in store.runs()) == sorted(titles)
    finally:
        end(driver)
    events = []
    execute_all(plan(notebook, 3, **given), store, on_event=events.append)
    assert [event.run for event in events if event.kind == "started"] == ["small-seed=2,pause=1.0"]


def test_a_second_signal_ends_them(notebook, store):
    driver = start_driver(notebook, store.location, 4, given={"pause": 60.0}, workers=2)
    try:
        started(driver, 2)
        kernels = wait_for(lambda: len(below(driver)) >= 3 and below(driver))
        assert interrupted_while_it_waits(notebook, store) == "interrupted: 2 of 2 runs are left"
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
    finally:
        end(driver)


def catches(process, number):
    """Say whether a process has a handler for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return int(mask, 16) >> (number - 1) & 1


def interrupted_while_it_waits(notebook, store):
    """Start the same runs again, interrupt that, and return what it says."""
    other = start_driver(notebook, store.location, 2, given={"pause": 60.0})
    try:
        wait_for(lambda: catches(other, signal.SIGTERM))
        time.sleep(1)
        assert below(other) == [], "another process is doing these already"
        other.send_signal(signal.SIGINT)
        return other.communicate(timeout=20)[1].partition(";")[0]
    finally:
        end(other)


def test_another_thread_can_execute_too(notebook, store, stand_in):
    stand_in(lambda run: StoredRun("", {}))
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.extend(execute_all(plan(notebook, 2), store)))
    thread.start()
    thread.join(30)
    assert [outcome.error for outcome in outcomes] == [None, None]


# Clusters


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start a scheduler and two workers, with TLS, for all tests that leave them alive."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_a_cluster_does_the_same_as_this_machine(cluster, notebook, store, tmp_path):
    runs = [*plan(notebook, 5), *plan(notebook, 1, fate="raise")]
    events = []
    outcomes = execute_all(runs, store, scheduler=Scheduler(**cluster.known_as), on_event=events.append)
    here = execute_all(runs[:5], Store(tmp_path / "here"))
    assert [o.stored.results for o in outcomes[:5]] == [o.stored.results for o in here]
    assert "RuntimeError: as asked" in outcomes[5].error
    assert {event.worker for event in events} == {"w0/1", "w1/1"}
    for run in runs:
        kinds = [event.kind for event in events if event.request == run.request]
        assert kinds == ["started", "failed" if run is runs[5] else "finished"]
    events.clear()
    execute_all(runs, store, scheduler=Scheduler(**cluster.known_as), on_event=events.append)
    assert events == []
    assert not list((tmp_path / "runs").glob(".probe*"))


def test_a_limit_holds_on_a_cluster_too(cluster, notebook, store):
    going, most = set(), []

    def hear(event):
        (going.add if event.kind == "started" else going.discard)(event.request)
        most.append(len(going))

    execute_all(plan(notebook, 4), store, workers=1, scheduler=Scheduler(**cluster.known_as), on_event=hear)
    assert max(most) == 1


def test_a_first_signal_lets_runs_finish_on_a_cluster_too(cluster, notebook, store):
    driver = start_driver(notebook, store.location, 12, given={"pause": 1.0}, scheduler=cluster.known_as)
    try:
        titles = started(driver, 2)
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(timeout=60)
        assert driver.returncode == 130, errors
        assert sorted(stored.title for stored in store.runs()) == sorted(titles)
    finally:
        end(driver)


def test_a_sweep_that_is_ended_takes_no_other_one_with_it(cluster, notebook, store):
    ended = start_driver(notebook, store.location, 1, given={"pause": 60.0}, scheduler=cluster.known_as)
    other = start_driver(notebook, store.location, 4, given={"pause": 1.5}, scheduler=cluster.known_as)
    try:
        started(ended, 1)
        started(other, 1)
        for _ in range(2):
            ended.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert ended.communicate(timeout=60)[1].startswith("interrupted")
        assert ended.returncode == 130
        _, errors = other.communicate(timeout=120)
        assert other.returncode == 0, errors
        assert sorted(stored.parameters["pause"] for stored in store.runs()) == [1.5] * 4
    finally:
        end(ended)
        end(other)


def test_workers_with_other_packages_are_refused(cluster, notebook, store, monkeypatch):
    here = environments.environment() | {"numpy": "0.1"}
    monkeypatch.setattr(environments, "environment", lambda: here)
    events = []
    with pytest.raises(SchedulerError, match=r"(?s)numpy: expected 0.1, got \d.*remedy: install the same"):
        execute_all(plan(notebook, 2), store, scheduler=Scheduler(**cluster.known_as), on_event=events.append)
    # A worker that comes later isn't asked before, and says so itself.
    monkeypatch.setattr(connecting, "_check_workers", lambda *_: None)
    with pytest.raises(SchedulerError, match=r"w\d/1: numpy: expected 0.1, got \d"):
        execute_all(plan(notebook, 2), store, scheduler=Scheduler(**cluster.known_as), on_event=events.append)
    assert events == []


def test_a_scheduler_with_other_packages_is_refused(cluster, notebook, store, monkeypatch):
    here = environments.environment() | {"distributed": "0.1"}
    monkeypatch.setattr(environments, "environment", lambda: here)
    with pytest.raises(SchedulerError, match=r"the scheduler: distributed: expected 0.1, got \d"):
        execute_all(plan(notebook, 2), store, scheduler=Scheduler(**cluster.known_as))


def test_a_store_that_a_cluster_can_not_write_to_is_said(cluster, notebook, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"expected a store .*/file/runs; got: Not a directory; remedy: "):
        execute_all(plan(notebook, 1), Store(tmp_path / "file/runs"), scheduler=Scheduler(**cluster.known_as))


def test_workers_that_see_another_store_are_refused(cluster, notebook, store, monkeypatch):
    monkeypatch.setattr(connecting, "_probe", lambda _: contextlib.nullcontext("/nowhere/at/all"))
    with pytest.raises(SchedulerError, match="doesn't see the store"):
        execute_all(plan(notebook, 1), store, scheduler=Scheduler(**cluster.known_as))


def test_workers_that_cannot_answer_are_refused(cluster, notebook, store, monkeypatch):
    def inspect(probe):
        raise OSError("as asked")

    monkeypatch.setattr(tasks, "inspect", inspect)
    with pytest.raises(SchedulerError, match=r"(?s)the scheduler: OSError: as asked.*tls://.*: OSError"):
        execute_all(plan(notebook, 1), store, scheduler=Scheduler(**cluster.known_as))


def test_a_scheduler_that_ends_while_it_is_asked_is_missed(cluster, notebook, store, monkeypatch):
    def check(error):
        def raise_it(*_):
            raise error

        monkeypatch.setattr(connecting, "_check_workers", raise_it)
        execute_all(plan(notebook, 1), store, scheduler=Scheduler(**cluster.known_as))

    with pytest.raises(SchedulerError, match="is gone; finished runs are kept"):
        check(CommClosedError("as asked"))
    with pytest.raises(KeyError, match="of ours"):
        check(KeyError("of ours"))


def test_certificates_of_others_are_refused(cluster, notebook, store, tmp_path):
    scheduler = Scheduler(cluster.address, **write_certificates(tmp_path), patience_s=3)
    clock = time.monotonic()
    with pytest.raises(SchedulerError, match=r"got none within 3 s .*certificates are right"):
        execute_all(plan(notebook, 1), store, scheduler=scheduler)
    assert time.monotonic() - clock < 15


def test_an_address_where_nobody_is_is_said(notebook, store):
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(SchedulerError, match=f"expected a dask scheduler at {address}; got none within 1 s"):
        execute_all(plan(notebook, 1), store, scheduler=Scheduler(address, patience_s=1))


def test_a_scheduler_and_workers_that_go_are_missed(notebook, store, tmp_path):
    with Cluster(tmp_path, workers=1) as cluster:
        known = cluster.known_as | {"patience_s": 3}
        worker = cluster.workers.pop(0)
        wait_for(lambda: b"w0" in (tmp_path / "scheduler.log").read_bytes())
        driver = start_driver(notebook, store.location, 2, given={"pause": 60.0}, scheduler=known)
        started(driver, 1)
        end(worker)
        clock = time.monotonic()
        _, errors = driver.communicate(timeout=60)
        assert (driver.returncode, time.monotonic() - clock < 20) == (3, True)
        assert "expected a worker at tls://127.0.0.1" in errors
        with pytest.raises(SchedulerError, match=r"expected a worker at .*; got none within 1 s"):
            execute_all(plan(notebook, 1), store, scheduler=Scheduler(**known | {"patience_s": 1}))

        cluster.workers[0] = None
        cluster.mend()
        driver = start_driver(notebook, store.location, 2, given={"pause": 60.0}, scheduler=cluster.known_as)
        started(driver, 1)
        end(cluster.scheduler)
        clock = time.monotonic()
        _, errors = driver.communicate(timeout=60)
        assert (driver.returncode, time.monotonic() - clock < 20) == (3, True)
        assert "is gone; finished runs are kept; remedy: start it" in errors


def test_a_run_that_kills_its_worker_each_time_fails_and_the_others_do_not(
    notebook, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    with Cluster(tmp_path, workers=1, nanny=True) as cluster:
        runs = [*plan(notebook, 1, fate="kill its worker"), *plan(notebook, 3)]
        outcomes = execute_all(runs, store, scheduler=Scheduler(**cluster.known_as))
    assert [outcome.error is None for outcome in outcomes] == [False, True, True, True]
    assert "its worker died each time" in outcomes[0].error


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


def test_a_cluster_across_a_network(namespaces, notebook, store, tmp_path):
    near, far, address = namespaces
    prefix = ["ip", "netns", "exec"]
    with Cluster(tmp_path, host=address, prefix=[*prefix, far]) as cluster:
        driver = start_driver(notebook, store.location, 4, scheduler=cluster.known_as, prefix=[*prefix, near])
        _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
    assert len(list(store.runs())) == 4


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
        ({"address": "tls://a:1", "cert": "c"}, "needs ca_file, cert and key together; got only cert"),
        ({"address": "tls://a:1", "ca_file": "a", "cert": "b", "key": "c"}, "ca_file must be a file; got a"),
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
    with pytest.raises(ValueError, match="tls:// needs ca_file, cert and key; got none for tls://a:1"):
        Scheduler("tls://a:1").security()
    paths = {name: tmp_path / name for name in ("ca_file", "cert", "key")}
    for path in paths.values():
        path.write_text("nothing")
    with pytest.raises(ValueError, match="the certificates for tls://a:1 can't be used"):
        Scheduler("tls://a:1", **paths).security()
