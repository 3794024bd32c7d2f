"""Internal ids: what the engine knows a request by."""

import secrets

_GOLDEN_STEP = 0x9E37_79B9
"""2**32 divided by the golden ratio: its multiples keep away from each other, however many."""


def first_id_after(first: int) -> int:
    """Return where a client may begin to count that follows one which began at *first*.

    Both have the same engines, which may still know ids of that one and of others before it. Of
    forty clients in a row each can make forty million ids until it meets another's.
    """
    return (first + _GOLDEN_STEP) & 0xFFFF_FFFF


class IdSource:
    """Makes an id of the engine's from a client's, never the same twice.

    Engines drop the later of an ABORT and an ADD with one id, and die of two live requests with
    one id; so clients' ids get a suffix that counts on from a random start.
    """

    def __init__(self, *, randomize: bool = True, first: int | None = None) -> None:
        """Make ids.

        Args:
            randomize: False uses clients' ids as they are; who asks for that promises that they
                are unique.
            first: Where the count begins, 32 bits; None begins anywhere.
        """
        self._randomize = randomize
        self.first = secrets.randbits(32) if first is None else first
        """Where the count began."""

        self._next = self.first

    def internal(self, public_id: str) -> str:
        """Return ``<public id>-<8 hexadecimal digits>``, or the public one where that is asked."""
        return self.fresh(public_id) if self._randomize else public_id

    def made(self, internal_id: str) -> bool:
        """Tell whether *internal_id* is one of ours; of those without a suffix nobody knows."""
        suffix = internal_id.rpartition("-")[2]
        try:
            number = int(suffix, 16)
        except ValueError:
            return True
        return 0 < (number - self.first) & 0xFFFF_FFFF <= (self._next - self.first) & 0xFFFF_FFFF

    def fresh(self, public_id: str) -> str:
        """Return one that no engine has seen, for a request that is sent again."""
        self._next = (self._next + 1) & 0xFFFF_FFFF
        return f"{public_id}-{self._next:08x}"
