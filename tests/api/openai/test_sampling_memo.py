import msgspec

from vllmfront.api.openai._chat_request import ChatCompletionRequest
from vllmfront.api.openai._sampling import PreparedSampling, SamplingMemo
from vllmfront.engine import SamplingParams
from vllmfront.text import Surface


def body(**fields: object) -> ChatCompletionRequest:
    message = {"role": "user", "content": "Hello!"}
    return msgspec.json.decode(
        msgspec.json.encode({"messages": [message], **fields}), type=ChatCompletionRequest
    )


def test_requests_that_ask_for_the_same_share_their_preparation() -> None:
    memo = SamplingMemo(Surface.CHAT, 1)
    first = memo.prepare(body(temperature=0.5, seed=3, user="a"))
    first.passed()

    assert memo.prepare(body(temperature=0.5, seed=3, user="b")) is first
    assert first.request.temperature == 0.5
    assert first.request.seed == 3


def test_each_sampling_field_tells_requests_apart() -> None:
    memo = SamplingMemo(Surface.CHAT, 1)
    base = memo.prepare(body())
    base.passed()

    for fields in ({"temperature": 0.5}, {"n": 2}, {"stream": True}, {"stop": "x"}, {"echo": True}):
        assert memo.prepare(body(**fields)) is not base


def test_lists_and_maps_are_prepared_anew() -> None:
    memo = SamplingMemo(Surface.CHAT, 1)
    fields = {"stop": ["a"], "logit_bias": {"5": 1.0}}

    assert memo.prepare(body(**fields)) is not memo.prepare(body(**fields))
    assert memo.prepare(body(**fields)).request.stop == ["a"]


def test_what_is_remembered_is_bounded() -> None:
    memo = SamplingMemo(Surface.CHAT, 1)
    first = memo.prepare(body(seed=0))
    first.passed()
    for seed in range(1, 1025):
        memo.prepare(body(seed=seed)).passed()
    prepared = PreparedSampling(first.request)
    for length in range(1, 200):
        prepared.remember(SamplingParams(max_tokens=length))

    assert memo.prepare(body(seed=0)) is not first
    assert len(prepared.lowered) <= 64


def test_what_was_refused_or_is_long_is_not_kept() -> None:
    memo = SamplingMemo(Surface.CHAT, 1)
    refused = memo.prepare(body(temperature=9.0))
    long = memo.prepare(body(stop="x" * 1025))
    long.passed()

    assert memo.prepare(body(temperature=9.0)) is not refused
    assert memo.prepare(body(stop="x" * 1025)) is not long
