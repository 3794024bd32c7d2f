"""How a frontend of a deployment with several finds the first one, and stays known to it."""

import contextlib
import logging
from collections.abc import Sequence

import attrs
import trio
import zmq

from vllmfront.engine.client.membership import EngineRank, Membership, RankState
from vllmfront.engine.transport import TwoWaySocket, open_dealer
from vllmfront.engine.wire import (
    FrontendHello,
    FrontendReply,
    decode_frontend_reply,
    encode_frontend_hello,
)
from vllmfront.errors import ConfigurationError, EngineDied, ProtocolError, StartupFailed

_LOGGER = logging.getLogger(__name__)

_INTERVAL = 2.0
"""Seconds between two hellos: the first frontend may have been started anew since the last."""

_PATIENCE = 10.0
"""Seconds without an answer until we say so."""


class Introduction:
    """Whether all frontends know of each other: what has to be before engines are started."""

    def __init__(self, missing: Sequence[int] = (), *, first_frontend: str | None = None) -> None:
        """Begin.

        Args:
            missing: Ranks whose frontend is not known.
            first_frontend: Where the one is that will tell; None: it is ours.
        """
        self.done = trio.Event()
        self._first = first_frontend
        self._missing = missing
        if first_frontend is None:
            self.note(missing)

    def note(self, missing: Sequence[int]) -> None:
        """Take note of the ranks whose frontend is still not known."""
        if list(missing) != list(self._missing) and missing:
            _LOGGER.info("waiting for the frontend of engine %s", ", ".join(map(str, missing)))
        self._missing = missing
        if not missing and not self.done.is_set():
            self.done.set()

    async def wait(self, budget: float) -> None:
        """Return once all frontends know of each other.

        Raises:
            StartupFailed: That is not so within *budget* seconds.
        """
        with trio.move_on_after(budget) as scope:
            await self.done.wait()
        if scope.cancelled_caught:
            raise StartupFailed(f"{self._lack()} within {budget:g} seconds")

    def _lack(self) -> str:
        if self._missing:
            ranks = ", ".join(map(str, self._missing))
            return (
                f"no frontend of engine {ranks} has said where it is (start it with "
                "--data-parallel-start-rank and the same address and port, or raise "
                "--engine-ready-timeout-secs)"
            )
        return (
            f"no answer from the first node's frontend at {self._first} (start it, look at "
            "--data-parallel-address and --data-parallel-rpc-port, or raise "
            "--engine-ready-timeout-secs)"
        )


class Guest:
    """Says hello to the first frontend for ever; ``serve`` is its task."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        owner: str,
        hello: FrontendHello,
        introduction: Introduction,
        *,
        membership: Membership,
    ) -> None:
        self._context = context
        self._owner = owner
        self._hello = hello
        self._introduction = introduction
        self._membership = membership
        self._instance: str | None = None
        self._told: frozenset[int] = frozenset()
        """Ranks whose present processes know the others of their epoch."""

        self._heard = False
        self._said = ""
        self._lost = trio.Event()
        membership.on_loss(self._note_loss)

    async def serve(self) -> None:
        """Say hello until cancelled.

        Raises:
            ConfigurationError: The two cannot belong to one deployment.
        """
        identity = b"frontend-%d" % self._hello.start_rank
        with open_dealer(self._context, self._owner, identity=identity) as dealer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, dealer)
                await self._repeat(dealer)

    async def _repeat(self, dealer: TwoWaySocket) -> None:
        heard = trio.current_time()
        while True:
            self._heard, self._lost = False, trio.Event()
            with contextlib.suppress(zmq.Again):  # the one before has not left yet
                dealer.send_frames([encode_frontend_hello(self._present())])
            with trio.move_on_after(_INTERVAL):
                await self._lost.wait()
            now = trio.current_time()
            if self._heard:
                heard = now
            elif now - heard >= _PATIENCE:
                self._say(
                    f"no answer from the first node's frontend at {self._owner}: engines that "
                    "start wait for it"
                )

    def _present(self) -> FrontendHello:
        ranks = self._membership.ranks.values()
        lost = [engine.rank for engine in ranks if engine.state is RankState.DEAD]
        return attrs.evolve(self._hello, lost=lost)

    def _note_loss(self, engine: EngineRank) -> None:
        self._told -= {engine.rank}
        self._lost.set()

    async def _listen(self, dealer: TwoWaySocket) -> None:
        while True:
            message = await dealer.receive()
            self._heard = True
            try:
                self._take(decode_frontend_reply(message[-1].bytes))
            except ProtocolError as error:
                self._say(f"the first node's frontend at {self._owner}: {error}")

    def _take(self, reply: FrontendReply) -> None:
        introduction = self._introduction
        if reply.refusal is not None:
            problem = f"the first node's frontend at {self._owner} refuses: {reply.refusal}"
            if not introduction.done.is_set():
                raise ConfigurationError(problem)
            self._say(problem)  # it was started anew, with other options; our engines serve on
            return
        before, self._instance = self._instance, reply.instance
        if self._hello.lockstep and before not in {None, reply.instance}:
            self._start_over()
        self._take_told(frozenset(reply.told))
        introduction.note(reply.missing)
        if self._said:
            _LOGGER.info("the first node's frontend at %s answers", self._owner)
        self._said = ""

    def _start_over(self) -> None:
        """Give up engines that step together with some which are gone, the first one's.

        One that loads may be new, and wait for what this first frontend tells it.
        """
        for engine in self._membership.ranks.values():
            if engine.state is not RankState.LOADING:
                self._give_up(engine)

    def _take_told(self, told: frozenset[int]) -> None:
        """Give up engines that were told of others which are gone now."""
        outdated, self._told = self._told - told, told
        for engine in self._membership.ranks.values():
            if engine.rank in outdated:
                self._give_up(engine)

    def _give_up(self, engine: EngineRank) -> None:
        error = EngineDied(
            f"engine {engine.rank} steps together with engines of other nodes that are gone"
        )
        self._membership.lose(engine, error)

    def _say(self, what: str) -> None:
        """Log what goes on, once until it changes."""
        if what != self._said:
            self._said = what
            _LOGGER.warning("%s", what[0].upper() + what[1:])
