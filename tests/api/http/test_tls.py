# ruff: noqa: ARG001  # pytest-trio takes the clock from the arguments of a test
"""TLS, with real certificates and the standard library's own clients."""

import ssl
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trustme
from trio.testing import MockClock

from tests.api.http.rig import Rig, echo, open_rig
from vllmfront.api.http import HttpConfig, HttpRequest, ResponseWriter, TlsConfig
from vllmfront.errors import ConfigurationError


@attrs.define
class Papers:
    """Certificates of one authority, as files."""

    authority: trustme.CA
    folder: Path

    def issue(self, name: str = "localhost") -> TlsConfig:
        certificate = self.authority.issue_cert(name)
        both, key, chain = (self.folder / part for part in ("both.pem", "key.pem", "chain.pem"))
        certificate.private_key_and_cert_chain_pem.write_to_path(both)
        certificate.private_key_pem.write_to_path(key)
        chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        self.authority.cert_pem.write_to_path(self.folder / "ca.pem")
        return TlsConfig(certfile=str(both))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def spoil(self, name: str) -> None:
        (self.folder / name).write_text("rubbish")

    def client_context(self, *, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if certificate is not None:
            certificate.configure_cert(context)
        return context


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(trustme.CA(), tmp_path)


async def connect(rig: Rig, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    client = await rig.connect()
    return trio.SSLStream(client.stream, context, server_hostname="localhost")


async def ask(rig: Rig, context: ssl.SSLContext, data: bytes = b"GET / HTTP/1.1\r\n\r\n") -> bytes:
    stream = await connect(rig, context)
    await stream.send_all(data)
    received = b""
    while not received.endswith(b"!"):
        piece = await stream.receive_some()
        if not piece:
            break
        received += piece
    return received


async def test_a_request_over_tls_is_answered(papers: Papers) -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        assert request.scheme == "https"
        await echo(request, response)

    async with open_rig(handler, HttpConfig(tls=papers.issue())) as rig:
        assert (await ask(rig, papers.client_context())).endswith(b"GET / 0!")


async def test_certificate_and_key_may_be_two_files(papers: Papers) -> None:
    papers.issue()
    tls = TlsConfig(certfile=papers.path("chain.pem"), keyfile=papers.path("key.pem"))
    async with open_rig(echo, HttpConfig(tls=tls)) as rig:
        assert (await ask(rig, papers.client_context())).endswith(b"GET / 0!")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_large_bodies_pass_both_ways(papers: Papers, version: ssl.TLSVersion) -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.start(200, [])
        for begin in range(0, len(request.body), 100_000):
            response.write(request.body[begin : begin + 100_000])
        response.finish(b"!")

    body = bytes(range(256)) * 12_000
    context = papers.client_context()
    context.minimum_version = context.maximum_version = version
    async with open_rig(handler, HttpConfig(tls=papers.issue())) as rig:
        stream = await connect(rig, context)
        request = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        received = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, request)
            while not received.endswith(b"!\r\n0\r\n\r\n"):
                received += await stream.receive_some()

        assert stream.version() == f"TLSv1.{version.value - 0x301}"
        assert len(received) > len(body)


@pytest.mark.parametrize("reqs", [0, 1, 2])
@pytest.mark.parametrize("shown", ["none", "good", "foreign"])
async def test_client_certificates(papers: Papers, reqs: int, shown: str) -> None:
    tls = attrs.evolve(papers.issue(), cert_reqs=reqs, ca_certs=papers.path("ca.pem"))
    issuer = {"none": None, "good": papers.authority, "foreign": trustme.CA()}[shown]
    certificate = None if issuer is None else issuer.issue_cert("client")
    welcome = reqs == 0 or shown == "good" or (reqs == 1 and shown == "none")

    async with open_rig(echo, HttpConfig(tls=tls)) as rig:
        try:
            answer = await ask(rig, papers.client_context(certificate=certificate))
        except trio.BrokenResourceError:
            answer = b""

        assert answer.endswith(b"!") is welcome
        assert rig.server.statistics().requests_total == int(welcome)


async def test_plain_http_to_a_tls_port_is_dropped(papers: Papers) -> None:
    async with open_rig(echo, HttpConfig(tls=papers.issue())) as rig:
        answer = await rig.ask(b"GET / HTTP/1.1\r\n\r\n")

        assert b"HTTP" not in answer
        await rig.server.wait_drained()


async def test_old_versions_are_refused(papers: Papers) -> None:
    context = papers.client_context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with open_rig(echo, HttpConfig(tls=papers.issue())) as rig:
        with pytest.raises(trio.BrokenResourceError):
            await ask(rig, context)


async def test_a_reload_is_for_connections_to_come(papers: Papers) -> None:
    async with open_rig(echo, HttpConfig(tls=papers.issue())) as rig:
        old = await connect(rig, papers.client_context())
        await old.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await old.receive_some()
        renewed = Papers(trustme.CA(), papers.folder)
        renewed.issue()
        rig.server.reload_tls()

        assert (await ask(rig, renewed.client_context())).endswith(b"!")
        with pytest.raises(trio.BrokenResourceError):
            await ask(rig, papers.client_context())
        await old.send_all(b"GET /again HTTP/1.1\r\n\r\n")
        assert b"/again" in await old.receive_some()


async def test_a_reload_that_fails_changes_nothing(papers: Papers) -> None:
    async with open_rig(echo, HttpConfig(tls=papers.issue())) as rig:
        papers.spoil("both.pem")
        with pytest.raises(ConfigurationError, match="cannot use the certificate"):
            rig.server.reload_tls()

        assert (await ask(rig, papers.client_context())).endswith(b"!")


async def test_without_tls_there_is_nothing_to_reload() -> None:
    async with open_rig(echo) as rig:
        with pytest.raises(ConfigurationError, match="TLS is off"):
            rig.server.reload_tls()


async def test_goodbyes_are_said(papers: Papers) -> None:
    """Our close alert tells a truncated answer from a whole one."""
    async with open_rig(echo, HttpConfig(tls=papers.issue())) as rig:
        stream = await connect(rig, papers.client_context())
        await stream.send_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := await stream.receive_some():
            received += piece
        await stream.aclose()

        assert received.endswith(b"GET / 0!")
        await rig.server.wait_drained()


async def test_a_last_word_at_the_shutdown_is_followed_by_a_goodbye(papers: Papers) -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [])
        response.write(b"begun")
        try:
            await trio.sleep_forever()
        finally:
            response.finish(b"cut short")

    async with open_rig(handler, HttpConfig(tls=papers.issue())) as rig:
        stream = await connect(rig, papers.client_context())
        idle = await connect(rig, papers.client_context())
        await idle.do_handshake()
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        received = await stream.receive_some()
        rig.server.abort_connections()
        while piece := await stream.receive_some():
            received += piece

        assert received.endswith(b"cut short\r\n0\r\n\r\n")
        assert await idle.receive_some() == b""


