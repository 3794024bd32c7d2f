"""What a request says about itself outside of sampling: its id, its rank, its session."""

import time

from msgspec import Struct

from vllmfront.api.http import HttpRequest
from vllmfront.api.openai._fields import GenerationFields
from vllmfront.api.openai._service import ModelService


class RequestMarks(Struct, kw_only=True, frozen=True):
    """Made on arrival."""

    id: str
    """Public, with the prefix of its route."""

    arrival: float
    """Wall clock, in seconds since the epoch."""

    data_parallel_rank: int | None
    session_id: str | None

    @property
    def created(self) -> int:
        return int(self.arrival)


def read_marks(
    request: HttpRequest, body: GenerationFields, service: ModelService, prefix: str
) -> RequestMarks:
    """Collect a request's marks. Headers beat the body; a rank that is no number is ignored."""
    own = _text(request.header(b"x-request-id"), body.request_id)
    rank = request.header(b"x-data-parallel-rank")
    return RequestMarks(
        id=prefix + (service.new_id() if own is None else own),
        arrival=time.time(),
        data_parallel_rank=int(rank) if rank is not None and rank.isdigit() else None,
        session_id=_text(request.header(b"x-session-id"), body.session_id),
    )


def _text(header: bytes | None, field: str | None) -> str | None:
    return field if header is None else header.decode("utf-8", "replace")
