import json
import logging

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.api.openai._harness import (
    CHAT,
    COMPLETIONS,
    JSON_TYPE,
    Api,
    PaperWriter,
    chat,
    completion,
    open_api,
)
from vllmfront.api.http import HttpRequest
from vllmfront.api.openai import OpenAiRoutes, ServiceOptions, ServiceSlot
from vllmfront.engine import EngineError, FinishReason, RequestStream
from vllmfront.models import ModelDescription
from vllmfront.text import SamplingLimits, Tokenizer

DONE = "data: [DONE]"


def error(writer: PaperWriter) -> tuple[int, str, str]:
    found = writer.json["error"]
    assert found["code"] == writer.status
    return writer.status, found["type"], found["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "EOF while parsing a value"),
        (b"{", "EOF while parsing a value"),
        (b"\xff", "invalid character (byte 0)"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "Invalid UTF-8 encoded string"),
        (b"[" * 300_000, "recursion limit exceeded"),
    ],
)
async def test_a_body_that_is_no_json_is_a_bad_request(api: Api, body: bytes, message: str) -> None:
    writer = await api.answer(CHAT, body)

    prefix = "Failed to parse the request body as JSON: "
    assert error(writer) == (400, "Bad Request", prefix + message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": "2"}, 'n: invalid type: string "2", expected u32'),
        ({"max_tokens": -1}, "max_tokens: invalid value: integer `-1`, expected u32"),
        ({"seed": 2**63}, f"seed: invalid value: integer `{2**63}`, expected i64"),
        ({"stream": "yes"}, 'stream: invalid type: string "yes", expected a boolean'),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]: invalid value: integer `-1`, expected u32"),
        ({"stop": 1}, "stop: data did not match any variant of untagged enum StringOrArray"),
        ({"repetition_detection": {}}, "repetition_detection: missing field `max_pattern_size`"),
        ({"truncation_side": "x"}, "truncation_side: unknown variant `x`, expected `left` or `right`"),  # noqa: E501
        ({"stream_interval": 0}, "stream_interval: invalid value: integer `0`, expected a nonzero u32"),  # noqa: E501
        ({"top_k": -2}, "top_k: top_k must be -1, 0, or a positive integer, got -2"),
        ({"vllm_xargs": 1}, "vllm_xargs: invalid type: integer `1`, expected a map"),
        ({"logit_bias": {"1": "x"}}, "logit_bias[...]: Expected `float`, got `str`"),
    ],
)  # fmt: skip
async def test_a_wrong_type_names_the_field(
    api: Api, fields: dict[str, object], message: str
) -> None:
    writer = await api.answer(CHAT, chat(**fields))

    prefix = "Failed to deserialize the JSON body into the target type: "
    assert error(writer) == (400, "Bad Request", prefix + message)


async def test_a_missing_field_is_named(api: Api) -> None:
    writer = await api.answer(CHAT, {})

    assert error(writer)[2].endswith("target type: missing field `messages`")


async def test_something_else_than_an_object_is_described(api: Api) -> None:
    writer = await api.answer(CHAT, b'"x"')

    expected = 'invalid type: string "x", expected struct ChatCompletionRequest'
    assert error(writer)[2].endswith(expected)


@pytest.mark.parametrize("content_type", [None, b"text/plain", b"application/jsonx"])
async def test_other_content_types_are_refused(api: Api, content_type: bytes | None) -> None:
    headers = [] if content_type is None else [(b"content-type", content_type)]
    writer = await api.answer(CHAT, chat(), headers)

    message = "Expected request with `Content-Type: application/json`"
    assert error(writer) == (400, "Bad Request", message)


@pytest.mark.parametrize(
    "content_type", [b"application/json; charset=utf-8", b"Application/JSON", b"application/a+json"]
)
async def test_all_spellings_of_json_are_read(api: Api, content_type: bytes) -> None:
    writer = await api.answer(CHAT, b"{}", [(b"content-type", content_type)])

    assert "missing field" in error(writer)[2]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
        ({"return_prompt_text": True}, "return_prompt_text"),
        ({"media_io_kwargs": {}}, "media_io_kwargs"),
        ({"mm_processor_kwargs": {}}, "mm_processor_kwargs"),
    ],
)
async def test_what_nobody_serves_is_refused_by_name(
    api: Api, fields: dict[str, object], param: str
) -> None:
    writer = await api.answer(CHAT, chat(**fields))

    assert error(writer) == (400, "BadRequestError", f"{param} is not supported.")
    assert writer.json["error"]["param"] == param


