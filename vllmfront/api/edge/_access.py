"""Who may call what: API keys, deny by default."""

import hashlib
import hmac
from collections.abc import Sequence

from vllmfront.api.http import HttpRequest

OPEN_PATHS = frozenset({"/health", "/ping", "/live", "/ready", "/metrics", "/version"})
"""What load balancers and scrapers need, and no more."""


class AccessControl:
    """Checks ``Authorization: Bearer KEY`` against the configured keys.

    Every path needs a key except ``OPEN_PATHS``; ``OPTIONS`` is exempt, so that browsers can ask
    for CORS. The scheme is read in any case, followed by exactly one space; keys are compared as
    digests, each against all, in constant time.
    """

    def __init__(self, api_keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in api_keys]

    @property
    def enabled(self) -> bool:
        return bool(self._digests)

    def allows(self, request: HttpRequest) -> bool:
        """Tell whether *request* may go on to its route."""
        if not self._digests or request.path in OPEN_PATHS or request.method == "OPTIONS":
            return True
        header = request.header(b"authorization")
        if header is None:
            return False
        scheme, space, key = header.partition(b" ")
        if not space or scheme.lower() != b"bearer":
            return False
        offered = _digest(key)
        matches = [hmac.compare_digest(offered, digest) for digest in self._digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
