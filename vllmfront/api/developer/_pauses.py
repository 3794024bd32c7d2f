"""``/pause``, ``/resume``, ``/is_paused`` and ``/abort_requests``."""

from collections.abc import Iterator
from typing import Any

import trio

from vllmfront.api.developer._question import Query, body_of, optional, seconds_of
from vllmfront.api.developer._route import Answer
from vllmfront.api.http import HttpRequest
from vllmfront.control import ControlPlane
from vllmfront.engine.pause import PauseMode, PauseWindow
from vllmfront.errors import MalformedRequest, RequestRejected

OWNER_HEADER, LEASE_HEADER = b"x-pause-owner", b"x-pause-lease"
"""May stand in for the query parameters ``owner`` and ``lease``."""

_LONGEST_OWNER = 256
"""Characters: the name stands in the log, and in the answer to every request that is refused."""


class PauseRoutes:
    """Iterate for method, path and what answers it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        yield "POST", "/pause", self.pause
        yield "POST", "/renew_pause", self.renew
        yield "POST", "/resume", self.resume
        yield "GET", "/is_paused", self.is_paused
        yield "POST", "/abort_requests", self.abort

    async def pause(self, request: HttpRequest) -> Any:
        """Open a window, or get one's own again; the answer comes when engines stand still."""
        query = Query(request)
        owner, lease = owner_of(request, query), lease_of(request, query)
        window = await self._plane.pause(
            query.choice("mode", PauseMode, PauseMode.ABORT),
            clear_cache=query.flag("clear_cache", default=True),
            owner=owner,
            lease=lease,
        )
        answer: dict[str, Any] = {"status": "paused"}
        if owner is not None or lease is not None:
            answer |= window_fields(window)
        return answer

    async def renew(self, request: HttpRequest) -> Any:
        """Begin the lease of a window anew."""
        query = Query(request)
        await trio.lowlevel.checkpoint()
        window = self._plane.client.pauses.renew(owner_of(request, query), lease_of(request, query))
        return {"status": "renewed", **window_fields(window)}

    async def resume(self, request: HttpRequest) -> Any:
        """End a window; the answer comes when engines go on."""
        query = Query(request)
        await self._plane.resume(owner_of(request, query), force=query.flag("force", default=False))
        return {"status": "resumed"}

    async def is_paused(self, _request: HttpRequest) -> Any:
        return {"is_paused": await self._plane.is_paused()}

    async def abort(self, request: HttpRequest) -> Any:
        """End requests by their public ids; all of them where none are named."""
        body = await body_of(request, required=False)
        ids = optional(body, "request_ids", list, what="a list of strings")
        if ids is not None and not all(isinstance(one, str) for one in ids):
            raise MalformedRequest.misfit("`request_ids` must be a list of strings", "request_ids")
        return {"status": "aborted", "aborted": self._plane.abort(ids)}


def owner_of(request: HttpRequest, query: Query) -> str | None:
    """Return who asks, where they say so.

    Raises:
        RequestRejected: It is no name that can be shown.
    """
    owner = query.text("owner")
    if owner is None:
        owner = (request.header(OWNER_HEADER) or b"").decode(errors="replace") or None
    return checked_owner(owner)


def checked_owner(owner: str | None) -> str | None:
    """Return *owner* if it can be shown in one line of a log, or is none.

    Raises:
        RequestRejected: It is too long, or has characters that do not print.
    """
    if owner is not None and (len(owner) > _LONGEST_OWNER or not owner.isprintable()):
        raise RequestRejected(
            f"owner must be at most {_LONGEST_OWNER} characters that print", param="owner"
        )
    return owner


def lease_of(request: HttpRequest, query: Query) -> float | None:
    """Return for how many seconds they ask; None: for ever.

    Raises:
        RequestRejected: It is no positive number.
    """
    header = request.header(LEASE_HEADER)
    text = query.text("lease") or (None if header is None else header.decode("latin-1"))
    return None if text is None else seconds_of(text, "lease")


def window_fields(window: PauseWindow) -> dict[str, Any]:
    """Return what an answer tells of a window."""
    return {
        "mode": window.mode.value,
        "owner": window.owner,
        "since": window.hold.wall,
        "lease": window.lease.seconds,
    }