async def test_an_unknown_model_is_not_found(api: Api) -> None:
    writer = await api.answer(CHAT, chat(model="nope"))

    assert error(writer) == (404, "NotFoundError", "The model `nope` does not exist.")
    assert writer.json["error"]["param"] == "model"


async def test_a_prompt_beyond_the_context_is_refused_with_its_length(api: Api) -> None:
    writer = await api.answer(COMPLETIONS, {"prompt": [5] * 1025})

    assert writer.status == 400
    assert "maximum context length is 1024 tokens" in error(writer)[2]
    assert writer.json["error"]["param"] == "input_tokens"


async def test_options_of_a_stream_need_a_stream(api: Api) -> None:
    writer = await api.answer(CHAT, chat(stream_options={"include_usage": True}))

    assert writer.status == 400


@pytest.mark.parametrize(
    ("problem", "status", "message"),
    [
        (None, 500, "Internal server error"),
        (EngineError("oops", "details"), 500, "Internal server error"),
        (EngineError("validation_error", "bad grammar"), 400, "bad grammar"),
        (EngineError("engine_paused", "paused", retryable=True), 503, "paused"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_errors_say_who_is_to_blame(
    api: Api, problem: EngineError | None, status: int, message: str, stream: bool
) -> None:
    call = api.post(CHAT, chat(stream=stream))
    add = await api.engine.receive_add()
    api.say(add, [500])
    api.say_output(add, finish_reason=FinishReason.ERROR, error=problem)
    writer = await call.finished()

    if stream:
        assert writer.status == 200
        *_, event, done = writer.events
        assert (event["error"]["code"], event["error"]["message"]) == (status, message)
        assert done == DONE
    else:
        assert writer.status == status
        assert writer.json["error"]["message"] == message


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_death_ends_every_answer_in_words(api: Api, stream: bool) -> None:
    call = api.post(CHAT, chat(stream=stream))
    await api.engine.receive_add()
    api.engine.report_death()
    writer = await call.finished()

    if stream:
        *_, event, done = writer.events
        assert (event["error"]["code"], event["error"]["reason"]) == (503, "interrupted")
        assert done == DONE
    else:
        assert writer.status == 503


async def test_after_the_engines_death_requests_are_told_to_come_again(api: Api) -> None:
    call = api.post(CHAT, chat())
    await api.engine.receive_add()
    api.engine.report_death()
    failed = await call.finished()
    refused = await api.answer(CHAT, chat())

    assert failed.status == 503
    assert error(refused)[:2] == (503, "ServiceUnavailableError")
    assert "The engine is not back yet: " in error(refused)[2]
    assert refused.headers[b"retry-after"].isdigit()


async def test_without_a_model_requests_are_told_to_wait() -> None:
    handlers = {path: handler for _, path, handler in OpenAiRoutes(ServiceSlot())}
    request = HttpRequest(
        method="POST",
        path=CHAT,
        raw_path=b"",
        query=b"",
        headers=[JSON_TYPE],
        body=json.dumps(chat()).encode(),
    )
    writer = PaperWriter()
    await handlers[CHAT](request, writer)

    assert error(writer)[:2] == (503, "ServiceUnavailableError")
    assert "LOADING" in error(writer)[2]
    assert writer.headers[b"retry-after"].isdigit()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_causes_one_abort(
    api: Api, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    call = api.post(CHAT, chat(stream=stream))
    add = await api.engine.receive_add()
    api.say(add, [500, 341])
    await api.heard(add, 2)
    call.leave()
    abort = await api.engine.receive_abort()

    assert abort.request_ids == [add.internal_id]
    assert await api.engine.hears_nothing_more()
    assert api.client.num_in_flight == 0
    assert api.slot.load == 0
    [record] = [r for r in caplog.records if "Request ended" in r.getMessage()]
    assert "cause=client_gone" in record.getMessage()
    assert "output_tokens=2" in record.getMessage()


async def test_one_of_several_failing_ends_the_others(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True, n=2, temperature=1))
    first, second = await api.engine.receive_add(), await api.engine.receive_add()
    api.say_output(first, finish_reason=FinishReason.ERROR)
    writer = await call.finished()
    abort = await api.engine.receive_abort()

    assert abort.request_ids == [second.internal_id]
    assert writer.events[-2]["error"]["code"] == 500


@pytest.mark.parametrize("stream", [False, True])
async def test_a_shutdown_ends_answers_in_words(api: Api, stream: bool) -> None:
    call = api.post(CHAT, chat(stream=stream))
    await api.engine.receive_add()
    call.leave("shutdown")
    writer = await call.finished()

    if stream:
        assert writer.events[-2]["error"]["code"] == 503
        assert writer.events[-1] == DONE
    else:
        assert writer.status == 503


async def test_a_long_prompt_is_worked_off_elsewhere_and_given_up_at_once(api: Api) -> None:
    call = api.post(CHAT, chat("word " * 400_000))
    await wait_all_tasks_blocked()
    before = api.slot.load
    call.leave()
    with trio.fail_after(1):
        await call.done.wait()

    assert before == 1
    assert api.slot.load == 0
    assert api.engine.heard_nothing()


async def test_the_request_after_a_failed_one_works(api: Api) -> None:
    await api.answer(CHAT, b"{")
    call = api.post(CHAT, chat())
    add = await api.engine.receive_add()
    api.say(add, [500], FinishReason.LENGTH)

    assert (await call.finished()).status == 200


async def test_a_bug_of_ours_is_a_bare_500(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api.client, "prepare_all", None)
    writer = await api.answer(CHAT, chat())

    assert error(writer) == (500, "InternalServerError", "Internal server error")
    assert "TypeError" in caplog.text


async def test_a_bug_in_the_middle_of_a_stream_ends_it_in_words(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_finished(_stream: RequestStream) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RequestStream, "wait_finished", wait_finished)
    writer = await api.answer(CHAT, chat(stream=True))

    *_, event, done = writer.events
    assert event["error"]["code"] == 500
    assert event["error"]["message"] == "Internal server error"
    assert done == DONE
    assert writer.finished
    assert api.client.num_in_flight == 0


GUIDED = ServiceOptions(limits=SamplingLimits(structured_backend="guidance"))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("structured_outputs", {"regex": "[a-z"}),
        ("structured_outputs", {"grammar": "start: missing"}),
        ("structured_outputs", {"json": {"type": "object", "patternProperties": {"(": {}}}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}),  # noqa: E501
    ],
)  # fmt: skip
async def test_a_constraint_that_llguidance_cannot_compile_never_reaches_the_engine(
    model: ModelDescription, tokenizer: Tokenizer, path: str, field: str, value: object
) -> None:
    pytest.importorskip("llguidance")
    body = chat(**{field: value}) if path == CHAT else completion(**{field: value})
    good = chat(structured_outputs={"regex": "a"})
    async with open_api(model, tokenizer, GUIDED) as api:
        refused = await api.answer(path, body)
        call = api.post(CHAT, good)
        add = await api.engine.receive_add()
        api.say(add, [64], FinishReason.STOP)
        served = await call.finished()

    assert refused.status == 400
    assert refused.json["error"]["param"] == field
    assert refused.json["error"]["message"]
    assert served.status == 200


UNKNOWN = "The model `other` does not exist."


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        # The form comes first, then what the schema forbids, then the model, then everything else.
        ({"top_k": -2, "temperature": 3}, "Failed to deserialize"),
        ({"tool_choice": 5, "temperature": 3}, "Failed to deserialize"),
        ({"messages": [{"role": "user"}], "temperature": 3}, "Failed to deserialize"),
        ({"tools": [{"type": "function"}]}, "Failed to deserialize"),
        ({"temperature": 3, "min_tokens": 9, "max_tokens": 6}, "temperature: Validation error"),
        ({"messages": []}, "messages: Validation error: messages cannot be empty"),
        ({"messages": [], "stop": [""]}, "messages: Validation error: messages cannot be empty"),
        ({"cache_salt": ""}, "cache_salt: Validation error"),
        ({"stream_options": {}, "top_logprobs": 4}, "__all__: top_logprobs is only allowed"),
        ({"stream_options": {}}, "__all__: stream_options can only be used"),
        ({"use_beam_search": True}, UNKNOWN),
        ({"tools": []}, UNKNOWN),
        ({"tool_choice": "auto"}, UNKNOWN),
        ({"structured_outputs": {}}, UNKNOWN),
        ({"allowed_token_ids": []}, UNKNOWN),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, UNKNOWN),  # noqa: E501
    ],
)  # fmt: skip
async def test_faults_of_a_chat_are_told_in_the_order_of_the_peer(
    api: Api, fields: dict[str, object], start: str
) -> None:
    writer = await api.answer(CHAT, {**chat(model="other"), **fields})

    assert error(writer)[2].startswith(start)


