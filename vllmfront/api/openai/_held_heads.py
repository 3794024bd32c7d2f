"""Response heads that wait a moment for the first event, to share one send with it.

A send to an idle client costs as much as everything else that is done for a token. Engines that
are quick answer within the wait; for the others one timer sends the heads of all streams, long
before anybody could miss them.
"""

import trio

from vllmfront.api.http import ResponseWriter

HOLD_SECONDS = 0.01
"""Far below what a client can notice, and longer than a prefill of a small model takes."""


class HeldHeads:
    """Flushes the heads of responses that were started on hold."""

    def __init__(self) -> None:
        self.serving = False
        """Whether heads may be held: somebody is there to flush them."""

        self._held: list[ResponseWriter] = []
        self._arrived = trio.Event()

    def start(self, response: ResponseWriter, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Begin a streamed response whose head goes out within ``HOLD_SECONDS``."""
        response.start(200, headers, hold=self.serving)
        if self.serving:
            self._held.append(response)
            self._arrived.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush heads until cancelled; those that are held then go out at once."""
        self.serving = True
        task_status.started()
        try:
            while True:
                if not self._held:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                await trio.sleep(HOLD_SECONDS)
                self._flush()
        finally:
            self.serving = False
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, []
        for response in held:
            response.flush()
