"""What happens in a supervisor, for its owner's metrics and decisions, and for the log."""

import enum

import attrs


class Response(enum.Enum):
    """What a supervisor does about a failure."""

    RESTART = enum.auto()
    LEAVE = enum.auto()  # the child is temporary: the others go on without it
    GIVE_UP = enum.auto()  # the supervisor stops its other children and fails as well
    STOP = enum.auto()  # nothing: the child was being stopped
    DROP = enum.auto()  # nothing: all is about to end, hence nothing is started any more


@attrs.frozen(kw_only=True)
class _OfChild:
    supervisor: str
    child: str
    generation: int
    """Of the incarnation, counted from 1."""

    @property
    def path(self) -> str:
        """Where it is, as its task is named."""
        return f"{self.supervisor}/{self.child}"


@attrs.frozen(kw_only=True)
class ChildReady(_OfChild):
    """A child has said that it can answer."""

    took: float
    """Seconds from its start."""


@attrs.frozen(kw_only=True)
class ChildFailed(_OfChild):
    """A child has failed; each failure is told once."""

    error: Exception
    text: str
    """Of the error; never empty."""

    response: Response
    delay: float | None = None
    """Seconds until the child is started again, if it is."""

    restarts: int
    """In the window, with this one if it counts."""

    intensity: int
    period: float

    @property
    def summary(self) -> str:
        """The first line of the text: the others quote what a process printed."""
        return self.text.partition("\n")[0]


@attrs.frozen(kw_only=True)
class RestartDropped(_OfChild):
    """A child that waited for its restart will not get it: the program is ending."""


@attrs.frozen(kw_only=True)
class ChildStuck(_OfChild):
    """A child runs on although it was cancelled; only the end of the process can end it."""

    budget: float
    """Seconds that it was given."""

    stack: str


@attrs.frozen(kw_only=True)
class GaveUp:
    """The supervisor stops what is left and fails, so its parent must act."""

    supervisor: str
    reason: str
    causes: tuple[Exception, ...]


Event = ChildReady | ChildFailed | RestartDropped | ChildStuck | GaveUp
