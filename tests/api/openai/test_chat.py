import pytest

from tests.api.openai._harness import CHAT, Api, chat, contents
from vllmfront.engine import FinishReason, Logprobs, PrefillStats

USAGE = {"include_usage": True}


async def test_a_stream_has_role_text_finish_usage_and_done(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True, stream_options=USAGE, max_tokens=3))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [2046, 198, 500])
    writer = await call.finished()

    first = writer.events[0]
    head = {name: first[name] for name in ("id", "object", "created", "model")}
    assert head["id"].startswith("chatcmpl-")
    assert head["object"] == "chat.completion.chunk"
    assert head["model"] == "tiny"
    nulls = {"logprobs": None, "finish_reason": None}
    assert writer.events == [
        head | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, **nulls}]},
        *(
            head | {"choices": [{"index": 0, "delta": {"content": text}, **nulls}]}
            for text in ("<think>", "\n", "ult")
        ),
        head
        | {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]},
        head
        | {
            "choices": [],
            "usage": {
                "prompt_tokens": 15,
                "total_tokens": 18,
                "completion_tokens": 3,
                "prompt_tokens_details": None,
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        },
        "data: [DONE]",
    ]


async def test_the_head_is_sent_before_the_engine_answers(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True))
    await api.engine.receive_add()

    assert call.writer.status == 200
    assert call.writer.headers[b"content-type"] == b"text/event-stream"
    assert call.writer.headers[b"cache-control"] == b"no-cache"
    assert call.writer.pieces == []


async def test_a_whole_answer_has_the_peers_members_in_its_order(api: Api) -> None:
    call = api.post(CHAT, chat(max_tokens=3))
    add = await api.engine.receive_add()
    api.say(add, [2046, 198, 500], FinishReason.LENGTH)
    writer = await call.finished()

    created = writer.json["created"]
    assert writer.body.decode() == (
        f'{{"id":"{writer.json["id"]}","object":"chat.completion","created":{created},'
        '"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":'
        '"<think>\\nult","refusal":null,"annotations":null,"audio":null,"function_call":null,'
        '"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,'
        '"token_ids":null,"routed_experts":null,"weight_versions":null}],"service_tier":null,'
        '"usage":{"prompt_tokens":15,"total_tokens":18,"completion_tokens":3,'
        '"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":0}},'
        '"metrics":null,"system_fingerprint":null,"prompt_logprobs":null,'
        '"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,'
        '"ec_transfer_params":null}'
    )


async def test_no_text_at_all_is_null(api: Api) -> None:
    call = api.post(CHAT, chat())
    add = await api.engine.receive_add()
    api.say(add, [2041], FinishReason.STOP)
    writer = await call.finished()

    choice = writer.json["choices"][0]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "stop"
    assert writer.json["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_stop_token_counts_but_is_no_text(api: Api, stream: bool) -> None:
    call = api.post(CHAT, chat(stream=stream, stream_options=USAGE if stream else None))
    add = await api.engine.receive_add()
    api.say(add, [500])
    api.say(add, [341], FinishReason.STOP)
    writer = await call.finished()

    if stream:
        assert "".join(contents(writer.events)) == "ult"
        assert writer.events[-2]["usage"]["completion_tokens"] == 2
    else:
        assert writer.json["choices"][0]["message"]["content"] == "ult"
        assert writer.json["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_text_and_the_request(api: Api, stream: bool) -> None:
    call = api.post(CHAT, chat(stream=stream, stop=["wor"]))
    add = await api.engine.receive_add()
    await api.say_slowly(add, api.encode("hello world this is"), None)
    writer = await call.finished()
    abort = await api.engine.receive_abort()

    assert abort.request_ids == [add.internal_id]
    if stream:
        assert contents(writer.events) == ["", "h", "el", "lo", " "]
        final = writer.events[-2]["choices"][0]
        assert final["finish_reason"] == "stop"
        assert final["stop_reason"] == "wor"
    else:
        choice = writer.json["choices"][0]
        assert choice["message"]["content"] == "hello "
        assert choice["stop_reason"] == "wor"
        assert writer.json["usage"]["completion_tokens"] == 5


async def test_no_empty_delta_is_sent_while_text_is_held_back(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True, stop=["zzzzzz"]))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [*api.encode("hello world this is"), 500])
    writer = await call.finished()

    assert contents(writer.events) == ["", "he", "ll", "o ", "world", " th", "is isult"]


