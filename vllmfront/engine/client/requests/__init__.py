"""Requests in flight: from the way in to the one end of each, and what outlives an engine."""

from vllmfront.engine.client.requests._books import Books
from vllmfront.engine.client.requests._buffer import OutputBuffer
from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._continuation import without_prompt
from vllmfront.engine.client.requests._dispatch import Dispatch
from vllmfront.engine.client.requests._failures import failure_of
from vllmfront.engine.client.requests._ids import IdSource, first_id_after
from vllmfront.engine.client.requests._orphans import Orphans
from vllmfront.engine.client.requests._prepare import Preparation
from vllmfront.engine.client.requests._recovery import Recovery
from vllmfront.engine.client.requests._request_checks import RequestChecks
from vllmfront.engine.client.requests._stream import RequestStream
from vllmfront.engine.client.requests._waiting_room import WaitingRoom

__all__ = [
    "Books",
    "Child",
    "Dispatch",
    "IdSource",
    "Orphans",
    "OutputBuffer",
    "Preparation",
    "Recovery",
    "RequestChecks",
    "RequestStream",
    "WaitingRoom",
    "failure_of",
    "first_id_after",
    "without_prompt",
]
