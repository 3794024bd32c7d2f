"""A worker: serves clients on connections that main hands over, and engines that main knows.

::

    line            to the main process; its end is ours
    └─ link         the engine client, which follows that of main
       └─ worker    one_for_one, no restarts: what fails here ends the process
          ├─ model  loads the files, once
          ├─ api    answers, on connections that main has accepted
          └─ beat   signs of life on the board
"""

import logging
import os
import pickle
import signal
import socket
from collections.abc import AsyncGenerator, Callable, MutableMapping
from contextlib import asynccontextmanager

import attrs
import trio

import vllmfront
from vllmfront.control import open_control_plane
from vllmfront.engine import EngineClientConfig, open_engine_client
from vllmfront.errors import ConfigurationError, VllmFrontError
from vllmfront.interprocess import Board, Line
from vllmfront.lifecycles._api import FLUSH_BUDGET
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._last_resort import serve_last_resort
from vllmfront.lifecycles._one_error import one_error
from vllmfront.lifecycles.workers._inside import Worker
from vllmfront.lifecycles.workers._lifeline import watch_lifeline
from vllmfront.lifecycles.workers._loads import BoardLoads
from vllmfront.lifecycles.workers._messages import Failed, Leaving, Welcome
from vllmfront.lifecycles.workers._orders import Orders
from vllmfront.lifecycles.workers._process import LIFELINE, LINE
from vllmfront.lifecycles.workers._run import SetUpLog
from vllmfront.supervisor import Shutdown

_LOGGER = logging.getLogger(__name__)

_LAST_WORDS = 1.0
"""Seconds for telling main why we end."""


class MainGone(VllmFrontError):
    """Raised when the main process has ended: nobody would give us anything to do."""


async def serve_worker(
    set_up_log: SetUpLog,
    on_loaded: Callable[[], None],
    environ: MutableMapping[str, str] = os.environ,
) -> None:
    """Serve until main says that it is over, or until this process is told to leave.

    Args:
        set_up_log: Called once it is known where the log level comes from.
        on_loaded: Called once, when the model's files have been read.
        environ: Names the descriptors that main has passed on.

    Raises:
        VllmFrontError: It could not start, or could not go on; main has been told.
    """
    sock = _adopt(environ)
    orders = Orders()
    with one_error(), Line(sock, orders.handlers()) as line:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_line, line)
            try:
                with one_error():
                    await _serve(line, orders, set_up_log, on_loaded)
            except VllmFrontError as error:
                line.tell(_last_words(error))
                raise
            finally:
                with trio.move_on_after(_LAST_WORDS, shield=True):
                    await line.flush()
            nursery.cancel_scope.cancel(reason="everything has ended")


def _last_words(error: VllmFrontError) -> Failed:
    """Say why we end: what the lowest part said, and whether that is the operator's to mend."""
    lowest = error
    while isinstance(lowest.__cause__, VllmFrontError):
        lowest = lowest.__cause__
    return Failed(str(lowest) or type(lowest).__name__, isinstance(lowest, ConfigurationError))


def _adopt(environ: MutableMapping[str, str]) -> socket.socket:
    try:
        line, lifeline = (int(environ.pop(name)) for name in (LINE, LIFELINE))
        for descriptor in (line, lifeline):
            os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no keyword
        sock = socket.socket(fileno=line)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigurationError("workers are started by `serve`, never by hand") from error
    watch_lifeline(lifeline)
    return sock


async def _serve_line(line: Line) -> None:
    await line.serve()
    raise MainGone("the main process is gone")


async def _serve(
    line: Line, orders: Orders, set_up_log: SetUpLog, on_loaded: Callable[[], None]
) -> None:
    welcome = await orders.wait_welcome()
    if welcome.version != vllmfront.__version__:
        raise ConfigurationError(
            f"this worker is of version {vllmfront.__version__}, the process that started it of "
            f"{welcome.version}: restart the server"
        )
    config, engines = _settings(welcome)
    reload_log_level = set_up_log(config.server.log_level_file)
    shutdown = Shutdown(budget=config.server.shutdown_timeout, margin=2 * FLUSH_BUDGET)
    orders.shutdown = shutdown
    board = Board(welcome.board, pages=welcome.workers + 1, ranks=engines.engine_count)
    page = board.pages[welcome.number]
    engines = attrs.evolve(engines, loads=BoardLoads(board, page, engines.start_rank))
    with board, orders.reloads.offering("log level", reload_log_level):
        async with (
            _signals(line, orders, shutdown),
            open_engine_client(engines) as client,
            open_control_plane(client) as control,
        ):
            worker = Worker(
                number=welcome.number,
                config=config,
                client=client,
                control=control,
                board=board,
                line=line,
                orders=orders,
                shutdown=shutdown,
                on_loaded=on_loaded,
            )
            orders.attach(worker.mirror)
            client.on_loss(worker.note_loss)
            client.adapters.on_idle = worker.note_idle
            with worker.listening(welcome.connections) as listener:
                await worker.plan_tree(listener).run(orders.stop)
    _LOGGER.info("worker %d stopped", welcome.number)


def _settings(welcome: Welcome) -> tuple[ServeConfig, EngineClientConfig]:
    # From the process that started us, over a socket pair that nobody else holds.
    config, engines = pickle.loads(welcome.settings)  # noqa: S301
    return config, engines


@asynccontextmanager
async def _signals(line: Line, orders: Orders, shutdown: Shutdown) -> AsyncGenerator[None]:
    """Leave at SIGTERM: main starts another worker. All else is told by main."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(*numbers) as received:

            async def heed() -> None:
                async for number in received:
                    if number == signal.SIGTERM:
                        line.tell(Leaving("received SIGTERM"))
                        orders.leave("received SIGTERM")

            nursery.start_soon(heed)
            nursery.start_soon(serve_last_resort, shutdown)
            yield
            nursery.cancel_scope.cancel(reason="everything has ended")
