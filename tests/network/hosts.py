"""Hosts of one network: network namespaces of this kernel, and a switch between them in user space.

Each host has one interface. The switch may hold frames back, delay them or lose them, and the
interface may be taken down, as if somebody pulled the cable. It takes root and Linux.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import attrs
import pytest
import trio

INTERFACE = "eth0"
SUBNET = "10.77.0"
TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_FRAME_BYTES = 2048
_HELD_FRAMES = 1000
"""That wait for a link to go on; what comes after them is lost, as in any switch."""


@attrs.define(eq=False)
class Host:
    """One of them."""

    namespace: str
    address: str
    port: int
    """Descriptor of the switch's end of the cable."""

    delay: float = 0.0
    """Seconds that each frame to or from it is held up."""

    _flowing: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._flowing.set()

    def command(self, *words: str) -> Sequence[str]:
        """Return what runs *words* on this host; the process keeps its id."""
        return ["ip", "netns", "exec", self.namespace, *words]

    async def start(
        self, *words: str, log: IO[bytes], environment: Mapping[str, str] = os.environ
    ) -> trio.Process:
        """Start a program here."""
        return await trio.lowlevel.open_process(
            self.command(*words), stdout=log, stderr=log, env=environment
        )

    def pull_cable(self) -> None:
        """Take the interface down."""
        _ip(*self.command("ip", "link", "set", INTERFACE, "down")[1:])

    def plug_in(self) -> None:
        """Take the interface up again."""
        _ip(*self.command("ip", "link", "set", INTERFACE, "up")[1:])

    def stall(self) -> None:
        """Hold all frames to and from it back; nobody is told."""
        self._flowing = trio.Event()

    def go_on(self) -> None:
        """Let them through, those that were held back first."""
        self._flowing.set()

    async def wait_flowing(self) -> None:
        await self._flowing.wait()


class Switch:
    """Passes frames on between hosts; ``serve`` is its task."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._known: dict[bytes, Host] = {}
        """By hardware address, as seen in frames."""

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            for host in self._hosts:
                # One for each way: a host that is held up holds up nobody else.
                ways: dict[Host, trio.MemorySendChannel[tuple[float, bytes]]] = {}
                for other in self._hosts:
                    if other is not host:
                        ways[other], waiting = trio.open_memory_channel[tuple[float, bytes]](
                            _HELD_FRAMES
                        )
                        nursery.start_soon(self._forward, host, other, waiting)
                nursery.start_soon(self._read, host, ways)

    async def _read(
        self, host: Host, ways: Mapping[Host, trio.MemorySendChannel[tuple[float, bytes]]]
    ) -> None:
        while True:
            await trio.lowlevel.wait_readable(host.port)
            with contextlib.suppress(BlockingIOError, OSError):
                frame = os.read(host.port, _FRAME_BYTES)
                self._known[frame[6:12]] = host
                to = self._known.get(frame[:6])
                for other, way in ways.items():
                    if to is None or to is other:
                        due = trio.current_time() + host.delay + other.delay
                        with contextlib.suppress(trio.WouldBlock):
                            way.send_nowait((due, frame))

    async def _forward(
        self, host: Host, to: Host, waiting: trio.MemoryReceiveChannel[tuple[float, bytes]]
    ) -> None:
        async for due, frame in waiting:
            await trio.sleep_until(due)
            await host.wait_flowing()
            await to.wait_flowing()
            # Lost where the interface is down.
            with contextlib.suppress(OSError):
                os.write(to.port, frame)


@asynccontextmanager
async def open_hosts(count: int) -> AsyncGenerator[Sequence[Host]]:
    """Hold so many hosts for the block; skips the test where this machine cannot."""
    if os.geteuid() != 0 or not shutil.which("ip") or not os.access(TUN, os.W_OK):
        pytest.skip("hosts take root, iproute2 and /dev/net/tun")
    hosts: list[Host] = []
    try:
        hosts.extend(
            _make_host(f"vf{os.getpid()}-{number}", f"{SUBNET}.{number}")
            for number in range(1, count + 1)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Switch(hosts).serve)  # noqa: ASYNC113 (frames wait)
            yield hosts
            nursery.cancel_scope.cancel(reason="the test is over")
    finally:
        for host in hosts:
            os.close(host.port)
            _ip("netns", "delete", host.namespace)


def _make_host(namespace: str, address: str) -> Host:
    _ip("netns", "add", namespace)
    inside = ("netns", "exec", namespace, "ip")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "tuntap", "add", "dev", INTERFACE, "mode", "tap")
    port = _open_port(namespace)
    _ip(*inside, "address", "add", f"{address}/24", "dev", INTERFACE)
    _ip(*inside, "link", "set", INTERFACE, "up")
    return Host(namespace, address, port)


def _open_port(namespace: str) -> int:
    """Return the other end of a host's interface, opened by a thread that goes there for that."""
    ports: list[int] = []

    def open_there() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", namespace).open("rb") as there:
            if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
                return
        port = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH", INTERFACE.encode(), _IFF_TAP | _IFF_NO_PI)
        fcntl.ioctl(port, _TUNSETIFF, request)
        ports.append(port)

    thread = threading.Thread(target=open_there)
    thread.start()
    thread.join()
    assert ports, f"cannot enter the network namespace {namespace}"
    return ports[0]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
