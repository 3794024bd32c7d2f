"""``POST /v1/weights/sync`` as a trainer without ``vllmfront.rl`` uses it."""

import json
from collections.abc import Callable, Sequence

import httpx

from tests.rl_soak._task import Task

REACHED = {"chunk": "sent"}
"""Events whose names are not those of the client's phases."""


class SyncRefused(Exception):
    """Raised when the call was refused, or ended in ``failed``."""


async def run_sync(
    http: httpx.AsyncClient,
    task: Task,
    pieces: Sequence[object],
    reach: Callable[[str], None],
) -> None:
    """Do it all in one call, telling *reach* of each step.

    Raises:
        SyncRefused: It did not end in ``resumed``.
    """
    body = {
        "update_infos": pieces,
        "init_info": {},
        "weight_version": task.version,
        "mode": task.mode,
        "clear_cache": task.clear_cache,
        "owner": task.owner,
        "lease": task.lease,
    }
    last = ""
    async with http.stream("POST", "/v1/weights/sync", json=body) as response:
        if not response.is_success:
            raise SyncRefused(f"{response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                last = line.removeprefix("event: ")
                reach(REACHED.get(last, last))
            elif line.startswith("data: ") and last == "failed":
                raise SyncRefused(json.loads(line.removeprefix("data: ")))
    if last != "resumed":
        raise SyncRefused(f"the events ended with {last!r}")
