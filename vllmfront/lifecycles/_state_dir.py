"""Where engines that run elsewhere are kept for the next start, unless somebody says where."""

import logging
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from vllmfront.lifecycles._engine_config import EngineConfig

_LOGGER = logging.getLogger(__name__)


def engine_state_file(config: EngineConfig, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file, one for each address on which engines find us; None keeps none.

    Engines that we start end with us, and those that find us on any free port would not find the
    next process: neither are kept. A folder that was not named may be unusable, which costs a line
    in the log and no more.
    """
    if config.managed or not config.handshake_port:
        return None
    name = f"{config.host}-{config.handshake_port}"
    if config.state_dir is not None:
        return Path(config.state_dir).absolute() / _file_name(name)
    folder = default_folder(environ)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        _refuse(folder, error.strerror or str(error))
        return None
    if not os.access(folder, os.W_OK | os.X_OK):
        _refuse(folder, "not ours to write to")
        return None
    # A home may be shared by several hosts, whose addresses are not the same although they look so.
    return folder / _file_name(f"{socket.gethostname()}-{name}")


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return where a service keeps its state by the rules of systemd, or else a user's program."""
    services = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if services:
        return Path(services)
    base = environ.get("XDG_STATE_HOME", "")
    # Relative paths are to be ignored there.
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME", "/")) / ".local/state"
    return home / "vllmfront"


def _file_name(name: str) -> str:
    return f"engines-{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.json"


def _refuse(folder: Path, why: str) -> None:
    _LOGGER.warning(
        "Engines are not kept for the next start, which will not find them: %s: %s. Name another "
        "folder with --state-dir",
        folder,
        why,
    )
