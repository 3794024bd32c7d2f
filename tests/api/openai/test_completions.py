from typing import Any

import pytest
import trio

from tests.api.openai._harness import COMPLETIONS, Api, completion
from vllmfront.engine import FinishReason, Logprobs

LENGTH = FinishReason.LENGTH


def texts(events: list[Any], index: int = 0) -> list[str]:
    return [
        choice["text"]
        for event in events
        if isinstance(event, dict)
        for choice in event["choices"]
        if choice["index"] == index
    ]


async def test_every_update_makes_an_event_even_without_text(api: Api) -> None:
    call = api.post(COMPLETIONS, completion(stream=True))
    add = await api.engine.receive_add()
    await api.say_slowly(add, api.encode("\N{GRINNING FACE}"))
    writer = await call.finished()

    assert texts(writer.events) == ["", "", "\N{GRINNING FACE}", ""]
    assert writer.events[-2]["choices"] == [
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    ]
    assert writer.events[-1] == "data: [DONE]"


async def test_a_whole_answer_has_the_peers_members_in_its_order(api: Api) -> None:
    call = api.post(COMPLETIONS, completion(max_tokens=2))
    add = await api.engine.receive_add()
    api.say(add, [500, 341], LENGTH)
    writer = await call.finished()

    answer = writer.json
    assert writer.body.decode() == (
        f'{{"id":"{answer["id"]}","object":"text_completion","created":{answer["created"]},'
        '"model":"tiny","choices":[{"index":0,"text":"ultis","logprobs":null,'
        '"finish_reason":"length","stop_reason":null,"prompt_logprobs":null,"token_ids":null,'
        '"prompt_token_ids":null}],"usage":{"prompt_tokens":1,"total_tokens":3,'
        '"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":'
        '{"reasoning_tokens":0}},"metrics":null,"system_fingerprint":null,'
        '"kv_transfer_params":null,"ec_transfer_params":null}'
    )


async def test_prompts_of_a_batch_are_answered_in_order(api: Api) -> None:
    call = api.post(COMPLETIONS, completion(["Hello", "The capital"], max_tokens=2))
    first, second = await api.engine.receive_add(), await api.engine.receive_add()
    api.say(second, [198], LENGTH)
    api.say(first, [500, 341], LENGTH)
    writer = await call.finished()

    assert [choice["text"] for choice in writer.json["choices"]] == ["ultis", "\n"]
    assert [choice["index"] for choice in writer.json["choices"]] == [0, 1]
    usage = writer.json["usage"]
    prompts = len(first.request.prompt_token_ids) + len(second.request.prompt_token_ids)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompts, 3)


async def test_choices_of_a_batch_are_numbered_prompt_by_prompt(api: Api) -> None:
    body = completion([[1, 2], [3]], n=2, temperature=1, stream=True, max_tokens=1)
    call = api.post(COMPLETIONS, body)
    adds = [await api.engine.receive_add() for _ in range(4)]
    for add, token_id in zip(adds, [500, 341, 198, 64], strict=True):
        await api.say_slowly(add, [token_id])
    writer = await call.finished()

    assert [list(add.request.prompt_token_ids) for add in adds] == [[1, 2], [1, 2], [3], [3]]
    assert [texts(writer.events, index) for index in range(4)] == [
        ["ult", ""],
        ["is", ""],
        ["\n", ""],
        ["a", ""],
    ]


@pytest.mark.parametrize(
    ("prompt", "status"),
    [("", 400), ([], 400), ([99999], 400), ([-1], 400), ([1, "a"], 400), (3, 400), (None, 400)],
)
async def test_unusable_prompts_are_refused(api: Api, prompt: object, status: int) -> None:
    writer = await api.answer(COMPLETIONS, completion(prompt))

    assert writer.status == status


async def test_echo_leads_the_text_and_its_logprobs(api: Api) -> None:
    call = api.post(COMPLETIONS, completion("Hello world", echo=True, logprobs=1))
    add = await api.engine.receive_add()
    prompt = list(add.request.prompt_token_ids)
    rows = [[token_id, 198] for token_id in prompt[1:]]
    api.say_output(
        add,
        new_token_ids=[500],
        logprobs=Logprobs([[500, 198]], [[-0.5, -1.0]], [1]),
        prompt_logprobs=Logprobs(rows, [[-0.5, -1.0]] * 3, [2] * 3),
        finish_reason=LENGTH,
    )
    writer = await call.finished()

    choice = writer.json["choices"][0]
    assert choice["text"] == "Hello worldult"
    assert choice["logprobs"]["tokens"] == ["Hello", " w", "or", "ld", "ult"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 5, 7, 9, 11]
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1] == {
        "307": {"logprob": -0.5, "rank": 2, "decoded_token": " w"},
        "198": {"logprob": -1.0, "rank": 1, "decoded_token": "\n"},
    }


