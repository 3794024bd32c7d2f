"""One rank on the wire: the handshake, the input sockets, the loop that steps the core."""

import logging
import math
import secrets
from collections.abc import Iterable
from contextlib import AsyncExitStack

import trio

from vllmfront.engine.wire import (
    DEAD_FRAME,
    Add,
    EngineAddresses,
    Hello,
    Ready,
    StartWave,
    decode_init,
    decode_request,
    encode_executor_failed,
    encode_hello,
    encode_ready,
)
from vllmfront.errors import ProtocolError
from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._coordinator_link import CoordinatorLink, open_coordinator_link
from vllmfront.simulator._core import SimulatedCore
from vllmfront.simulator._frames import FrameWriter
from vllmfront.simulator._judge import deafening_fault
from vllmfront.simulator._lockstep import LockstepMeeting
from vllmfront.simulator._lockstep_core import LockstepCore
from vllmfront.simulator._lockstep_remote import join_group
from vllmfront.simulator._messages import (
    Answer,
    Death,
    LoadNotice,
    Message,
    Raw,
    StepOutput,
    Vanishing,
    WaveNotice,
)
from vllmfront.simulator._rim import Rim, StartPhase
from vllmfront.simulator._snapshot import EngineSnapshot
from vllmfront.simulator._sockets import (
    DEATH_LINGER_MS,
    HANDSHAKE_LINGER_MS,
    Context,
    Dealer,
    Pusher,
    connect_dealer,
    connect_pusher,
)

_LOGGER = logging.getLogger(__name__)

[_EXECUTOR_FAILED] = encode_executor_failed()[:1]
"""The type of what an engine's own executor sends when a worker has failed."""