async def test_split_characters_come_out_whole(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True))
    add = await api.engine.receive_add()
    await api.say_slowly(add, api.encode("x\N{GRINNING FACE}y"))
    writer = await call.finished()

    assert contents(writer.events) == ["", "x", "\N{GRINNING FACE}", "y"]


async def test_incomplete_characters_are_flushed_at_the_end(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True))
    add = await api.engine.receive_add()
    await api.say_slowly(add, api.encode("x\N{GRINNING FACE}")[:-1])
    writer = await call.finished()

    assert contents(writer.events) == ["", "x", "\ufffd"]


async def test_each_of_n_choices_is_framed_by_itself(api: Api) -> None:
    body = chat(stream=True, n=2, seed=7, temperature=1, stream_options=USAGE)
    call = api.post(CHAT, body)
    first, second = await api.engine.receive_add(), await api.engine.receive_add()
    await api.say_slowly(second, [500, 341])
    await api.say_slowly(first, [198])
    writer = await call.finished()

    assert [add.request.sampling.seed for add in (first, second) if add.request.sampling] == [7, 8]
    assert contents(writer.events, 0) == ["", "\n"]
    assert contents(writer.events, 1) == ["", "ult", "is"]
    reasons = [c["finish_reason"] for e in writer.events[:-1] for c in e["choices"]]
    assert reasons == [None, None, None, "length", None, None, "length"]
    assert writer.events[-2]["usage"]["completion_tokens"] == 3


async def test_greedy_choices_are_refused_because_they_are_equal(api: Api) -> None:
    writer = await api.answer(CHAT, chat(n=2, temperature=0))

    assert writer.status == 400
    assert writer.json["error"]["param"] == "n"


async def test_logprobs_have_exactly_the_asked_number_the_sampled_one_first(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True, logprobs=True, top_logprobs=2))
    add = await api.engine.receive_add()
    api.say_output(
        add,
        new_token_ids=[500],
        logprobs=Logprobs([[500, 198, 341]], [[-0.005176830012351, -1.5, float("-inf")]], [9]),
        finish_reason=FinishReason.LENGTH,
    )
    writer = await call.finished()

    assert add.request.sampling is not None
    assert add.request.sampling.logprobs == 2
    sampled = {"token": "ult", "logprob": -0.00517683, "bytes": [117, 108, 116]}
    other = {"token": "\n", "logprob": -1.5, "bytes": [10]}
    assert writer.events[1]["choices"][0]["logprobs"] == {
        "content": [{**sampled, "top_logprobs": [sampled, other]}]
    }


async def test_whole_answers_without_the_logprobs_they_need_fail(api: Api) -> None:
    call = api.post(CHAT, chat(logprobs=True))
    add = await api.engine.receive_add()
    api.say(add, [500], FinishReason.LENGTH)
    writer = await call.finished()

    assert writer.status == 500


async def test_token_ids_come_with_every_event_that_has_some(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True, return_token_ids=True))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [500, 2041], FinishReason.STOP)
    writer = await call.finished()

    events = writer.events[:-1]
    assert events[0]["prompt_token_ids"] == list(add.request.prompt_token_ids)
    assert [event["choices"][0].get("token_ids") for event in events] == [
        None,
        [500],
        [2041],
        None,
    ]


async def test_running_usage_comes_with_every_event(api: Api) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    call = api.post(CHAT, chat(stream=True, stream_options=options))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [500, 341])
    writer = await call.finished()

    counts = [event["usage"]["completion_tokens"] for event in writer.events[:-1]]
    assert counts == [0, 1, 2, 2, 2]


