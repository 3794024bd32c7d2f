"""What main has told this worker, and asks of it; there from the first message on."""

import logging
from collections.abc import Callable, Sequence

import attrs
import trio

from vllmfront.engine import RankState, RankView
from vllmfront.errors import EngineUnavailable, Reason
from vllmfront.interprocess import Handlers
from vllmfront.lifecycles.workers._forwarding import Answering
from vllmfront.lifecycles.workers._messages import (
    AskCounts,
    AskInside,
    Counts,
    Forwarded,
    Hurry,
    Inside,
    Reload,
    State,
    Stop,
    Welcome,
)
from vllmfront.lifecycles.workers._state import Mirror
from vllmfront.supervisor import Reloads, Shutdown

_LOGGER = logging.getLogger(__name__)


@attrs.define(eq=False)
class Orders:
    """The ear of a worker."""

    reloads: Reloads = attrs.field(factory=Reloads)
    welcome: Welcome | None = None
    welcomed: trio.Event = attrs.field(factory=trio.Event)
    stop: trio.Event = attrs.field(factory=trio.Event)
    """Set when this worker is to end, whatever the reason."""

    shutdown: Shutdown | None = None
    counts: Callable[[], Counts] | None = None
    inside: Callable[[], Inside] | None = None
    answering: Answering = attrs.field(factory=Answering)
    """Answers this worker's part in what is asked of all."""

    _state: State | None = None
    _mirror: Mirror | None = None

    @property
    def ranks(self) -> Sequence[RankView]:
        """How the engines stand at main."""
        return () if self._state is None else self._state.view.ranks

    @property
    def engines_serve(self) -> bool:
        """Whether any engine serves at main."""
        return any(one.state == RankState.READY.value for one in self.ranks)

    def handlers(self) -> Handlers:
        """Return what is done with what main says."""
        handlers = Handlers()
        handlers.hear(Welcome, self._take_welcome)
        handlers.hear(State, self._take_state)
        handlers.answer(Forwarded, self.answering.answer)
        handlers.hear(Stop, self._take_stop)
        handlers.hear(Hurry, self._take_hurry)
        handlers.hear(Reload, self._take_reload)
        handlers.answer(AskCounts, self._answer_counts)
        handlers.answer(AskInside, self._answer_inside)
        return handlers

    async def wait_welcome(self) -> Welcome:
        """Return what main says first."""
        await self.welcomed.wait()
        assert self.welcome is not None
        return self.welcome

    def attach(self, mirror: Mirror) -> None:
        """Let *mirror* take note of how things are at main, now and from now on."""
        self._mirror = mirror
        if self._state is not None:
            mirror.take(self._state)

    def leave(self, reason: str) -> None:
        """End this worker softly: running work goes on for as long as the server grants it."""
        if self.shutdown is not None and not self.shutdown.requested.is_set():
            self.shutdown.request(reason)
        self.stop.set()

    def _take_welcome(self, welcome: Welcome) -> None:
        self.welcome = welcome
        self.welcomed.set()

    def _take_state(self, state: State) -> None:
        self._state = state
        if self._mirror is not None:
            self._mirror.take(state)

    def _take_stop(self, order: Stop) -> None:
        if order.seconds is not None and self.shutdown is not None:
            self.shutdown.request_within(order.seconds, order.reason)
        self.stop.set()

    def _take_hurry(self, order: Hurry) -> None:
        if self.shutdown is not None:
            self.shutdown.hurry(order.reason)
        self.stop.set()

    def _take_reload(self, _: Reload) -> None:
        well, done = self.reloads.run()
        _LOGGER.log(logging.INFO if well else logging.ERROR, "told to reload: %s", done)

    async def _answer_counts(self, _: AskCounts) -> Counts:
        if self.counts is None:
            raise EngineUnavailable("this worker is starting", reason=Reason.LOADING)
        return self.counts()

    async def _answer_inside(self, _: AskInside) -> Inside:
        if self.inside is None:
            raise EngineUnavailable("this worker is starting", reason=Reason.LOADING)
        return self.inside()
