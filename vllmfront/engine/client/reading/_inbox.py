"""What comes in on the output socket: read, decoded, and told apart."""

import logging
import time
from collections.abc import Mapping
from typing import Any

import zmq

from vllmfront.engine.client.membership import EngineRank, Membership, RankState
from vllmfront.engine.client.orders import UtilityCalls
from vllmfront.engine.client.reading._connections import OutputConnections
from vllmfront.engine.client.reading._garble import GarbleCount
from vllmfront.engine.metrics import EngineMetrics
from vllmfront.engine.transport import Message, MessageReceiver
from vllmfront.engine.wire import Batch, EngineDead, decode_batch
from vllmfront.errors import EngineDied, ProtocolError

_LOGGER = logging.getLogger(__name__)

MAX_READ_SECONDS = 0.002
"""Time spent reading messages before what they hold is pushed. Reading an output takes half a
microsecond and merging saves a push of ten, so under load it pays to read on."""

_STALLED = RankState.STALLED

Frames = list[bytes]
Arrival = tuple[EngineRank, Batch, Frames]
"""A message with rows, or with ids of requests that have ended."""


class OutputInbox:
    """Reads the output socket; statistics and utility answers go where they belong at once."""

    def __init__(
        self,
        receiver: MessageReceiver,
        *,
        metrics: EngineMetrics,
        calls: UtilityCalls,
        membership: Membership,
        connections: OutputConnections,
        reports: bool,
    ) -> None:
        """Read what *receiver* gets.

        Args:
            receiver: The output socket.
            metrics: Where faults are counted.
            calls: Utility calls that wait for their answers.
            membership: The engines.
            connections: Tells whose a connection is.
            reports: Whether anybody wants to know how busy engines say they are.
        """
        self._reports = reports
        self._receiver = receiver
        self._metrics = metrics
        self._calls = calls
        self._connections = connections
        self._ranks = membership.ranks
        self._lone = connections.lone
        self._membership = membership
        self._broken: list[tuple[EngineRank, EngineDied | None]] = []
        self._garble: dict[EngineRank, GarbleCount] = {}
        self._turned = False
        membership.on_loss(self._forget)

    async def wait(self) -> None:
        """Return once a message is waiting; a checkpoint in any case."""
        await self._receiver.wait_message()

    def drain(self) -> list[Arrival]:
        """Read what is waiting, up to the break of an engine's stream or two milliseconds."""
        arrivals: list[Arrival] = []
        now = time.monotonic()
        deadline = now + MAX_READ_SECONDS
        while now < deadline and not self._broken:
            message = self._receiver.receive_nowait()
            if message is None:
                break
            arrival = self._read(message, now)
            if arrival is not None:
                arrivals.append(arrival)
            now = time.monotonic()
        return arrivals

    def take_turned(self) -> bool:
        """Return whether something in what ``drain`` has returned was made by other weights."""
        turned, self._turned = self._turned, False
        return turned

    def take_broken(self) -> list[tuple[EngineRank, EngineDied | None]]:
        """Return the engines whose stream broke after what ``drain`` has returned, and why.

        Without an error a message was unreadable, and what it said is lost; with one the engine is.
        """
        broken, self._broken = self._broken, []
        return broken

    def _read(self, message: Message, now: float) -> Arrival | None:
        frames = [frame.bytes for frame in message]
        try:
            batch = decode_batch(frames)
        except ProtocolError as error:
            self._refuse(str(error))
            for suspect in self._connections.suspects(_descriptor(message)):
                self._take_garbled(suspect, now)
            return None
        if isinstance(batch, EngineDead):
            self._take_death(message)
            return None
        engine = self._lone or self._ranks.get(batch.engine_index)
        if engine is None and batch.engine_index in self._connections.others:
            self._connections.claim_for_others(_descriptor(message))
            return None
        if engine is None:
            self._refuse(f"it is from engine {batch.engine_index}, which is not expected")
            return None
        if self._connections.replaced and _descriptor(message) in self._connections.replaced:
            return None  # what a process says whose place another has taken
        if self._lone is None:
            self._connections.claim(_descriptor(message), engine)
        engine.last_heard = now
        version = batch.weight_version
        if version != engine.weight_version and version is not None:
            engine.weight_version = version
            self._turned = True
        if self._garble and engine in self._garble:
            self._garble[engine].sound()
        self.note_life(engine, batch)
        if batch.scheduler_stats is not None:
            self.take_stats(engine, batch.scheduler_stats)
        if batch.utility is not None:
            self._calls.answered(batch.utility)
        if batch.rows or batch.finished_requests:
            return engine, batch, frames
        return None

    def _refuse(self, why: str) -> None:
        self._metrics.count_malformed_message()
        _LOGGER.warning("Ignored a malformed output message: %s", why)

    def sender(self, batch: Batch) -> EngineRank | None:
        """Return whose message *batch* is; None: it is none of ours."""
        return self._lone or self._ranks.get(batch.engine_index)

    def note_life(self, engine: EngineRank, batch: Batch) -> None:
        """Take note of it where *batch* shows that *engine* gets on with its work."""
        if batch.rows or _shows_life(engine, batch):
            engine.signs_of_life += 1
            if engine.state is _STALLED:
                self._membership.engine_heard(engine)

    def _forget(self, engine: EngineRank) -> None:
        """Hold nothing against the process that comes in place of this one."""
        self._garble.pop(engine, None)

    def _take_garbled(self, engine: EngineRank, now: float) -> None:
        """Note that *engine* sent something unreadable; give it up if that is all that it sends."""
        if not engine.state.connected:
            return
        error = None
        count = self._garble.setdefault(engine, GarbleCount())
        if count.add(now):
            del self._garble[engine]
            error = EngineDied(f"engine {engine.rank} {count.describe()}")
        self._broken.append((engine, error))

    def take_stats(self, engine: EngineRank, stats: Mapping[str, Any]) -> None:
        """Take one message's statistics; those of a lost engine say how things were."""
        if not engine.state.connected:
            return
        engine.metrics.scheduler.record(stats)
        if self._reports:
            running, waiting = stats.get("num_running_reqs"), stats.get("num_waiting_reqs")
            if type(running) is int and type(waiting) is int:
                engine.load.report(running, waiting)

    def _take_death(self, message: Message) -> None:
        """Find out whose last words these are: the sentinel does not say."""
        engine = self._connections.owner(_descriptor(message))
        if engine is None:
            # Either it was replaced already, or it never sent any output. In that case the end
            # of its connection to the input socket, seconds from now, tells who it was.
            level = logging.INFO if self._connections.others else logging.WARNING
            _LOGGER.log(level, "An engine that cannot be told yet reports its death")
        else:
            error = EngineDied(f"engine {engine.rank} reported that its core has failed")
            self._broken.append((engine, error))


def _shows_life(engine: EngineRank, batch: Batch) -> bool:
    """Tell whether *batch*, which has no outputs, shows that *engine* gets on with its work."""
    stats = batch.scheduler_stats
    if stats is not None and engine.metrics.scheduler.shows_work(stats):
        return True
    # Answering calls is no work on requests, where there are any.
    answers = batch.utility is not None and engine.load.in_flight == 0
    return answers or bool(batch.finished_requests)


def _descriptor(message: Message) -> int:
    """Return the descriptor of the connection that *message* came over."""
    descriptor = message[0].get(zmq.SRCFD)
    assert isinstance(descriptor, int)
    return descriptor
