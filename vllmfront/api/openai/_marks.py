"""What a request says about itself outside of sampling: its id, its rank, its session, its time."""

import time

import trio
from msgspec import Struct

from vllmfront.api.http import HttpRequest
from vllmfront.api.openai._fields import GenerationFields
from vllmfront.api.openai._service import ModelService
from vllmfront.api.openai._time_limit import HEADER, seconds_of_field, seconds_of_header

_ID, _RANK, _SESSION = b"x-request-id", b"x-data-parallel-rank", b"x-session-id"
_HEADERS = frozenset({_ID, _RANK, _SESSION})

_RANK_DIGITS = 18
"""So many fit into 64 bits."""


class RequestMarks(Struct, kw_only=True, frozen=True):
    """Made on arrival."""

    id: str
    """Public, with the prefix of its route."""

    arrival: float
    """Wall clock, in seconds since the epoch."""

    data_parallel_rank: int | None
    session_id: str | None
    deadline: float | None
    """By Trio's clock; None: it may take as long as it wants."""

    @property
    def created(self) -> int:
        return int(self.arrival)


def read_marks(
    request: HttpRequest,
    body: GenerationFields,
    service: ModelService,
    prefix: str,
    *,
    since: float | None = None,
) -> RequestMarks:
    """Collect a request's marks. Headers beat the body; a rank that is no number is ignored.

    Args:
        request: The request.
        body: What is in it.
        service: What it is for, with an operator's time limit for requests that bring none.
        prefix: Of its id.
        since: When it arrived, by Trio's clock; None: just now.

    Raises:
        RequestRejected: Its time limit makes no sense.
    """
    own, rank, session = body.request_id, None, body.session_id
    deadline = _deadline(request, body, service.options.default_timeout, since)
    if request.has_any(_HEADERS):
        header = request.header
        own = _text(header(_ID), own)
        rank = header(_RANK)
        session = _text(header(_SESSION), session)
    return RequestMarks(
        id=prefix + (service.new_id() if own is None else own),
        arrival=time.time(),
        data_parallel_rank=None if rank is None else _rank(rank),
        session_id=session,
        deadline=deadline,
    )


def _deadline(
    request: HttpRequest, body: GenerationFields, default: float | None, since: float | None
) -> float | None:
    header = request.header(HEADER)
    if header is not None:
        seconds: float | None = seconds_of_header(header)
    else:
        seconds = default if body.timeout is None else seconds_of_field(body.timeout)
    if seconds is None:
        return None
    return seconds + (trio.current_time() if since is None else since)


def _rank(value: bytes) -> int | None:
    # Python refuses to read numbers of thousands of digits.
    return int(value) if value.isdigit() and len(value) <= _RANK_DIGITS else None


def _text(header: bytes | None, field: str | None) -> str | None:
    return field if header is None else header.decode("utf-8", "replace")
