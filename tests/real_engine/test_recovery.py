"""Answers of a real engine that is lost half-way and comes back."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from tokenizers import Tokenizer

from tests.end_to_end.chats import CHATS, Chat, prompt_of
from tests.real_engine._process import MAX_MODEL_LEN, TINY_CHAT, VOCAB_SIZE, RealEngine
from tests.real_engine._relay import open_relay
from tests.real_engine._subject import TEST_SECONDS, fresh_id
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineRequest,
    EngineState,
    GuardLimits,
    SamplingParams,
    TerminalCause,
    open_engine_client,
)

pytestmark = pytest.mark.engine

KNOWN = [chat for chat in CHATS if chat.tools is None and len(chat.messages) == 1]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY_CHAT / "tokenizer.json"))


@asynccontextmanager
async def open_client() -> AsyncGenerator[EngineClient, None]:
    limits = GuardLimits(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
    with trio.fail_after(TEST_SECONDS):
        async with open_engine_client(EngineClientConfig(limits=limits)) as client:
            yield client


def ask(chat: Chat, tokenizer: Tokenizer) -> EngineRequest:
    prompt = tokenizer.encode(prompt_of(chat.messages[0]["content"]), add_special_tokens=False)
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    sampling = SamplingParams(
        temperature=0.0, max_tokens=200, eos_token_id=end, all_stop_token_ids=(end,)
    )
    return EngineRequest(request_id=fresh_id(), prompt_token_ids=prompt.ids, sampling=sampling)


@pytest.mark.parametrize("chat", KNOWN, ids=lambda chat: chat.name)
@pytest.mark.parametrize("steps", [1, 7])
async def test_a_greedy_answer_goes_on_word_for_word(
    real_engine: RealEngine, tokenizer: Tokenizer, chat: Chat, steps: int
) -> None:
    said: list[int] = []
    async with open_client() as client, trio.open_nursery() as nursery:
        handshake = client.handshake_address
        assert handshake is not None
        ended = trio.Event()

        async def listen() -> None:
            async with client.submit(ask(chat, tokenizer)) as stream:
                async for output in stream:
                    said.extend(output.new_token_ids)
            assert stream.cause is TerminalCause.STOP
            ended.set()

        async with open_relay(real_engine, handshake, outputs_until_silence=steps) as silent:
            await client.wait_ready()
            nursery.start_soon(listen)
            await silent.wait()
        await client.wait_state(lambda state: state is EngineState.RECOVERING)
        before = len(said)
        async with open_relay(real_engine, handshake):
            await ended.wait()

        assert before == steps
        assert client.metrics.snapshot().continued_requests == 1
        assert client.num_in_flight == 0
    assert tokenizer.decode(said, skip_special_tokens=True) == chat.answer