async def test_a_clients_goodbye_counts_as_leaving(papers: Papers) -> None:
    causes: list[str | None] = []

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [])
        response.write(b"begun")
        try:
            await trio.sleep_forever()
        finally:
            causes.append(request.close_cause)

    async with open_rig(handler, HttpConfig(tls=papers.issue())) as rig:
        stream = await connect(rig, papers.client_context())
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await stream.receive_some()
        await stream.aclose()
        with trio.fail_after(2):
            await rig.server.wait_drained()

    assert causes == ["client gone"]


@pytest.fixture
def clock() -> MockClock:
    """Time jumps when nothing has happened for a moment: the kernel takes real time."""
    return MockClock(autojump_threshold=0.05)


@pytest.mark.parametrize("beginning", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x00\x05"])
async def test_a_handshake_must_end_in_time(
    clock: MockClock, papers: Papers, beginning: bytes
) -> None:
    tls = attrs.evolve(papers.issue(), handshake_timeout=7.0)
    async with open_rig(echo, HttpConfig(tls=tls)) as rig:
        client = await rig.connect()
        await client.send(beginning)

        assert await client.read_all() == b""
        assert round(trio.current_time(), 1) == 7.0


async def test_a_goodbye_that_is_not_answered_is_not_waited_for_long(
    clock: MockClock, papers: Papers
) -> None:
    async with open_rig(echo, HttpConfig(tls=papers.issue())) as rig:
        stream = await connect(rig, papers.client_context())
        await stream.send_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        await stream.receive_some()
        await stream.transport_stream.send_all(b"data after the close alert")
        await rig.server.wait_drained()

        assert trio.current_time() <= 6.0


async def test_who_reads_nothing_over_tls_is_cut_off(clock: MockClock, papers: Papers) -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.respond(200, b"x" * 20_000_000)

    async with open_rig(handler, HttpConfig(tls=papers.issue())) as rig:
        stream = await connect(rig, papers.client_context())
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await trio.sleep(70)
        await rig.server.wait_drained()

        assert rig.server.statistics().ended == {"client stalled": 1}


async def test_garbage_in_a_tls_session_ends_it(papers: Papers) -> None:
    async with open_rig(echo, HttpConfig(tls=papers.issue())) as rig:
        stream = await connect(rig, papers.client_context())
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await stream.receive_some()
        await stream.transport_stream.send_all(b"\x17\x03\x03\x00\x10" + b"x" * 16)
        with trio.fail_after(2):
            await rig.server.wait_drained()


WRONG = [
    ({"certfile": None, "keyfile": "key.pem"}, "set --ssl-certfile"),
    ({"certfile": None, "ca_certs": "ca.pem"}, "set --ssl-certfile"),
    ({"keyfile": "other.pem"}, "does not fit the certificate"),
    ({"certfile": "missing.pem"}, "cannot read --ssl-certfile .*missing.pem: No such file"),
    ({"keyfile": "missing.pem"}, "cannot read --ssl-keyfile"),
    ({"certfile": "rubbish.pem"}, "cannot use the certificate"),
    ({"certfile": "chain.pem"}, "cannot use the certificate"),
    ({"ca_certs": "rubbish.pem"}, "holds no usable certificate"),
    ({"ca_certs": "missing.pem"}, "cannot read --ssl-ca-certs"),
    ({"cert_reqs": 3}, "must be 0, 1 or 2, not 3"),
    ({"cert_reqs": -1}, "must be 0, 1 or 2, not -1"),
    ({"cert_reqs": 1}, "--ssl-cert-reqs 1 .* set --ssl-ca-certs"),
    ({"cert_reqs": 2}, "--ssl-cert-reqs 2 .* set --ssl-ca-certs"),
    ({"ciphers": "NO-SUCH"}, "names no usable cipher: 'NO-SUCH'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
async def test_wrong_options_end_the_start(
    papers: Papers, changes: dict[str, Any], message: str
) -> None:
    tls = papers.issue()
    papers.authority.issue_cert("other").private_key_pem.write_to_path(papers.path("other.pem"))
    papers.spoil("rubbish.pem")
    wrong: dict[str, Any] = {
        name: papers.path(value) if isinstance(value, str) and value.endswith(".pem") else value
        for name, value in changes.items()
    }

    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigurationError, match=message), flatten_subgroups=True
    ):
        async with open_rig(echo, HttpConfig(tls=attrs.evolve(tls, **wrong))):
            pass
