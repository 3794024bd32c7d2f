"""What an operator may want to see of one rank."""

import attrs


@attrs.frozen(kw_only=True)
class EngineSnapshot:
    """What an operator may want to see of one rank."""

    rank: int
    ready: bool
    dead: str | None
    deaf: str | None
    """Why the rank takes no more requests although it lives; None: it does."""

    running: int
    waiting: int
    paused: bool
