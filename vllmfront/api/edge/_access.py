"""Who may call what: API keys, deny by default."""

import hashlib
import hmac
from collections.abc import Sequence

from vllmfront.api.developer import DEVELOPER_PATHS
from vllmfront.api.http import HttpRequest

OPEN_PATHS = frozenset({"/health", "/ping", "/live", "/ready", "/metrics", "/version"})
"""What load balancers and scrapers need, and no more."""

ADMIN_PATHS = frozenset(
    {
        *("/supervisor", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
        *DEVELOPER_PATHS,
    }
)
"""What shows the server's inside or changes its state: for operators, not for its users."""


class AccessControl:
    """Checks ``Authorization: Bearer KEY`` against the configured keys.

    Every path needs a key except ``OPEN_PATHS``; ``OPTIONS`` is exempt, so that browsers can ask
    for CORS. ``ADMIN_PATHS`` need an admin key where there are any, and no other will do then. The
    scheme is read in any case, followed by exactly one space; keys are compared as digests, each
    against all, in constant time.
    """

    def __init__(self, api_keys: Sequence[str], admin_keys: Sequence[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in api_keys]
        self._admin_digests = [_digest(key.encode()) for key in admin_keys] or self._digests

    @property
    def enabled(self) -> bool:
        """Whether any path needs a key."""
        return bool(self._digests or self._admin_digests)

    def allows(self, request: HttpRequest) -> bool:
        """Tell whether *request* may go on to its route."""
        digests = self._admin_digests if request.path in ADMIN_PATHS else self._digests
        if not digests or request.path in OPEN_PATHS or request.method == "OPTIONS":
            return True
        header = request.header(b"authorization")
        if header is None:
            return False
        scheme, space, key = header.partition(b" ")
        if not space or scheme.lower() != b"bearer":
            return False
        offered = _digest(key)
        matches = [hmac.compare_digest(offered, digest) for digest in digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
