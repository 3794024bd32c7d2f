"""Cross-origin resource sharing, as the peer answers it."""

from collections.abc import Sequence

import attrs

from vllmfront.api.http import Headers, HttpRequest

MAX_AGE_SECONDS = 600
ALL_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


@attrs.frozen(kw_only=True)
class CorsPolicy:
    """Which origins may call us from a browser. ``*`` in a list means any."""

    allowed_origins: Sequence[str] = ()
    allowed_methods: Sequence[str] = ("*",)
    allowed_headers: Sequence[str] = ("*",)
    allow_credentials: bool = False

    def headers(self, request: HttpRequest) -> Headers:
        """Return the headers that an answer to *request* carries; none without an ``Origin``."""
        origin = request.header(b"origin")
        if origin is None:
            return ()
        answer: list[tuple[bytes, bytes]] = [(b"vary", b"origin")]
        if self._allows(origin):
            answer.append((b"access-control-allow-origin", origin))
            if self.allow_credentials:
                answer.append((b"access-control-allow-credentials", b"true"))
        if request.method == "OPTIONS":
            answer += self._preflight(request)
        return answer

    def _allows(self, origin: bytes) -> bool:
        return "*" in self.allowed_origins or origin.decode("latin-1") in self.allowed_origins

    def _preflight(self, request: HttpRequest) -> list[tuple[bytes, bytes]]:
        methods = ALL_METHODS if "*" in self.allowed_methods else tuple(self.allowed_methods)
        answer = [
            (b"access-control-allow-methods", ",".join(methods).encode()),
            (b"access-control-max-age", str(MAX_AGE_SECONDS).encode()),
        ]
        wanted = request.header(b"access-control-request-headers")
        if "*" not in self.allowed_headers:
            answer.append(
                (b"access-control-allow-headers", ",".join(self.allowed_headers).encode())
            )
        elif wanted is not None:
            answer.append((b"access-control-allow-headers", wanted))
        return answer
