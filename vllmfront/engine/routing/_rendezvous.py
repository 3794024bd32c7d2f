"""Rendezvous hashing: several frontends choose the same rank for a key, and say nothing to it.

Should a rank be missing, only its own keys go elsewhere.
"""

from collections.abc import Sequence

from vllmfront.engine.routing._load import C

_MASK = 2**64 - 1


def rendezvous(candidates: Sequence[C], key: int) -> C:
    """Return the one of *candidates* that *key*, of 64 bits, belongs to."""
    return max(candidates, key=lambda each: _mix(key, each.rank))


def _mix(key: int, rank: int) -> int:
    """Return bits that depend on all of both (the finish of SplitMix64)."""
    bits = (key + (rank + 1) * 0x9E37_79B9_7F4A_7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return bits ^ (bits >> 31)