async def test_a_streamed_echo_is_an_event_of_its_own(api: Api) -> None:
    call = api.post(COMPLETIONS, completion([39, 72], echo=True, stream=True, logprobs=0))
    add = await api.engine.receive_add()
    api.say_output(
        add,
        new_token_ids=[500],
        logprobs=Logprobs([[500]], [[-0.5]], [1]),
        finish_reason=LENGTH,
    )
    writer = await call.finished()

    assert texts(writer.events) == ["Hi", "ult", ""]
    assert writer.events[0]["choices"][0]["logprobs"] is None
    assert writer.events[1]["choices"][0]["logprobs"]["text_offset"] == [2]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_alone_hides_the_token_that_it_costs(api: Api, stream: bool) -> None:
    body = completion("Hello", echo=True, max_tokens=0, stream=stream, return_token_ids=True)
    call = api.post(COMPLETIONS, body)
    add = await api.engine.receive_add()
    api.say(add, [500], LENGTH)
    writer = await call.finished()

    assert add.request.sampling is not None
    assert add.request.sampling.max_tokens == 1
    if stream:
        assert texts(writer.events) == ["Hello", ""]
    else:
        assert writer.json["choices"][0]["text"] == "Hello"
        assert writer.json["usage"]["completion_tokens"] == 1


async def test_a_streamed_echo_alone_shows_the_prompts_logprobs(api: Api) -> None:
    body = completion("Hello world", echo=True, max_tokens=0, stream=True, logprobs=0)
    call = api.post(COMPLETIONS, body)
    add = await api.engine.receive_add()
    prompt = list(add.request.prompt_token_ids)
    api.say_output(
        add,
        new_token_ids=[500],
        logprobs=Logprobs([[500]], [[-0.5]], [1]),
        prompt_logprobs=Logprobs([[i] for i in prompt[1:]], [[-0.5]] * 3, [1] * 3),
        finish_reason=LENGTH,
    )
    writer = await call.finished()

    assert writer.events[0]["choices"][0]["logprobs"]["tokens"] == ["Hello", " w", "or", "ld"]


async def test_offsets_of_a_stream_count_what_was_shown(api: Api) -> None:
    call = api.post(COMPLETIONS, completion(stream=True, logprobs=0))
    add = await api.engine.receive_add()
    for token_id in api.encode("x\N{GRINNING FACE}y"):
        logprobs = Logprobs([[token_id]], [[-0.5]], [1])
        api.say_output(add, new_token_ids=[token_id], logprobs=logprobs)
    api.say(add, [], LENGTH)
    writer = await call.finished()

    offsets = [
        event["choices"][0]["logprobs"]["text_offset"]
        for event in writer.events[:-1]
        if event["choices"][0]["logprobs"]
    ]
    assert offsets == [[0], [1], [1], [1], [2]]


@pytest.mark.parametrize("field", ["suffix", "prompt_embeds"])
async def test_suffix_and_embeddings_are_refused(api: Api, field: str) -> None:
    writer = await api.answer(COMPLETIONS, completion(**{field: ""}))

    assert writer.status == 400
    assert writer.json["error"]["param"] == field


async def test_ids_of_prompt_and_answer_are_returned(api: Api) -> None:
    call = api.post(COMPLETIONS, completion([39, 72], stream=True, return_token_ids=True))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [500])
    writer = await call.finished()

    choices = [event["choices"][0] for event in writer.events[:-1]]
    assert choices[0]["prompt_token_ids"] == [39, 72]
    assert [choice["token_ids"] for choice in choices] == [[], [500], []]


async def test_long_answers_are_written_elsewhere_and_are_the_same(api: Api) -> None:
    prompt = [5] * 1000
    call = api.post(COMPLETIONS, completion(prompt, prompt_logprobs=1))
    add = await api.engine.receive_add()
    rows = [[token_id, 198] for token_id in prompt[1:]]
    api.say_output(
        add,
        new_token_ids=[500],
        prompt_logprobs=Logprobs(rows, [[-0.5, -1.0]] * 999, [2] * 999),
        finish_reason=LENGTH,
    )
    writer = await call.finished()

    entries = writer.json["choices"][0]["prompt_logprobs"]
    assert entries[0] is None
    assert entries[1] == entries[999]
    assert set(entries[1]) == {"5", "198"}


@pytest.mark.parametrize("stream", [False, True])
async def test_very_many_choices_leave_others_their_turns(api: Api, stream: bool) -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    body = completion(["a", "b"], n=150, temperature=1, stream=stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        call = api.post(COMPLETIONS, body)
        adds = [await api.engine.receive_add() for _ in range(300)]
        nursery.cancel_scope.cancel()
    for add in adds:
        api.say(add, [64], FinishReason.STOP)
    writer = await call.finished()

    assert turns >= 12
    if stream:
        choices = [event["choices"][0] for event in writer.events if isinstance(event, dict)]
        ended = [choice["index"] for choice in choices if choice["finish_reason"]]
        assert sorted(ended) == list(range(300))
    else:
        assert [choice["index"] for choice in writer.json["choices"]] == list(range(300))
