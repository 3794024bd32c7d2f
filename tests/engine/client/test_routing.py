"""Which engine a client's requests go to, by each policy and by name."""

from typing import Any

import attrs
import msgspec
import pytest

from tests.engine._helpers import CONFIG, open_engines, replaced, request
from vllmfront.engine import EngineClient, EngineRequest, FinishReason, RoutingPolicy
from vllmfront.testing import FakeEngine

LONG = list(range(200))


async def served_by(client: EngineClient, engines: list[FakeEngine], asked: EngineRequest) -> int:
    """Have *asked* served by whichever engine gets it; return its rank."""
    async with client.submit(asked) as stream:
        before = [rank.in_flight for rank in client.snapshot().ranks]
        [rank] = [number for number, count in enumerate(before) if count]
        add = await engines[rank].receive_add()
        engines[rank].send_tokens(add.internal_id, [1], FinishReason.STOP)
        await stream.wait_finished()
    return rank


def prompt(tokens: list[int], **fields: Any) -> EngineRequest:
    return msgspec.structs.replace(request(), prompt_token_ids=tokens, **fields)


@pytest.mark.parametrize("policy", list(RoutingPolicy))
async def test_a_named_rank_is_taken_whatever_the_policy(policy: RoutingPolicy) -> None:
    async with open_engines(3, attrs.evolve(CONFIG, routing=policy)) as (client, engines):
        for rank in (2, 0, 1):
            asked = prompt(LONG, data_parallel_rank=rank, session_id="a")
            assert await served_by(client, engines, asked) == rank


async def test_a_prefix_goes_where_it_was_sent_before_by_name() -> None:
    config = attrs.evolve(CONFIG, routing=RoutingPolicy.PREFIX)
    async with open_engines(3, config) as (client, engines):
        await served_by(client, engines, prompt(LONG, data_parallel_rank=2))

        assert await served_by(client, engines, prompt([*LONG, 7])) == 2
        assert await served_by(client, engines, prompt([7, *LONG])) == 0


async def test_a_session_goes_where_it_was_before() -> None:
    config = attrs.evolve(CONFIG, routing=RoutingPolicy.SESSION)
    async with open_engines(3, config) as (client, engines):
        await served_by(client, engines, prompt([1], data_parallel_rank=1, session_id="a"))

        assert await served_by(client, engines, prompt([2], session_id="a")) == 1
        assert await served_by(client, engines, prompt([2], session_id="b")) == 0


async def test_a_new_process_of_a_rank_is_not_taken_to_know_what_the_old_one_knew() -> None:
    config = attrs.evolve(CONFIG, routing=RoutingPolicy.PREFIX)
    async with open_engines(2, config) as (client, engines):
        await served_by(client, engines, prompt(LONG, data_parallel_rank=1))
        async with replaced(client, engines[1], 1) as new:
            assert await served_by(client, [engines[0], new], prompt(LONG)) == 0
