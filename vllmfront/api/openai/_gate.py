"""Which requests come in while there is much to do."""

from typing import Protocol

import attrs

from vllmfront.api.metrics import GateStatistics
from vllmfront.api.openai._loop_lag import LoopLag
from vllmfront.errors import Overloaded, Reason


@attrs.frozen(kw_only=True)
class GateLimits:
    """What an operator lets in."""

    max_in_flight: int | None = None
    """Choices of requests, waiting and running; None: any number."""

    max_queued_tokens: int | None = None
    """Prompt tokens that wait for their first answer, from which on nothing comes in."""

    max_loop_lag: float = 0.0
    """Seconds that the event loop may be late, again and again; 0: any."""


class GatedCall(Protocol):
    """What the gate has to know of a request."""

    choices: int
    """How many places it takes up, for the gate alone to change."""

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of its choices that have no token yet."""


class ServiceCounts(Protocol):
    """What is in at all processes of a server together."""

    def publish_choices(self, own: int) -> int:
        """Say that so many choices are in here; return the sum over all processes."""

    def publish_tokens(self, own: int) -> int:
        """Say that so many prompt tokens wait here; return the sum over all processes."""


class Gate:
    """Counts the requests that are in, and refuses others. Its places are taken on arrival.

    The order is that of the costs: what is refused for its number has not been read, and what is
    refused for the tokens of others has not been encoded. A place is taken before the work and
    given back at the request's end, so that requests which arrive together do not all find room.
    """

    def __init__(
        self, limits: GateLimits | None = None, service: ServiceCounts | None = None
    ) -> None:
        """Let in what *limits* allow; *service* counts for other processes as well, if there are.

        What is taken here is said there first, and then the sum is looked at: so processes that
        let in at the same moment do not let in too much together.
        """
        limits = limits or GateLimits()
        self._service = service
        self.lag = LoopLag(limits.max_loop_lag)
        self._max_in_flight = limits.max_in_flight
        self._max_tokens = limits.max_queued_tokens
        self._in_flight = 0
        self._queued: dict[GatedCall, None] = {}
        """Requests that had no token when last looked at; only where tokens are limited."""

    def check_lag(self) -> None:
        """Refuse all new work while this server is late with what it has.

        Raises:
            Overloaded: It is.
        """
        lag = self.lag
        if lag.excessive:
            raise Overloaded(
                f"The server is overloaded: it is late with its work by {lag.value:.1f} s."
                " Try again later.",
                reason=Reason.OVERLOADED,
                limit=lag.limit,
                current=round(lag.value, 3),
            )

    def enter(self, call: GatedCall) -> None:
        """Give *call* a place for its first choice, before anything is done for it.

        Raises:
            Overloaded: There is none.
        """
        self.check_lag()
        self._take(call, 1)
        if self._max_tokens is not None:
            self._check_tokens(self._max_tokens)

    def widen(self, call: GatedCall, choices: int) -> None:
        """Give *call* places for all its *choices*.

        Raises:
            Overloaded: There are too few.
        """
        if choices > call.choices:
            self._take(call, choices)

    def queue(self, call: GatedCall) -> None:
        """Count the tokens of *call*, which is about to be sent.

        Raises:
            Overloaded: Others that wait for their first token have too many.
        """
        if self._max_tokens is not None:
            self._check_tokens(self._max_tokens, call.queued_tokens)
            self._queued[call] = None

    def leave(self, call: GatedCall) -> None:
        """Take the places of *call* back, if it has any."""
        self._in_flight -= call.choices
        if self._service is not None:
            self._service.publish_choices(self._in_flight)
        call.choices = 0
        if self._queued:
            self._queued.pop(call, None)

    def statistics(self) -> GateStatistics:
        """Return how full it is."""
        return GateStatistics(
            in_flight=self._in_flight,
            max_in_flight=self._max_in_flight,
            queued_tokens=self._published_tokens(),
            max_queued_tokens=self._max_tokens,
            loop_lag=self.lag.value,
            max_loop_lag=self.lag.limit or None,
        )

    def _take(self, call: GatedCall, choices: int) -> None:
        more, limit = choices - call.choices, self._max_in_flight
        total = self._in_flight + more
        if self._service is not None:
            total = self._service.publish_choices(total)
        if limit is not None and total > limit:
            if self._service is not None:
                self._service.publish_choices(self._in_flight)
            others = total - choices
            needs = f", and this one needs {choices} places" if choices > 1 else ""
            raise Overloaded(
                f"The server is full: {others} of at most {limit} requests are in flight{needs}."
                " Try again later.",
                reason=Reason.QUEUE_FULL,
                limit=limit,
                current=others,
            )
        self._in_flight += more
        call.choices = choices

    def _check_tokens(self, limit: int, more: int = 0) -> None:
        current = own = self._count_tokens()
        if self._service is not None:
            current = self._service.publish_tokens(own + more) - more
        if current >= limit:
            if self._service is not None:
                self._service.publish_tokens(own)
            raise Overloaded(
                f"The server is full: {current} prompt tokens wait for their first answer, and no"
                f" more is let in from {limit} on. Try again later.",
                reason=Reason.TOO_MANY_QUEUED_TOKENS,
                limit=limit,
                current=current,
            )

    def _published_tokens(self) -> int:
        own = self._count_tokens()
        if self._service is not None:
            self._service.publish_tokens(own)
        return own

    def _count_tokens(self) -> int:
        """Count what waits, and forget what does not any more: each request once."""
        total = 0
        for call in list(self._queued):
            tokens = call.queued_tokens
            total += tokens
            if not tokens:
                del self._queued[call]
        return total
