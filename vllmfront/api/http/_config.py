"""What an operator may set about the HTTP server: limits, patience, addresses, certificates."""

import attrs
from attrs import validators

KIB = 1024
MIB = 1024 * KIB


@attrs.frozen(kw_only=True)
class TlsConfig:
    """Where certificates come from; the names follow the command line's ``--ssl-...`` flags."""

    certfile: str | None = None
    """Certificate chain in PEM; holds the key too unless ``keyfile`` is given."""

    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = 0
    """0: clients show no certificate; 1: may, and it must be good; 2: must."""

    ciphers: str | None = None
    """An OpenSSL cipher list; affects TLS 1.2 only."""

    handshake_timeout: float = attrs.field(default=10.0, validator=validators.gt(0))
    """Seconds from accepting a connection to the end of its handshake."""


@attrs.frozen(kw_only=True)
class HttpConfig:
    """Limits and patience of one server. Times are in seconds, sizes in bytes."""

    keep_alive_timeout: float = attrs.field(default=5.0, validator=validators.ge(0))
    """How long a connection may idle between requests; 0 closes after each response."""

    first_request_timeout: float = attrs.field(default=5.0, validator=validators.gt(0))
    """How long a new connection may send nothing, where keep-alive is switched off."""

    header_timeout: float = attrs.field(default=10.0, validator=validators.gt(0))
    """From a request head's first byte to its last."""

    body_timeout: float = attrs.field(default=60.0, validator=validators.gt(0))
    """How long a body may make no progress."""

    send_timeout: float = attrs.field(default=60.0, validator=validators.gt(0))
    """How long a client may accept no byte of what waits for it."""

    linger_timeout: float = attrs.field(default=3.0, validator=validators.gt(0))
    """How long a closing connection waits for the client to read and hang up."""

    max_head_bytes: int = attrs.field(default=128 * KIB, validator=validators.gt(0))
    """Request line and headers; chunk extensions and trailers together have as much again."""

    max_headers: int = attrs.field(default=100, validator=validators.gt(0))
    max_target_bytes: int = attrs.field(default=65_534, validator=validators.gt(0))
    max_body_bytes: int = attrs.field(default=32 * MIB, validator=validators.ge(0))
    max_unsent_bytes: int = attrs.field(default=16 * MIB, validator=validators.gt(0))
    """A streamed response that piles up more than this is cut; whole responses are exempt."""

    reserved_descriptors: int = attrs.field(default=0, validator=validators.ge(0))
    """As many connections are accepted when the process has run out of descriptors."""

    tls: TlsConfig | None = None
