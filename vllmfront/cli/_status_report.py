"""What a server says about itself, as ``status`` reads it: the bodies of two routes."""

import attrs
import msgspec


@attrs.frozen(kw_only=True)
class Health:
    """The body of ``/ready``."""

    state: str
    reason: str
    seconds: float
    """How long it has been so."""

    retry_after: float | None = None

    @property
    def ready(self) -> bool:
        return self.state == "ready"


@attrs.frozen(kw_only=True)
class Child:
    """A child, and what is below it where it is a supervisor itself."""

    name: str
    state: str
    generation: int
    seconds: float | None = None
    """How long it has been in this state."""

    next_try: float | None = None
    """Seconds until it is started again."""

    first_failure: str | None = None
    last_failure: str | None = None
    tree: "Tree | None" = None


@attrs.frozen(kw_only=True)
class Tree:
    """A supervisor."""

    name: str
    restarts: int
    intensity: int
    period: float
    children: tuple[Child, ...]


@attrs.frozen(kw_only=True)
class Rank:
    """An engine."""

    rank: int
    state: str
    incarnation: int
    in_flight: int
    error: str | None = None
    seconds_since_output: float | None = None


@attrs.frozen(kw_only=True)
class Engines:
    """All engines together."""

    state: str
    requests: int
    ranks: tuple[Rank, ...]


@attrs.frozen(kw_only=True)
class Worker:
    """One of several processes that serve clients."""

    worker: int
    pid: int
    serving: bool
    connections: int
    choices: int
    """Of requests in flight."""

    resident_bytes: int | None = None
    cpu_seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Inside:
    """The body of ``/supervisor``."""

    tree: Tree
    engines: Engines
    workers: tuple[Worker, ...] = ()
    """None where one process does everything."""


read_health = msgspec.json.Decoder(Health).decode
read_inside = msgspec.json.Decoder(Inside).decode
