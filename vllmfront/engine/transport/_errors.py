"""What can go wrong between two sockets."""

from vllmfront.errors import VllmFrontError


class PeerGone(VllmFrontError):
    """Raised when a message is for a peer that is not, or no longer, connected."""

    def __init__(self, identity: bytes) -> None:
        super().__init__(f"no peer with identity {identity.hex()} is connected")
        self.identity = identity
