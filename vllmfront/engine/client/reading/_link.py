"""Who comes and goes on the input socket."""

import logging
from collections.abc import Callable

import trio
import zmq

from vllmfront.engine.client.membership import EngineRank, Membership
from vllmfront.engine.client.reading._reader import OutputReader
from vllmfront.engine.client.reading._reconnection import Reconnections
from vllmfront.engine.handshake import OthersEngine
from vllmfront.engine.transport import Message, MessageRouter, PeerChange, PeerMonitor
from vllmfront.errors import EngineDied, ProtocolError

_LOGGER = logging.getLogger(__name__)

LEAVE_GRACE = 0.05
"""Seconds between the end of an engine's connection and its loss. Its last outputs, and its own
words about its death, travel over another connection; they get this long to be read first."""


class EngineLink:
    """Reads the input socket and watches its connections; the three ``serve`` tasks of it."""

    def __init__(
        self,
        inputs: MessageRouter,
        monitor: PeerMonitor,
        *,
        register: Callable[[Message], int],
        membership: Membership,
        reader: OutputReader,
        reconnections: Reconnections,
    ) -> None:
        """Watch *inputs*, which *monitor* tells the connections of.

        Args:
            inputs: The input socket.
            monitor: Of its connections.
            register: Takes a registration, and returns the rank that it is of.
            membership: The engines.
            reader: Reads what an engine said before it left.
            reconnections: Is told of new connections.
        """
        self._inputs = inputs
        self._monitor = monitor
        self._register = register
        self._membership = membership
        self._reader = reader
        self._reconnections = reconnections
        self._doubt = trio.Event()
        """Set when a connection ended that is not known to be any engine's, and may be: it was
        never placed, or has come back over another connection before the old one ended."""

    async def serve_registrations(self) -> None:
        """Take registrations until cancelled; a malformed one costs itself and a log line."""
        while True:
            await self._inputs.wait_message()
            # A new connection may have the descriptor of one that ended: end the old one first.
            self._lose(self._take_departures())
            message = self._inputs.receive_nowait()
            if message is None:
                continue
            try:
                rank = self._register(message)
            except OthersEngine:
                continue
            except ProtocolError as error:
                _LOGGER.warning("Ignored a message on the input socket: %s", error)
                continue
            descriptor = message[0].get(zmq.SRCFD)
            assert isinstance(descriptor, int)
            engine = self._membership.ranks[rank]
            if descriptor in self._monitor.connected:
                engine.descriptor = descriptor
            elif self._membership.is_connected(engine):
                # It was accepted before anybody watched: listeners are there before their servers.
                engine.unplaced = True
            else:
                # It left right after it had registered.
                self._lose([(engine, engine.incarnation)])

    async def serve_departures(self) -> None:
        """Note engines whose connection ended, until cancelled."""
        while True:
            await self._monitor.wait_event()
            departures = self._take_departures()
            if departures:
                await trio.sleep(LEAVE_GRACE)
                self._reader.read_waiting()
                self._lose(departures)

    async def serve_doubts(self) -> None:
        """Find out whether it was an engine by an unknown connection that left; until cancelled.

        It gets the same time for its last outputs.
        """
        while True:
            await self._doubt.wait()
            self._doubt = trio.Event()
            await trio.sleep(LEAVE_GRACE)
            self._reader.read_waiting()
            self._lose(
                [
                    (engine, engine.incarnation)
                    for engine in self._membership.ranks.values()
                    if self._has_come(engine) and not self._membership.is_connected(engine)
                ]
            )

    @staticmethod
    def _has_come(engine: EngineRank) -> bool:
        """Tell whether *engine* was ever connected here: one taken over may still be on its way."""
        return engine.state.connected and (engine.unplaced or engine.descriptor is not None)

    def _take_departures(self) -> list[tuple[EngineRank, int]]:
        """Return engines that left, and which process of theirs it was."""
        departures = []
        while (event := self._monitor.event_nowait()) is not None:
            if event.change is PeerChange.CAME:
                self._reconnections.note_connection()
                continue
            known = False
            for engine in self._membership.ranks.values():
                if not engine.unplaced and engine.descriptor == event.descriptor:
                    engine.descriptor, known = None, True
                    departures.append((engine, engine.incarnation))
            if not known:
                self._doubt.set()
        return departures

    def _lose(self, departures: list[tuple[EngineRank, int]]) -> None:
        for engine, incarnation in departures:
            if engine.incarnation == incarnation:
                error = EngineDied(f"engine {engine.rank} closed its connection")
                self._membership.cut_off(engine, error)
