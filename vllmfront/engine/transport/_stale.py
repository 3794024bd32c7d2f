"""Socket files that processes left behind which had no time to close them."""

import contextlib
import logging
import os
import socket
import stat
import tempfile
import time
from pathlib import Path

_LOGGER = logging.getLogger(__name__)

_SETTLED = 60.0
"""Seconds of age before a file counts as stale: a new one is bound first and listens later."""


def remove_stale_sockets() -> int:
    """Remove socket files of ours that nobody listens on any more; return how many.

    Looks where ``ipc_address`` puts them. Files of other users stay.
    """
    folder = Path(os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir())
    removed = 0
    for path in folder.glob("vllmfront-[io]-*"):
        # Whoever else sweeps at this moment may be faster.
        with contextlib.suppress(OSError):
            if _is_stale(path):
                path.unlink()
                removed += 1
    if removed:
        _LOGGER.info("removed %d socket files of processes that are gone", removed)
    return removed


def _is_stale(path: Path) -> bool:
    status = path.lstat()
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        return False
    if time.time() - status.st_mtime < _SETTLED:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003 - takes no keyword
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
