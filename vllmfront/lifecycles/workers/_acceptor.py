"""Accepts all connections of a server, and deals them out to its workers."""

import logging
import socket
from collections.abc import Sequence

import attrs
import trio

from vllmfront.api.http import Listener
from vllmfront.interprocess import hand
from vllmfront.lifecycles.workers._host import WorkerHost
from vllmfront.lifecycles.workers._spread import choose

_LOGGER = logging.getLogger(__name__)

_ACCEPTS_A_TURN = 64
"""Connections accepted before other tasks get their turn."""

_PAUSE = 0.1
"""Seconds without accepting where descriptors have run out, or nobody has room."""


@attrs.frozen(kw_only=True, eq=False)
class Acceptor:
    """Owns nothing: the listeners are somebody else's until it is told to stop."""

    listeners: Sequence[Listener]
    host: WorkerHost

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child that stops after the workers: then nobody would answer."""
        async with trio.open_nursery() as nursery:
            for listener in self.listeners:
                listener.probe_clients()
                nursery.start_soon(self._accept, listener, name=f"accept {listener.name}")
            nursery.start_soon(self._deal_returned, name="connections of dead workers")
            task_status.started()
            await stop.wait()
            nursery.cancel_scope.cancel(reason="nobody would answer any more")
        for listener in self.listeners:
            listener.close()
        for connection in self.host.returned:
            connection.close()

    async def _accept(self, listener: Listener) -> None:
        while True:
            # What nobody could serve waits in the kernel's queue.
            while not self.host.takers:
                await self.host.wait_change()
            await trio.lowlevel.wait_readable(listener.socket)
            for _ in range(_ACCEPTS_A_TURN):
                if not self.host.takers:
                    break
                try:
                    connection, _address = listener.accept()
                except BlockingIOError:
                    break
                except ConnectionError:
                    continue  # it left before it was accepted
                except OSError as error:
                    _LOGGER.error("Accepting no HTTP connections for now: %s", error.strerror)  # noqa: TRY400 - no bug of ours
                    await trio.sleep(_PAUSE)
                    break
                with connection:
                    await self._deal(connection)

    async def _deal_returned(self) -> None:
        """Deal out anew what workers have left, until cancelled."""
        returned = self.host.returned
        while True:
            while returned and self.host.takers:
                with returned.pop(0) as connection:
                    await self._deal(connection)
            await self.host.wait_change()

    async def _deal(self, connection: socket.socket) -> None:
        """Hand *connection* to a worker; where all are full or gone, wait for one."""
        full = set[int]()
        while True:
            candidates = [one for one in self.host.candidates() if one.number not in full]
            number = choose(candidates)
            if number is None:
                full.clear()
                with trio.move_on_after(_PAUSE):
                    await self.host.wait_change()
                continue
            taker = self.host.takers[number]
            try:
                hand(taker.giving, connection)
            except BlockingIOError:
                full.add(number)
            except OSError:
                self.host.stop_taking(number)  # it is gone, as will be noticed in a moment
            else:
                taker.handed += 1
                return
