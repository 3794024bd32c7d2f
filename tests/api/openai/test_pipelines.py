import itertools
from collections.abc import Sequence

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from tests.api.openai._harness import PaperWriter, contents
from vllmfront.api.openai._fast_choice import FastChoice
from vllmfront.api.openai._frames import AnswerHead, ChatFrames
from vllmfront.api.openai._general_choice import Extras, GeneralChoice
from vllmfront.api.openai._logprobs import ChatLogprobsWriter
from vllmfront.api.openai._pipelines import Pipelines
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._usage import RequestTimes, Usage, metrics_json, timing_metrics
from vllmfront.engine import EngineOutput, FinishReason, Logprobs, OutputSink
from vllmfront.text import LogprobDecoder, SamplingRequest, Surface, Tokenizer

HEAD = AnswerHead("chatcmpl-1", 1, "tiny", b"chat.completion.chunk").event_json()
CHAT = SamplingRequest(surface=Surface.CHAT)
PLAIN = Extras()
GENERAL = Extras(token_ids=True)

no_fixture_check = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)


class Stream:
    """One streamed chat choice and its client."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        extras: Extras = PLAIN,
        sampling: SamplingRequest = CHAT,
        prompt: Sequence[int] = (1853,),
    ) -> None:
        self.writer = PaperWriter()
        self.answer = StreamedAnswer(self.writer, HEAD, Usage(len(prompt)), choices=1)
        self.answer.start()
        self.choice: OutputSink = Pipelines(tokenizer, sampling).streamed(
            self.answer, ChatFrames(HEAD, 0), prompt, extras
        )

    def finish(self, token_ids: Sequence[int] = ()) -> list[str]:
        """Let the choice end, and return its texts."""
        last = EngineOutput(new_token_ids=list(token_ids), finish_reason=FinishReason.LENGTH)
        self.choice.on_output(last)
        assert self.writer.events[-1] == "data: [DONE]"
        return contents(self.writer.events)


def test_plain_requests_take_the_fast_lane(tokenizer: Tokenizer) -> None:
    stopping = SamplingRequest(surface=Surface.CHAT, stop="x")

    assert isinstance(Stream(tokenizer).choice, FastChoice)
    assert isinstance(Stream(tokenizer, GENERAL).choice, GeneralChoice)
    assert isinstance(Stream(tokenizer, Extras(interval=2)).choice, GeneralChoice)
    assert isinstance(Stream(tokenizer, sampling=stopping).choice, GeneralChoice)


# Ids of bytes and of parts of characters are frequent, so that characters split in all places.
token_lists = st.lists(
    st.one_of(st.integers(0, 255), st.integers(0, 2047), st.sampled_from([535, 246, 222])),
    max_size=30,
)


@no_fixture_check
@given(updates=st.lists(token_lists, max_size=8), skip=st.booleans(), prompt=token_lists)
def test_both_lanes_and_a_whole_answer_give_the_same_text(
    tokenizer: Tokenizer, updates: list[list[int]], skip: bool, prompt: list[int]
) -> None:
    sampling = SamplingRequest(surface=Surface.CHAT, skip_special_tokens=skip)
    fast = Stream(tokenizer, sampling=sampling, prompt=prompt)
    general = Stream(tokenizer, GENERAL, sampling, prompt)
    whole = Pipelines(tokenizer, sampling).whole(Usage(len(prompt)), prompt)
    for update in updates:
        for sink in (fast.choice, general.choice, whole):
            assert not sink.on_tokens(list(update))
    whole.on_output(EngineOutput(new_token_ids=[], finish_reason=FinishReason.LENGTH))
    text = "".join(general.finish())

    assert "".join(fast.finish()) == text
    assert whole.text_json("") == msgspec.json.encode(text)


@no_fixture_check
@given(ids=token_lists, cuts=st.sets(st.integers(0, 30)), stop=st.sampled_from(["", "a", "is"]))
def test_any_grouping_of_tokens_gives_the_same_answer(
    tokenizer: Tokenizer, ids: list[int], cuts: set[int], stop: str
) -> None:
    sampling = SamplingRequest(surface=Surface.CHAT, stop=stop or None)
    single, grouped = Stream(tokenizer, PLAIN, sampling), Stream(tokenizer, PLAIN, sampling)
    ended = any(single.choice.on_tokens([token_id]) for token_id in ids)
    edges = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    groups = [ids[a:b] for a, b in itertools.pairwise(edges) if a < b]
    ended_too = any(grouped.choice.on_tokens(group) for group in groups)
    if not ended:
        single.finish()
        grouped.finish()

    assert ended == ended_too
    finals = [stream.writer.events[-2] for stream in (single, grouped)]
    assert finals[0] == finals[1]
    texts = ["".join(contents(stream.writer.events)) for stream in (single, grouped)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("extras", [PLAIN, GENERAL])
def test_a_client_that_does_not_read_gets_one_merged_event(
    tokenizer: Tokenizer, extras: Extras
) -> None:
    stream = Stream(tokenizer, extras)
    stream.choice.on_tokens([500])
    stream.writer.reading = False
    for token_id in (341, 342, 64):
        stream.choice.on_tokens([token_id])
    while_stalled = contents(stream.writer.events)
    stream.writer.read_on()
    stream.choice.on_tokens([65])

    assert while_stalled == ["", "ult"]
    assert stream.finish() == ["", "ult", "is fora", "b"]


@pytest.mark.parametrize("extras", [PLAIN, GENERAL])
def test_an_end_does_not_wait_for_the_client(tokenizer: Tokenizer, extras: Extras) -> None:
    stream = Stream(tokenizer, extras)
    stream.writer.reading = False
    stream.choice.on_tokens([500])
    texts = stream.finish([341])
    stream.writer.read_on()

    assert texts == ["", "ultis"]
    assert stream.writer.finished


def test_logprobs_are_kept_raw_while_the_client_does_not_read(tokenizer: Tokenizer) -> None:
    writer = ChatLogprobsWriter(LogprobDecoder(tokenizer), 0)
    stream = Stream(tokenizer, Extras(logprobs=writer))
    stream.writer.reading = False
    for token_id in (500, 341):
        logprobs = Logprobs([[token_id]], [[-0.5]], [1])
        stream.choice.on_output(EngineOutput(new_token_ids=[token_id], logprobs=logprobs))
    stream.writer.read_on()
    stream.finish()

    [event] = [e for e in stream.writer.events[:-1] if e["choices"][0]["logprobs"]]
    assert [entry["token"] for entry in event["choices"][0]["logprobs"]["content"]] == ["ult", "is"]


def test_a_prompt_that_ends_inside_a_character_never_leaks(tokenizer: Tokenizer) -> None:
    face = tokenizer.encode("\N{GRINNING FACE}", add_special_tokens=False)
    stream = Stream(tokenizer, prompt=face[:-1])

    assert stream.finish([face[-1], 500])[-1].endswith("ult")


def test_the_last_token_stays_where_the_client_wants_it(tokenizer: Tokenizer) -> None:
    sampling = SamplingRequest(surface=Surface.CHAT, include_stop_str_in_output=True)
    stream = Stream(tokenizer, sampling=sampling)
    last = EngineOutput(new_token_ids=[500, 341], finish_reason=FinishReason.STOP)
    stream.choice.on_output(last)

    assert contents(stream.writer.events) == ["", "ultis"]


def test_a_closed_answer_ends_the_choices_that_go_on(tokenizer: Tokenizer) -> None:
    for extras in (PLAIN, GENERAL):
        stream = Stream(tokenizer, extras)
        stream.answer.fail(RuntimeError())

        assert stream.choice.on_tokens([500])


def test_metrics_are_null_where_marks_are_missing() -> None:
    assert timing_metrics(RequestTimes(), 5) == {
        "time_to_first_token_ms": None,
        "generation_time_ms": None,
        "queue_time_ms": None,
        "mean_itl_ms": None,
        "tokens_per_second": None,
    }
    assert metrics_json(RequestTimes(), 5, omit_unknown=True) == b"{}"


def test_metrics_are_differences_of_marks() -> None:
    times = RequestTimes(queued_at=1.0, scheduled_at=1.5, first_token_at=2.0, last_token_at=3.5)

    assert timing_metrics(times, 4) == {
        "time_to_first_token_ms": 500.0,
        "generation_time_ms": 1500.0,
        "queue_time_ms": 500.0,
        "mean_itl_ms": 500.0,
        "tokens_per_second": 2.0,
    }
