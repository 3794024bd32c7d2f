"""An engine that does nothing by itself: a test says what it says, and reads what it hears."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import attrs
import trio
import trio.testing
import zmq

from vllmfront.engine import EngineOutput, FinishReason
from vllmfront.engine.handshake import identity_of
from vllmfront.engine.transport import MessageReceiver
from vllmfront.engine.wire import (
    DEAD_FRAME,
    Abort,
    Add,
    EngineAddresses,
    Hello,
    Ready,
    Registration,
    StartWave,
    Utility,
    UtilityAnswer,
    decode_init,
    decode_request,
    encode_batch,
    encode_hello,
    encode_ready,
    encode_registration,
    encode_row,
    plain_row,
)

REGISTRATION = Registration(
    max_model_len=1024,
    num_gpu_blocks=100,
    block_size=16,
    dtype="bfloat16",
    vllm_version="0.33.0",
    data_parallel_size=1,
    data_parallel_rank=0,
)
"""What a fake engine says of itself unless told otherwise."""


class FakeEngine:
    """One process of one engine rank, over real sockets.

    Use it as a context manager; leaving the block closes its sockets as a killed process would.
    """

    def __init__(
        self, handshake_address: str, rank: int = 0, registration: Registration = REGISTRATION
    ) -> None:
        self.rank = rank
        self._registration = attrs.evolve(registration, data_parallel_rank=rank)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._handshake_address = handshake_address
        self._handshake = self._dealer(handshake_address)
        self._inputs: MessageReceiver | None = None
        self._old_inputs: MessageReceiver | None = None
        self._input_socket: zmq.Socket[bytes] | None = None
        self._outputs: zmq.Socket[bytes] | None = None
        self.addresses: EngineAddresses | None = None
        self.time = 0.0
        """Its clock, in seconds; each message carries it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Vanish; what was sent is delivered first, as far as a second goes."""
        if self._inputs is not None:
            self._inputs.close()
        self._context.destroy(linger=1000)

    async def join(self) -> None:
        """Do all steps of the start-up."""
        await self.say_hello()
        self.register()
        self.say_ready()

    async def say_hello(self) -> None:
        """Say HELLO and return once the addresses have come."""
        self._handshake.send(encode_hello(Hello(local=False, headless=True)))
        reply = await MessageReceiver(self._handshake).receive()
        self.addresses = decode_init(reply[0].bytes).addresses

    def register(self, payload: bytes | None = None) -> None:
        """Connect to the data sockets and register, with *payload* if it must be a strange one."""
        assert self.addresses is not None
        if self._inputs is None:
            self.connect(self.addresses.inputs[0], self.addresses.outputs[0])
        assert self._input_socket is not None
        self._input_socket.send(
            encode_registration(self._registration) if payload is None else payload
        )

    def connect(self, inputs: str, outputs: str) -> None:
        """Connect to the data sockets without a word."""
        self._input_socket = self._dealer(inputs)
        self._inputs = MessageReceiver(self._input_socket)
        self._outputs = self._context.socket(zmq.PUSH)
        self._outputs.setsockopt(zmq.IPV6, 1)
        self._outputs.set_hwm(0)
        self._outputs.connect(outputs)

    def use_slot(self, slot: int) -> None:
        """Leave the data sockets for another pair of its addresses, without a word."""
        assert self.addresses is not None
        assert self._outputs is not None
        self.break_inputs()
        self._outputs.close(linger=0)
        self.connect(self.addresses.inputs[slot], self.addresses.outputs[slot])

    def close_handshake(self) -> None:
        """End the connection of the handshake; what was said is delivered first."""
        self._handshake.close(linger=1000)

    def reconnect_handshake(self) -> None:
        """Lose the connection of the handshake, and have another; it says nothing by itself."""
        self.close_handshake()
        self._handshake = self._dealer(self._handshake_address)

    def break_inputs(self) -> None:
        """Lose the connection that requests come over, as by a fault of the network."""
        assert self._inputs is not None
        self._inputs.close()

    def replace_inputs(self) -> None:
        """Have another connection for requests, as after a break that only this side has noticed.

        The old one is still open: ``break_old_inputs`` ends it.
        """
        assert self.addresses is not None
        self._old_inputs = self._inputs
        self._input_socket = self._dealer(self.addresses.inputs[0])
        self._inputs = MessageReceiver(self._input_socket)

    def break_old_inputs(self) -> None:
        """End the connection that ``replace_inputs`` has left."""
        assert self._old_inputs is not None
        self._old_inputs.close()

    def mend_inputs(self) -> None:
        """Connect for requests again, as engines do by themselves; it says nothing then."""
        assert self.addresses is not None
        self._input_socket = self._dealer(self.addresses.inputs[0])
        self._inputs = MessageReceiver(self._input_socket)

    def say_ready(self, parallel_config_hash: str | None = None) -> None:
        """Say READY, as one that steps together with others where it tells of its configuration."""
        ready = Ready(local=False, headless=True, parallel_config_hash=parallel_config_hash)
        self._handshake.send(encode_ready(ready))

    async def receive(self) -> Add | Abort | Utility | StartWave:
        """Return what the frontend asks next."""
        assert self._inputs is not None
        message = await self._inputs.receive()
        return decode_request([frame.bytes for frame in message])

    async def receive_add(self) -> Add:
        """Return the next request, which must be an ADD."""
        request = await self.receive()
        assert isinstance(request, Add), request
        return request

    async def receive_abort(self) -> Abort:
        """Return the next request, which must be an ABORT."""
        request = await self.receive()
        assert isinstance(request, Abort), request
        return request

    async def receive_utility(self) -> Utility:
        """Return the next request, which must be a utility call."""
        request = await self.receive()
        assert isinstance(request, Utility), request
        return request

    def heard_nothing(self) -> bool:
        """Tell whether no request has arrived that was not received yet."""
        assert self._inputs is not None
        return self._inputs.receive_nowait() is None

    async def hears_nothing_more(self) -> bool:
        """Tell whether the frontend has nothing left to say, now that all tasks sleep."""
        await trio.testing.wait_all_tasks_blocked()
        return self.heard_nothing()

    def send_tokens(
        self, internal_id: str, token_ids: Sequence[int], finish: FinishReason | None = None
    ) -> None:
        """Send one row of new tokens."""
        self.send_rows([plain_row(internal_id, token_ids, finish)])

    def send_output(self, internal_id: str, output: EngineOutput) -> None:
        """Send one row with everything."""
        self.send_rows([encode_row(internal_id, output)])

    def send_rows(self, rows: Sequence[Sequence[Any]], **fields: Any) -> None:
        """Send one message of *rows*; *fields* are those of ``encode_batch``."""
        fields.setdefault("timestamp", self.time)
        self.send_frames(encode_batch(rows, engine_index=self.rank, **fields))

    def answer(self, call: Utility, result: Any = None, failure: str | None = None) -> None:
        """Answer a utility call."""
        self.send_rows([], utility=UtilityAnswer(call.call_id, failure, result))

    def report_death(self) -> None:
        """Say that the engine core has failed."""
        self.send_frames([DEAD_FRAME])

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Send any message on the output socket."""
        assert self._outputs is not None
        self._outputs.send_multipart(frames)

    def _dealer(self, address: str) -> zmq.Socket[bytes]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, identity_of(self.rank))
        dealer.setsockopt(zmq.IPV6, 1)
        dealer.set_hwm(0)
        dealer.connect(address)
        return dealer
