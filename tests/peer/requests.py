"""Requests that are put to the peer and to us, over all routes and fields, valid and not."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@attrs.frozen
class Case:
    """One request; ``name`` is unique and is what the list of known deviations refers to."""

    name: str
    method: str
    path: str
    body: Any = None
    raw: bytes | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)


def chat(name: str, **fields: Any) -> Case:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 6, "temperature": 0, **fields}
    return Case(f"chat-{name}", "POST", CHAT, body)


def completion(name: str, **fields: Any) -> Case:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 6, "temperature": 0, **fields}
    return Case(f"completion-{name}", "POST", COMPLETIONS, body)


def all_cases() -> list[Case]:
    return [
        *_both_shapes(),
        *_chat_messages(),
        *_chat_options(),
        *_sampling(),
        *_completions(),
        *_malformed(),
        *_tokenizer_routes(),
        *_operator_routes(),
        *_stops(),
        *_logprob_streams(),
        *_orders(),
        *_constraints(),
        *_odd_values(),
        *_heads(),
    ]


def _both_shapes() -> Iterator[Case]:
    """What chat and completions share, whole and streamed."""
    shared: dict[str, dict[str, Any]] = {
        "plain": {},
        "one-token": {"max_tokens": 1},
        "stop": {"stop": ["e"]},
        "stop-list": {"stop": ["zz", "a", "th"]},
        "stop-included": {"stop": ["e"], "include_stop_str_in_output": True},
        "stop-min-tokens": {"stop": ["e"], "min_tokens": 4},
        "stop-token-ids": {
            "stop_token_ids": [64, 65, 66, 67, 68, 69, 70, 71, 72],
            "max_tokens": 60,
        },
        "ignore-eos": {"ignore_eos": True},
        "special-tokens": {"skip_special_tokens": False, "max_tokens": 30},
        "token-ids": {"return_token_ids": True},
        "long": {"max_tokens": 60},
        "interval": {"stream_interval": 3, "max_tokens": 10},
        "request-id": {"request_id": "mine"},
        "salt": {"cache_salt": "s"},
        "priority": {"priority": 3},
        "xargs": {"vllm_xargs": {"a": 1, "b": "x"}},
        "unknown-field": {"no_such_field": 1},
    }
    for name, fields in shared.items():
        for make in (chat, completion):
            yield make(name, **fields)
            yield make(f"{name}-stream", stream=True, **fields)
    usage = {"include_usage": True}
    running = {"include_usage": True, "continuous_usage_stats": True}
    for make in (chat, completion):
        yield make("usage", stream=True, stream_options=usage)
        yield make("usage-running", stream=True, stream_options=running)
        yield make("usage-stop", stream=True, stream_options=usage, stop=["e"])
        yield make("running-alone", stream=True, stream_options={"continuous_usage_stats": True})


def _chat_messages() -> Iterator[Case]:
    """Shapes of messages: good ones, and each rule broken once."""
    user = HELLO[0]
    shapes: dict[str, Any] = {
        "system": [{"role": "system", "content": "Be brief."}, user],
        "empty-system": [{"role": "system", "content": ""}, user],
        "parts": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],
            }
        ],
        "assistant": [user, {"role": "assistant", "content": "Hi."}, user],
        "assistant-null": [user, {"role": "assistant", "content": None}, user],
        "assistant-reasoning": [
            user,
            {"role": "assistant", "content": "Hi.", "reasoning": "x"},
            user,
        ],
        "developer": [{"role": "developer", "content": "Be brief."}, user],
        "tool": [user, _call("{}"), {"role": "tool", "tool_call_id": "c1", "content": "4"}],
        "tool-no-id": [user, _call("{}"), {"role": "tool", "content": "4"}],
        "call-bad-arguments": [
            user,
            _call("{"),
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
        ],
        "own-role": [{"role": "critic", "content": "Hm."}, user],
        "function-role": [{"role": "function", "name": "f", "content": "x"}],
        "name-dropped": [{"role": "user", "content": "Hello!", "name": "bob"}],
        "none": [],
        "not-a-list": "Hello!",
        "element-not-object": ["Hello!"],
        "no-role": [{"content": "x"}],
        "no-content": [{"role": "user"}],
        "null-content": [{"role": "user", "content": None}],
        "empty-content": [{"role": "user", "content": ""}],
        "empty-parts": [{"role": "user", "content": []}],
        "number-content": [{"role": "user", "content": 3}],
        "unknown-part": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
        "image": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
        ],
        "unicode": [{"role": "user", "content": "Grüße 👋🏽 你好"}],
    }
    for name, messages in shapes.items():
        yield chat(f"messages-{name}", messages=messages)
    yield Case("chat-messages-missing", "POST", CHAT, {"model": "tiny"})


def _call(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


def _chat_options() -> Iterator[Case]:
    continued = [*HELLO, {"role": "assistant", "content": "The capital"}]
    options: dict[str, dict[str, Any]] = {
        "logprobs": {"logprobs": True},
        "top-logprobs": {"logprobs": True, "top_logprobs": 3},
        "top-logprobs-alone": {"top_logprobs": 3},
        "top-logprobs-too-many": {"logprobs": True, "top_logprobs": 21},
        "top-logprobs-below": {"logprobs": True, "top_logprobs": -2},
        "logprob-names": {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True},
        "prompt-logprobs": {"prompt_logprobs": 1},
        "echo": {"echo": True},
        "no-generation-prompt": {"add_generation_prompt": False},
        "continue": {
            "messages": continued,
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        "continue-and-generate": {
            "messages": continued,
            "add_generation_prompt": True,
            "continue_final_message": True,
        },
        "continue-user": {"add_generation_prompt": False, "continue_final_message": True},
        "template-untrusted": {"chat_template": "{{ messages[0].content }}"},
        "template-kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
        "effort": {"reasoning_effort": "none"},
        "effort-unknown": {"reasoning_effort": "huge"},
        "tools-none": {"tools": [TOOL], "tool_choice": "none"},
        "tools-empty": {"tools": []},
        "tools-twice": {"tools": [TOOL, TOOL], "tool_choice": "none"},
        "tool-choice-alone": {"tool_choice": "auto"},
        "tool-choice-shape": {"tools": [TOOL], "tool_choice": {"type": "custom"}},
        "tool-choice-unknown": {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        "max-completion-tokens": {"max_completion_tokens": 2},
        "truncate": {"truncate_prompt_tokens": 4},
        "truncate-right": {"truncate_prompt_tokens": 4, "truncation_side": "right"},
        "truncate-too-far": {"truncate_prompt_tokens": 100000},
        "beam": {"use_beam_search": True},
        "spaces": {"spaces_between_special_tokens": False},
        "prompt-text": {"return_prompt_text": True},
        "media-kwargs": {"media_io_kwargs": {"image": {}}},
        "json-object": {"response_format": {"type": "json_object"}},
        "json-schema": {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        "json-schema-unnamed": {
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
        },
        "format-text": {"response_format": {"type": "text"}},
        "format-unknown": {"response_format": {"type": "yaml"}},
        "two-constraints": {
            "response_format": {"type": "json_object"},
            "structured_outputs": {"regex": "a"},
        },
        "budget-below": {"thinking_token_budget": -2},
        "length-penalty": {"length_penalty": 1.5},
        "user": {"user": "someone"},
    }
    for name, fields in options.items():
        yield chat(name, **fields)
    for name in ("logprobs", "top-logprobs", "logprob-names", "echo"):
        yield chat(f"{name}-stream", stream=True, **options[name])
    yield chat("prompt-logprobs-stream", stream=True, prompt_logprobs=1)
    yield chat("prompt-logprobs-zero-stream", stream=True, prompt_logprobs=0)
    yield chat("options-without-stream", stream_options={"include_usage": True})


def _sampling() -> Iterator[Case]:
    """Each range, at its edge and beyond it."""
    values: dict[str, list[Any]] = {
        "temperature": [2, 2.1, -0.1, "warm"],
        "top_p": [1, 0, 1.5],
        "top_k": [-1, 0, -2, 1.5],
        "min_p": [1, 1.1],
        "frequency_penalty": [-2, 2.5],
        "presence_penalty": [2, -2.5],
        "repetition_penalty": [2, 0, 2.5],
        "seed": [-1, 2**63, "x"],
        "max_tokens": [0, -1, 10**9, 1.5],
        "min_tokens": [6, 7, -1],
        "n": [0, 11],
        "logit_bias": [{"5": 1}, {"999999": 1}, {"x": 1}, {"5": 1000}],
        "allowed_token_ids": [[64, 65], [], [999999], [-1]],
        "bad_words": [["foo"], [""]],
        "stop": [[], [""], ["a", "b", "c", "d", "e"], 5],
        "stop_token_ids": [[999999], ["x"]],
        "repetition_detection": [{"max_pattern_size": 3, "min_count": 2}, {"min_count": 2}],
        "logprob_token_ids": [[5]],
        "priority": [2**31],
        "cache_salt": [""],
        "kv_transfer_params": [{"a": 1}],
    }
    for field, options in values.items():
        for index, value in enumerate(options):
            yield chat(f"{field}-{index}", **{field: value})
    structured: list[dict[str, Any]] = [
        {"regex": "[ab]+"},
        {"choice": ["a", "b"]},
        {"choice": []},
        {"json": SCHEMA},
        {"json": "{"},
        {"json_object": False},
        {},
        {"regex": "a", "choice": ["b"]},
    ]
    for index, constraint in enumerate(structured):
        yield completion(f"structured-{index}", structured_outputs=constraint)


def _completions() -> Iterator[Case]:
    options: dict[str, dict[str, Any]] = {
        "token-prompt": {"prompt": [64, 65, 66]},
        "empty-prompt": {"prompt": ""},
        "empty-token-prompt": {"prompt": []},
        "out-of-vocabulary": {"prompt": [64, 999999]},
        "negative-id": {"prompt": [-1]},
        "prompt-number": {"prompt": 5},
        "prompt-missing": {"prompt": None},
        "too-long": {"prompt": [64] * 5000},
        "full": {"prompt": [64] * 2048},
        "logprobs": {"logprobs": 2},
        "logprobs-zero": {"logprobs": 0},
        "logprobs-too-many": {"logprobs": 21},
        "prompt-logprobs": {"prompt_logprobs": 1},
        "echo": {"echo": True},
        "echo-logprobs": {"echo": True, "logprobs": 1},
        "echo-only": {"echo": True, "max_tokens": 0},
        "echo-tokens": {"echo": True, "prompt": [64, 65, 66]},
        "max-tokens-zero": {"max_tokens": 0},
        "suffix": {"suffix": "x"},
        "suffix-empty": {"suffix": ""},
        "best-of": {"best_of": 2},
        "bad-words": {"bad_words": ["foo"]},
        "embeds": {"prompt_embeds": "AAAA"},
        "beam": {"use_beam_search": True},
        "truncate": {"prompt": [64, 65, 66, 67], "truncate_prompt_tokens": 2},
        "no-special": {"add_special_tokens": False},
        "default-length": {"max_tokens": None},
    }
    for name, fields in options.items():
        yield completion(name, **fields)
    for name in ("token-prompt", "logprobs", "logprobs-zero", "echo", "echo-logprobs", "echo-only"):
        yield completion(f"{name}-stream", stream=True, **options[name])


def _malformed() -> Iterator[Case]:
    for path in (CHAT, COMPLETIONS):
        kind = path.rsplit("/", 1)[1] if path == COMPLETIONS else "chat"
        yield Case(f"{kind}-no-json", "POST", path, raw=b"{")
        yield Case(f"{kind}-empty-body", "POST", path, raw=b"")
        yield Case(f"{kind}-list-body", "POST", path, raw=b"[]")
        yield Case(f"{kind}-not-utf8", "POST", path, raw=b'{"model": "\xff"}')
        yield Case(
            f"{kind}-deep", "POST", path, raw=b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}"
        )
        yield Case(f"{kind}-no-content-type", "POST", path, raw=b"{}", headers={"content-type": ""})
        yield Case(f"{kind}-wrong-method", "GET", path)
    yield chat("unknown-model", model="other")
    yield chat("model-null", model=None)
    yield chat("model-number", model=5)
    yield completion("unknown-model", model="other")
    ranked = chat("rank")
    yield attrs.evolve(ranked, name="chat-rank-0", headers={"X-data-parallel-rank": "0"})
    yield attrs.evolve(ranked, name="chat-rank-7", headers={"X-data-parallel-rank": "7"})
    yield attrs.evolve(ranked, name="chat-rank-bad", headers={"X-data-parallel-rank": "x"})
    yield attrs.evolve(ranked, name="chat-id-header", headers={"X-Request-Id": "abc"})


def _tokenizer_routes() -> Iterator[Case]:
    bodies: dict[str, tuple[str, Any]] = {
        "tokenize": ("/tokenize", {"model": "tiny", "prompt": "Hello world"}),
        "tokenize-strings": ("/tokenize", {"prompt": "Hello world", "return_token_strs": True}),
        "tokenize-chat": ("/tokenize", {"messages": HELLO}),
        "tokenize-chat-closed": ("/tokenize", {"messages": HELLO, "add_generation_prompt": False}),
        "tokenize-list": ("/tokenize", {"prompt": ["a"]}),
        "tokenize-nothing": ("/tokenize", {}),
        "tokenize-model": ("/tokenize", {"model": "other", "prompt": "x"}),
        "detokenize": ("/detokenize", {"model": "tiny", "tokens": [1853, 307, 277, 679]}),
        "detokenize-special": ("/detokenize", {"tokens": [2040, 64, 2041]}),
        "detokenize-unknown": ("/detokenize", {"tokens": [64, 999999]}),
        "detokenize-nothing": ("/detokenize", {}),
    }
    for name, (path, body) in bodies.items():
        yield Case(name, "POST", path, body)


def _operator_routes() -> Iterator[Case]:
    for path in ("/health", "/version", "/load", "/v1/models", "/nope", "/v1/nope"):
        yield Case(f"get{path.replace('/', '-')}", "GET", path)
    for path in ("/health", "/v1/models", "/metrics", "/nope"):
        yield Case(f"put{path.replace('/', '-')}", "PUT", path)
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions/batch"):
        yield Case(f"post{path.replace('/', '-')}", "POST", path, {})
    yield Case("head-health", "HEAD", "/health")
    yield Case("options-models", "OPTIONS", "/v1/models")
    origin = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    yield Case("preflight", "OPTIONS", CHAT, headers=origin)


def _stops() -> Iterator[Case]:
    """Stop strings and ids, with everything that they meet."""
    running = {"include_usage": True, "continuous_usage_stats": True}
    options: dict[str, dict[str, Any]] = {
        "multibyte": {"stop": ["é", "世", "👋🏽"], "max_tokens": 40, "temperature": 1, "seed": 5},
        "long": {"stop": ["no such text ever comes out of this model"], "max_tokens": 40},
        "overlapping": {"stop": ["ab", "abc", "bc", "c"], "max_tokens": 40},
        "space": {"stop": [" "], "max_tokens": 20},
        "newline": {"stop": ["\n"], "max_tokens": 40},
        "newline-included": {
            "stop": ["\n"],
            "max_tokens": 40,
            "include_stop_str_in_output": True,
        },
        "at-length": {"stop": ["e"], "max_tokens": 2},
        "ids-and-minimum": {
            "stop_token_ids": list(range(64, 1000)),
            "min_tokens": 8,
            "max_tokens": 20,
        },
        "ids-included": {
            "stop_token_ids": list(range(64, 1000)),
            "include_stop_str_in_output": True,
            "max_tokens": 20,
        },
        "ids-and-strings": {"stop_token_ids": list(range(900, 1000)), "stop": ["e"]},
        "interval": {"stop": ["e"], "stream_interval": 4, "max_tokens": 20},
        "token-ids": {"stop": ["e"], "return_token_ids": True, "max_tokens": 20},
    }
    for name, fields in options.items():
        for make in (chat, completion):
            yield make(f"stops-{name}", **fields)
            yield make(f"stops-{name}-stream", stream=True, stream_options=running, **fields)


def _logprob_streams() -> Iterator[Case]:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    odd = {"stream": True, "temperature": 1, "seed": 5, "max_tokens": 60}
    for make in (chat, completion):
        yield make("usage-running-multibyte", stream_options=usage, **odd)
    both = {"stream": True, "max_tokens": 12}
    yield chat("logprobs-stop-stream", logprobs=True, top_logprobs=2, stop=["e"], **both)
    yield chat("logprobs-interval-stream", logprobs=True, stream_interval=4, **both)
    yield chat("logprobs-ids-stream", logprobs=True, return_token_ids=True, **both)
    yield chat("logprobs-zero-top-stream", logprobs=True, top_logprobs=0, **both)
    yield chat("logprobs-echo", logprobs=True, echo=True, top_logprobs=1)
    yield chat("logprobs-echo-prompt", logprobs=True, echo=True, prompt_logprobs=2)
    yield completion("logprobs-stop-stream", logprobs=2, stop=["e"], **both)
    yield completion("logprobs-interval-stream", logprobs=1, stream_interval=4, **both)
    yield completion("logprobs-echo-stop-stream", logprobs=1, echo=True, stop=["e"], **both)
    yield completion(
        "logprobs-echo-unicode-stream", logprobs=1, echo=True, prompt="Grüße 👋🏽", **both
    )
    yield completion("logprobs-echo-only", echo=True, max_tokens=0, logprobs=2)
    yield completion("logprobs-echo-only-stream", echo=True, max_tokens=0, logprobs=2, stream=True)
    yield completion("logprobs-names-stream", logprobs=1, return_tokens_as_token_ids=True, **both)
    yield completion("logprobs-unicode", prompt="Grüße 👋🏽 你好", logprobs=1, echo=True)


def _orders() -> Iterator[Case]:
    """Two faults at once: which of them is told."""
    faults: dict[str, dict[str, Any]] = {
        "range": {"temperature": 3},
        "stop": {"stop": [""]},
        "salt": {"cache_salt": ""},
        "options": {"stream_options": {"include_usage": True}},
        "minimum": {"min_tokens": 9},
        "beam": {"use_beam_search": True},
        "constraint": {"structured_outputs": {}},
        "bias": {"logit_bias": {"x": 1}},
        "top-k": {"top_k": -2},
    }
    for name, fields in faults.items():
        for make in (chat, completion):
            yield make(f"order-model-{name}", model="other", **fields)
    yield chat("order-model-messages", model="other", messages=[])
    yield chat("order-model-message", model="other", messages=[{"role": "user"}])
    yield chat("order-model-tools", model="other", tools=[])
    yield chat("order-range-salt-stop", temperature=3, cache_salt="", stop=[""])
    yield chat("order-messages-range", messages=[], temperature=3)
    yield chat("order-range-rule", temperature=3, top_logprobs=4)
    yield chat("order-rules", top_logprobs=4, stream_options={}, min_tokens=9)
    tokenize: dict[str, Any] = {
        "nothing": {"model": "other"},
        "messages": {"model": "other", "messages": []},
        "message": {"model": "other", "messages": [{"role": "user"}]},
        "template": {"model": "other", "messages": HELLO, "chat_template": "x"},
        "both": {"prompt": "x", "messages": [{"role": "user"}]},
        "bad-prompt": {"prompt": 5, "messages": HELLO},
        "no-tools": {"messages": HELLO, "tools": []},
        "empty-model": {"model": "", "prompt": "x"},
        "empty": {"prompt": "", "return_token_strs": True},
        "unicode": {"prompt": "<|im_start|>Grüße 👋🏽", "return_token_strs": True},
        "chat-strings": {"messages": HELLO, "return_token_strs": True},
    }
    for name, body in tokenize.items():
        yield Case(f"tokenize-order-{name}", "POST", "/tokenize", body)
    for index, tokens in enumerate(([], "x", [1.5], [2**32], None, [-1])):
        yield Case(f"detokenize-value-{index}", "POST", "/detokenize", {"tokens": tokens})


def _constraints() -> Iterator[Case]:
    schemas: list[Any] = [
        {},
        {"type": ["string", "null"]},
        {"type": "object", "properties": {"ü": {"type": "string"}}},
        '{"type": "object"}',
    ]
    for index, schema in enumerate(schemas):
        yield chat(f"schema-{index}", structured_outputs={"json": schema})
        named = {"name": "x", "schema": schema, "strict": True}
        if isinstance(schema, dict):
            yield chat(
                f"format-schema-{index}",
                response_format={"type": "json_schema", "json_schema": named},
            )
    others: list[Any] = [
        {"json_object": True},
        {"grammar": 'root ::= "a"'},
        {"grammar": ""},
        {"regex": ""},
        {"regex": None},
        {"choice": [""]},
        {"choice": "a"},
        {"structural_tag": "{"},
        {"regex": "a", "disable_any_whitespace": True},
        {"regex": "a", "whitespace_pattern": " "},
        {"regex": "a", "no_such_member": 1},
    ]
    for index, constraint in enumerate(others):
        yield completion(f"constraint-{index}", structured_outputs=constraint)
    formats: list[Any] = [{}, {"type": "json_schema"}, {"type": "structural_tag"}, "json", []]
    for index, form in enumerate(formats):
        yield chat(f"format-{index}", response_format=form)


def _odd_values() -> Iterator[Case]:
    detections: list[dict[str, int]] = [
        {"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0},
        {"max_pattern_size": 0, "min_count": 1},
        {"max_pattern_size": 0, "min_pattern_size": 1, "min_count": 0},
        {"max_pattern_size": 3, "min_pattern_size": 5, "min_count": 1},
        {"max_pattern_size": 3},
    ]
    for index, detection in enumerate(detections):
        yield chat(f"repetition-{index}", repetition_detection=detection)
    for index, top_k in enumerate((2**31, 2**32, 2**63, True, "x")):
        yield chat(f"top_k-odd-{index}", top_k=top_k)
    numbers: dict[str, list[Any]] = {
        "temperature": [1e-6, 1e308, True],
        "top_p": [1e-7],
        "max_tokens": [2**32, "5", None],
        "seed": [-(2**63), 0],
        "n": [1, None, True],
        "stop": [None, ["a", None], ""],
        "stream": [None, "yes", 0],
        "priority": [-(2**31), 1.5],
        "logit_bias": [{"+5": 1}, {"05": 1}, {"5": "x"}, {"5": 1e308}, {}],
        "stop_token_ids": [[], [-1], [2**32]],
        "allowed_token_ids": [[64] * 3],
        "bad_words": [[], [" foo"], ["foo", "foo"], "foo"],
        "truncate_prompt_tokens": [-1, 0, -2],
        "logprob_token_ids": [[], [999999]],
        "request_id": ["", "a b"],
        "vllm_xargs": [{}, {"a": [1, "x"]}, {"a": None}],
        "thinking_token_budget": [0, -1],
        "watermarking": [False, "no"],
        "cache_salt": [None, 5],
    }
    for field, options in numbers.items():
        for index, value in enumerate(options):
            yield chat(f"odd-{field}-{index}", **{field: value})
    prompts: list[Any] = [
        "Grüße 👋🏽 你好",
        " ",
        "\u0000",
        "<|im_start|>user",
        [2040, 64],
        [[]],
        [True],
    ]
    for index, prompt in enumerate(prompts):
        yield completion(f"prompt-{index}", prompt=prompt)


def _heads() -> Iterator[Case]:
    base = chat("head")
    heads: dict[str, dict[str, str]] = {
        "charset": {"content-type": "application/json; charset=utf-8"},
        "capitals": {"Content-Type": "APPLICATION/JSON"},
        "vendor": {"content-type": "application/vnd.api+json"},
        "text": {"content-type": "text/plain"},
        "session": {"X-Session-ID": "s"},
        "rank-negative": {"X-data-parallel-rank": "-1"},
        "accept": {"accept": "text/html"},
    }
    for name, headers in heads.items():
        yield attrs.evolve(base, name=f"chat-head-{name}", headers=headers)
    for method in ("HEAD", "OPTIONS", "DELETE", "PATCH"):
        yield Case(f"method-{method.lower()}-chat", method, CHAT)
        yield Case(f"method-{method.lower()}-models", method, "/v1/models")
