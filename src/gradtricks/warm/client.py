"""jupyter_client's manager and client, without waiting for what is known already."""

import asyncio
import time
from contextlib import suppress
from queue import Empty
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

_POLL_S = 0.005


class WarmKernelClient(AsyncKernelClient):
    """Waits for a kernel's first words only: jupyter_client waits for another 0.2 s that nothing more comes.

    It listens to no heart, since the manager sees when the process ends.
    """

    def start_channels(self, *args: Any, **options: Any) -> None:
        """Open the channels."""
        super().start_channels(*args, **options | {"hb": False})

    async def wait_for_ready(self, timeout: float | None = None) -> None:
        """Wait until both channels are open; a RuntimeError says that the kernel is dead or slow."""
        deadline = time.monotonic() + (timeout or float("inf"))
        await self._hear(self.iopub_channel, "iopub_welcome", deadline)
        self.kernel_info()
        self._handle_kernel_info_reply(await self._hear(self.shell_channel, "kernel_info_reply", deadline))

    async def _hear(self, channel: Any, wanted: str, deadline: float) -> dict[str, Any]:
        while True:
            with suppress(Empty):
                message = await channel.get_msg(timeout=1)
                if message["msg_type"] == wanted:
                    return message
            if not await self.is_alive():
                raise RuntimeError("Kernel died before replying to kernel_info")
            if time.monotonic() > deadline:
                raise RuntimeError("Kernel didn't respond in time")


class WarmKernelManager(AsyncKernelManager):
    """Sees at once that a kernel has ended, and shares its sockets' context with its client."""

    def client(self, **options: Any) -> AsyncKernelClient:  # type: ignore[override]  # as its parent does
        """Make a client."""
        return super().client(context=self.context, **options)

    def _client_factory_default(self) -> type:
        return WarmKernelClient

    async def _async_cleanup_resources(self, restart: bool = False) -> None:
        """Clean up; jupyter_client waits for 0.1 s that messages reach a kernel that is gone."""
        if not restart:
            self.context.destroy(linger=0)
        await super()._async_cleanup_resources(restart=restart)

    cleanup_resources = _async_cleanup_resources

    async def _async_wait(self, pollinterval: float = _POLL_S) -> None:
        while await self.is_alive():
            await asyncio.sleep(_POLL_S)
