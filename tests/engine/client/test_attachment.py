"""Clients one after another on the same live engines, by the file that each leaves."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.engine._helpers import (
    LIMITS,
    RecordingSink,
    assert_idle,
    engine_for,
    rank_state,
    request,
    settle,
    state_of,
    wait_joined,
)
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineState,
    FinishReason,
    RankState,
    open_engine_client,
)
from vllmfront.engine.client.entrance import _attachment
from vllmfront.engine.client.entrance._saved import SavedEngine, decode_state, encode_state
from vllmfront.engine.transport import host_of
from vllmfront.engine.transport._ports import listen_lasting
from vllmfront.engine.wire import Abort, Add, Utility
from vllmfront.errors import ConfigurationError, StartupFailed
from vllmfront.testing import FakeEngine

HOST = "127.0.0.1"
Asked = tuple[str, list[object]]
"""A method, and its arguments."""


@pytest.fixture
def config(tmp_path: Path) -> EngineClientConfig:
    with listen_lasting(HOST) as listener:
        port = host_of(listener.address)[1]
    return EngineClientConfig(
        handshake_port=port, state_file=tmp_path / "state" / "engines.json", limits=LIMITS
    )


@asynccontextmanager
async def opened(config: EngineClientConfig) -> AsyncGenerator[EngineClient, None]:
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            yield client


async def answer_calls(
    engine: FakeEngine, *, paused: bool = False
) -> list[tuple[str, list[object]]]:
    """Answer what an engine is asked when it is taken up; return that."""
    asked: list[tuple[str, list[object]]] = []
    last = "pause_scheduler" if paused else "resume_scheduler"
    while not asked or asked[-1][0] != last:
        said = await engine.receive()
        if isinstance(said, Utility):
            asked.append((said.method, list(said.args)))
            engine.answer(said, paused if said.method == "is_scheduler_paused" else None)
        else:
            assert isinstance(said, Abort), said
            assert not said.request_ids
    return asked


async def served_by(config: EngineClientConfig) -> FakeEngine:
    """Have an engine that a client has served which is gone by now; it tries to connect anew."""
    async with opened(config) as client:
        engine = engine_for(client)
        await engine.join()
        await client.wait_ready()
    await settle()
    engine.use_slot(0)
    return engine


async def complete(client: EngineClient, engine: FakeEngine) -> str:
    """Have one request served; return its id."""
    sink = RecordingSink()
    async with client.submit(request(), [sink]) as stream:
        while not isinstance(add := await engine.receive(), Add):
            pass
        engine.send_tokens(add.internal_id, [7], FinishReason.STOP)
        await stream.wait_finished()
    assert sink.tokens == [7]
    return add.internal_id


async def test_the_next_client_serves_the_same_engine_once_it_has_dropped_its_work(
    config: EngineClientConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with await served_by(config) as engine:
        async with opened(config) as client:
            assert state_of(client) is EngineState.LOADING
            asked = await answer_calls(engine)
            await client.wait_ready()
            assert client.max_model_len == 1024
            await complete(client, engine)
            assert_idle(client)
            assert client.snapshot().ranks[0].incarnation == 1
            engine.close()
            await client.wait_state(lambda state: state is EngineState.RECOVERING)

    assert asked == [
        ("is_scheduler_paused", []),
        ("pause_scheduler", ["abort", False]),
        ("resume_scheduler", []),
    ]
    assert "Engine 0 runs already" in caplog.text


async def test_clients_follow_each_other_again_and_again(config: EngineClientConfig) -> None:
    ids = []
    engine = await served_by(config)
    with engine:
        for _ in range(4):
            async with opened(config) as client:
                assert client.succession is not None
                assert client.succession.slot == 0
                await answer_calls(engine)
                await client.wait_ready()
                ids.append(await complete(client, engine))
            engine.use_slot(0)

    starts = [int(each.rpartition("-")[2], 16) for each in ids]
    gaps = [abs(a - b) for a in starts for b in starts if a is not b]
    assert min(gaps) > 2**28


async def test_an_engine_that_somebody_paused_stays_so(config: EngineClientConfig) -> None:
    with await served_by(config) as engine:
        async with opened(config) as client:
            asked = await answer_calls(engine, paused=True)
            await client.wait_ready()
            await settle()

            assert [method for method, _ in asked] == ["is_scheduler_paused", "pause_scheduler"]
            assert engine.heard_nothing()


async def test_one_that_was_paused_to_be_taken_up_is_resumed_by_the_next(
    config: EngineClientConfig,
) -> None:
    with await served_by(config) as engine:
        async with opened(config):
            while True:
                said = await engine.receive()
                if isinstance(said, Utility):
                    if said.method == "pause_scheduler":
                        break
                    engine.answer(said, False)
        engine.use_slot(0)
        async with opened(config) as client:
            asked = []
            while "resume_scheduler" not in asked:
                said = await engine.receive()
                if isinstance(said, Utility):
                    asked.append(said.method)
                    engine.answer(said, said.method == "is_scheduler_paused")
            await client.wait_ready()


async def test_a_new_process_replaces_what_was_saved(config: EngineClientConfig) -> None:
    (await served_by(config)).close()
    async with opened(config) as client:
        with engine_for(client) as new:
            await new.say_hello()
            assert new.addresses is not None
            new.connect(new.addresses.inputs[0], new.addresses.outputs[0])
            new.register()
            new.say_ready()
            await client.wait_ready()
            await complete(client, new)

            assert client.snapshot().ranks[0].incarnation == 2


async def test_one_that_does_not_come_back_is_waited_for_no_longer(
    config: EngineClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_attachment, "REACH_BUDGET", 0.2)
    monkeypatch.setattr(_attachment, "_LATE_POLL", 0.05)
    engine = await served_by(config)
    engine.break_inputs()
    with engine:
        async with opened(config) as client:
            assert rank_state(client) is RankState.LOADING
            assert "did not reconnect within 0.2 s" in str(await client.wait_lost())
            assert state_of(client) is EngineState.LOADING
            # Should it come after all, it is as good as before.
            engine.use_slot(0)
            await answer_calls(engine)
            await wait_joined(client)
            await complete(client, engine)


async def test_a_start_does_not_wait_for_ever_for_what_was_saved(
    config: EngineClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_attachment, "REACH_BUDGET", 0.1)
    (await served_by(config)).close()
    with pytest.RaisesGroup(
        pytest.RaisesExc(StartupFailed, match="no HELLO from engine 0"), flatten_subgroups=True
    ):
        async with opened(attrs.evolve(config, ready_timeout=0.1)):
            await trio.sleep_forever()


async def test_one_that_does_not_answer_is_lost_and_tried_again(
    config: EngineClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_attachment, "ANSWER_BUDGET", 0.1)
    with await served_by(config) as engine:
        async with opened(config) as client:
            assert "did not answer is_scheduler_paused" in str(await client.wait_lost())
            await answer_calls(engine)
            await wait_joined(client)


async def test_an_engine_that_was_loading_joins_the_next_client(
    config: EngineClientConfig,
) -> None:
    async with opened(config) as client:
        engine = engine_for(client)
        await engine.say_hello()
    with engine:
        async with opened(config) as client:
            assert engine.addresses is not None
            engine.connect(engine.addresses.inputs[0], engine.addresses.outputs[0])
            engine.register()
            engine.say_ready()
            await client.wait_ready()
            await complete(client, engine)


async def test_orphans_of_the_client_before_are_told_nothing_but_to_end(
    config: EngineClientConfig,
) -> None:
    with await served_by(config) as engine, FakeEngine(f"tcp://{HOST}:1") as old:
        async with opened(config) as client:
            assert engine.addresses is not None
            old.connect(engine.addresses.inputs[1], engine.addresses.outputs[1])
            await answer_calls(engine)
            await client.wait_ready()
            old.send_tokens("orphan-00000000", [1, 2, 3])
            while not (isinstance(said := await engine.receive(), Abort) and said.request_ids):
                pass
            await complete(client, engine)

    assert said.request_ids == ["orphan-00000000"]


async def test_what_an_engine_still_says_to_the_client_before_is_passed_over(
    config: EngineClientConfig,
) -> None:
    with await served_by(config) as engine:
        engine.send_tokens("orphan-00000000", [1, 2, 3])
        async with opened(config) as client:
            await answer_calls(engine)
            await client.wait_ready()
            engine.send_tokens("orphan-00000000", [4], FinishReason.STOP)
            await complete(client, engine)

            assert_idle(client)


async def test_addresses_that_somebody_has_taken_cost_the_engines_alone(
    config: EngineClientConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(config):
        pass
    assert config.state_file is not None
    state = decode_state(config.state_file.read_bytes(), f"tcp://{HOST}:{config.handshake_port}")
    async with trio.open_nursery():
        [listener] = await trio.open_tcp_listeners(state.ports[1][0], host=HOST)
        async with listener, opened(config) as client:
            with engine_for(client) as engine:
                await engine.join()
                await client.wait_ready()

    assert "Engines of an earlier frontend connect there, and have to be restarted" in caplog.text


async def test_a_second_client_at_the_same_time_is_refused(config: EngineClientConfig) -> None:
    async with opened(config):
        with pytest.raises(ConfigurationError, match="serves the engines of"):
            async with opened(config):
                pass


async def test_only_one_of_several_was_connected_and_the_others_do_not_hold_it_up(
    config: EngineClientConfig,
) -> None:
    config = attrs.evolve(config, engine_count=2)
    async with opened(config) as client:
        engines = [engine_for(client, rank) for rank in range(2)]
        for engine in engines:
            await engine.join()
        await client.wait_ready()
    assert config.state_file is not None
    address = f"tcp://{HOST}:{config.handshake_port}"
    state = decode_state(config.state_file.read_bytes(), address)
    gone = SavedEngine(registration=state.engines[1].registration, connected=False)
    state = attrs.evolve(state, engines={**state.engines, 1: gone})
    config.state_file.write_bytes(encode_state(state))
    engines[0].break_inputs()
    engines[1].close()
    with engines[0] as engine:
        async with opened(config) as client:
            engine.use_slot(0)
            await answer_calls(engine)
            await client.wait_ready()

            assert rank_state(client, 1) is RankState.DEAD