async def test_running_usage_waits_for_text(api: Api) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    call = api.post(CHAT, chat(stream=True, stream_options=options, stop=["xyz"]))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [*api.encode("x"), *api.encode("a")])
    writer = await call.finished()

    assert contents(writer.events)[:2] == ["", "xa"]
    counts = [event["usage"]["completion_tokens"] for event in writer.events[:-1]]
    assert counts == [0, 2, 2, 2]


async def test_an_interval_joins_tokens_but_not_the_first(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True, stream_interval=2))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [500, 341, 342, 64, 65, 66])
    writer = await call.finished()

    assert contents(writer.events) == ["", "ult", "is for", "ab", "c"]


async def test_echo_continues_the_final_message(api: Api) -> None:
    body = chat(stream=True, echo=True, continue_final_message=True, add_generation_prompt=False)
    body["messages"].append({"role": "assistant", "content": "bc"})
    call = api.post(CHAT, body)
    add = await api.engine.receive_add()
    await api.say_slowly(add, [500])
    writer = await call.finished()

    assert contents(writer.events) == ["", "bc", "ult"]


async def test_transfer_parameters_go_there_and_back(api: Api) -> None:
    call = api.post(CHAT, chat(kv_transfer_params={"a": 1}, vllm_xargs={"b": 2}))
    add = await api.engine.receive_add()
    api.say_output(
        add,
        new_token_ids=[500],
        finish_reason=FinishReason.LENGTH,
        kv_transfer_params={"c": 3},
        prefill_stats=PrefillStats(num_cached_tokens=8),
    )
    writer = await call.finished()

    assert add.request.sampling is not None
    assert add.request.sampling.extra_args == {"b": 2, "kv_transfer_params": {"a": 1}}
    assert writer.json["kv_transfer_params"] == {"c": 3}
    assert writer.json["usage"]["prompt_tokens_details"] is None


async def test_headers_beat_the_body(api: Api) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"x-request-id", b"mine"),
        (b"x-session-id", b"s1"),
        (b"x-data-parallel-rank", b"0"),
    ]
    body = chat(request_id="other", session_id="s2", priority=-3, cache_salt="salt")
    call = api.post(CHAT, body, headers)
    add = await api.engine.receive_add()
    api.say(add, [500], FinishReason.LENGTH)
    writer = await call.finished()

    assert writer.json["id"] == "chatcmpl-mine"
    assert add.request.session_id == "s1"
    assert add.request.data_parallel_rank == 0
    assert add.request.priority == -3
    assert add.request.cache_salt == "salt"
    assert add.internal_id.startswith("chatcmpl-mine-")


@pytest.mark.parametrize("rank", [b"x", b"-1", b"9" * 5000], ids=["x", "-1", "very long"])
async def test_a_rank_that_is_no_number_is_ignored(api: Api, rank: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"x-data-parallel-rank", rank)]
    api.post(CHAT, chat(), headers)
    add = await api.engine.receive_add()

    assert add.request.data_parallel_rank is None


async def test_tools_reach_the_template_and_calls_stay_text(api: Api) -> None:
    tool = {"type": "function", "function": {"name": "get_weather"}}
    call = api.post(CHAT, chat(tools=[tool], tool_choice="auto"))
    add = await api.engine.receive_add()
    text = '<tool_call>{"name": "get_weather"}</tool_call>'
    api.say(add, api.encode(text), FinishReason.LENGTH)
    writer = await call.finished()

    assert "get_weather" in api.tokenizer.decode(add.request.prompt_token_ids)
    assert writer.json["choices"][0]["message"]["content"] == text
    assert "tool_calls" not in writer.json["choices"][0]["message"]


@pytest.mark.parametrize(
    ("choice", "status"),
    [
        ("required", 501),
        ({"type": "function", "function": {"name": "a"}}, 501),
        ({"type": "function", "function": {"name": "b"}}, 400),
        ("sometimes", 400),
        ({"type": "function", "name": "a"}, 400),
    ],
)
async def test_demanding_a_call_is_a_clear_error(api: Api, choice: object, status: int) -> None:
    tools = [{"type": "function", "function": {"name": "a"}}]
    writer = await api.answer(CHAT, chat(tools=tools, tool_choice=choice))

    assert writer.status == status
    assert "tool_choice" in writer.json["error"]["message"]
