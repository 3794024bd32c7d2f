"""The oracle and the stand-in agree: else the soak would compare with nothing."""

import attrs
import pytest
import trio

from tests.chaos._asks import Ask, draw_asks
from tests.chaos._oracle import EOS, EOS_CHANCE, OTHER_EOS, SEED, VOCAB_SIZE, Oracle
from tests.simulator._frontend import RawFrontend, open_raw_frontend, request
from vllmfront.simulator import SimulatorConfig, open_simulator

TEST_SECONDS = 20.0
ORACLE = Oracle()


async def answer(frontend: RawFrontend, ask: Ask, prompt: list[int]) -> list[int]:
    ends = [] if ask.ignore_eos else [EOS, OTHER_EOS]
    sampling = {"temperature": 0.0} if ask.greedy else {"temperature": 1.0, "top_k": 1}
    asked = request(
        ask.id,
        prompt,
        max_tokens=ask.max_tokens,
        min_tokens=ask.min_tokens,
        eos_token_id=None if ask.ignore_eos else EOS,
        stop_token_ids=ends[1:],
        all_stop_token_ids=[EOS, OTHER_EOS],
        **sampling,
    )
    return await frontend.tokens(asked)


async def test_it_knows_what_a_stand_in_says_and_how_it_would_go_on() -> None:
    asks = [ask for ask in draw_asks(4, 0, 120) if ask.prompt and ask.stop is None]
    ends = set()
    with trio.fail_after(TEST_SECONDS):
        async with open_raw_frontend() as frontend:
            config = SimulatorConfig(
                handshake=frontend.handshake.address,
                step_time=0.0,
                vocab_size=VOCAB_SIZE,
                seed=SEED,
                eos_chance=EOS_CHANCE,
            )
            async with open_simulator(config):
                await frontend.shake_hands()
                for ask in asks:
                    prompt = list(ask.prompt or ())
                    truth = ORACLE.truth(ask, prompt)
                    ends.add(truth.finish_reason)

                    assert await answer(frontend, ask, prompt) == list(truth.tokens)

                    half = len(truth.tokens) // 2
                    rest = attrs.evolve(
                        ask,
                        id=f"{ask.id}again",
                        max_tokens=ask.max_tokens - half,
                        min_tokens=max(0, ask.min_tokens - half),
                    )
                    said = await answer(frontend, rest, [*prompt, *truth.tokens[:half]])
                    assert said == list(truth.tokens[half:])

    assert len(asks) > 30
    assert ends == {"stop", "length"}


@pytest.mark.parametrize("stop", ["e", "ing", "="])
def test_a_stop_string_cuts_the_text_where_it_begins(stop: str) -> None:
    asks = [Ask(id="r", prompt=[400 + n], max_tokens=60, stop=stop) for n in range(20)]
    truths = [ORACLE.truth(ask, list(ask.prompt or ())) for ask in asks]
    uncut = [ORACLE.truth(attrs.evolve(ask, stop=None), list(ask.prompt or ())) for ask in asks]

    cut = [(one, whole) for one, whole in zip(truths, uncut, strict=True) if stop in whole.text]
    assert cut
    for one, whole in cut:
        assert stop not in one.text
        assert (one.text + stop) == whole.text[: len(one.text) + len(stop)]
        assert one.finish_reason == "stop"
        assert stop in ORACLE.decode(one.tokens)
        assert stop not in ORACLE.decode(one.tokens[:-1])
