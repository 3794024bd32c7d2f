"""What engines are told when they join, before they get requests."""

import attrs
import trio
import trio.testing

from tests.engine._helpers import (
    CONFIG,
    engine_for,
    open_engines,
    rank_state,
    request,
    state_of,
    wait_joined,
    wait_lost,
)
from vllmfront.engine import EngineClient, EngineState, RankState, open_engine_client
from vllmfront.errors import UtilityCallFailed
from vllmfront.testing import FakeEngine

RECOVERING = attrs.evolve(CONFIG, recovery_wait=5)


@attrs.define
class Told:
    """Tells each engine ``reset_mm_cache``, as often as *lacking* says."""

    client: EngineClient
    lacking: dict[int, int]
    failure: UtilityCallFailed | None = None

    def due(self, rank: int) -> bool:
        return self.lacking.get(rank, 0) > 0

    async def apply(self, rank: int) -> None:
        if self.failure is not None:
            raise self.failure
        await self.client.call_utility("reset_mm_cache", ranks=[rank])
        self.lacking[rank] -= 1


async def answer_calls(engine: FakeEngine, count: int) -> None:
    for _ in range(count):
        engine.answer(await engine.receive_utility())


async def test_an_engine_serves_once_nothing_is_due_any_more() -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            client._membership.setups.append(Told(client, {0: 2}))
            with engine_for(client) as engine:
                await engine.join()
                first = await engine.receive_utility()
                assert (rank_state(client), state_of(client)) == (
                    RankState.PREPARING,
                    EngineState.LOADING,
                )
                engine.answer(first)
                second = await engine.receive_utility()
                assert rank_state(client) is RankState.PREPARING
                engine.answer(second)
                await client.wait_ready()

                async with client.submit(request()):
                    assert (await engine.receive_add()).request.request_id == "r"


async def test_requests_wait_until_the_next_engine_was_told() -> None:
    async with open_engines(config=RECOVERING) as (client, [old]):
        told = Told(client, {})
        client._membership.setups.append(told)
        old.close()
        await wait_lost(client)
        told.lacking[0] = 1
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                async with client.submit(request()):
                    pass

            nursery.start_soon(ask)
            with engine_for(client) as new:
                await new.join()
                call = await new.receive_utility()
                assert state_of(client) is EngineState.RECOVERING
                assert await new.hears_nothing_more()
                new.answer(call)

                assert (await new.receive_add()).request.request_id == "r"


async def test_an_engine_that_cannot_be_told_is_lost_with_the_reason() -> None:
    async with open_engines(2) as (client, [_, old]):
        client._membership.setups.append(Told(client, {1: 1}, UtilityCallFailed("no such call")))
        old.close()
        await wait_lost(client, 1)
        with engine_for(client, 1) as new:
            await new.join()
            await wait_lost(client, 1)

        assert client.snapshot().ranks[1].error == "engine 1 could not be set up: no such call"
        assert rank_state(client) is RankState.READY


async def test_an_engine_lost_while_it_is_told_is_told_anew() -> None:
    async with open_engines() as (client, [old]):
        told = Told(client, {0: 1})
        client._membership.setups.append(told)
        old.close()
        await wait_lost(client)
        with engine_for(client) as second:
            await second.join()
            await second.receive_utility()
        await wait_lost(client)
        await trio.testing.wait_all_tasks_blocked()
        assert client.snapshot().pending_calls == 0

        with engine_for(client) as third:
            await third.join()
            await answer_calls(third, 1)
            await wait_joined(client)

        assert told.lacking == {0: 0}
