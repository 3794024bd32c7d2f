"""A wire between two programs that can be cut without either of them being told."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

CHUNK = 65536


class Wire:
    """Passes bytes on, both ways; or holds them back, or delays them."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        """That were accepted so far."""

        self.delay = 0.0
        """Seconds that each chunk is held up."""

        self._open = trio.Event()
        self._open.set()

    def cut(self) -> None:
        """Let nothing through: no bytes, no end of a connection, and no new one."""
        self._open = trio.Event()

    def mend(self) -> None:
        """Let everything through, what was held back first."""
        self._open.set()

    async def serve(
        self, host: str, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept connections on any port of this host, each for one to *host* and *port*."""
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()

        async def relay(near: trio.SocketStream) -> None:
            self.connections += 1
            await self._open.wait()
            try:
                async with (
                    near,
                    await trio.open_tcp_stream(host, port) as far,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(self._copy, near, far, nursery.cancel_scope)
                    nursery.start_soon(self._copy, far, near, nursery.cancel_scope)
            except OSError:
                return

        await trio.serve_listeners(relay, [listener])

    async def _copy(
        self, source: trio.SocketStream, sink: trio.SocketStream, end: trio.CancelScope
    ) -> None:
        try:
            async for data in source:
                await trio.sleep(self.delay)
                await self._open.wait()
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        await self._open.wait()
        end.cancel(reason="one end has closed")


@asynccontextmanager
async def open_wire(host: str, port: int) -> AsyncGenerator[Wire]:
    """Hold a wire to *host* and *port* for the block."""
    wire = Wire()
    async with trio.open_nursery() as nursery:
        await nursery.start(wire.serve, host, port)
        yield wire
        nursery.cancel_scope.cancel(reason="the test is over")
