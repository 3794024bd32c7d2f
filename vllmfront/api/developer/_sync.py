"""``POST /v1/weights/sync``: a whole update in one call, told step by step."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from vllmfront.api._errors import respond_with_error
from vllmfront.api.developer._pauses import checked_owner, lease_of, owner_of
from vllmfront.api.developer._question import Query, body_of, optional, seconds_of
from vllmfront.api.developer._weights import checked_update
from vllmfront.api.http import HttpRequest, ResponseWriter
from vllmfront.control import ControlPlane, SyncCycle, SyncEvent, SyncPlan
from vllmfront.engine.pause import PauseMode
from vllmfront.errors import MalformedRequest, VllmFrontError

_LOGGER = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_OK = 200


class SyncRoute:
    """The handler. What was begun is done to its end, also when its client goes away."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        try:
            plan = plan_of(request, await body_of(request))
            cycle = SyncCycle(self._plane, plan, lambda event: response.write(frame(event)))
            cycle.open()
        except VllmFrontError as error:
            respond_with_error(response, error)
            return
        response.start(_OK, _HEADERS)
        await cycle.run()
        response.finish()


def frame(event: SyncEvent) -> bytes:
    """Return a step as a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event.name.encode(), _encode(event.fields))


def plan_of(request: HttpRequest, body: Mapping[str, Any]) -> SyncPlan:
    """Read what is to be done.

    Raises:
        MalformedRequest: It makes no sense.
    """
    query = Query(request)
    mode = optional(body, "mode", str, what="a string") or PauseMode.ABORT.value
    if mode not in list(PauseMode):
        raise MalformedRequest.misfit(f"`mode` must be one of {', '.join(PauseMode)}", "mode")
    chunks = optional(body, "update_infos", list, what="a list")
    if chunks is None:
        raise MalformedRequest.misfit("missing field `update_infos`")
    lease = optional(body, "lease", (int, float), what="a number of seconds")
    clear_cache = optional(body, "clear_cache", bool, what="true or false")
    return SyncPlan(
        chunks=[checked_update(_object(chunk)) for chunk in chunks],
        init_info=optional(body, "init_info", dict, what="an object"),
        draft=bool(optional(body, "draft", bool, what="true or false")),
        weight_version=optional(body, "weight_version", str, what="a string"),
        mode=PauseMode(mode),
        clear_cache=True if clear_cache is None else clear_cache,
        owner=checked_owner(optional(body, "owner", str, what="a string"))
        or owner_of(request, query),
        lease=lease_of(request, query) if lease is None else seconds_of(str(lease), "lease"),
    )


def _object(chunk: Any) -> Any:
    if not isinstance(chunk, dict | list):
        raise MalformedRequest.misfit("`update_infos` must hold what /update_weights takes")
    return chunk
