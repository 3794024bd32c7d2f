"""How much busier than others a rank may be for the sake of what it has in its cache."""

from collections.abc import Sequence

from vllmfront.engine.routing._load import C

SLACK = 4
"""A rank may always have so many requests more than the least busy one."""

RATIO = 1.25
"""And so many times as many. ``benchmarks/bench_routing.py``: with 1.1 a twentieth of the hits is
lost, with 1.5 a fiftieth is won, and the spread of running requests is half or one and a half of
this."""


def not_overloaded(candidates: Sequence[C]) -> list[C]:
    """Return those of *candidates* that may be preferred to the least busy, which is among them."""
    scores = [candidate.load.score() for candidate in candidates]
    least = min(scores)
    limit = max(least + SLACK, least * RATIO)
    return [each for each, score in zip(candidates, scores, strict=True) if score <= limit]
