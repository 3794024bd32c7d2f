"""``/start_profile`` and ``/stop_profile``."""

from typing import Any

import pytest
import trio

from tests.api.developer.rig import error_of, stage
from tests.engine._helpers import open_engines
from vllmfront.control import ControlPlane, ProfilePlan, open_control_plane
from vllmfront.engine.wire import Utility
from vllmfront.errors import ControlCallFailed
from vllmfront.testing import FakeEngine


async def test_one_session_at_a_time() -> None:
    async with stage() as on:
        assert await on.done("/start_profile") is None
        error = error_of(await on.post("/start_profile"), 409)
        assert "already active. Call /stop_profile" in error["message"]
        assert await on.done("/stop_profile") is None
        assert await on.done("/stop_profile") is None, "as idle as it was"
        assert await on.done("/start_profile", {"profile_prefix": "p"}) is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"profile_prefix": 5}, "profile_prefix: invalid type: integer `5`"),
        ({"delay_iterations": -3}, "delay_iterations"),
        ({"max_iterations": "x"}, "max_iterations: "),
        ({"profiler_kwargs": []}, "profiler_kwargs: invalid type: sequence, expected a map"),
    ],
)
async def test_wishes_that_make_no_sense_are_refused(body: object, complaint: str) -> None:
    async with stage() as on:
        assert complaint in error_of(await on.post("/start_profile", body), 400)["message"]
        assert not on.plane.profiling.active


async def test_engines_of_0_32_get_four_arguments_alone() -> None:
    async with stage(vllm_version="0.32.0") as on:
        assert await on.done("/start_profile", {"max_iterations": 4}) is None
        await on.done("/stop_profile")
        error = error_of(await on.post("/start_profile", {"profiler_kwargs": {"a": 1}}), 400)
        assert error["param"] == "profiler_kwargs"
        assert "engine 0 runs 0.32.0" in error["message"]


async def profile(plane: ControlPlane, engine: FakeEngine, plan: ProfilePlan) -> Utility:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plane.profiling.start, plan)
        call = await engine.receive_utility()
        engine.answer(call)
    return call


@pytest.mark.parametrize(
    ("plan", "args"),
    [
        (ProfilePlan(), [True, None, None, None]),
        (ProfilePlan(prefix="p", delay_iterations=1, max_iterations=2), [True, "p", 1, 2]),
        (ProfilePlan(kwargs={"a": 1}), [True, None, None, None, {"a": 1}]),
    ],
)
async def test_what_engines_are_told(plan: ProfilePlan, args: list[Any]) -> None:
    async with open_engines() as (client, [engine]), open_control_plane(client) as plane:
        call = await profile(plane, engine, plan)

        assert (call.method, call.args) == ("profile", args)


async def test_all_stop_where_one_cannot_begin() -> None:
    async with (
        open_engines(2) as (client, engines),
        open_control_plane(client) as plane,
        trio.open_nursery() as nursery,
    ):

        async def start() -> None:
            with pytest.raises(ControlCallFailed, match="engine 1: no profiler"):
                await plane.profiling.start(ProfilePlan())

        nursery.start_soon(start)
        calls = [await engine.receive_utility() for engine in engines]
        engines[0].answer(calls[0])
        engines[1].answer(calls[1], failure="no profiler")
        for engine in engines:
            call = await engine.receive_utility()
            assert call.args[0] is False
            engine.answer(call)
