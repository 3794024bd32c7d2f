"""The client without ``await``, in the shape that vLLM's trainer-side engines expect."""

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from vllmfront.rl._client import WeightSyncClient
from vllmfront.rl._errors import UpdateAbandoned
from vllmfront.rl._lease import Mode
from vllmfront.rl._payload import UpdateInfo
from vllmfront.rl._window import UpdateWindow


class BlockingWeightSyncClient:
    """Has the methods of vLLM's ``VLLMWeightSyncClient``, to be handed to a trainer-side engine.

    ``start_weight_update`` opens an update window, pause and lease included, and
    ``finish_weight_update`` closes it: the engine need not know of pauses. ``fail_weight_update``
    ends one that failed, so does the next ``start_weight_update``, or leaving the client.

    An event loop of its own runs in a thread; methods may be called from any thread.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        mode: Mode = "keep",
        clear_cache: bool = True,
        lease: float | None = 30.0,
        draft: bool = False,
        **options: Any,
    ) -> None:
        """Start the thread; nothing is sent yet.

        Args:
            servers: Base URLs.
            mode: Of the windows, as in ``WeightSyncClient.update_window``.
            clear_cache: The same.
            lease: The same.
            draft: The same.
            options: Of ``WeightSyncClient``.
        """
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal())
        self._client: WeightSyncClient = self._stack.enter_context(
            self._portal.wrap_async_context_manager(WeightSyncClient(servers, **options))
        )
        self._open_window = functools.partial(
            self._client.update_window,
            mode=mode,
            clear_cache=clear_cache,
            lease=lease,
            draft=draft,
        )
        self._scope: AbstractContextManager[UpdateWindow] | None = None
        self._window: UpdateWindow | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End an update that is open, as a failed one, and stop the thread."""
        try:
            self.fail_weight_update()
        finally:
            self._stack.close()

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Set up how weights will come. Raises ``CallFailed``."""
        self._portal.call(self._client.init_transfer, init_info)

    def shutdown_weight_transfer_engine(self) -> None:
        """Undo that. Raises ``CallFailed``."""
        self._portal.call(self._client.shutdown_transfer)

    def start_weight_update(self) -> None:
        """Pause all servers and announce weights; raises as ``update_window`` does."""
        self.fail_weight_update()
        scope = self._portal.wrap_async_context_manager(self._open_window())
        self._window = scope.__enter__()
        self._scope = scope

    def update_weights(self, update_info: UpdateInfo) -> None:
        """Send one piece. On an error the update stays open for ``fail_weight_update``."""
        self._portal.call(self._opened().send, update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Finish the update and let servers go on with the new weights."""
        self._opened().version = weight_version
        self._leave(None)

    def fail_weight_update(self, error: Exception | None = None) -> None:
        """Bring all servers back from an update that is open; nothing where none is.

        Raises:
            UpdateFailed: Not all of them could be brought back.
        """
        if self._scope is not None:
            self._leave(error or UpdateAbandoned("the trainer gave the update up"))

    def _opened(self) -> UpdateWindow:
        if self._window is None:
            raise RuntimeError("no weight update is open: call start_weight_update first")
        return self._window

    def _leave(self, error: Exception | None) -> None:
        scope, self._scope, self._window = self._scope, None, None
        if scope is not None:
            kind = None if error is None else type(error)
            scope.__exit__(kind, error, None)
