"""What is remembered about one engine request until it ends."""

import math

from msgspec import Struct


class RequestRecord(Struct, kw_only=True, eq=False):
    """Marks of one engine request's life. Times of the engine's clock are 0.0 until known."""

    arrival: float
    """Our monotonic clock, in seconds."""

    prompt_tokens: int
    max_tokens: int | None
    num_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    corrupted: bool = False
    ended_at: float = 0.0
    """Our monotonic clock."""

    queued_at: float = 0.0
    """This and the next ones: the engine's clock."""

    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    """Infinite between two engines."""

    left_after: float = 0.0
    """When the last token came from the engine that was lost, by the clock of that."""

    clock_offset: float = 0.0
    """How far that clock was ahead of ours, in seconds."""

    def start_over(self) -> None:
        """Forget what the engine said about it: another one will say it anew."""
        self.queued_at = self.scheduled_at = 0.0

    def release(self, clock_offset: float) -> None:
        """Take note that another engine goes on with the request; ``adopt`` or ``settle`` is next.

        *clock_offset* is how far the clock of the one that it leaves is ahead of ours.
        """
        if self.last_token_at != math.inf:
            self.left_after, self.clock_offset = self.last_token_at, clock_offset
            self.last_token_at = math.inf

    def settle(self) -> None:
        """Take note that no engine went on with it."""
        if self.last_token_at == math.inf:
            self.last_token_at = self.left_after

    def adopt(self, clock_offset: float) -> None:
        """Move the marks over to the clock of the engine that goes on with the request."""
        shift = clock_offset - self.clock_offset
        self.left_after += shift
        self.queued_at += shift if self.queued_at else 0.0
        self.scheduled_at += shift if self.scheduled_at else 0.0
        self.first_token_at += shift if self.first_token_at else 0.0
