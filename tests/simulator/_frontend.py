"""A frontend of a few lines on real sockets: what the simulator is tested against."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from vllmfront.engine import EngineOutput, EngineRequest, SamplingParams
from vllmfront.engine.transport import (
    MessageReceiver,
    MessageRouter,
    PeerGone,
    open_context,
    open_receiver,
    open_router,
)
from vllmfront.engine.wire import (
    Batch,
    EngineAddresses,
    EngineDead,
    Hello,
    Ready,
    Registration,
    UtilityAnswer,
    decode_batch,
    decode_handshake,
    decode_output,
    decode_registration,
    encode_abort,
    encode_add,
    encode_init,
    encode_utility,
)

ANY_PORT = "tcp://127.0.0.1:*"
RANK_0 = b"\0\0"


def request(
    request_id: str = "r", prompt: Sequence[int] = (5, 6, 7), **sampling: object
) -> EngineRequest:
    """Ask for three greedy tokens, unless *sampling* says otherwise."""
    params = {"temperature": 0.0, "max_tokens": 3} | sampling
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(**params),  # type: ignore[arg-type]  # keywords of the caller
    )


class RawFrontend:
    """One client's sockets, and what the engines of a test say over them."""

    def __init__(
        self, handshake: MessageRouter, requests: MessageRouter, outputs: MessageReceiver
    ) -> None:
        self.handshake = handshake
        self.requests = requests
        self.outputs = outputs
        self.registrations: dict[bytes, Registration] = {}
        self._calls = 0

    async def shake_hands(self, ranks: int = 1) -> None:
        """Answer HELLO, and wait for registrations and READY, of so many engines."""
        addresses = EngineAddresses(inputs=[self.requests.address], outputs=[self.outputs.address])
        ready = 0
        while ready < ranks:
            identity, payload = [frame.bytes for frame in await self.handshake.receive()]
            match decode_handshake(payload):
                case Hello():
                    with contextlib.suppress(PeerGone):  # it may have died meanwhile
                        self.handshake.send_nowait(identity, [encode_init(addresses)])
                case Ready():
                    ready += 1
        while len(self.registrations) < ranks:
            identity, payload = [frame.bytes for frame in await self.requests.receive()]
            self.registrations[identity] = decode_registration(payload)

    def add(self, asked: EngineRequest, identity: bytes = RANK_0, client: int = 0) -> None:
        frames = encode_add(asked, internal_id=asked.request_id, client_index=client)
        self.requests.send_nowait(identity, frames)

    def abort(self, *request_ids: str, identity: bytes = RANK_0) -> None:
        self.requests.send_nowait(identity, encode_abort(request_ids))

    def call(self, method: str, *args: object, identity: bytes = RANK_0) -> int:
        self._calls += 1
        self.requests.send_nowait(identity, encode_utility(self._calls, method, args))
        return self._calls

    async def frames(self) -> list[bytes]:
        return [frame.bytes for frame in await self.outputs.receive()]

    async def batch(self) -> Batch:
        """Return the next message, which is not the sentinel."""
        found = decode_batch(await self.frames())
        assert not isinstance(found, EngineDead)
        return found

    async def answer(self, call_id: int) -> UtilityAnswer:
        """Return the answer to a call; outputs before it are dropped."""
        while True:
            found = (await self.batch()).utility
            if found is not None:
                assert found.call_id == call_id
                return found

    async def outcome(self, request_id: str = "r") -> list[EngineOutput]:
        """Return all outputs of a request up to its end; those of others are dropped."""
        outputs: list[EngineOutput] = []
        while not outputs or outputs[-1].finish_reason is None:
            frames = await self.frames()
            found = decode_batch(frames)
            assert not isinstance(found, EngineDead)
            outputs += [decode_output(row, frames) for row in found.rows if row[0] == request_id]
        return outputs

    async def tokens(self, asked: EngineRequest) -> list[int]:
        """Return all tokens that a request gets."""
        self.add(asked)
        outputs = await self.outcome(asked.request_id)
        return [token for output in outputs for token in output.new_token_ids]


@asynccontextmanager
async def open_raw_frontend() -> AsyncGenerator[RawFrontend, None]:
    with (
        open_context() as context,
        open_router(context, ANY_PORT) as handshake,
        open_router(context, ANY_PORT) as requests,
        open_receiver(context, ANY_PORT) as outputs,
    ):
        yield RawFrontend(handshake, requests, outputs)
