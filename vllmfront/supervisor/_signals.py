"""What signals do, decided in one task and never in handlers.

=================  =============================================================
SIGTERM, SIGINT    the first asks for a soft stop, the second for a hard one
SIGHUP             reads anew what can change while the program runs
SIGUSR2            hands over to a new process of the program
=================  =============================================================

Under another supervisor a hard stop takes two signals of one kind (``SignalActions.by_kind``): a
terminal's SIGINT reaches both, and the other one passes it on as SIGTERM.

Each signal leaves one line in the log: what came, and what is done.
"""

import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from vllmfront.errors import VllmFrontError
from vllmfront.supervisor._shutdown import Shutdown

_LOGGER = logging.getLogger(__name__)

Reload = Callable[[], str]
"""Reads something anew; returns what it did, for the log; an error leaves everything as it was."""


class Reloads:
    """What SIGHUP reads anew: each part of the program puts its own in, while it runs."""

    def __init__(self) -> None:
        self._entries: dict[str, Reload] = {}

    def __repr__(self) -> str:
        return f"<Reloads {', '.join(self._entries) or 'nothing'}>"

    @contextmanager
    def offering(self, name: str, reload: Reload) -> Iterator[None]:
        """Include *reload* for as long as the block runs; *name* is for the log."""
        self._entries[name] = reload
        try:
            yield
        finally:
            del self._entries[name]

    def run(self) -> tuple[bool, str]:
        """Read everything anew; return whether all went well, and what was done."""
        well, done = True, []
        for name, reload in self._entries.items():
            try:
                done.append(reload())
            except VllmFrontError as error:
                well = False
                done.append(f"keeping the former {name}: {error}")
            except Exception:
                _LOGGER.exception("a bug in reloading %s", name)
                well = False
                done.append(f"keeping the former {name}")
        return well, "; ".join(done) or "there is nothing to reload"


@attrs.frozen(kw_only=True)
class SignalActions:
    """What signals start, besides the end."""

    reloads: Reloads = attrs.field(factory=Reloads)
    around_reload: Callable[[Callable[[], None]], Awaitable[None]] | None = None
    """Runs a reload, and tells somebody before and after."""

    hand_over: Callable[[], None] | None = None
    """Starts the hand-over to a new process, and returns at once; called again at each SIGUSR2."""

    by_kind: bool = False
    """Whether only a second signal of the same kind asks for a hard stop."""


async def serve_signals(
    shutdown: Shutdown,
    actions: SignalActions | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Carry out what signals ask for, one after the other, until cancelled."""
    actions = actions or SignalActions()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
    stops = set[int]()
    with trio.open_signal_receiver(*numbers) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGHUP:
                await _reload(actions)
            elif number == signal.SIGUSR2:
                _hand_over(shutdown, actions.hand_over)
            elif actions.by_kind and stops and number not in stops:
                stops.add(number)
                _LOGGER.info("received %s: shutting down already", signal.Signals(number).name)
            else:
                stops.add(number)
                _stop(shutdown, signal.Signals(number).name)


def _stop(shutdown: Shutdown, name: str) -> None:
    if shutdown.hurried.is_set():
        _LOGGER.info("received %s: already shutting down at once", name)
    else:
        shutdown.request(f"received {name}")


async def _reload(actions: SignalActions) -> None:
    def reload() -> None:
        well, done = actions.reloads.run()
        _LOGGER.log(logging.INFO if well else logging.ERROR, "received SIGHUP: %s", done)

    if actions.around_reload is None:
        reload()
    else:
        await actions.around_reload(reload)


def _hand_over(shutdown: Shutdown, hand_over: Callable[[], None] | None) -> None:
    if shutdown.requested.is_set():
        _LOGGER.warning("received SIGUSR2: shutting down already, no new process is started")
    elif hand_over is None:
        _LOGGER.warning(
            "received SIGUSR2: nothing is configured that could take over; this process goes on"
        )
    else:
        _LOGGER.info("received SIGUSR2: handing over to a new process")
        hand_over()
