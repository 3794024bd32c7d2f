"""Keys of ``--args-json``: which of them are ours, and what each becomes.

The supervisor hands down all options of ``vllm serve`` that were given, by their Python names. A
key is *used*, or says *nothing to us* because it is the engine's, has *no effect* here, or is
*refused by name* because a server that overlooked it would be another one than was asked for.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from vllmfront.cli import _json_types as types
from vllmfront.cli import _values as values
from vllmfront.cli._unserved_flags import INEFFECTIVE, REJECTED, UNSERVED

SECRET = frozenset({"api_key", "hf_token", "watermark_config"})
"""Keys whose values are in no log and no message."""

_SAMPLING_DEFAULTS = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "max_new_tokens",
)  # fmt: skip
"""What ``override_generation_config`` can say that a request with no opinion gets."""

_WHOLE = {"top_k": -1, "max_new_tokens": 1}
"""Those that are whole numbers, with the least."""


@attrs.frozen(kw_only=True)
class Key:
    """A key that we read."""

    read: types.Read
    target: str | None = None
    """Where the value goes, as ``section.field``; None: it is checked, and no more."""

    convert: Callable[[Any], Any] = lambda value: value
    """From what was read to what the configuration holds; None leaves the default."""


def _not_empty(value: str | None) -> str | None:
    return value or None


def _generation_overrides(value: Any) -> Mapping[str, Any]:
    overrides = types.mapping(value)
    if overrides.get("skip_special_tokens") not in {None, True}:
        raise ValueError("skip_special_tokens as a default of the server is not served")
    for name in _SAMPLING_DEFAULTS:
        least = _WHOLE.get(name)
        read = types.number if least is None else types.integer(least)
        try:
            types.optional(read)(overrides.get(name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return {name: overrides[name] for name in _SAMPLING_DEFAULTS if name in overrides}


_COUNT = types.integer(0)
_PATH = types.optional(types.text)

MODEL_KEYS: Mapping[str, Key] = {
    "model_tag": Key(target="model.model", read=types.text),
    "revision": Key(target="model.revision", read=_PATH, convert=_not_empty),
    "tokenizer": Key(target="model.tokenizer", read=_PATH, convert=_not_empty),
    "tokenizer_revision": Key(target="model.tokenizer_revision", read=_PATH, convert=_not_empty),
    "hf_config_path": Key(target="model.config_path", read=_PATH, convert=_not_empty),
    "hf_overrides": Key(target="model.overrides", read=types.mapping),
    "generation_config": Key(
        target="model.generation_config", read=types.word(values.generation_config)
    ),
    "override_generation_config": Key(
        target="model.generation_overrides", read=_generation_overrides
    ),
    "tokenizer_mode": Key(read=types.word(values.one_of("auto", "hf"))),
    "language_model_only": Key(read=types.flag),
    "lora_modules": Key(
        target="model.adapters",
        read=lambda value: tuple(map(values.checked_adapter, types.objects(value))),
        convert=lambda given: values.adapters(given) or None,
    ),
    "limit_mm_per_prompt": Key(read=lambda value: values.checked_item_limits(types.mapping(value))),
    "chat_template": Key(target="chat.template", read=_PATH, convert=_not_empty),
    "chat_template_content_format": Key(
        target="chat.content_format",
        read=types.word(values.one_of("auto", "string", "openai")),
    ),
    "default_chat_template_kwargs": Key(
        target="chat.template_kwargs", read=types.optional(types.mapping)
    ),
    "trust_request_chat_template": Key(target="chat.trust_request_template", read=types.flag),
    "exclude_tools_when_tool_choice_none": Key(
        target="chat.exclude_tools_when_none", read=types.flag
    ),
    "tool_call_parser": Key(
        target="decoding.tool_call_parser", read=types.text, convert=_not_empty
    ),
    "reasoning_parser": Key(
        target="decoding.reasoning_parser", read=types.text, convert=_not_empty
    ),
    "structured_outputs_config": Key(
        target="decoding.structured_outputs_backend",
        read=types.optional(lambda value: values.checked_structured_outputs(types.mapping(value))),
        convert=lambda config: None if config is None else config.get("backend"),
    ),
    "max_logprobs": Key(
        target="decoding.max_logprobs", read=types.optional(types.integer(-1, 2**31 - 1))
    ),
    "stream_interval": Key(target="decoding.stream_interval", read=types.integer(1, 2**31 - 1)),
    "return_tokens_as_token_ids": Key(
        target="decoding.return_tokens_as_token_ids", read=types.flag
    ),
}

SERVER_KEYS: Mapping[str, Key] = {
    "served_model_name": Key(target="server.served_model_names", read=types.texts),
    "api_key": Key(
        target="server.api_keys",
        read=types.optional(types.text_or_texts),
        # The server of vLLM drops empty ones as well.
        convert=lambda keys: tuple(filter(None, keys or ())) or None,
    ),
    "shutdown_timeout": Key(target="server.shutdown_timeout", read=_COUNT),
    "engine_ready_timeout_secs": Key(target="engine.ready_timeout", read=types.integer(1)),
    "http_timeout_keep_alive": Key(target="server.keep_alive_timeout", read=types.optional(_COUNT)),
    "sse_keep_alive_interval": Key(target="server.sse_keep_alive_interval", read=_COUNT),
    "profiler_config": Key(
        target="control.profiler",
        read=types.optional(types.mapping),
        convert=lambda config: None if config is None else config.get("profiler"),
    ),
    "max_num_queued_reqs": Key(target="requests.max_queued", read=types.optional(_COUNT)),
    "max_num_queued_tokens": Key(target="requests.max_queued_tokens", read=types.optional(_COUNT)),
    "enable_log_requests": Key(target="server.log_requests", read=types.flag),
    "disable_log_stats": Key(
        target="server.log_stats", read=types.flag, convert=lambda disabled: not disabled
    ),
    "enable_prompt_tokens_details": Key(target="server.prompt_tokens_details", read=types.flag),
    "enable_per_request_metrics": Key(target="server.per_request_metrics", read=types.flag),
    "enable_request_id_headers": Key(target="server.request_id_headers", read=types.flag),
    "custom_histogram_buckets": Key(
        target="server.histogram_buckets",
        read=lambda value: values.checked_buckets(types.mapping(value)),
    ),
    "allowed_origins": Key(target="server.cors.origins", read=types.texts),
    "allowed_methods": Key(target="server.cors.methods", read=types.texts),
    "allowed_headers": Key(target="server.cors.headers", read=types.texts),
    "allow_credentials": Key(target="server.cors.credentials", read=types.flag),
    "ssl_certfile": Key(target="server.tls.certfile", read=_PATH, convert=_not_empty),
    "ssl_keyfile": Key(target="server.tls.keyfile", read=_PATH, convert=_not_empty),
    "ssl_ca_certs": Key(target="server.tls.ca_certs", read=_PATH, convert=_not_empty),
    "ssl_cert_reqs": Key(target="server.tls.cert_reqs", read=types.integer(0, 2)),
    "ssl_ciphers": Key(target="server.tls.ciphers", read=_PATH, convert=_not_empty),
}

USED: Mapping[str, Key] = {**MODEL_KEYS, **SERVER_KEYS}

PENDING: Mapping[str, Key] = {
    "enable_scale_out": Key(read=types.flag),
    "enable_tokenizer_info_endpoint": Key(read=types.flag),
    "tool_strict_level": Key(read=types.optional(types.text)),
}
"""Keys of features that this build lacks; what they hold is read to see whether it asks for any."""


def _key(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


_FEATURES = {_key(option): feature for option, feature in UNSERVED.items()}

WITHOUT_FEATURE: Mapping[str, tuple[Key, str]] = {
    name: (key, _FEATURES[name]) for name, key in PENDING.items() if name in _FEATURES
}
"""Those of them, each with the feature, that ``serve`` does not serve either."""

REFUSED = frozenset(map(_key, REJECTED)) - set(USED)
"""Keys that are refused whatever they hold, false as well; null says nothing."""

NO_EFFECT = frozenset(map(_key, INEFFECTIVE)) | {
    "anthropic_disabled_thinking_effort",
    "cohere_format",
    "cohere_is_reasoning_model",
    "per_request_spec_decode_metrics",
    "reasoning_config",
    "reasoning_effort_map",
    "show_hidden_metrics_for_version",
}
"""Keys that are accepted with a warning."""
