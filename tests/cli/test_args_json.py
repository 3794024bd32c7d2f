import json
from typing import Any

import pytest

from vllmfront.cli import UsageError
from vllmfront.cli import _args_json_keys as keys
from vllmfront.cli._args_json import read_args_json
from vllmfront.cli._args_json_engine import ENGINE_KEYS
from vllmfront.lifecycles import ModelConfig, ServeConfig


def read(**given: Any) -> Any:
    return read_args_json(json.dumps({"model_tag": "model", **given}))


def refusal(**given: Any) -> str:
    with pytest.raises(UsageError) as caught:
        read(**given)
    return str(caught.value)


def test_every_key_reaches_a_field_that_exists() -> None:
    for key in keys.USED.values():
        value: object = ServeConfig(model=ModelConfig(model=""))
        for part in (key.target or "").split(".") if key.target else ():
            value = getattr(value, part)


def test_every_key_is_of_one_kind() -> None:
    kinds = (keys.USED, keys.WITHOUT_FEATURE, keys.REFUSED, keys.NO_EFFECT, ENGINE_KEYS)

    assert sum(map(len, kinds)) == len(frozenset().union(*kinds))


def test_a_feature_that_serve_gains_is_not_overlooked_here() -> None:
    """Once ``serve`` serves it, the key has to be used, not dropped."""
    assert keys.PENDING.keys() <= keys.WITHOUT_FEATURE.keys() | keys.USED.keys()


def test_values_arrive_in_their_sections() -> None:
    made = read(
        served_model_name=["a", "b"],
        api_key=["k", ""],
        shutdown_timeout=30,
        engine_ready_timeout_secs=7,
        http_timeout_keep_alive=9,
        disable_log_stats=True,
        ssl_certfile="c.pem",
        allowed_origins=["*"],
        chat_template="t.jinja",
        override_generation_config={"temperature": 0.5, "top_k": None, "do_sample": True},
        hf_overrides={"a": None},
        structured_outputs_config={"backend": "guidance", "reasoning_parser": ""},
        max_num_queued_reqs=4,
        dtype="bfloat16",
    )

    assert made.sections == {
        "model": {
            "model": "model",
            "overrides": {"a": None},
            "generation_overrides": {"temperature": 0.5, "top_k": None},
        },
        "chat": {"template": "t.jinja"},
        "decoding": {"structured_outputs_backend": "guidance"},
        "server": {
            "served_model_names": ("a", "b"),
            "api_keys": ("k",),
            "shutdown_timeout": 30,
            "keep_alive_timeout": 9,
            "log_stats": False,
        },
        "engine": {"ready_timeout": 7},
        "server.tls": {"certfile": "c.pem"},
        "server.cors": {"origins": ("*",)},
        "requests": {"max_queued": 4},
    }
    assert made.unknown == made.no_effect == ()


