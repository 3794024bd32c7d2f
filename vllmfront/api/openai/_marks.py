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
    header_id = rank = session = None
    for name, value in request.headers:
        if name == b"x-request-id" and header_id is None:
            header_id = value.decode("utf-8", "replace")
        elif name == b"x-data-parallel-rank" and rank is None and value.isdigit():
            rank = int(value)
        elif name == b"x-session-id" and session is None:
            session = value.decode("utf-8", "replace")
    own = body.request_id if header_id is None else header_id
    return RequestMarks(
        id=prefix + (service.new_id() if own is None else own),
        arrival=time.time(),
        data_parallel_rank=rank,
        session_id=body.session_id if session is None else session,
    )
