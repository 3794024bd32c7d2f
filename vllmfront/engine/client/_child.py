"""One engine request: what is known about it between ADD and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllmfront.engine._output import OutputSink
from vllmfront.engine._request import EngineRequest
from vllmfront.engine.metrics import RequestRecord

if TYPE_CHECKING:
    from vllmfront.engine.client._rank import EngineRank
    from vllmfront.engine.client._stream import RequestStream


class Child:
    """One choice of one request, in flight on one engine."""

    __slots__ = (
        "encoded_sampling",
        "frames",
        "index",
        "internal_id",
        "live",
        "on_output",
        "on_tokens",
        "pending",
        "public_id",
        "rank",
        "record",
        "request",
        "sink",
        "stream",
    )

    def __init__(
        self,
        stream: RequestStream,
        index: int,
        *,
        request: EngineRequest,
        public_id: str,
        sink: OutputSink,
        record: RequestRecord,
    ) -> None:
        self.stream: RequestStream | None = stream
        """Who awaits it; None once it has ended: in a cycle its prompt would outlive it."""

        self.index = index
        """Its place among the children of the stream."""

        self.request = request
        self.public_id = public_id
        """The client's name for the whole request; children of one request share it."""

        self.sink = sink
        self.record = record
        self.on_tokens = sink.on_tokens
        self.on_output = sink.on_output
        self.internal_id = ""
        self.encoded_sampling: bytes | None = None
        """The wire form of its sampling parameters, where it is known already."""

        self.frames: list[bytes] = []
        """The encoded ADD, until it is sent."""

        self.rank: EngineRank | None = None
        """Where it runs; None before it was sent."""

        self.live = False
        """Whether the engine has it. From ADD to the end, and never again."""

        self.pending: list[int] | None = None
        """Tokens read but not pushed yet, while several messages are merged."""

    def __repr__(self) -> str:
        state = "live" if self.live else "not live"
        return f"<Child {self.internal_id} {state}, {self.record.num_tokens} tokens>"