def test_null_says_nothing_where_the_reference_allows_it() -> None:
    names = (
        "api_key", "chat_template", "default_chat_template_kwargs", "hf_config_path",
        "http_timeout_keep_alive", "max_logprobs", "profiler_config", "revision", "ssl_ca_certs",
        "ssl_certfile", "ssl_ciphers", "ssl_keyfile", "structured_outputs_config", "tokenizer",
        "tokenizer_revision", "tool_strict_level", "hf_token", "root_path",
    )  # fmt: skip

    assert read(**dict.fromkeys(names)).sections == {"model": {"model": "model"}}


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("served_model_name", None, "expected a list of strings, got null"),
        ("served_model_name", "a", "expected a list of strings, got a string"),
        ("served_model_name", [1], "expected a string, got an integer"),
        ("tool_call_parser", None, "expected a string, got null"),
        ("lora_modules", None, "expected a list of objects, got null"),
        ("lora_modules", ["a=b"], "expected an object, got a string"),
        ("api_key", 5, "expected a string or a list of strings, got an integer"),
        ("api_key", ["a", 5], "expected a string, got an integer"),
        ("shutdown_timeout", -1, "-1 is not in 0..="),
        ("shutdown_timeout", 1.0, "expected an integer, got a number"),
        ("shutdown_timeout", True, "expected an integer, got a boolean"),
        ("disable_log_stats", 1, "expected a boolean, got an integer"),
        ("disable_log_stats", "true", "expected a boolean, got a string"),
        ("hf_overrides", [], "expected an object, got a list"),
        ("stream_interval", 0, "0 is not in 1..="),
        ("ssl_cert_reqs", 3, "3 is not in 0..=2"),
        ("max_logprobs", -2, "-2 is not in -1..="),
        ("engine_ready_timeout_secs", 0, "0 is not in 1..="),
        ("generation_config", "/a/folder", "not implemented"),
        ("tokenizer_mode", "mistral", "expected one of: auto, hf"),
        ("chat_template_content_format", "yaml", "expected one of: auto, string, openai"),
        ("custom_histogram_buckets", {"a": [1]}, "unknown family `a`"),
        ("limit_mm_per_prompt", {"image": -1}, "image: expected an item count"),
        ("override_generation_config", {"top_k": 1.5}, "top_k: expected an integer"),
        ("override_generation_config", {"max_new_tokens": 0}, "max_new_tokens: 0 is not in 1"),
        ("override_generation_config", {"skip_special_tokens": False}, "skip_special_tokens"),
        ("model_tag", None, "expected a string, got null"),
    ],
)
def test_types_are_strict(name: str, value: Any, complaint: str) -> None:
    text = refusal(**{name: value})

    assert text.startswith(f"--args-json: {name}: ")
    assert complaint in text


@pytest.mark.parametrize("value", [False, {}, [], 0, "", "x", 1])
def test_what_is_refused_is_refused_whatever_it_holds(value: Any) -> None:
    assert "- middleware: this frontend does not implement it" in refusal(middleware=value)


def test_all_that_is_refused_is_told_together() -> None:
    text = refusal(
        root_path="/x",
        hf_token="secret",
        lora_modules=[{"name": "a", "path": "b"}],
        profiler_config={"profiler": "torch"},
    )

    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert [line.split(":")[0] for line in lines] == [
        f"- {name}"
        for name in ("hf_token", "lora_modules", "profiler_config", "root_path")
        if name not in keys.USED
    ]
    assert "secret" not in text


def test_what_asks_for_no_missing_feature_is_accepted() -> None:
    made = read(lora_modules=[], profiler_config={"profiler": None, "x": 1}, enable_scale_out=False)

    assert made.sections == {"model": {"model": "model"}}


def test_what_is_unknown_is_named_and_passes() -> None:
    made = read(zebra=1, aardvark="secret", renderer_num_workers=4, reasoning_effort_map={})

    assert made.unknown == ("aardvark", "zebra")
    assert made.no_effect == ("reasoning_effort_map", "renderer_num_workers")


def test_no_secret_is_shown() -> None:
    made = read(
        api_key=["secret"], watermark_config={"key": "secret"}, some_token="secret", dtype="half"
    )

    assert "secret" not in made.redacted
    assert "secret" not in repr(made).replace(repr(made.sections), "")
    assert json.loads(made.redacted)["dtype"] == "half"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is no JSON"),
        ('{"api_key": "secret"', "is no JSON"),
        ("[]", "expected an object, got a list"),
        ("null", "expected an object, got null"),
        ("{}", "model_tag is missing"),
        ('{"model_tag": "m", "model_tag": "m"}', "model_tag is given twice"),
        ('{"model_tag": "m", "seed": NaN}', "NaN is no number"),
        ("[" * 200_000, "is no JSON"),
    ],
)
def test_what_is_no_object_is_refused_without_repeating_it(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_args_json(text)

    assert complaint in str(caught.value)
    assert "secret" not in str(caught.value)
