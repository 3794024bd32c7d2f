"""One engine request: what is known about it between ADD and its end."""

from __future__ import annotations

from array import array
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
        "answered",
        "deadline_number",
        "encoded_sampling",
        "frames",
        "index",
        "internal_id",
        "kept",
        "live",
        "on_output",
        "on_tokens",
        "parked",
        "pending",
        "public_id",
        "rank",
        "record",
        "request",
        "resends",
        "sink",
        "stream",
        "weight_version",
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
        """The encoded ADD, until it is sent. A live one without has been sent to ``rank``."""

        self.rank: EngineRank | None = None
        """Where it runs, or did last; None before it had an engine."""

        self.live = False
        """Whether it was begun and has not ended; then never again."""

        self.parked = False
        """Whether it is live and waits for an engine."""

        self.answered = False
        """Whether an engine has said more about it than tokens."""

        self.kept: array[int] | None = None
        """All its tokens so far, where it may go on elsewhere with them; else None."""

        self.weight_version = ""
        """Of the engine that it was taken from."""

        self.resends = 0
        """How often it was sent again because its engine was lost."""

        self.deadline_number = 0
        """What ``Deadlines`` knows it by; 0 where nobody watches it."""

        self.pending: list[int] | None = None
        """Tokens read but not pushed yet, while several messages are merged."""

    def __repr__(self) -> str:
        state = "parked" if self.parked else "live" if self.live else "not live"
        return f"<Child {self.internal_id} {state}, {self.record.num_tokens} tokens>"
