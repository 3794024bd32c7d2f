"""TLS without a stream of its own: bytes in, bytes out, between a socket and a connection."""

import contextlib
import ssl
from pathlib import Path

from vllmfront.api.http._config import TlsConfig
from vllmfront.errors import ConfigurationError

_CERT_REQS = {0: ssl.CERT_NONE, 1: ssl.CERT_OPTIONAL, 2: ssl.CERT_REQUIRED}


def make_tls_context(config: TlsConfig) -> ssl.SSLContext:
    """Load what *config* names. Reads files; call it at start-up and to reload.

    Raises:
        ConfigurationError: A file is missing or unusable, or the options contradict each other.
    """
    if config.certfile is None:
        raise ConfigurationError("TLS options need a certificate: set --ssl-certfile")
    if config.cert_reqs not in _CERT_REQS:
        raise ConfigurationError(f"--ssl-cert-reqs must be 0, 1 or 2, not {config.cert_reqs}")
    if config.cert_reqs and config.ca_certs is None:
        raise ConfigurationError(
            f"--ssl-cert-reqs {config.cert_reqs} checks client certificates: set --ssl-ca-certs"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _load_certificate(context, config.certfile, config.keyfile)
    if config.ca_certs is not None:
        _load_authorities(context, config.ca_certs)
    context.verify_mode = _CERT_REQS[config.cert_reqs]
    if config.ciphers is not None:
        try:
            context.set_ciphers(config.ciphers)
        except ssl.SSLError as error:
            message = f"--ssl-ciphers names no usable cipher: {config.ciphers!r}"
            raise ConfigurationError(message) from error
    return context


def _load_certificate(context: ssl.SSLContext, certfile: str, keyfile: str | None) -> None:
    for flag, path in (("--ssl-certfile", certfile), ("--ssl-keyfile", keyfile)):
        _check_readable(flag, path)
    try:
        context.load_cert_chain(certfile, keyfile, password=_refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"the private key in {keyfile or certfile} does not fit the certificate"
        else:
            message = f"cannot use the certificate {certfile} with key {keyfile or certfile}"
        raise ConfigurationError(f"{message}: {error.reason or error}") from error
    except OSError as error:  # being replaced at this moment
        raise ConfigurationError(f"cannot read {certfile}: {error.strerror}") from error


def _load_authorities(context: ssl.SSLContext, ca_certs: str) -> None:
    _check_readable("--ssl-ca-certs", ca_certs)
    try:
        context.load_verify_locations(ca_certs)
    except ssl.SSLError as error:
        message = f"--ssl-ca-certs {ca_certs} holds no usable certificate"
        raise ConfigurationError(message) from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {ca_certs}: {error.strerror}") from error


def _check_readable(flag: str, path: str | None) -> None:
    if path is None:
        return
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise ConfigurationError(f"cannot read {flag} {path}: {error.strerror}") from error


def _refuse_passphrase() -> str:
    raise ConfigurationError("the private key needs a passphrase; store it without one")


class TlsSession:
    """The server side of one TLS connection. Pure: it never touches a socket."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._parted = False
        self.established = False
        self.failed = False
        """The peer broke the protocol; only ``take_outgoing`` makes sense, for the alert."""

        self.input_ended = False
        """The peer said goodbye."""

    def feed(self, data: bytes) -> bytes:
        """Take encrypted bytes; return what they hold for the application."""
        self._incoming.write(data)
        try:
            if not self.established:
                self._object.do_handshake()
                self.established = True
            return self._read_all()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError:
            self.failed = True
            return b""

    def _read_all(self) -> bytes:
        pieces = []
        try:
            while piece := self._object.read(65536):
                pieces.append(piece)
            self.input_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.input_ended = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        """Return what the protocol itself wants to send: handshake, alerts, key updates."""
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        """Return the goodbye, once and if there is anybody; the peer's own is not waited for."""
        if not self.established or self._parted:
            return b""
        self._parted = True
        with contextlib.suppress(ssl.SSLError):
            self._object.unwrap()
        return self._outgoing.read()