async def test_complaints_are_told_together(api: Api) -> None:
    body = {**chat(), "messages": [], "stop": [""], "temperature": 3, "cache_salt": ""}
    writer = await api.answer(CHAT, body)

    told = [line.partition(":")[0] for line in error(writer)[2].split("\n")]
    assert sorted(told) == ["cache_salt", "messages", "stop", "temperature"]


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"prompt": 5, "stop": [""]}, "Failed to deserialize"),
        ({"top_k": -2, "stop": [""]}, "Failed to deserialize"),
        ({"stop": [""]}, "stop: Validation error"),
        ({"cache_salt": ""}, "cache_salt: Validation error"),
        ({"temperature": 3}, UNKNOWN),
        ({"suffix": "x"}, UNKNOWN),
        ({"stream_options": {}}, UNKNOWN),
        ({"prompt": []}, UNKNOWN),
    ],
)
async def test_faults_of_a_completion_are_told_in_the_order_of_the_peer(
    api: Api, fields: dict[str, object], start: str
) -> None:
    writer = await api.answer(COMPLETIONS, {**completion(model="other"), **fields})

    assert error(writer)[2].startswith(start)


@pytest.mark.parametrize(
    ("detection", "status", "told"),
    [
        ({"max_pattern_size": 0, "min_count": 0}, 200, ""),
        ({"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 1}, 200, ""),
        ({"max_pattern_size": 0, "min_pattern_size": 1, "min_count": 0}, 400, "`min_pattern_size`"),
        ({"max_pattern_size": 3, "min_pattern_size": 5, "min_count": 1}, 400, "`min_pattern_size`"),
        ({"max_pattern_size": 3, "min_count": 1}, 400, "`min_count` must be at least 2"),
        ({"max_pattern_size": 3}, 400, "missing field `min_count`"),
    ],
)
async def test_repetition_detection_is_switched_off_by_a_pattern_of_no_size(
    api: Api, detection: dict[str, int], status: int, told: str
) -> None:
    call = api.post(CHAT, chat(repetition_detection=detection))
    if status == 200:
        add = await api.engine.receive_add()
        assert add.request.sampling is not None
        assert add.request.sampling.repetition_detection is None
        api.say(add, [64], FinishReason.STOP)
    writer = await call.finished()

    assert writer.status == status
    assert status == 200 or told in error(writer)[2]


@pytest.mark.parametrize(
    ("top_k", "told"),
    [
        (1.5, "top_k: invalid type: floating point `1.5`, expected i64"),
        (2**32, "top_k: out of range integral type conversion attempted"),
        (2**63, f"top_k: invalid value: integer `{2**63}`, expected i64"),
    ],
)
async def test_top_k_has_the_range_of_the_peer(api: Api, top_k: float, told: str) -> None:
    writer = await api.answer(CHAT, chat(top_k=top_k))

    assert error(writer)[2].endswith(told)
