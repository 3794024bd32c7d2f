"""What is remembered about one engine request until it ends."""


class RequestRecord:
    """Marks of one engine request's life. Times of the engine's clock are 0.0 until known."""

    __slots__ = (
        "arrival",
        "cached_tokens",
        "corrupted",
        "ended_at",
        "first_token_at",
        "last_token_at",
        "max_tokens",
        "num_tokens",
        "preemptions",
        "prompt_tokens",
        "queued_at",
        "scheduled_at",
    )

    def __init__(self, *, arrival: float, prompt_tokens: int, max_tokens: int | None) -> None:
        self.arrival = arrival
        """Our monotonic clock, in seconds."""

        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.corrupted = False
        self.ended_at = 0.0
        """Our monotonic clock."""

        # The engine's clock:
        self.queued_at = 0.0
        self.scheduled_at = 0.0
        self.first_token_at = 0.0
        self.last_token_at = 0.0
