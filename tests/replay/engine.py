"""An engine that says what a recorded one said, once it is asked what that one was asked."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
import msgpack
import trio

from tests.replay.recording import Message, Recording, Scenario
from vllmfront.engine.transport import open_context
from vllmfront.engine.wire import (
    MessageType,
    Utility,
    UtilityAnswer,
    decode_init,
    decode_request,
    encode_batch,
)
from vllmfront.simulator._sockets import Pusher, connect_dealer, connect_pusher

WasRead = Callable[[float], Awaitable[None]]
"""Waits until the frontend has read a message that was sent at that monotonic time."""

_ADD, _ABORT = MessageType.ADD.value, MessageType.ABORT.value


@attrs.define(eq=False)
class Performance:
    """One scenario being played: what is still to be said, and what has been heard."""

    scenario: Scenario
    heard: list[list[bytes]] = attrs.field(factory=list)
    """What our frontend sent."""

    complete: trio.Event = attrs.field(factory=trio.Event)
    """Set once all that was recorded has been said and heard."""

    _position: int = 0
    _ids: dict[str, str] = attrs.field(factory=dict)
    _heard_again: trio.Event = attrs.field(factory=trio.Event)

    def hear(self, frames: list[bytes]) -> None:
        """Take a message of our frontend; its ids stand for the recorded ones, in order."""
        self.heard.append(frames)
        recorded = self._recorded(_ADD)
        ours = [message for message in self.heard if message[0] == _ADD]
        for theirs, mine in zip(recorded, ours, strict=False):
            self._ids[_request_id(theirs)] = _request_id(mine)
        self._heard_again.set()
        self._heard_again = trio.Event()

    async def next_output(self) -> list[bytes] | None:
        """Return the next message to say, in our frontend's ids; None at the end.

        Waits until our frontend has sent what the recorded one had sent by then.
        """
        messages = self.scenario.messages
        while self._position < len(messages):
            message = messages[self._position]
            if message.from_engine:
                self._position += 1
                return [self._translated(message.frames[0]), *message.frames[1:]]
            while not self._was_heard(message):
                await self._heard_again.wait()
            self._position += 1
        return None

    def translated_requests(self) -> list[list[bytes]]:
        """Return what the recorded frontend sent, in our frontend's ids."""
        return [
            [kind, self._translated(payload), *arrays]
            for kind, payload, *arrays in self.scenario.requests
        ]

    def _was_heard(self, message: Message) -> bool:
        kind = message.frames[0]
        said = self.scenario.messages[: self._position + 1]
        wanted = sum(not earlier.from_engine and earlier.frames[0] == kind for earlier in said)
        return sum(frames[0] == kind for frames in self.heard) >= wanted

    def _recorded(self, kind: bytes) -> list[Sequence[bytes]]:
        return [frames for frames in self.scenario.requests if frames[0] == kind]

    def _translated(self, payload: bytes) -> bytes:
        return bytes(
            msgpack.packb(_replaced(msgpack.unpackb(payload, strict_map_key=False), self._ids))
        )


class ReplayEngine:
    """One engine on the wire. ``serve`` runs until cancelled."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._performance: Performance | None = None
        self._started = trio.Event()
        self.unasked: list[list[bytes]] = []
        """What our frontend sent outside of any scenario."""

    def play(self, scenario: Scenario) -> Performance:
        """Make the next requests those of *scenario*."""
        self._performance = Performance(scenario)
        self._started.set()
        self._started = trio.Event()
        return self._performance

    async def serve(
        self,
        handshake: str,
        was_read: WasRead,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Join a frontend, and answer it until cancelled.

        Args:
            handshake: Where the frontend expects engines.
            was_read: Waits until the frontend has read a message sent at that time, so that it
                sees the recorded updates one by one, as the recorded one did.
        """
        with ExitStack() as stack:
            context = stack.enter_context(open_context())
            greeter = stack.enter_context(connect_dealer(context, handshake, 0))
            hello, ready = self._recording.greetings
            greeter.send(hello)
            addresses = decode_init(await _payload(greeter.receive)).addresses
            requests = stack.enter_context(connect_dealer(context, addresses.inputs[0], 0))
            outputs = connect_pusher(context, addresses.outputs[0])
            stack.callback(outputs.close)
            requests.send(self._recording.registration)
            greeter.send(ready)
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._speak, outputs, was_read)
                while True:
                    frames = [frame.bytes for frame in await requests.receive()]
                    if not _answered(frames, outputs):
                        self._hear(frames)

    def _hear(self, frames: list[bytes]) -> None:
        if self._performance is None or frames[0] not in {_ADD, _ABORT}:
            self.unasked.append(frames)
        else:
            self._performance.hear(frames)

    async def _speak(self, outputs: Pusher, was_read: WasRead) -> None:
        while True:
            while self._performance is None or self._performance.complete.is_set():
                await self._started.wait()
            output = await self._performance.next_output()
            if output is None:
                self._performance.complete.set()
                continue
            sent_at = time.monotonic()
            outputs.send(output)
            await was_read(sent_at)


async def _payload(receive: Callable[[], Awaitable[Sequence[Any]]]) -> bytes:
    (frame,) = await receive()
    return bytes(frame.bytes)


def _answered(frames: list[bytes], outputs: Pusher) -> bool:
    """Load an adapter, if that is asked for; tell whether it was."""
    if frames[0] != MessageType.UTILITY.value:
        return False
    call = decode_request(frames)
    if not isinstance(call, Utility) or call.method != "add_lora":
        return False
    answer = UtilityAnswer(call.call_id, None, result=True)
    outputs.send(encode_batch([], timestamp=0.0, engine_index=0, utility=answer))
    return True


def _request_id(frames: Sequence[bytes]) -> str:
    return str(msgpack.unpackb(frames[1], strict_map_key=False)[0])


def _replaced(value: Any, names: dict[str, str]) -> Any:
    """Return *value* with every string that is a key of *names* replaced."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_replaced(item, names) for item in value]
    if isinstance(value, dict):
        return {_replaced(key, names): _replaced(item, names) for key, item in value.items()}
    return value
