"""One engine request: what is known about it between ADD and its end."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from vllmfront.engine._output import EngineOutput, OutputSink
from vllmfront.engine._request import EngineRequest
from vllmfront.engine.metrics import RequestRecord

if TYPE_CHECKING:
    from vllmfront.engine.client.membership import EngineRank
    from vllmfront.engine.client.requests._stream import RequestStream


class Child(Struct, kw_only=True, eq=False):
    """One choice of one request, in flight on one engine."""

    stream: RequestStream | None
    """Who awaits it; None once it has ended: in a cycle its prompt would outlive it."""

    index: int
    """Its place among the children of the stream."""

    request: EngineRequest
    public_id: str
    """The client's name for the whole request; children of one request share it."""

    sink: OutputSink
    on_tokens: Callable[[list[int]], bool]
    """The sink's, as is ``on_output``."""

    on_output: Callable[[EngineOutput], bool]
    record: RequestRecord
    internal_id: str = ""
    encoded_sampling: bytes | None = None
    """The wire form of its sampling parameters, where it is known already."""

    frames: list[bytes] = []
    """The encoded ADD, until it is sent. A live one without has been sent to ``rank``."""

    rank: EngineRank | None = None
    """Where it runs, or did last; None before it had an engine."""

    live: bool = False
    """Whether it was begun and has not ended; then never again."""

    parked: bool = False
    """Whether it is live and waits for an engine."""

    answered: bool = False
    """Whether an engine has said more about it than tokens."""

    kept: array[int] | None = None
    """All its tokens so far, where it may go on elsewhere with them; else None."""

    weight_version: str = ""
    """Of the engine that it was taken from."""

    resends: int = 0
    """How often it was sent again because its engine was lost."""

    deadline_number: int = 0
    """What ``Deadlines`` knows it by; 0 where nobody watches it."""

    pending: list[int] | None = None
    """Tokens read but not pushed yet, while several messages are merged."""

    def __repr__(self) -> str:
        state = "parked" if self.parked else "live" if self.live else "not live"
        return f"<Child {self.internal_id} {state}, {self.record.num_tokens} tokens>"
