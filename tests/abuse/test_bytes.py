"""Clients that send what is no request, too much of it, too slowly, or read nothing."""

import contextlib
import json
import random
import re
import resource
import socket
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from tests.abuse.rig import (
    BUDGET,
    COMPLETIONS,
    LONG,
    MIB,
    Books,
    Engine,
    Frontend,
    get,
    open_engine,
    parse_answer,
    post,
    running_frontend,
    until,
    until_async,
)

GOOD = post(COMPLETIONS, {"prompt": "hi", "max_tokens": 1}, close=False)
LAST = post(COMPLETIONS, {"prompt": "hi", "max_tokens": 1})


def statuses(data: bytes) -> list[int]:
    """Return the statuses of all answers in *data*, whose bodies must not look like heads."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+) ", data)]


def garbage() -> list[bytes]:
    chance = random.Random(7)
    noise = [chance.randbytes(chance.choice([1, 17, 1000, 200_000])) for _ in range(12)]
    bitten = []
    for _ in range(40):
        data = bytearray(LAST)
        for _ in range(chance.choice([1, 2, 8])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        bitten.append(bytes(data))
    special = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(500),  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"\x00" * 300_000,
        b"\r\n" * 200_000,
        b"GET / HTTP/1.1\r\n\r\n"[::-1],
        b"GET  /health HTTP/1.1\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"EHLO x\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ]
    return noise + bitten + special


async def test_garbage_is_refused_and_forgotten(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    async def throw(data: bytes) -> None:
        async with frontend.connect() as client:
            with contextlib.suppress(OSError):
                await client.send(data)
                client.socket.shutdown(socket.SHUT_WR)
            received = await client.read_all()

            assert received == b"" or statuses(received)[0] < 500, (data, received)

    async with trio.open_nursery() as nursery:
        for data in garbage():
            nursery.start_soon(throw, data)
    await frontend.settle(base)
    await frontend.check_works()

    assert engine.busy == 0


DOUBTFUL = [
    # Two readers of one message must not disagree about where it ends.
    (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
    (b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400),
    (b"Content-Length: 5, 5\r\n\r\nhello", 400),
    (b"Content-Length: +5\r\n\r\nhello", 400),
    (b"Content-Length: -1\r\n\r\nhello", 400),
    (b"Content-Length: 0x5\r\n\r\nhello", 400),
    (b"Content-Length: 5\x00\r\n\r\nhello", 400),
    (b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    (b"Content-Length: \xb2\r\n\r\n", 400),
    (b"Content-Length : 5\r\n\r\nhello", 400),
    (b"Content-Length\r\n: 5\r\n\r\nhello", 400),
    (b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    (b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n1_0\r\na\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n1\na\n0\n\n", 400),
    (b" folded: x\r\n\r\n", 400),
    (b"Host: y\r\n\r\n", 400),
    (b"X: a\rb\r\n\r\n", 400),
    (b"X: a\x00b\r\n\r\n", 400),
    (b"X: a\nContent-Length: 5\r\n\r\nhello", 400),
    (b": nameless\r\n\r\n", 400),
    (b"A B: c\r\n\r\n", 400),
    (b"X: " + b"x" * 200_000 + b"\r\n\r\n", 431),
    (b"".join(b"X-%d: y\r\n" % number for number in range(500)) + b"\r\n", 431),
    (b"A:\r\n" * 20_000 + b"\r\n", 431),
    (b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" + b"e" * 200_000 + b"\r\na\r\n", 431),
    (b"Transfer-Encoding: chunked\r\n\r\n" + b"1;eeeeeeeeeeee\r\na\r\n" * 20_000, 431),
    (b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"T: x\r\n" * 40_000 + b"\r\n", 431),
]
"""Headers and body of a POST, and the status that refuses it."""


async def test_doubtful_and_oversized_requests_are_refused_and_nothing_behind_them_is_read(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    begin = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for data, status in DOUBTFUL:
        received = await frontend.exchange(begin + data + LAST)

        assert statuses(received) == [status], data[:100]
    await frontend.settle(base)
    await frontend.check_works()

    assert len(engine.adds) == 1


async def test_a_target_without_end_is_refused(frontend: Frontend, base: Books) -> None:
    received = await frontend.exchange(b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\n\r\n")
    await frontend.settle(base)

    assert statuses(received) == [414]


async def test_a_body_on_get_is_no_second_request(frontend: Frontend, base: Books) -> None:
    inner = get("/v1/models")
    outer = b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner)
    received = await frontend.exchange(outer + inner + get("/version"))
    await frontend.settle(base)

    assert statuses(received) == [200, 200]
    assert b"vllmfront_version" in received
    assert b'"object":"list"' not in received


async def test_a_pipeline_is_answered_in_order(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    received = await frontend.exchange(GOOD * 50 + LAST)
    await frontend.settle(base)

    assert statuses(received) == [200] * 51
    assert len(engine.adds) == 51


async def test_a_flood_of_pipelined_requests_that_nobody_reads_is_bounded(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    """It stops reading what it cannot answer, and cuts off who takes no answer."""
    flood = (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000) * 20
    async with frontend.connect(receive_buffer=4096) as client:
        with contextlib.suppress(OSError):
            await client.send(flood)
        await until_async(lambda: _is_over(client.socket))
    await frontend.settle(base)
    await frontend.check_works()
    del engine


async def _is_over(sock: trio.socket.SocketType) -> bool:
    """Whether the other side has cut the connection, without reading from it."""
    await trio.lowlevel.checkpoint()
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO) != 1


@pytest.mark.slow
async def test_a_client_that_reads_nothing_costs_little_and_is_cut_off(
    frontend: Frontend,
) -> None:
    async with open_engine(frontend, step_time=0.002, tokens_per_output=4) as engine:
        await frontend.check_works()
        engine.heard.clear()
        base = await frontend.books()
        body = {**LONG, "n": 8, "temperature": 1.0, "stream": True, "logprobs": 5}
        most = 0
        async with frontend.connect(receive_buffer=4096) as client:
            await client.send(post(COMPLETIONS, body))
            with trio.fail_after(BUDGET):
                while not engine.aborted:
                    most = max(most, frontend.rss())
                    await trio.sleep(0.01)
        after = await frontend.settle(base)
        await frontend.check_works()

    assert sorted(engine.aborted) == sorted(add.internal_id for add in engine.adds[:8])
    assert after.ends["client_stalled"] == base.ends["client_stalled"] + 1
    assert most - base.rss < 40 * MIB


async def test_a_client_that_half_closes_has_gone(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    async with frontend.connect() as client:
        await client.send(post(COMPLETIONS, {**LONG, "stream": True}))
        await client.read_until(b"data: ")
        client.socket.shutdown(socket.SHUT_WR)
        await until(lambda: len(engine.aborted) == 1)
        await client.read_all()
    after = await frontend.settle(base)

    assert after.ends["client_gone"] == base.ends["client_gone"] + 1


async def test_a_request_may_come_byte_by_byte(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    async with frontend.connect() as client:
        for byte in LAST:
            await client.send(bytes([byte]))
            await trio.lowlevel.checkpoint()
        answer = parse_answer(await client.read_all())
    await frontend.settle(base)

    assert answer.status == 200
    assert len(engine.adds) == 1


@pytest.mark.slow
async def test_who_sends_a_head_too_slowly_is_sent_away(frontend: Frontend, base: Books) -> None:
    """Each byte comes in time, the head does not: what is bounded is the whole of it."""
    async with frontend.connect() as client:

        async def drip() -> None:
            with contextlib.suppress(OSError):
                await client.send(b"GET /health HTTP/1.1\r\n")
                while True:
                    await client.send(b"X: y\r\n")
                    await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            with trio.fail_after(30):
                received = await client.read_all()
            nursery.cancel_scope.cancel()
    await frontend.settle(base)

    assert statuses(received) == [408]


async def test_connections_without_a_word_do_no_harm(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(300):
            await stack.enter_async_context(frontend.connect())
        await frontend.check_works()
    await frontend.settle(base)
    del engine


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_connections_that_come_and_go_leave_nothing(
    frontend: Frontend, engine: Engine, base: Books, count: int
) -> None:
    beginnings = [b"", b"G", LAST[:60], LAST[:-3], LAST, get("/health")]
    limit = trio.CapacityLimiter(100)

    async def come_and_go(number: int) -> None:
        async with limit, frontend.connect() as client:
            await client.send(beginnings[number % len(beginnings)])
            client.close(reset=number % 2 == 0)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(come_and_go, number)
    # Connections are cyclic garbage, which is collected once there is enough of it.
    await frontend.settle(base, rss_slack=128 * MIB)
    await frontend.check_works()

    assert engine.busy == 0
    assert sorted(set(engine.aborted)) == sorted(engine.aborted)


async def test_out_of_descriptors_it_waits_and_goes_on(tmp_path: Path) -> None:
    """More clients than descriptors: those that are connected are served, the others wait."""
    with running_frontend(tmp_path, descriptor_limit=128) as frontend:
        async with open_engine(frontend):
            await frontend.check_works()
            base = await frontend.books()
            async with contextlib.AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(frontend.connect()) for _ in range(200)]
                await clients[0].send(LAST)
                answer = parse_answer(await clients[0].read_all())
                await until(lambda: "Accepting no HTTP connections" in frontend.log_text())
                cpu = cpu_seconds(frontend)
                await trio.sleep(0.3)
                spent = cpu_seconds(frontend) - cpu
            await frontend.settle(base)
            await frontend.check_works()
        text = frontend.log_text()

    assert answer.status == 200
    assert spent < 0.2
    assert "Traceback" not in text
    assert text.count("Accepting no HTTP connections") <= 5


def cpu_seconds(frontend: Frontend) -> float:
    fields = Path(f"/proc/{frontend.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_the_tests_may_open_enough_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert soft > 400 or hard > 400


def test_garbage_is_the_same_each_time() -> None:
    assert garbage() == garbage()
    assert json.loads(LAST.partition(b"\r\n\r\n")[2])
