"""What a run of a supervisor tells its owner: one event for each thing that happens."""

from collections.abc import Callable, Sequence
from typing import TypedDict

import attrs
import trio

from vllmfront.supervisor._child import Child
from vllmfront.supervisor._events import (
    ChildFailed,
    ChildReady,
    ChildStuck,
    Event,
    GaveUp,
    Response,
    RestartDropped,
)
from vllmfront.supervisor._restarts import Restarts
from vllmfront.supervisor._stack import describe_task


class _Of(TypedDict):
    supervisor: str
    child: str
    generation: int


@attrs.frozen
class Reporter:
    """Makes events of what the loop decides."""

    supervisor: str
    restarts: Restarts
    emit: Callable[[Event], None]

    def ready(self, child: Child) -> None:
        took = trio.current_time() - child.current.begun
        self.emit(ChildReady(**self._of(child), took=took))

    def failed(self, child: Child, response: Response, delay: float | None = None) -> Exception:
        """Tell of the end of the child's incarnation, once; return its error."""
        error = child.current.failure
        assert error is not None
        event = ChildFailed(
            **self._of(child),
            error=error,
            text=child.note(error),
            response=response,
            delay=delay,
            restarts=self.restarts.count(trio.current_time()),
            intensity=self.restarts.policy.intensity,
            period=self.restarts.policy.period,
        )
        self.emit(event)
        return error

    def dropped(self, child: Child) -> None:
        self.emit(RestartDropped(**self._of(child)))

    def stuck(self, child: Child) -> None:
        task = child.current.task
        stack = "nowhere: it has ended just now" if task is None else describe_task(task)
        self.emit(ChildStuck(**self._of(child), budget=child.spec.cancel_budget, stack=stack))

    def gave_up(self, reason: str, causes: Sequence[Exception]) -> None:
        self.emit(GaveUp(supervisor=self.supervisor, reason=reason, causes=tuple(causes)))

    def _of(self, child: Child) -> _Of:
        """Return what all events tell of their child."""
        return {
            "supervisor": self.supervisor,
            "child": child.name,
            "generation": child.generation,
        }
