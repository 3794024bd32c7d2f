"""What this process begins with: nothing, or what the one before it leaves."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.api.http import Listener, adopt_listener
from vllmfront.engine import EngineLegacy, Inheritance
from vllmfront.engine.transport import remove_stale_sockets
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._model import LoadedModel, load_files
from vllmfront.lifecycles.upgrade import (
    Estate,
    HeldListener,
    PidFile,
    Predecessor,
    check_free,
    open_predecessor,
)
from vllmfront.supervisor import ProcessHandle


@attrs.frozen(kw_only=True)
class Heritage:
    """Empty, unless a process that serves has started us to follow it."""

    predecessor: Predecessor | None = None
    model: LoadedModel | None = None
    """Its files, read before anything changed hands."""

    estate: Estate | None = None

    @property
    def engines(self) -> Inheritance | None:
        return None if self.estate is None else self.estate.engines

    @property
    def processes(self) -> Mapping[str, ProcessHandle] | None:
        """Those that run managed engines."""
        return None if self.estate is None else self.estate.processes

    @property
    def files(self) -> dict[str, tuple[str, int, int]]:
        """Files of Unix sockets that are not ours to remove yet, by listener."""
        held = () if self.estate is None else self.estate.listeners
        return {each.name: each.unlink for each in held if each.unlink is not None}


@asynccontextmanager
async def open_heritage(
    config: ServeConfig, ranks: Sequence[int], pid_file: PidFile | None
) -> AsyncGenerator[Heritage]:
    """Take over from the process before us, if there is one, as soon as the model is loaded.

    Why the block fails before we serve is told to it: it goes on then.

    Raises:
        ConfigurationError: The model's files are unusable, the engines are not *ranks*, or another
            process serves with *pid_file*.
        ChannelBroken: What comes down to us is in another form.
    """
    async with open_predecessor(os.environ) as predecessor:
        if predecessor is None:
            if pid_file is not None:
                check_free(pid_file.path)
            await trio.to_thread.run_sync(remove_stale_sockets)
            yield Heritage()
            return
        check_ranks(predecessor.estate.engines.legacy, ranks)
        model = await load_files(config)
        estate = await predecessor.take_over()
        yield Heritage(predecessor=predecessor, model=model, estate=estate)


@asynccontextmanager
async def adopt_listeners(held: Sequence[HeldListener]) -> AsyncGenerator[list[Listener]]:
    """Serve the sockets that the process before us has left, for as long as the block runs.

    Their files are removed by whoever is alone in the end: see ``Generation.lead``.

    Raises:
        ConfigurationError: A descriptor is no listening socket.
    """
    listeners = [adopt_listener(each.descriptor, each.name) for each in held]
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


def check_ranks(legacy: EngineLegacy, ranks: Sequence[int]) -> None:
    """Make sure that the engines which come down to us are those that we are to serve.

    Raises:
        ConfigurationError: They are not.
    """
    known = sorted({*legacy.registrations, *legacy.lost})
    if known != list(ranks):
        raise ConfigurationError(
            f"the running process has engines {known}, this one is to serve {list(ranks)}: restart"
        )
