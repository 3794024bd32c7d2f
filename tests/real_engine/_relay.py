"""Lets a long-running engine join the handshake of every test's own frontend.

An engine shakes hands once in its life and takes a quarter of a minute to start, so tests share
it: towards the frontend the relay plays the engine's start, and from then on passes frames on
as they are.
"""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import attrs
import trio

from tests.real_engine._process import RealEngine
from vllmfront.engine.transport import (
    MessageReceiver,
    MessageRouter,
    PeerGone,
    open_context,
    open_receiver,
    open_router,
)
from vllmfront.engine.wire import (
    EngineDead,
    Hello,
    Ready,
    decode_batch,
    decode_init,
    encode_hello,
    encode_ready,
    encode_utility,
)
from vllmfront.simulator._sockets import Context, Dealer, Pusher, connect_dealer, connect_pusher

RANK_0 = b"\0\0"
REACHED = 2**62
"""The call id of the relay's own question."""

POLL_SECONDS = 0.02


@asynccontextmanager
async def open_relay(
    engine: RealEngine, handshake: str, *, outputs_until_silence: int | None = None
) -> AsyncGenerator[trio.Event, None]:
    """Let *engine* serve the frontend at that *handshake* address for the block.

    Args:
        engine: What serves.
        handshake: Where the frontend takes HELLOs.
        outputs_until_silence: Steps with outputs that the frontend is told of; None: all.

    Yields:
        An event that is set when the frontend is not told of a step for the first time.
    """
    greeting = engine.wait_greeting()
    with open_context() as context, ExitStack() as stack:
        requests = stack.enter_context(open_router(context, engine.inputs))
        outputs = stack.enter_context(open_receiver(context, engine.outputs))
        await _reach(requests, outputs)
        async with trio.open_nursery() as nursery:
            relay = _Relay(requests, outputs, greeting.registration, outputs_until_silence)
            # The frontend answers within the block.
            nursery.start_soon(relay.serve, context, stack, handshake)  # noqa: ASYNC113
            yield relay.silent
            nursery.cancel_scope.cancel(reason="test over")


async def _reach(requests: MessageRouter, outputs: MessageReceiver) -> None:
    """Wait until the engine has reconnected, and make it forget what earlier tests asked for."""

    async def call(method: str, *args: object) -> Any:
        while True:
            try:
                requests.send_nowait(RANK_0, encode_utility(REACHED, method, args))
            except PeerGone:
                await trio.sleep(POLL_SECONDS)
            else:
                break
        while True:
            batch = decode_batch([frame.buffer for frame in await outputs.receive()])
            assert not isinstance(batch, EngineDead), "an earlier test has killed the engine"
            if batch.utility is not None and batch.utility.call_id == REACHED:
                return batch.utility.result

    assert await call("is_sleeping") is False, "an earlier test has left the engine paused"
    await call("pause_scheduler", "abort", False)
    await call("resume_scheduler")


@attrs.frozen
class _Relay:
    requests: MessageRouter
    outputs: MessageReceiver
    registration: bytes
    outputs_until_silence: int | None
    silent: trio.Event = attrs.field(factory=trio.Event)

    async def serve(self, context: Context, stack: ExitStack, handshake: str) -> None:
        greeter = stack.enter_context(connect_dealer(context, handshake, 0))
        greeter.send(encode_hello(Hello(local=False, headless=True)))
        addresses = decode_init((await greeter.receive())[0].buffer).addresses
        dealer = stack.enter_context(connect_dealer(context, addresses.inputs[0], 0))
        dealer.send(self.registration)
        pusher = connect_pusher(context, addresses.outputs[0])
        stack.callback(pusher.close)
        greeter.send(encode_ready(Ready(local=False, headless=True)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_down, dealer)
            nursery.start_soon(self._pass_up, pusher)

    async def _pass_down(self, dealer: Dealer) -> None:
        try:
            while True:
                await dealer.wait_message()
                while (message := dealer.receive_nowait()) is not None:
                    self.requests.send_nowait(RANK_0, [frame.bytes for frame in message])
        except PeerGone:
            # The engine has left; so the frontend sees it leave.
            dealer.close()

    async def _pass_up(self, pusher: Pusher) -> None:
        left = self.outputs_until_silence
        while True:
            frames = [frame.bytes for frame in await self.outputs.receive()]
            if left is not None:
                batch = decode_batch(frames)
                if not isinstance(batch, EngineDead) and batch.rows:
                    left -= 1
                if left < 0:
                    self.silent.set()
                    continue
            pusher.send(frames)
