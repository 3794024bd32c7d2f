"""``/sleep``, ``/wake_up``, ``/is_sleeping`` and ``/release_kv_cache_memory``."""

from collections.abc import Iterator
from typing import Any

from vllmfront.api.developer._pauses import owner_of
from vllmfront.api.developer._question import Query
from vllmfront.api.developer._route import Answer
from vllmfront.api.http import HttpRequest
from vllmfront.control import ControlPlane
from vllmfront.engine.pause import PauseMode
from vllmfront.errors import RequestRejected

_LEVELS = range(3)


class SleepRoutes:
    """Iterate for method, path and what answers it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        yield "POST", "/sleep", self.sleep
        yield "POST", "/wake_up", self.wake_up
        yield "POST", "/release_kv_cache_memory", self.release
        yield "GET", "/is_sleeping", self.is_sleeping

    async def sleep(self, request: HttpRequest) -> Any:
        """Send the engines to sleep; the answer comes when they do."""
        query = Query(request)
        level = _level(query.text("level"))
        mode = query.choice("mode", PauseMode, PauseMode.ABORT)
        await self._plane.sleep(level, mode, owner=owner_of(request, query))
        return {"status": "sleeping", "level": level}

    async def wake_up(self, request: HttpRequest) -> Any:
        """Bring back all that sleeps, or the parts ``tags``; tell whether anything sleeps on."""
        query = Query(request)
        tags = query.texts("tags") or None
        awake = await self._plane.wake_up(tags, force=query.flag("force", default=False))
        return {"status": "awake" if awake else "sleeping", "tags": tags}

    async def release(self, _request: HttpRequest) -> Any:
        """Let go of the caches in a pause."""
        await self._plane.release_kv_cache()
        return {"status": "kv_cache_released"}

    async def is_sleeping(self, _request: HttpRequest) -> Any:
        return {"is_sleeping": await self._plane.is_sleeping()}


def _level(text: str | None) -> int:
    """Read how deep to sleep.

    Raises:
        RequestRejected: It is none of the levels.
    """
    if text is None:
        return 1
    if not text.isascii() or not text.isdecimal():
        raise RequestRejected(f"level must be a whole number, got {text!r}", param="level")
    # Python refuses to read numbers of thousands of digits.
    level = int(text[:9])
    if level not in _LEVELS:
        raise RequestRejected(f"level must be between 0 and {_LEVELS[-1]}", param="level")
    return level
