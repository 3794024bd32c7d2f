"""What a frontend that has ended without a word leaves to the next one on the same engines."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from tests.control.test_orders import do
from tests.engine._helpers import LIMITS, engine_for, settle
from vllmfront.control import ControlPlane, SyncState, open_control_plane
from vllmfront.engine import EngineClientConfig, open_engine_client
from vllmfront.engine.pause import PauseMode
from vllmfront.engine.transport import host_of
from vllmfront.engine.transport._ports import listen_lasting
from vllmfront.engine.wire import Abort
from vllmfront.errors import StateConflict
from vllmfront.testing import FakeEngine

Join = Callable[[ControlPlane], Awaitable[FakeEngine]]


@pytest.fixture
def config(tmp_path: Path) -> EngineClientConfig:
    with listen_lasting("127.0.0.1") as listener:
        port = host_of(listener.address)[1]
    return EngineClientConfig(
        handshake_port=port, state_file=tmp_path / "engines.json", limits=LIMITS
    )


@asynccontextmanager
async def frontend(config: EngineClientConfig) -> AsyncGenerator[ControlPlane]:
    with trio.fail_after(5):
        async with open_engine_client(config) as client, open_control_plane(client) as plane:
            plane.adopt_saved()
            plane.record()
            yield plane


@pytest.fixture
def join() -> Iterator[Join]:
    """Return what has an engine join, which outlives the frontend."""
    with ExitStack() as stack:

        async def join_one(plane: ControlPlane) -> FakeEngine:
            engine = stack.enter_context(engine_for(plane.client))
            await engine.join()
            return engine

        yield join_one


async def pause(plane: ControlPlane, engine: FakeEngine, *, lease: float | None = None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer, engine, "pause_generation")
        await plane.pause(PauseMode.KEEP, owner="t", lease=lease)


async def answer(engine: FakeEngine, *methods: str) -> None:
    """Answer these calls, which must come; the engine is paused."""
    for method in methods:
        while isinstance(said := await engine.receive(), Abort):
            pass
        assert getattr(said, "method", said) == method
        engine.answer(said, True if method == "is_scheduler_paused" else None)  # type: ignore[arg-type]


TAKEN_UP = ("is_scheduler_paused", "pause_scheduler")


async def test_a_pause_goes_on_with_its_owner_and_lease(
    config: EngineClientConfig, join: Join
) -> None:
    async with frontend(config) as plane:
        engine = await join(plane)
        await plane.client.wait_ready()
        await pause(plane, engine, lease=1)
        plane.client.pauses.renew("t", 60)
    await settle()
    engine.use_slot(0)
    async with frontend(config) as plane:
        assert plane.client.gate.closed
        await answer(engine, *TAKEN_UP, "pause_generation")
        await plane.client.wait_ready()
        await settle()

        assert engine.heard_nothing()
        window = plane.client.pauses.window
        assert window is not None
        left = window.lease.left(trio.current_time())
        assert left is not None
        assert 50 < left < 60
        with pytest.raises(StateConflict, match="by t"):
            await plane.pause(PauseMode.KEEP, owner="another")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, engine, "resume_scheduler")
            await plane.resume("t")


async def test_engines_go_on_where_the_lease_ran_out_meanwhile(
    config: EngineClientConfig, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    async with frontend(config) as plane:
        engine = await join(plane)
        await plane.client.wait_ready()
        await pause(plane, engine, lease=0.05)
        plane.client.pauses.leases.veto = lambda: (
            "the process has ended"
        )  # it does not come to resuming
    await trio.sleep(0.06)
    engine.use_slot(0)
    async with frontend(config) as plane:
        await answer(engine, *TAKEN_UP, "resume_scheduler")
        await plane.client.wait_ready()

        assert not plane.client.gate.closed
        assert "its lease was not renewed: generation goes on" in caplog.text


async def test_an_update_goes_on_where_it_was(config: EngineClientConfig, join: Join) -> None:
    async with frontend(config) as plane:
        engine = await join(plane)
        await plane.client.wait_ready()
        await pause(plane, engine)
        async with trio.open_nursery() as nursery:
            orders = ("init_weight_transfer_engine", "start_weight_update", "update_weights")
            nursery.start_soon(do, engine, *orders)
            await plane.weights.init({})
            await plane.weights.start()
            await plane.weights.update({"a": 1})
    async with frontend(config) as plane:
        assert plane.weights.state is SyncState.UPDATING
        assert plane.weights.incomplete == (0,)
        with pytest.raises(StateConflict, match="engine 0 are incomplete"):
            await plane.resume("t")


async def test_an_order_of_which_nobody_learned_the_end_has_failed(
    config: EngineClientConfig, join: Join
) -> None:
    async with frontend(config) as plane:
        engine = await join(plane)
        await plane.client.wait_ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(do, engine, "init_weight_transfer_engine")
            await plane.weights.init({})
            nursery.start_soon(plane.weights.start)
            await engine.receive_utility()
            nursery.cancel_scope.cancel()
    async with frontend(config) as plane:
        assert plane.weights.state is SyncState.FAILED
        assert plane.weights.incomplete == (0,)


async def test_an_engine_that_was_replaced_meanwhile_is_paused_and_has_stale_weights(
    config: EngineClientConfig, join: Join
) -> None:
    async with frontend(config) as plane:
        engine = await join(plane)
        await plane.client.wait_ready()
        await pause(plane, engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, engine, "set_weight_version")
            await plane.weights.set_version("v1")
    engine.close()
    async with frontend(config) as plane:
        another = await join(plane)
        await answer(another, "pause_generation")
        await plane.client.wait_ready()

        snapshot = plane.weights.snapshot()
        assert (snapshot.expected, snapshot.stale) == ("v1", (0,))
        assert plane.client.gate.closed


@pytest.mark.parametrize("control", [{}, {"holds": [{"kind": "nap"}]}, {"holds": 3}])
async def test_what_makes_no_sense_is_passed_over(
    config: EngineClientConfig, join: Join, control: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with frontend(config) as plane:
        await join(plane)
        await plane.client.wait_ready()
    assert config.state_file is not None
    fields = msgspec.json.decode(config.state_file.read_bytes())
    fields["control"] = control
    config.state_file.write_bytes(msgspec.json.encode(fields))
    async with frontend(config) as plane:
        assert not plane.client.gate.closed
    assert "makes no sense" in caplog.text
