"""Versions of the weights, and what makes one. Light: trainers start often."""

from typing import Any


def pieces_of(version: str, count: int) -> list[dict[str, Any]]:
    """Return what a trainer sends to make the weights of *version*."""
    return [{"version": version, "piece": number, "of": count} for number in range(count)]


def version_name(cycle: int, trainer: str, pieces: int) -> str:
    """Return a name that tells what the weights are made of."""
    return f"c{cycle}-{trainer}-{pieces}"
