"""jupyter_client's way to start kernels, by a fork: the entry point ``warm-provisioner``."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from jupyter_core.paths import secure_write
from traitlets import List, Unicode

from gradtricks.warm.libraries import with_late
from gradtricks.warm.processes import Kernel
from gradtricks.warm.servers import Order, Servers, shared

NAME = "warm-provisioner"
_POLL_S = 0.005
_OF_SESSION = "JPY_"  # Jupyter's own variables, such as the notebook's path: other ones for each kernel
_LAUNCHER = "ipykernel_launcher"


class WarmProvisioner(KernelProvisionerBase):
    """Starts kernels in forks, and knows their processes.

    The kernel chooses its ports itself, so that no other process can take them before it does. A kernel that
    is restarted keeps them, as Jupyter's clients expect.
    """

    parent: Any  # the manager
    modules = List(Unicode(), config=True, help="Modules to be imported before the fork.")
    servers: Servers | None = None  # those that this process shares
    variables: Mapping[str, str] = {}  # of this kernel alone
    state: Hashable = ()
    lines: tuple[str, ...] = ()
    log = 2
    kernel: Kernel | None = None  # the last one
    _has_process = False

    @property
    def has_process(self) -> bool:
        """Return whether there is a process, or was one that nobody has waited for."""
        return self._has_process

    async def poll(self) -> int | None:
        """Return the exit code, or None while the process goes on."""
        return self.kernel.poll() if self.kernel else 0

    async def wait(self) -> int | None:
        """Wait for the process's end, and that of all it started."""
        while (code := await self.poll()) is None:
            await asyncio.sleep(_POLL_S)
        self._has_process = False
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel's group of processes."""
        if self.kernel:
            self.kernel.send_signal(signum)

    async def kill(self, restart: bool = False) -> None:
        """End the process at once."""
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        """Ask the process to end."""
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:
        """End what is left."""
        await self.kill()

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Write the connection file, in which a first start leaves the ports to the kernel."""
        manager = self.parent
        self._servers().refuse_closed()
        if not manager.connection_file:
            manager.connection_file = str(self._servers().folder / f"kernel-{self.kernel_id}.json")
        info = manager.get_connection_info()
        with secure_write(manager.connection_file) as file:
            json.dump({**info, "key": info["key"].decode(), "kernel_name": manager.kernel_name}, file)
        command = manager.format_kernel_cmd(extra_arguments=kwargs.pop("extra_arguments", []))
        return await super().pre_launch(cmd=command, **kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Fork, and wait until the kernel listens.

        Raises:
            ServersClosed: The servers were closed.
            DeadKernelError: The process ended.
        """
        manager = self.parent
        # As jupyter_client says it to a process that it starts itself.
        environment = {**kwargs["env"], "JPY_PARENT_PID": str(os.getpid())}
        own = {name: environment.pop(name) for name in list(environment) if name.startswith(_OF_SESSION)}
        folder = Path(kwargs.get("cwd") or ".").absolute()
        modules = with_late(name for name in self.modules if not _is_beside(folder, name))
        launcher = cmd.index(_LAUNCHER)
        order = Order(
            options=tuple(option for option in cmd[1:launcher] if option != "-m"),
            arguments=cmd[launcher + 1 :],
            modules=modules if sys.platform == "linux" else (),
            environment=environment,
            variables={**own, **self.variables},
            folder=str(folder),
            lines=self.lines,
            log=self.log,
            state=self.state,
        )
        try:
            self.kernel = await self._servers().start(order)
            self._has_process = True
            while self.kernel.is_starting():
                await asyncio.sleep(_POLL_S)
            if self.kernel.poll() is not None:
                raise self.how_it_ended()
        except BaseException:
            await self.kill()
            about = Path(manager.connection_file)
            for left in about.parent.glob(f"{about.stem}*"):  # and its sockets
                left.unlink(missing_ok=True)
            raise
        manager.load_connection_file()
        manager.write_connection_file(jupyter_session=own.get("JPY_SESSION_NAME", ""))
        self.connection_info = manager.get_connection_info()
        return self.connection_info

    def how_it_ended(self) -> Exception:
        """Say how the kernel's process ended; a ServersClosed is raised where that was asked for."""
        self._servers().refuse_closed()
        assert self.kernel is not None  # noqa: S101
        return self.kernel.how_it_ended()

    def resolve_path(self, path: str) -> str | None:
        """Return where a file is that a kernel's cell names."""
        return None

    def _servers(self) -> Servers:
        return self.servers or shared()


def _is_beside(folder: Path, name: str) -> bool:
    """Say whether a notebook in a folder imports a file of that folder by this name, which may be edited."""
    place = folder / name.partition(".")[0]
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()
