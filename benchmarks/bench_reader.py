"""What reading one plain output costs, from the frame to the sink's door, metrics included.

Run it as ``python -m benchmarks.bench_reader``.
"""

import statistics
import time
from array import array
from collections.abc import Sequence
from typing import cast

import trio
import zmq

from vllmfront.engine import (
    EngineMetrics,
    EngineOutput,
    EngineRequest,
    RequestStream,
    SamplingParams,
)
from vllmfront.engine.client.membership._membership import Membership
from vllmfront.engine.client.orders._utility import UtilityCalls
from vllmfront.engine.client.reading._connections import OutputConnections
from vllmfront.engine.client.reading._inbox import OutputInbox
from vllmfront.engine.client.reading._reader import OutputReader
from vllmfront.engine.client.requests._books import Books
from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._dispatch import Dispatch
from vllmfront.engine.client.requests._ids import IdSource
from vllmfront.engine.client.requests._waiting_room import WaitingRoom
from vllmfront.engine.coordinator import NoWaves
from vllmfront.engine.metrics import RequestRecord
from vllmfront.engine.pause import HoldGate
from vllmfront.engine.routing import RoutingPolicy, make_routing
from vllmfront.engine.transport import MessageReceiver, MessageRouter, PeerMonitor
from vllmfront.engine.wire import Registration, encode_batch, plain_row
from vllmfront.errors import VllmFrontError

STREAMS = 256
ROUNDS = 9
MESSAGES = 400
"""Engine messages a round, each with a row for every stream."""


class NullSink:
    """Takes everything and does nothing, so that only the reader's work is left."""

    def on_tokens(self, _token_ids: list[int]) -> bool:
        return False

    def on_output(self, _output: EngineOutput) -> bool:
        return False

    def on_error(self, error: VllmFrontError) -> None:
        """Nothing to do."""


class CannedReceiver:
    """Hands out the same messages that a socket would, without the socket."""

    def __init__(self) -> None:
        self.messages: list[list[zmq.Frame]] = []

    def receive_nowait(self) -> list[zmq.Frame] | None:
        return self.messages.pop() if self.messages else None


class DeafRouter:
    """Where requests go that nobody answers."""

    def send_among_others(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """Nothing to do."""

    def wake_owner(self) -> None:
        """Nothing to do."""


def messages_of(ids: Sequence[str], count: int, start: int) -> list[list[zmq.Frame]]:
    """Return *count* messages of one new token a stream, the latest first."""
    made = []
    for step in range(start, start + count):
        rows = [plain_row(one, [step % 30000]) for one in ids]
        frames = encode_batch(rows, timestamp=step * 0.01)
        made.append([zmq.Frame(frame) for frame in frames])
    made.reverse()
    return made


def measure(
    reader: OutputReader, receiver: CannedReceiver, ids: Sequence[str], *, together: int
) -> float:
    """Return microseconds a row when *together* messages wait at a time."""
    costs = []
    for number in range(ROUNDS):
        messages = messages_of(ids, MESSAGES, number * MESSAGES)
        started = time.process_time()
        while messages:
            receiver.messages = messages[-together:]
            del messages[-together:]
            while receiver.messages:
                reader.read_waiting()
        costs.append((time.process_time() - started) / (MESSAGES * len(ids)) * 1e6)
    return statistics.median(costs)


async def measured_reader(*, counted: bool) -> tuple[OutputReader, CannedReceiver, list[str]]:
    """Return a reader with live streams behind it, its socket, and the streams' internal ids."""
    metrics = EngineMetrics(enabled=counted)
    membership = Membership(
        [0], metrics, cast("MessageRouter", DeafRouter()), watches_loading=False
    )
    membership.engine_joined(0, Registration(max_model_len=32768))
    books = Books(membership, metrics, WaitingRoom(patience=0))
    dispatch = Dispatch(
        books,
        membership,
        IdSource(),
        HoldGate(),
        waves=NoWaves(),
        routing=make_routing(RoutingPolicy.LEAST_LOADED),
    )
    receiver = CannedReceiver()
    inbox = OutputInbox(
        cast("MessageReceiver", receiver),
        metrics=metrics,
        calls=UtilityCalls(membership),
        membership=membership,
        connections=OutputConnections(cast("PeerMonitor", None), membership),
        reports=False,
    )
    reader = OutputReader(inbox, books, membership)
    for number in range(STREAMS):
        stream = RequestStream(books, dispatch, None)
        request = EngineRequest(
            request_id=f"chatcmpl-{number:08x}",
            prompt_token_ids=[1, 2, 3],
            sampling=SamplingParams(max_tokens=100_000),
        )
        record = RequestRecord(arrival=time.monotonic(), prompt_tokens=3, max_tokens=None)
        sink = NullSink()
        child = Child(
            stream=stream,
            index=0,
            request=request,
            public_id=str(number),
            sink=sink,
            on_tokens=sink.on_tokens,
            on_output=sink.on_output,
            record=record,
        )
        child.kept = array("I")
        dispatch.prepare(child, set())
        stream.children.append(child)
        await stream.__aenter__()
    return reader, receiver, list(books.children)


def null_sink_cost() -> float:
    """Return microseconds of a call into the sink, which is not the reader's."""
    on_tokens, tokens, count = NullSink().on_tokens, [1], 1_000_000
    started = time.process_time()
    for _ in range(count):
        on_tokens(tokens)
    return (time.process_time() - started) / count * 1e6


async def main() -> None:
    sink = null_sink_cost()
    for counted in (True, False):
        for together in (1, 4):
            reader, receiver, ids = await measured_reader(counted=counted)
            cost = measure(reader, receiver, ids, together=together)
            print(
                f"{'with' if counted else 'without'} metrics, {together} messages at a time: "
                f"{cost:.3f} us a row, {cost - sink / together:.3f} us without the sink"
            )


if __name__ == "__main__":
    trio.run(main)
