"""The end of a worker whose main process is gone, whatever its event loop does."""

import os
import signal
import threading
import time

_GRACE = 1.0
"""Seconds for the event loop to end the process by itself."""


def watch_lifeline(descriptor: int) -> None:
    """Kill this process when the other end of that pipe is closed, as the kernel sees to.

    A thread does it: an event loop that is stuck would not. No signal at the parent's death: the
    kernel ties that to the thread that forked, and such threads come and go.
    """

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
