"""The rim of an engine in the soak: it records what the engine hears, and lets strikes happen."""

from collections.abc import Sequence

from tests.rl_soak._record import ADD, CALL, READY, Recorder
from tests.rl_soak._strikes import REQUEST, START, Strike, StrikeBox
from vllmfront.engine.wire import Abort, Add, Utility
from vllmfront.simulator import Answer, Encode, Spoken, StartPhase
from vllmfront.testing import FaultKind, FaultyRim, Moment, Observer


class SoakRim(FaultyRim):
    """One life of one rank."""

    def __init__(
        self, rank: int, life: int, observer: Observer, recorder: Recorder, strikes: StrikeBox
    ) -> None:
        start = strikes.take(START)
        faults = [] if start is None else [start.fault(Moment.START, start.phase)]
        super().__init__(faults, rank, life, observer)
        self._recorder = recorder
        self._strikes = strikes
        self._at_answer: Strike | None = None

    def reached(self, phase: StartPhase, now: float) -> bool:
        if phase is StartPhase.READY:
            self._recorder.note(READY)
        return super().reached(phase, now)

    def hears(self, message: Add | Abort | Utility, now: float) -> bool:
        if isinstance(message, Add):
            self._arm(REQUEST, Moment.REQUEST)
            heard = super().hears(message, now)
            # A dead request, sent so that its id is known, is none.
            if heard and not message.request.abort_immediately:
                self._recorder.note(ADD, message.internal_id)
            return heard
        if isinstance(message, Utility):
            name = order_name(message)
            self._arm(name, Moment.CALL)
            heard = super().hears(message, now)
            if heard:
                self._recorder.note(CALL, name)
            return heard
        return super().hears(message, now)

    def says(self, message: Spoken, encode: Encode, now: float) -> Sequence[list[bytes]]:
        strike = self._at_answer
        if strike is None or not isinstance(message, Answer):
            return super().says(message, encode, now)
        self._at_answer = None
        fault = strike.fault(Moment.CALL, 1)
        if fault.kind is FaultKind.MUTE:
            self._report(fault, now)
            return ()
        if self._strike(fault, now):
            return ()  # the engine is gone
        return super().says(message, encode, now)

    def _arm(self, at: str, moment: Moment) -> None:
        """Let the strike that is due *at* this happen at the very next of *moment*."""
        strike = self._strikes.take(at)
        if strike is None:
            return
        if strike.done:
            self._at_answer = strike
        else:
            self._waiting.append(strike.fault(moment, self._counts[moment] + 1))


def order_name(call: Utility) -> str:
    """Return the method that is meant: of the engine, or of its workers."""
    if call.method == "collective_rpc" and call.args:
        return str(call.args[0])
    return call.method
