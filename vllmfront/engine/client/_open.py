"""Opening a client: its sockets, its tasks, and their end."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address

import trio

from vllmfront.engine.client._assembly import assemble
from vllmfront.engine.client._client import EngineClient
from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client._turns import at_the_end_of_each_turn
from vllmfront.engine.client.entrance import Inheritance, open_client_sockets
from vllmfront.engine.metrics import EngineMetrics, TerminalCause
from vllmfront.engine.transport import address_towards, resolve_host
from vllmfront.errors import ConfigurationError, EngineUnavailable, Reason


@asynccontextmanager
async def open_engine_client(
    config: EngineClientConfig,
    *,
    inheritance: Inheritance | None = None,
) -> AsyncGenerator[EngineClient, None]:
    """Serve the traffic of the engines in *config* for as long as the block runs.

    The block begins at once, while the engines load: see ``EngineClient.wait_ready``. Engines may
    leave and come back as often as they like. What is in flight at the end is aborted.

    Args:
        config: Who the engines are and where they find us.
        inheritance: The engines of a client in another process, which may serve on for a while;
            see ``EngineClient.succession``.

    Raises:
        ConfigurationError: A host cannot be resolved, an address cannot be bound, or a descriptor
            is no listening socket.
        ExceptionGroup: What the block raised, or a StartupFailed because an engine did not join
            in time.
    """
    metrics = EngineMetrics(enabled=config.count_metrics, bounds=config.histogram_bounds)
    bind_host = await resolve_host(config.handshake_host)
    if config.deployment is not None and config.deployment.first_frontend is not None:
        bind_host = address_towards(bind_host)
    elif config.advertised_host is None and ip_address(bind_host).is_unspecified:
        raise ConfigurationError(
            f"engines cannot connect to {bind_host}; say which address of this host they should use"
        )
    with open_client_sockets(config, bind_host, inheritance) as sockets:
        parts = assemble(config, metrics, sockets, inheritance)
        with at_the_end_of_each_turn(parts.dispatch.send_posted):
            async with trio.open_nursery() as nursery:
                _start(nursery, parts.tasks)
                try:
                    yield parts.client
                finally:
                    closed = EngineUnavailable(
                        "The engine client was closed", reason=Reason.DRAINING
                    )
                    parts.books.fail_all(closed, TerminalCause.SHUTDOWN)
                    nursery.cancel_scope.cancel(reason="the engine client was closed")


def _start(nursery: trio.Nursery, tasks: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Start *tasks*, which need not run before anybody relies on them: messages wait."""
    for task in tasks:
        nursery.start_soon(task)
