"""The weights of vLLM servers, kept in step with a trainer's."""

import os
import socket
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from vllmfront.rl._fleet import Fleet
from vllmfront.rl._lease import LeasedPause, Mode, valid_lease
from vllmfront.rl._payload import json_safe
from vllmfront.rl._progress import OnProgress, ignore
from vllmfront.rl._rollback import ROLLBACK_BUDGET, Restore
from vllmfront.rl._server import RetryPolicy, Server
from vllmfront.rl._upload import Upload
from vllmfront.rl._window import UpdateWindow

CALL_TIMEOUT = 300.0
"""Seconds for one call: loading a large piece, or waiting for the longest rollout, takes long."""


class WeightSyncClient:
    """Drives the weight updates of one server, or of several that get the same weights.

    Runs under asyncio and under Trio. It is an asynchronous context manager: leaving it closes its
    connections. One update at a time; several clients exclude each other by their owners' names.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        api_key: str | None = None,
        owner: str | None = None,
        timeout: float = CALL_TIMEOUT,
        retries: RetryPolicy | None = None,
        on_progress: OnProgress = ignore,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            servers: Base URLs, such as ``http://10.0.0.1:8000``.
            api_key: The admin key, where servers want one.
            owner: Who holds the pauses, in words that help whoever finds a server paused. Who comes
                back under the same name goes on with the pause that it left. By default a new name
                each time.
            timeout: Seconds for one call.
            retries: How often calls are repeated that may be.
            on_progress: Told of each step that a server has done.
            transport: How requests travel, for tests.
        """
        urls = [servers] if isinstance(servers, str) else list(servers)
        if not urls or len(set(urls)) < len(urls):
            raise ValueError("servers: give at least one URL, and none twice")
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self.owner = owner or default_owner()
        self._http = httpx.AsyncClient(timeout=timeout, headers=headers, transport=transport)
        policy = retries or RetryPolicy()
        self._fleet = Fleet(
            [Server(url.rstrip("/"), self._http, policy) for url in urls], on_progress
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. What was paused stays paused."""
        await self._http.aclose()

    async def init_transfer(
        self,
        info: Mapping[str, Any] | None = None,
        *,
        per_server: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Set up how weights will come, once before the first update and after each failed one.

        Args:
            info: What the backend needs, as in ``/init_weight_transfer_engine``.
            per_server: The same, for each server another one.

        Raises:
            CallFailed: A server refused, or failed; the others are set up.
        """
        if (info is None) == (per_server is None):
            raise ValueError("give either info, for all servers, or per_server")
        infos = [info or {}] * len(self._fleet.servers) if per_server is None else per_server
        if len(infos) != len(self._fleet.servers):
            raise ValueError(f"per_server has {len(infos)} entries, one for each server is needed")
        answers = await self._fleet.call(
            lambda server, place: server.post(
                "/init_weight_transfer_engine",
                body={"init_info": json_safe(infos[place])},
                repeatable=False,
            )
        )
        answers.raise_first()

    async def shutdown_transfer(self) -> None:
        """Undo ``init_transfer``, in whatever state an update is."""
        answers = await self._fleet.call(
            lambda server, _place: server.post("/shutdown_weight_transfer_engine", repeatable=True)
        )
        answers.raise_first()

    async def weight_versions(self) -> Mapping[str, str]:
        """Return what each server calls its weights, by its URL."""
        answers = await self._fleet.call(lambda server, _place: server.get("/weight_info"))
        answers.raise_first()
        return {url: answer["weight_version"] for url, answer in answers.values.items()}

    async def resume(self) -> None:
        """Let servers go on that an earlier client of this owner's name has left paused."""
        answers = await self._pause("abort", lease=None).release()
        answers.raise_first()

    @asynccontextmanager
    async def update_window(
        self,
        *,
        mode: Mode = "keep",
        clear_cache: bool = True,
        lease: float | None = 30.0,
        version: str | None = None,
        draft: bool = False,
        restore: Restore | None = None,
        rollback_budget: float = ROLLBACK_BUDGET,
    ) -> AsyncGenerator[UpdateWindow, None]:
        """Update the weights of all servers: pause, start; the block sends; finish, resume.

        Either all servers get all weights and serve them, or all are brought back: to what they
        served before if nothing was sent yet, or where *restore* sends the old weights again;
        otherwise they stay paused, since their weights are mixed. After a failure call
        ``init_transfer`` before the next update. The lease is renewed as long as the block runs; if
        that is impossible for the length of a lease, the block is cancelled.

        Args:
            mode: What becomes of running requests: frozen until the end (``keep``), waited for, or
                ended with the tokens that they have (``abort``).
            clear_cache: Whether cached prefixes, made by the old weights, are forgotten.
            lease: Seconds after which a server that hears nothing acts by itself; None: never.
            version: What the new weights are called.
            draft: Whether they are those of the draft model.
            restore: Sends the old weights, when an update has failed half-way.
            rollback_budget: Seconds for bringing servers back.

        Raises:
            StateConflict: Somebody else has paused a server, or an update runs there.
            CallFailed: A server failed, and all serve as before.
            LeaseLost: The pause could not be renewed, and all serve as before.
            UpdateFailed: Not all servers could be brought back; it says how each stands.
        """
        window = UpdateWindow(
            fleet=self._fleet,
            pause=self._pause(mode, valid_lease(lease), clear_cache=clear_cache),
            upload=Upload(self._fleet, self.owner, draft=draft),
            restore=restore,
            rollback_budget=rollback_budget,
            version=version,
        )
        async with window.opened():
            yield window

    def _pause(self, mode: Mode, lease: float | None, *, clear_cache: bool = True) -> LeasedPause:
        return LeasedPause(
            fleet=self._fleet, owner=self.owner, mode=mode, clear_cache=clear_cache, lease=lease
        )


def default_owner() -> str:
    """Return a name that nobody else has, and that says where to look."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
