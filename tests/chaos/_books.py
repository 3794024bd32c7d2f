"""What must add up, and what must not be left, once no request is in flight."""

from collections.abc import Awaitable, Callable, Iterator, Mapping

import attrs
import trio

from tests.chaos._frontend import Frontend
from tests.chaos._proc import Holdings, holdings

SETTLE_SECONDS = 15.0
"""Until idle worker threads and closed sockets are gone; Trio keeps threads for ten."""

POLL_SECONDS = 0.25

MEMORY_SLACK = 24 << 20
"""Bytes by which a process may grow after its first round: caches fill, heaps fragment."""

DESCRIPTOR_SLACK = 2
"""A connection that the kernel has not let go yet, and the one of who looks."""

THREAD_SLACK = 2

ENDS = "vllmfront:engine_request_ends_total"
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")

Metrics = Mapping[str, Mapping[str, float]]


@attrs.frozen
class Page:
    """A frontend's books at one time."""

    metrics: Metrics
    load: bytes
    held: Holdings

    def ends(self) -> dict[str, float]:
        return {
            labels.removeprefix("cause="): value
            for labels, value in self.metrics.get(ENDS, {}).items()
        }


async def open_page(frontend: Frontend) -> Page:
    load = (await frontend.get("/load")).body
    return Page(await frontend.metrics(), load, holdings(frontend.pid))


async def settle(
    frontend: Frontend,
    complaints: Callable[[Page], list[str]],
    nudge: Callable[[], Awaitable[None]],
) -> tuple[Page, list[str]]:
    """Return the page as soon as nothing is wrong with it, or what still is in the end.

    Before each further look engines are nudged: one that lied last says nothing true by itself.
    """
    deadline = trio.current_time() + SETTLE_SECONDS
    while True:
        page = await open_page(frontend)
        found = complaints(page)
        if not found or trio.current_time() > deadline:
            return page, found
        await nudge()
        await trio.sleep(POLL_SECONDS)


def idle_complaints(page: Page) -> Iterator[str]:
    """Say which gauges are not at zero."""
    if page.load != b'{"server_load":0}':
        yield f"requests are still being answered: {page.load!r}"
    for name in GAUGES:
        for labels, value in page.metrics.get(name, {}).items():
            if value:
                yield f"{name}{{{labels}}} is {value:g}"


def growth_complaints(before: Holdings, after: Holdings) -> Iterator[str]:
    """Say what a process holds more of than before."""
    for name, slack in (
        ("descriptors", DESCRIPTOR_SLACK),
        ("threads", THREAD_SLACK),
        ("memory", MEMORY_SLACK),
        ("children", 0),
    ):
        was, now = getattr(before, name), getattr(after, name)
        if now > was + slack:
            yield f"{name} grew from {was} to {now}"


def sum_complaints(before: Page, after: Page, *, least: int, most: int) -> Iterator[str]:
    """Say whether the ends of requests do not add up.

    Args:
        before: The books before the requests.
        after: The books after them.
        least: Choices that clients saw to their ends.
        most: Choices that were asked for at all.
    """
    was, now = before.ends(), after.ends()
    ended = sum(now.values()) - sum(was.values())
    if not least <= ended <= most:
        yield f"{ended:g} choices ended, of {least} to {most}"
    for cause in ("internal_error",):
        if now.get(cause, 0) > was.get(cause, 0):
            yield f"{now[cause] - was.get(cause, 0):g} requests ended by {cause}"
    faults = "vllmfront:boundary_faults_total"
    failed = "kind=sink_failures"
    if after.metrics.get(faults, {}).get(failed, 0) > before.metrics.get(faults, {}).get(failed, 0):
        yield "an output pipeline failed"
