"""Messages and descriptors from one process to another."""

import os
import socket
from collections.abc import AsyncGenerator, Iterator

import pytest
import trio

from vllmfront.lifecycles.upgrade._channel import Channel, ChannelBroken, Message, send_nowait

Ends = tuple[Channel, Channel]


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


@pytest.fixture
async def ends(raw: tuple[socket.socket, socket.socket]) -> AsyncGenerator[Ends]:
    with Channel(raw[0]) as one, Channel(raw[1]) as other:
        yield one, other


async def receive(channel: Channel) -> Message:
    with trio.fail_after(5):
        message = await channel.receive()
    assert message is not None
    return message


async def test_descriptors_arrive_with_their_message(ends: Ends) -> None:
    read, write = os.pipe()
    await ends[0].send({"kind": "first"}, [write])
    await ends[0].send({"kind": "second"})
    await ends[0].send({"kind": "third"}, [write, write])
    os.close(write)

    first, second, third = [await receive(ends[1]) for _ in range(3)]

    assert [each.fields["kind"] for each in (first, second, third)] == ["first", "second", "third"]
    assert [len(each.descriptors) for each in (first, second, third)] == [1, 0, 2]
    assert not any(map(os.get_inheritable, third.descriptors))
    os.write(third.descriptors[1], b"hello")
    assert os.read(read, 9) == b"hello"
    first.close()
    third.close()
    assert os.read(read, 9) == b""
    os.close(read)


async def test_a_long_message_arrives_whole(ends: Ends) -> None:
    text = "long" * 300_000
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends[0].send, {"text": text}, [0])
            message = await receive(ends[1])

    assert message.fields["text"] == text
    assert len(message.descriptors) == 1
    message.close()


async def test_a_message_can_be_there_before_its_reader(
    raw: tuple[socket.socket, socket.socket],
) -> None:
    text = "long" * 300_000
    rest = send_nowait(raw[0], {"text": text}, [0])
    assert 0 < len(rest) < len(text)
    with Channel(raw[0]) as one, Channel(raw[1]) as other, trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send_rest, rest)
            message = await receive(other)

    assert message.fields["text"] == text
    message.close()


async def test_the_end_of_the_other_process_is_seen(ends: Ends) -> None:
    ends[0].close()

    with trio.fail_after(5):
        assert await ends[1].receive() is None
        with pytest.raises(trio.BrokenResourceError):
            await ends[1].send({})


async def test_a_message_that_was_not_read_is_closed_with_the_line(ends: Ends) -> None:
    read, write = os.pipe()
    await ends[0].send({}, [])
    await ends[0].send({}, [write])
    os.close(write)
    await receive(ends[1])
    ends[0].close()
    with trio.fail_after(5):
        assert (await receive(ends[1])).descriptors
    ends[1].close()
    os.close(read)


@pytest.mark.parametrize(
    "data", [b"rubbish\n", b"[]\n", b"{}\n", b'{"descriptors": 1}\n', b'{"descriptors": null}\n']
)
async def test_what_is_no_message_is_told(
    raw: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    with Channel(raw[0]) as channel, trio.fail_after(5):
        raw[1].send(data)
        with pytest.raises(ChannelBroken):
            await channel.receive()
