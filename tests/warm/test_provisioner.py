"""The kernel that Jupyter starts by a fork, with the clients that people have."""

import asyncio
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint

import nbclient
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning import KernelProvisionerFactory

from gradtricks.warm.provisioner import NAME
from gradtricks.warm.specs import is_own_kernel
from warming import SOURCE, execute, is_gone, notebook, text, write_entry_points


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install the kernel by its command, and let Jupyter find it."""
    command = [sys.executable, "-m", "gradtricks.warm", "install", "numpy", f"--prefix={tmp_path}"]
    said = subprocess.check_output(command, text=True)
    assert str(tmp_path) in said
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    value = "gradtricks.warm.provisioner:WarmProvisioner"
    entry = EntryPoint(NAME, value, KernelProvisionerFactory.GROUP_NAME)
    monkeypatch.setitem(KernelProvisionerFactory.instance().provisioners, NAME, entry)
    return "python3-warm"


def test_the_kernel_is_registered_and_this_pythons_own(installed, tmp_path):
    spec = KernelSpecManager().get_kernel_spec(installed)
    assert spec.metadata["kernel_provisioner"]["config"] == {"modules": ["numpy"]}
    assert is_own_kernel(installed)
    assert not is_own_kernel("there is none")
    found = write_entry_points(tmp_path / "found")
    environment = {**os.environ, "PYTHONPATH": f"{found}{os.pathsep}{SOURCE / 'src'}"}
    listed = [sys.executable, "-m", "jupyter", "kernelspec", "list", "--json"]
    said = subprocess.check_output(listed, env=environment, text=True)
    assert installed in json.loads(said)["kernelspecs"]


def test_one_without_rights_is_told_what_to_do(tmp_path):
    place = tmp_path / "file"
    place.touch()
    command = [sys.executable, "-m", "gradtricks.warm", "install", f"--prefix={place}"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "remedy: --user or --sys-prefix" in said.stderr


def shown(client, source):
    """Execute a cell, and return its reply and what it printed.

    The next request isn't dropped after an error: a kernel drops what arrives in the moment after its reply.
    """
    printed = []

    def hear(message):
        printed.append(message["content"].get("text", ""))

    reply = client.execute_interactive(
        source, output_hook=hear, timeout=60, allow_stdin=False, stop_on_error=False
    )
    assert reply["content"]["status"] != "aborted"
    return reply["content"], "".join(printed)


def test_jupyters_client_can_do_all_it_does_with_a_kernel(installed):
    more = ["--IPKernelApp.exec_lines=given = 7"]
    manager, client = start_new_kernel(kernel_name=installed, extra_arguments=more)
    try:
        assert shown(client, "print(given)")[1] == "7\n"
        assert shown(client, "import sys; print('numpy' in sys.modules)")[1] == "True\n"
        client.is_complete("for i in x:")
        assert client.get_shell_msg(timeout=60)["content"]["status"] == "incomplete"
        assert "print" in client.complete("pri", reply=True)["content"]["matches"]
        assert client.inspect("print", reply=True)["content"]["found"]
        assert client.comm_info(reply=True)["content"]["comms"] == {}
        shown(
            client, "get_ipython().kernel.comm_manager.register_target('t', lambda comm, m: print('opened'))"
        )
        opened = {"comm_id": "1", "target_name": "t", "data": {}}
        client.shell_channel.send(client.session.msg("comm_open", opened))
        heard = ""
        while "opened" not in heard:
            heard += client.get_iopub_msg(timeout=60)["content"].get("text", "")
        assert "1" in client.comm_info(reply=True)["content"]["comms"]

        source = "print('going', flush=True); import time; time.sleep(1000)"
        client.execute(source, stop_on_error=False)
        heard = ""
        while "going" not in heard:
            heard += client.get_iopub_msg(timeout=60)["content"].get("text", "")
        manager.interrupt_kernel()
        assert client.get_shell_msg(timeout=60)["content"]["ename"] == "KeyboardInterrupt"

        before = int(shown(client, "x = 1; import os; print(os.getpid())")[1])
        manager.restart_kernel()  # with the ports that its client knows
        client.wait_for_ready(timeout=60)
        assert is_gone(before)
        assert shown(client, "x")[0]["ename"] == "NameError"
        pid = int(shown(client, "import os; print(os.getpid())")[1])
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert is_gone(pid)
    assert not os.path.exists(manager.connection_file)  # noqa: PTH110


def test_nbclient_and_papermill_start_it_by_a_fork(installed, tmp_path):
    who = "import os, sys\nprint(os.getppid(), 'numpy' in sys.modules)"
    node = nbclient.execute(notebook(who, "await __import__('asyncio').sleep(0, 3)"), kernel_name=installed)
    assert text(node.cells[1]) == "3"
    server, warm = text(node.cells[0]).split()
    assert warm == "True"
    plain = execute(notebook(who), tmp_path / "a.ipynb", engine=None, kernel_name=installed)
    assert text(plain.cells[0]).split() == [server, "True"]


def test_many_start_at_once_and_none_takes_anothers_ports(installed):
    def work(index):
        client = nbclient.NotebookClient(notebook(f"print({index})"), kernel_name=installed)
        return text(asyncio.run(client.async_execute()).cells[0])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(12))) == [f"{index}\n" for index in range(12)]


def test_a_second_start_is_faster_than_the_first(installed):
    taken = []
    for _ in range(4):
        began = time.perf_counter()
        manager, client = start_new_kernel(kernel_name=installed)
        taken.append(time.perf_counter() - began)
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert min(taken[1:]) < taken[0], taken  # the first one imports
