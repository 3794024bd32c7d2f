"""Where engines say HELLO: one generation of clients answers at a time."""

import trio
import zmq

from vllmfront.engine.client.entrance._entrance import Entrance
from vllmfront.engine.client.entrance._introduction import Introduction
from vllmfront.engine.coordinator import Coordinator
from vllmfront.engine.handshake import Directory, HandshakeOwner, Members, Roster
from vllmfront.engine.transport import open_monitor, open_router


class Reception:
    """Answers engines at the entrance; ``serve`` is its body."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        entrance: Entrance,
        *,
        roster: Roster,
        others: Roster | None,
        directory: Directory,
        members: Members,
        coordinator: Coordinator | None,
        introduction: Introduction,
    ) -> None:
        self._context = context
        self._entrance = entrance
        self._roster = roster
        self._others = others
        self._directory = directory
        self._members = members
        self._coordinator = coordinator
        self._introduction = introduction
        self._owner: HandshakeOwner | None = None

    @property
    def busy(self) -> bool:
        """Whether an engine is loading, or has connected and not said anything yet."""
        return self._owner is not None and self._owner.busy

    async def serve(self) -> None:
        """Hold the handshake socket, and coordinate engines, until cancelled."""
        descriptor = self._entrance.handshake.duplicate()
        with (
            open_router(self._context, "", adopt_fd=descriptor) as router,
            open_monitor(router) as monitor,
        ):
            self._owner = HandshakeOwner(
                router,
                monitor,
                roster=self._roster,
                directory=self._directory,
                others=self._others,
                on_frontend=self._note_frontends,
                members=self._members,
            )
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._owner.serve_messages)
                    nursery.start_soon(self._owner.serve_departures)
                    if self._coordinator is not None:
                        assert self._entrance.coordinator is not None
                        nursery.start_soon(
                            self._coordinator.serve, self._context, self._entrance.coordinator
                        )
            finally:
                self._owner = None

    def _note_frontends(self) -> None:
        self._introduction.note(self._directory.missing())