class SimulatedEngine:
    """One rank; alive while ``serve`` runs. Its methods make it fail in the ways engines do."""

    def __init__(
        self,
        config: SimulatorConfig,
        rank: int,
        rim: Rim | None = None,
        meeting: LockstepMeeting | None = None,
    ) -> None:
        """Be one rank.

        Args:
            config: What all ranks have in common.
            rank: The global one.
            rim: What stands between the engine and its sockets; None: nothing.
            meeting: Where ranks that step together find each other; None: they do not.
        """
        self.rank = rank
        self._rim = Rim() if rim is None else rim
        self._config = config
        self._core = SimulatedCore(config, rank) if meeting is None else LockstepCore(config, rank)
        self._meeting = meeting
        self._coordinator: CoordinatorLink | None = None
        self._writer = FrameWriter(config, rank)
        self._ready = trio.Event()
        self._kick = trio.Event()
        self._inputs: list[Dealer] = []
        self._outputs: list[Pusher] = []
        self._deaf: str | None = None
        self._mute = False
        self._ended = trio.CancelScope()
        self._rim.attach(self)

    def __repr__(self) -> str:
        return f"<SimulatedEngine {self.snapshot()}>"

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            rank=self.rank,
            ready=self._ready.is_set(),
            dead=self._core.dead,
            deaf=self._deaf,
            running=self._core.running,
            waiting=self._core.waiting,
            paused=self._core.paused,
        )

    async def wait_ready(self) -> None:
        """Return once the rank has registered with its frontend."""
        await self._ready.wait()

    def die(self, reason: str = "told to") -> None:
        """Send the sentinel of a dead engine core, and end."""
        self._core.dead = reason
        self._flush([Death(reason)])

    def vanish(self) -> None:
        """Close all sockets without a word, as a killed process does."""
        self._core.dead = "vanished"
        self._flush([Vanishing()])

    def send_raw(self, *frames: bytes, client: int = 0) -> None:
        """Send one message as it is on a client's output socket."""
        self._outputs[client].send(frames)

    async def serve(
        self, context: Context, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Join the frontend's handshake, then serve until the rank dies.

        Started once registered. After a death it returns, also after one that the rim brought
        about before it was registered; cancelled, it closes its sockets.

        Raises:
            ProtocolError: the frontend's INIT makes no sense.
        """
        async with AsyncExitStack() as stack:
            handshake = stack.enter_context(
                connect_dealer(
                    context, self._config.handshake, self.rank, linger=HANDSHAKE_LINGER_MS
                )
            )
            local, headless = self._config.local, self._config.headless
            handshake.send(encode_hello(Hello(local=local, headless=headless)))
            if not await self._passes(StartPhase.HELLO):
                return
            init = decode_init((await handshake.receive())[0].bytes)
            await trio.sleep(self._config.start_delay)
            if not await self._passes(StartPhase.INIT):
                return
            size = 1
            if isinstance(self._core, LockstepCore):
                assert self._meeting is not None
                joined = join_group(
                    context, init, self._config.ranks, self.rank, self._meeting, self._wake
                )
                group = await stack.enter_async_context(joined)
                self._core.join(group)
                size = group.size
            self._connect(context, init.addresses, stack, size)
            self._coordinator = stack.enter_context(open_coordinator_link(context, init.addresses))
            if self._coordinator is not None:
                self._core.coordinated = True
                await self._coordinator.wait_ready()
            if not await self._passes(StartPhase.REGISTERED):
                return
            handshake.send(encode_ready(Ready(local=local, headless=headless)))
            handshake.close()
            _LOGGER.info("rank %d: registered with %s", self.rank, self._config.handshake)
            self._rim.reached(StartPhase.READY, trio.current_time())
            self._ready.set()
            task_status.started()
            with self._ended:
                async with trio.open_nursery() as nursery:
                    for dealer in self._inputs:
                        nursery.start_soon(self._read, dealer)
                    if self._coordinator is not None:
                        nursery.start_soon(self._coordinator.read, self._wake_up)
                    await self._step()
            if self._core.dead is not None:
                _LOGGER.warning("rank %d ended: %s", self.rank, self._core.dead)

    async def _passes(self, phase: StartPhase) -> bool:
        """Take a step of the start at the rim's pace; return whether the engine lives on."""
        goes_on = self._rim.reached(phase, trio.current_time())
        await trio.sleep_until(self._rim.asleep_until())
        if not goes_on:
            self._core.dead = f"vanished after {phase.name}"
            _LOGGER.warning("rank %d ended: %s", self.rank, self._core.dead)
        return goes_on

    def _connect(
        self, context: Context, addresses: EngineAddresses, stack: AsyncExitStack, size: int
    ) -> None:
        registration = self._writer.registration(
            addresses, instance_id=secrets.token_hex(8), size=size
        )
        for address in addresses.inputs:
            dealer = stack.enter_context(connect_dealer(context, address, self.rank))
            dealer.send(registration)
            self._inputs.append(dealer)
        for address in addresses.outputs:
            pusher = connect_pusher(context, address)
            stack.callback(pusher.close)
            self._outputs.append(pusher)

    def _wake_up(self, call: StartWave) -> None:
        self._core.receive(call, trio.current_time())
        self._wake()

    def _wake(self) -> None:
        """Have the loop look at what has come."""
        self._kick.set()

    async def _read(self, dealer: Dealer) -> None:
        """Take requests from one client, until a frame ends all reading."""
        try:
            while True:
                await dealer.wait_message()
                while (message := dealer.receive_nowait()) is not None:
                    self._take([frame.buffer for frame in message])
        except trio.ClosedResourceError:
            pass  # deaf: see _deafen
        except ProtocolError as error:
            self._deafen(str(error))

    def _take(self, frames: list[memoryview]) -> None:
        if frames[0] == _EXECUTOR_FAILED:
            self.die("its executor is said to have failed")
            return
        message = decode_request(frames)
        if isinstance(message, StartWave):
            return  # means nothing to ranks that do not step together
        if isinstance(message, Add) and message.request.sampling is not None:
            fault = deafening_fault(message.request.sampling)
            if fault is not None:
                raise ProtocolError(f"{fault} out of range")
        now = trio.current_time()
        if self._rim.hears(message, now):
            self._core.receive(message, now)
        self._kick.set()

    def _deafen(self, reason: str) -> None:
        """End all reading: what a real engine's input thread does at a frame that it cannot take.

        Its sockets go with it, so that the frontend sees the peer leave. Running requests end
        in their own time, and the engine lives on for ever.
        """
        _LOGGER.error("rank %d takes no more requests: %s", self.rank, reason)
        self._deaf = reason
        for dealer in self._inputs:
            dealer.close()

    async def _step(self) -> None:
        """Advance the core whenever something is due or came in."""
        while True:
            self._kick = trio.Event()
            now = trio.current_time()
            self._rim.tick(now)
            if self._rim.asleep_until() > now:
                await trio.sleep_until(self._rim.asleep_until())
                continue
            self._flush(self._core.advance(now))
            wake = self._core.wake_at(now)
            if wake is not None and wake <= now:
                await trio.lowlevel.checkpoint()
            else:
                with trio.move_on_at(min(self._rim.wake_at(), math.inf if wake is None else wake)):
                    await self._kick.wait()

    def _flush(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self._ended.cancel_called:
                return  # the rim has ended the engine with the message before
            if isinstance(message, Death):
                for pusher in self._outputs:
                    pusher.send([DEAD_FRAME])
                    pusher.linger(DEATH_LINGER_MS)
                self._ended.cancel(reason="the engine core died")
            elif isinstance(message, Vanishing):
                self._ended.cancel(reason="the engine vanished")
            elif isinstance(message, LoadNotice | WaveNotice):
                assert self._coordinator is not None
                self._coordinator.report(self._writer.notice(message))
            elif message.client >= len(self._outputs):
                # The output thread of a real engine ends here; everything after is silence.
                self._mute = True
            elif not self._mute:
                for frames in self._rim.says(message, self._encode, trio.current_time()):
                    self._outputs[message.client].send(frames)

    def _encode(self, message: StepOutput | Answer | Raw) -> list[bytes]:
        if isinstance(message, StepOutput):
            return self._writer.step(message)
        if isinstance(message, Answer):
            return self._writer.answer(message)
        return [message.frame]
