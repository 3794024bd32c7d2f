"""Asking a server for its state, over TCP, TLS or a Unix socket."""

import http.client
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import attrs
import msgspec

from vllmfront.cli._errors import UsageError
from vllmfront.cli._status_report import Health, Inside, read_health, read_inside

PATIENCE = 5.0
"""Seconds for an answer: a server that takes longer is not well."""

T = TypeVar("T")

_OK, _UNAUTHORIZED, _UNAVAILABLE = 200, 401, 503


class Unreachable(Exception):
    """Raised when nobody answers, or none that speaks like this server."""


@attrs.frozen(kw_only=True)
class Status:
    """What a server said."""

    health: Health
    inside: Inside | None
    """None where the key does not open it; ``locked`` then says what to do."""

    locked: str = ""


@attrs.frozen
class StatusClient:
    """Asks one server, on a connection of its own each time."""

    url: SplitResult
    api_key: str | None

    @classmethod
    def at(cls, url: str, api_key: str | None) -> "StatusClient":
        """Make a client.

        Raises:
            UsageError: *url* is none that can be asked.
        """
        parts = urlsplit(url)
        if not _is_address(parts):
            raise UsageError(
                f"invalid value '{url}' for '--url <URL>': expected http://HOST:PORT, "
                "https://HOST:PORT or unix:PATH"
            )
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise UsageError("the key for '--api-key <KEY>' is none that can be sent")
        return cls(parts, api_key)

    def ask(self) -> Status:
        """Ask for the state of the server and of what it runs.

        Raises:
            Unreachable: It does not answer, or is another kind of server.
        """
        status, body = self._get("/ready")
        if status not in {_OK, _UNAVAILABLE}:
            raise Unreachable(f"this is no vllmfront server: /ready answered {status}")
        health = _decode(read_health, body)
        status, body = self._get("/supervisor")
        if status == _UNAUTHORIZED:
            return Status(health=health, inside=None, locked=self._locked())
        if status != _OK:
            raise Unreachable(f"this is no vllmfront server: /supervisor answered {status}")
        return Status(health=health, inside=_decode(read_inside, body))

    def _locked(self) -> str:
        if self.api_key is None:
            return (
                "more needs a key: give the server's --admin-api-key, or its --api-key where it "
                "has no other, with --api-key KEY or in VLLM_API_KEY"
            )
        return "more needs another key: the server's --admin-api-key, where it has one"

    def _get(self, path: str) -> tuple[int, bytes]:
        headers = {"accept": "application/json", "connection": "close"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        connection = self._connection()
        try:
            connection.request("GET", self._prefix + path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(_explain(error)) from error
        finally:
            connection.close()

    @property
    def _prefix(self) -> str:
        """What stands before the server's paths, where a proxy put something there."""
        return "" if self.url.scheme == "unix" else self.url.path.rstrip("/")

    def _connection(self) -> http.client.HTTPConnection:
        if self.url.scheme == "unix":
            return _UnixConnection(self.url.path)
        host = self.url.hostname or ""
        if self.url.scheme == "https":
            return http.client.HTTPSConnection(host, self.url.port, timeout=PATIENCE)
        return http.client.HTTPConnection(host, self.url.port, timeout=PATIENCE)


def _is_address(url: SplitResult) -> bool:
    if url.scheme == "unix":
        return bool(url.path)
    try:
        return url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:  # the port is no number, or too large
        return False


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


def _decode(read: Callable[[bytes], T], body: bytes) -> T:
    try:
        return read(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"this server speaks otherwise than this program: {error}") from error


def _explain(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}); name the file of the "
            "authority in SSL_CERT_FILE"
        )
    if isinstance(error, TimeoutError):
        return f"no answer within {PATIENCE:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
