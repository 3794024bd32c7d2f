"""Opening the entrance where an earlier frontend had it, with what that one has left."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import attrs

from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client.entrance._entrance import SLOTS, Entrance, open_lasting_entrance
from vllmfront.engine.client.entrance._saved import SavedState
from vllmfront.engine.client.entrance._state_file import StateFile
from vllmfront.engine.coordinator import COORDINATOR_LISTENERS
from vllmfront.engine.transport import tcp_address
from vllmfront.errors import ConfigurationError

_LOGGER = logging.getLogger(__name__)


@attrs.frozen
class LastingEntrance:
    """An entrance that outlives this process, by a file."""

    entrance: Entrance
    saved: SavedState | None
    """What an earlier frontend at the same addresses has left."""


@contextmanager
def open_lasting(
    config: EngineClientConfig, file: StateFile, bind_host: str
) -> Iterator[LastingEntrance]:
    """Listen for the block, at the addresses that engines were told before, if that can be.

    Raises:
        ConfigurationError: Another process serves these engines, or the port is taken.
    """
    file.acquire()
    advertised_host = config.advertised_host or bind_host
    saved = file.read(tcp_address(advertised_host, config.handshake_port))
    if saved is not None and len(saved.ports) != SLOTS:
        _LOGGER.warning(
            "%s is about %d clients a frontend, not one: engines that run have to be restarted",
            file.path,
            len(saved.ports) // SLOTS,
        )
        saved = None
    if saved is not None and bool(saved.coordinator_ports) != config.coordinated:
        _LOGGER.warning(
            "%s is about engines that %sstep together, which those of this model do%s: those that "
            "run have to be restarted",
            file.path,
            *(("", " not") if saved.coordinator_ports else ("do not ", "")),
        )
        saved = None
    with ExitStack() as stack:
        if saved is not None:
            try:
                entrance = stack.enter_context(_open(config, bind_host, advertised_host, saved))
            except ConfigurationError as error:
                _LOGGER.warning(
                    "%s. Engines of an earlier frontend connect there, and have to be restarted",
                    error,
                )
            else:
                yield LastingEntrance(entrance, saved)
                return
        entrance = stack.enter_context(_open(config, bind_host, advertised_host, None))
        yield LastingEntrance(entrance, None)


def _open(
    config: EngineClientConfig, bind_host: str, advertised_host: str, saved: SavedState | None
) -> AbstractContextManager[Entrance]:
    return open_lasting_entrance(
        bind_host,
        config.handshake_port,
        advertised_host=advertised_host,
        ports=() if saved is None else saved.ports,
        coordinator_ports=_coordinator_ports(config, saved),
    )


def _coordinator_ports(
    config: EngineClientConfig, saved: SavedState | None
) -> Sequence[int] | None:
    if not config.coordinated:
        return None
    return (0,) * COORDINATOR_LISTENERS if saved is None else saved.coordinator_ports
