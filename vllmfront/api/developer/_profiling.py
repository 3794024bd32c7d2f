"""``/start_profile`` and ``/stop_profile``."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from vllmfront.api.developer._route import Answer
from vllmfront.api.http import HttpRequest
from vllmfront.api.openai import Body
from vllmfront.control import ControlPlane, ProfilePlan

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class StartProfileRequest(msgspec.Struct, kw_only=True, frozen=True):
    profile_prefix: str | None = None
    delay_iterations: Count | None = None
    max_iterations: Count | None = None
    profiler_kwargs: dict[str, Any] | None = None


_START = Body(StartProfileRequest)


class ProfileRoutes:
    """Iterate for method, path and what answers it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._profiling = plane.profiling

    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        yield "POST", "/start_profile", self.start
        yield "POST", "/stop_profile", self.stop

    async def start(self, request: HttpRequest) -> Any:
        """Begin a session, with the wishes in the body, if there are any."""
        # As with the peer, a body that is not called JSON is none.
        is_json = request.header(b"content-type") is not None
        body = _START.decode(request) if request.body and is_json else StartProfileRequest()
        await self._profiling.start(
            ProfilePlan(
                prefix=body.profile_prefix,
                delay_iterations=body.delay_iterations,
                max_iterations=body.max_iterations,
                kwargs=body.profiler_kwargs,
            )
        )

    async def stop(self, _request: HttpRequest) -> Any:
        await self._profiling.stop()
