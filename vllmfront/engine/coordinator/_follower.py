"""A frontend's share in waves that somebody else coordinates: without sockets. Pure."""

from collections.abc import Callable, Sequence

from vllmfront.engine.coordinator._rules import WaveState
from vllmfront.engine.coordinator._wakes import WakeUps
from vllmfront.engine.coordinator._waves import LoadObserver
from vllmfront.engine.wire import (
    FirstRequest,
    decode_load_report,
    encode_frontend_notice,
)


class Follower:
    """Believes what the coordinator publishes, and tells it of requests to idle engines."""

    def __init__(self, ranks: Sequence[int], send: Callable[[Sequence[bytes]], None]) -> None:
        """Follow for a client of *ranks*, and *send* what the coordinator is told."""
        self.state = WaveState()
        self.wakes = WakeUps()
        self.load_observers: list[LoadObserver] = []
        self._ranks = ranks
        self._send = send
        self._rank = 0
        """The last one that got a request."""

    def restart(self) -> None:
        """Follow another coordinator, of which nothing is known."""
        self.state = WaveState()
        self.wakes.renew()

    def requested(self, rank: int, now: float) -> None:
        """Note that *rank* has got a request, which carries the present wave."""
        self._rank = rank
        self.wakes.requested(self.state)
        if self.wakes.take(now):
            # Whoever has the request wakes by itself, so it may be left out.
            self._notify(self.state.wave)

    def tick(self, now: float) -> None:
        """Repeat what is due.

        The request may be long gone, and then nobody is to be left out: that is what the
        coordinator makes of a wave that is over.
        """
        if self.wakes.take(now):
            self._notify(self.state.wave - 1)

    def take(self, publication: bytes) -> None:
        """Take what was published.

        Raises:
            ProtocolError: It makes no sense, and has had no effect.
        """
        report = decode_load_report(publication)
        self.state = WaveState(report.wave, report.running)
        self.wakes.observed(self.state)
        if report.loads is not None:
            ours = {rank: report.loads[rank] for rank in self._ranks if rank < len(report.loads)}
            for observer in self.load_observers:
                observer(ours)

    def _notify(self, wave: int) -> None:
        self._send([encode_frontend_notice(FirstRequest(self._rank, wave))])
