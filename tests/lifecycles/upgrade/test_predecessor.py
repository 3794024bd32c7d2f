"""The new process: what it hears, what it says, and what it has when the other one dies."""

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from vllmfront.engine import EngineLegacy, Inheritance
from vllmfront.errors import ConfigurationError, StartupFailed
from vllmfront.lifecycles.upgrade import (
    ChannelBroken,
    Estate,
    HeldListener,
    Predecessor,
    open_predecessor,
)
from vllmfront.lifecycles.upgrade._channel import Channel
from vllmfront.lifecycles.upgrade._estate import encode_estate
from vllmfront.supervisor import Shutdown


def estate(slot: int = 1) -> Estate:
    return Estate(
        listeners=[HeldListener(descriptor=0, name="http")],
        engines=Inheritance(
            descriptors=[1], legacy=EngineLegacy(slot=slot, registrations={}, lost={})
        ),
    )


@attrs.define
class Old:
    """The other end."""

    channel: Channel

    async def say(self, kind: str, what: Estate) -> None:
        await self.channel.send({"kind": kind, "pid": 7, **encode_estate(what)}, what.descriptors)

    async def hear(self) -> dict[str, object] | None:
        message = await self.channel.receive()
        return None if message is None else dict(message.fields)


@asynccontextmanager
async def open_old(what: Estate | None = None) -> AsyncGenerator[tuple[Old, dict[str, str]]]:
    """Be the running process for the block, and give the environment of the new one."""
    ours, theirs = socket.socketpair()
    with trio.fail_after(5), Channel(ours) as channel:
        old = Old(channel)
        await old.say("estate", what or estate())
        yield old, {"VLLMFRONT_UPGRADE_FD": str(theirs.detach())}


def close_all(what: Estate) -> None:
    for fd in what.descriptors:
        os.close(fd)


async def test_a_process_that_nobody_started_to_follow_has_no_predecessor() -> None:
    async with open_predecessor({}) as predecessor:
        assert predecessor is None


@pytest.mark.parametrize("value", ["x", "99999"])
async def test_an_environment_that_makes_no_sense_is_told(value: str) -> None:
    with pytest.raises(ConfigurationError, match="VLLMFRONT_UPGRADE_FD is"):
        async with open_predecessor({"VLLMFRONT_UPGRADE_FD": value}):
            pass


async def test_what_is_taken_over_is_as_it_is_then() -> None:
    async with open_old() as (old, environ), open_predecessor(environ) as predecessor:
        assert predecessor is not None
        assert environ == {}
        assert predecessor.pid == 7
        early = predecessor.estate
        await old.say("take over", estate(slot=0))
        late = await predecessor.take_over()
        await predecessor.say_serving()

        assert [(await old.hear() or {})["kind"] for _ in range(2)] == ["prepared", "serving"]
        assert late.engines.legacy.slot == 0
        for fd in early.descriptors:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(fd)
        close_all(late)


async def test_everything_is_ours_when_the_old_process_dies_while_we_load() -> None:
    async with open_old() as (old, environ), open_predecessor(environ) as predecessor:
        assert predecessor is not None
        old.channel.close()
        taken = await predecessor.take_over()
        await predecessor.say_serving()

        assert predecessor.gone.is_set()
        assert taken is predecessor.estate
        close_all(taken)


async def test_the_end_of_the_old_process_is_told_once() -> None:
    calls: list[str] = []
    async with (
        open_old() as (old, environ),
        open_predecessor(environ) as predecessor,
        trio.open_nursery() as nursery,
    ):
        assert predecessor is not None
        shutdown = Shutdown(budget=0, margin=0)
        nursery.start_soon(predecessor.serve, shutdown, lambda: calls.append("alone"))
        await trio.testing.wait_all_tasks_blocked()
        assert calls == []
        assert not predecessor.gone.is_set()
        old.channel.close()
        await predecessor.gone.wait()
        close_all(predecessor.estate)
    assert calls == ["alone"]


async def test_the_old_process_is_told_to_stop_with_us() -> None:
    async with (
        open_old() as (old, environ),
        open_predecessor(environ) as predecessor,
        trio.open_nursery() as nursery,
    ):
        assert predecessor is not None
        shutdown = Shutdown(budget=10, margin=0)
        nursery.start_soon(predecessor.serve, shutdown, lambda: None)
        shutdown.request("received SIGTERM")
        assert await old.hear() == {"kind": "stopping"}
        shutdown.request("received SIGTERM")
        assert await old.hear() == {"kind": "stopping"}
        close_all(predecessor.estate)
        nursery.cancel_scope.cancel()


async def test_why_we_cannot_follow_is_told() -> None:
    async with open_old() as (old, environ):
        with pytest.RaisesGroup(StartupFailed, TypeError):
            async with open_predecessor(environ) as predecessor:
                assert predecessor is not None
                close_all(predecessor.estate)
                raise ExceptionGroup("", [StartupFailed("no model"), TypeError()])
        assert await old.hear() == {"kind": "failed", "reason": "no model; TypeError"}


async def test_what_caused_a_failure_is_told() -> None:
    async with open_old() as (old, environ):
        with pytest.raises(StartupFailed):
            async with open_predecessor(environ) as predecessor:
                assert predecessor is not None
                close_all(predecessor.estate)
                raise StartupFailed("api failed") from ConfigurationError("no certificate")
        assert await old.hear() == {"kind": "failed", "reason": "api failed: no certificate"}


async def test_what_happens_later_is_not_for_the_old_process() -> None:
    async with open_old() as (old, environ):
        with pytest.raises(StartupFailed):
            async with open_predecessor(environ) as predecessor:
                assert isinstance(predecessor, Predecessor)
                await predecessor.say_serving()
                close_all(predecessor.estate)
                raise StartupFailed("the engine has died")
        assert await old.hear() == {"kind": "serving"}
        assert await old.hear() is None


async def test_an_old_process_of_another_kind_is_told_so() -> None:
    async with open_old() as (old, environ):
        ours, theirs = socket.socketpair()
        environ["VLLMFRONT_UPGRADE_FD"] = str(theirs.detach())
        with Channel(ours) as other:
            await other.send({"kind": "estate", "version": 1})
            with pytest.raises(ChannelBroken, match="in form 1"):
                async with open_predecessor(environ):
                    pass
            message = await other.receive()
            assert message is not None
            assert message.fields["kind"] == "failed"
            assert "in form 1" in message.fields["reason"]
        del old


async def test_an_old_process_that_is_gone_has_nothing_to_give() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with pytest.raises(ConfigurationError, match="is gone"):
        async with open_predecessor({"VLLMFRONT_UPGRADE_FD": str(theirs.detach())}):
            pass
