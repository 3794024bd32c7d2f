"""Internal ids: what the engine knows a request by."""

import secrets


class IdSource:
    """Makes an id of the engine's from a client's, never the same twice.

    Engines drop the later of an ABORT and an ADD with one id, and die of two live requests with
    one id; so clients' ids get a suffix that counts on from a random start.
    """

    def __init__(self, *, randomize: bool = True) -> None:
        """Make ids.

        Args:
            randomize: False uses clients' ids as they are; who asks for that promises that they
                are unique.
        """
        self._randomize = randomize
        self._next = secrets.randbits(32)

    def internal(self, public_id: str) -> str:
        """Return ``<public id>-<8 hexadecimal digits>``, or the public one where that is asked."""
        return self.fresh(public_id) if self._randomize else public_id

    def fresh(self, public_id: str) -> str:
        """Return one that no engine has seen, for a request that is sent again."""
        self._next = (self._next + 1) & 0xFFFF_FFFF
        return f"{public_id}-{self._next:08x}"
