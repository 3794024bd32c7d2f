"""What the coordinator of data-parallel engines says and hears besides engine messages."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from vllmfront.engine.wire import _check as check
from vllmfront.engine.wire._msgpack import pack, unpack
from vllmfront.errors import ProtocolError

READY_GATE = b"READY"
"""Published once every engine has subscribed; not MessagePack."""

SUBSCRIBE = b"\x01"
UNSUBSCRIBE = b"\x00"


@attrs.frozen
class EngineLoad:
    """One engine's load, as it last told the coordinator."""

    waiting: int
    running: int
    kv_cache_usage: float
    """0 to 1."""


@attrs.frozen
class StepLoad:
    """What an engine tells the coordinator about a step."""

    load: EngineLoad
    wave: int
    step: int


def read_step_load(stats: Mapping[str, Any]) -> StepLoad:
    """Read the statistics of a message to the coordinator.

    Raises:
        ProtocolError: They say nothing about load.
    """
    return StepLoad(
        EngineLoad(
            check.integer(stats.get("num_waiting_reqs"), "num_waiting_reqs"),
            check.integer(stats.get("num_running_reqs"), "num_running_reqs"),
            check.number(stats.get("kv_cache_usage", 0.0), "kv_cache_usage"),
        ),
        # Engines that do not step together have neither.
        check.integer(stats.get("current_wave", 0), "current_wave"),
        check.integer(stats.get("step_counter", 0), "step_counter"),
    )


@attrs.frozen
class LoadReport:
    """What the coordinator publishes to frontends."""

    loads: Sequence[EngineLoad] | None
    """One an engine of the whole deployment; None when only the wave changed."""

    wave: int
    running: bool
    """Whether the engines are in a wave."""


def decode_load_report(payload: bytes | memoryview) -> LoadReport:
    """Read a publication of the coordinator.

    Raises:
        ProtocolError: It is no such thing.
    """
    loads, wave, running = check.padded(unpack(payload), [None] * 3, 3, "load report")
    return LoadReport(
        None if loads is None else [_load(item) for item in check.array(loads, "loads")],
        check.integer(wave, "wave"),
        check.boolean(running, "running"),
    )


def _load(item: object) -> EngineLoad:
    # Older coordinators leave the cache usage off.
    waiting, running, usage = check.padded(item, [0, 0, 0.0], 2, "load")
    return EngineLoad(
        check.integer(waiting, "waiting"),
        check.integer(running, "running"),
        check.number(usage, "kv_cache_usage"),
    )


def encode_load_report(report: LoadReport) -> bytes:
    """Return the publication."""
    loads = report.loads
    rows = (
        None
        if loads is None
        else [[load.waiting, load.running, load.kv_cache_usage] for load in loads]
    )
    return pack([rows, report.wave, report.running])


_SCALE = "SCALE_ELASTIC_EP"


@attrs.frozen
class ScaleNotice:
    """A frontend tells the coordinator how many engines there are now."""

    engine_count: int


@attrs.frozen
class FirstRequest:
    """A frontend tells a coordinator before 0.33 that it woke an engine."""

    engine_index: int
    wave: int


def decode_frontend_notice(payload: bytes | memoryview) -> ScaleNotice | FirstRequest:
    """Read what a frontend tells the coordinator.

    Raises:
        ProtocolError: It is no such thing.
    """
    items = check.array(unpack(payload), "notice")
    if len(items) != 2:  # noqa: PLR2004 -- both kinds are pairs
        raise ProtocolError(f"a notice has {len(items)} elements, needs 2")
    if items[0] == _SCALE:
        return ScaleNotice(check.integer(items[1], "engine count"))
    return FirstRequest(check.integer(items[0], "engine index"), check.integer(items[1], "wave"))


def encode_frontend_notice(notice: ScaleNotice | FirstRequest) -> bytes:
    """Return what a frontend tells the coordinator."""
    if isinstance(notice, ScaleNotice):
        return pack([_SCALE, notice.engine_count])
    return pack([notice.engine_index, notice.wave])
