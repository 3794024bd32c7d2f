"""The engine client in front of everything that calls itself an engine."""

import pytest

from tests.real_engine._subject import Subject, fresh_id
from tests.simulator._frontend import request
from vllmfront.engine import EngineClient, EngineRequest, FinishReason
from vllmfront.errors import RequestRejected, UtilityCallFailed

PROMPT = (300, 301, 302, 303)


def ask(**sampling: object) -> EngineRequest:
    return request(fresh_id(), PROMPT, **sampling)


async def tokens(client: EngineClient, asked: EngineRequest) -> list[int]:
    async with client.submit(asked) as stream:
        return [token async for output in stream for token in output.new_token_ids]


async def test_a_request_is_answered(subject: Subject) -> None:
    async with subject.open_client() as client:
        first = await tokens(client, ask(max_tokens=6))
        second = await tokens(client, ask(max_tokens=6))

        assert len(first) == 6
        assert first == second
        assert client.num_in_flight == 0


async def test_choices_have_seeds_of_their_own(subject: Subject) -> None:
    async with subject.open_client() as client:
        asked = ask(n=3, temperature=1.0, seed=5, max_tokens=6)
        said: dict[int, list[int]] = {0: [], 1: [], 2: []}
        async with client.submit(asked) as stream:
            while (item := await stream.next_output()) is not None:
                said[item[0]] += item[1].new_token_ids
        alone = await tokens(client, ask(temperature=1.0, seed=6, max_tokens=6))

        assert [len(one) for one in said.values()] == [6, 6, 6]
        assert said[1] == alone


async def test_leaving_early_aborts(subject: Subject) -> None:
    async with subject.open_client() as client:
        async with client.submit(ask(max_tokens=900)) as stream:
            assert await stream.next_output() is not None

        assert client.num_in_flight == 0
        assert len(await tokens(client, ask(max_tokens=3))) == 3


async def test_a_call_returns_or_raises(subject: Subject) -> None:
    async with subject.open_client() as client:
        assert await client.call_utility("get_supported_tasks") == [["generate"]]
        with pytest.raises(UtilityCallFailed, match="no attribute 'nothing'"):
            await client.call_utility("nothing")


async def test_the_guard_keeps_what_would_kill_the_engine(subject: Subject) -> None:
    async with subject.open_client() as client:
        with pytest.raises(RequestRejected):
            await tokens(client, ask(logit_bias={10**6: 1.0}))
        async with client.submit(ask(max_tokens=1)) as stream:
            outputs = [output async for output in stream]

        assert outputs[-1].finish_reason is FinishReason.LENGTH
