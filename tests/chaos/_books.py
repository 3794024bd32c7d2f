"""What must add up, and what must not be left, once no request is in flight."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

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

CHILDREN_SLACK = 1
"""An engine whose process has a fault in store runs below that."""

ENDS = "vllmfront:request_ends_total"
ENGINE_ENDS = "vllmfront:engine_request_ends_total"
FAULTS = "vllmfront:boundary_faults_total"
GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllmfront:admitted_choices",
)

ENDED_WELL = ("stop", "length", "repetition")
BUGS = ("internal_error",)

Metrics = Mapping[str, Mapping[str, float]]


@attrs.frozen
class Page:
    """A frontend's books at one time."""

    metrics: Metrics
    inside: Mapping[str, Any]
    """What ``/supervisor`` says."""

    load: bytes
    held: Holdings

    @property
    def tasks(self) -> int:
        count: int = self.inside["tasks"]
        return count

    def since(self, before: "Page", name: str, label: str) -> dict[str, float]:
        """Return by how much each series of *name* has grown, by the value of its *label*."""
        was = before.metrics.get(name, {})
        return {
            labels.removeprefix(f"{label}="): value - was.get(labels, 0.0)
            for labels, value in self.metrics.get(name, {}).items()
        }


@attrs.define
class Tally:
    """What clients saw of a round."""

    requests: int = 0
    unseen: int = 0
    """Requests that may have ended before the frontend had read them."""

    answered: int = 0
    """Those that were answered in full."""

    timed_out: int = 0
    unknown: int = 0
    """Those whose clients did not see how they ended."""

    choices: int = 0
    """That were asked for."""

    answered_choices: int = 0


async def open_page(frontend: Frontend) -> Page:
    load = (await frontend.get("/load")).body
    return Page(await frontend.metrics(), await frontend.inside(), load, holdings(frontend.pid))


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
    engines = page.inside["engines"]
    for name in ("requests", "waiting", "engine_requests", "pending_calls"):
        if engines[name]:
            yield f"the engine client still has {engines[name]} {name}"
    for rank in engines["ranks"]:
        if rank["in_flight"]:
            yield f"engine {rank['rank']} still has {rank['in_flight']} in flight"
    for name in GAUGES:
        for labels, value in page.metrics.get(name, {}).items():
            if value:
                yield f"{name}{{{labels}}} is {value:g}"


def growth_complaints(first: Page, page: Page) -> Iterator[str]:
    """Say what a frontend holds more of than before."""
    before, after = first.held, page.held
    if after.zombies:
        yield f"{after.zombies} zombies"
    if page.tasks > first.tasks:
        yield f"tasks grew from {first.tasks} to {page.tasks}"
    for name, slack in (
        ("descriptors", DESCRIPTOR_SLACK),
        ("threads", THREAD_SLACK),
        ("memory", MEMORY_SLACK),
        ("children", CHILDREN_SLACK),
    ):
        was, now = getattr(before, name), getattr(after, name)
        if now > was + slack:
            yield f"{name} grew from {was} to {now}"


def sum_complaints(before: Page, after: Page, tally: Tally) -> Iterator[str]:
    """Say whether what has ended since *before* does not add up to what clients saw."""
    ends = after.since(before, ENDS, "cause")
    well = sum(ends.get(cause, 0) for cause in ENDED_WELL)
    yield from _beyond(
        "requests ended", sum(ends.values()), tally.requests - tally.unseen, tally.requests
    )
    yield from _beyond("requests ended well", well, tally.answered, tally.answered + tally.unknown)
    yield from _beyond(
        "requests timed out",
        ends.get("timed_out", 0),
        tally.timed_out,
        tally.timed_out + tally.unknown,
    )
    choices = after.since(before, ENGINE_ENDS, "cause")
    yield from _beyond(
        "choices ended", sum(choices.values()), tally.answered_choices, tally.choices
    )
    for cause in BUGS:
        for counts in (ends, choices):
            if counts.get(cause):
                yield f"{counts[cause]:g} ended by {cause}"
    if after.since(before, FAULTS, "kind").get("sink_failures"):
        yield "an output pipeline failed"


def _beyond(what: str, count: float, least: int, most: int) -> Iterator[str]:
    if not least <= count <= most:
        yield f"{count:g} {what}, of {least} to {most}"
