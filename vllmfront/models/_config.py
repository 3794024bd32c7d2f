"""What config.json, generation_config.json and tokenizer_config.json say, as frozen values."""

from collections.abc import Mapping
from typing import Any

import attrs

from vllmfront.errors import ConfigurationError

EXPERT_COUNT_KEYS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")


@attrs.frozen(kw_only=True)
class ModelConfig:
    """The part of ``config.json`` that a frontend needs, after ``--hf-overrides``."""

    vocab_size: int
    """Ids from 0 up to this are known to the engine; anything else would kill it."""

    is_moe: bool = False
    eos_token_ids: tuple[int, ...] = ()
    """Of ``config.json``; the first stands in for the EOS of a tokenizer that has none."""


@attrs.frozen(kw_only=True)
class GenerationDefaults:
    """A model's sampling defaults; None where it has none of its own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_new_tokens: int | None = None
    max_tokens_cap: int | None = None
    """The operator's: the most tokens of an answer, whatever a request asks for."""

    eos_token_ids: tuple[int, ...] = ()
    """What ends a text besides the tokenizer's EOS: the ids of ``generation_config.json``, then
    those of ``config.json``."""

    def neutral(self) -> "GenerationDefaults":
        """The defaults of ``--generation-config vllm``: nothing but the EOS ids."""
        return GenerationDefaults(eos_token_ids=self.eos_token_ids)

    def overridden(self, raw: Mapping[str, Any], source: str) -> "GenerationDefaults":
        """Put the operator's defaults in place of these; null takes one away.

        What ends a text stays as it is, and ``max_new_tokens`` is a cap as well.

        Raises:
            ConfigurationError: A value has the wrong type; *source* is named.
        """
        theirs = read_generation_config(raw, source)
        named = {
            field.name: getattr(theirs, field.name)
            for field in attrs.fields(GenerationDefaults)
            if field.name in raw
        }
        return attrs.evolve(self, **named, max_tokens_cap=theirs.max_new_tokens)


@attrs.frozen(kw_only=True)
class TokenizerConfig:
    """The part of ``tokenizer_config.json`` and ``special_tokens_map.json`` in use."""

    special_tokens: Mapping[str, str] = attrs.field(factory=dict)
    """``bos_token``, ``eos_token``, ``pad_token``, ... to their text; unset ones are absent."""

    chat_template: str | None = None
    """The template named "default", or the only one."""

    named_templates: Mapping[str, str] = attrs.field(factory=dict)
    """Further templates by name, for example ``tool_use``."""

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")


def read_model_config(raw: Mapping[str, Any], source: str) -> ModelConfig:
    """Read ``config.json``.

    Values at the top level win over those of a nested ``text_config``.

    Raises:
        ConfigurationError: A value has the wrong type; *source* is named.
    """
    nested = raw.get("text_config")
    layers = [raw] + ([nested] if isinstance(nested, Mapping) else [])
    vocab_size = next((v for la in layers if (v := la.get("vocab_size")) is not None), None)
    if type(vocab_size) is not int or vocab_size <= 0:
        raise ConfigurationError(
            f"{source}: vocab_size must be a positive integer, got {vocab_size!r}"
            " (--hf-overrides can set it)."
        )
    eos = next((la for la in layers if la.get("eos_token_id") is not None), {})
    return ModelConfig(
        vocab_size=vocab_size,
        eos_token_ids=_ids(eos, "eos_token_id", source),
        is_moe=any(_counts_experts(layer) for layer in layers),
    )


def _counts_experts(layer: Mapping[str, Any]) -> bool:
    values = [layer.get(key) for key in EXPERT_COUNT_KEYS]
    blocks = layer.get("block_configs")
    if isinstance(blocks, list):
        values += [b.get("n_routed_experts") for b in blocks if isinstance(b, Mapping)]
    return any(_is_positive(value) for value in values)


def _is_positive(value: object) -> bool:
    if isinstance(value, list):
        return any(_is_positive(item) for item in value)
    return isinstance(value, int) and value > 0


def read_generation_config(raw: Mapping[str, Any], source: str) -> GenerationDefaults:
    """Read ``generation_config.json``.

    Raises:
        ConfigurationError: A value has the wrong type; *source* is named.
    """
    return GenerationDefaults(
        temperature=_number(raw, "temperature", source),
        top_p=_number(raw, "top_p", source),
        top_k=_integer(raw, "top_k", source),
        min_p=_number(raw, "min_p", source),
        repetition_penalty=_number(raw, "repetition_penalty", source),
        frequency_penalty=_number(raw, "frequency_penalty", source),
        presence_penalty=_number(raw, "presence_penalty", source),
        max_new_tokens=_integer(raw, "max_new_tokens", source),
        eos_token_ids=_ids(raw, "eos_token_id", source),
    )


def _number(raw: Mapping[str, Any], key: str, source: str) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{source}: {key} must be a number, got {value!r}.")
    return float(value)


def _integer(raw: Mapping[str, Any], key: str, source: str) -> int | None:
    value = raw.get(key)
    if value is not None and type(value) is not int:
        raise ConfigurationError(f"{source}: {key} must be an integer, got {value!r}.")
    return value


def _ids(raw: Mapping[str, Any], key: str, source: str) -> tuple[int, ...]:
    value = raw.get(key)
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(item) is int and item >= 0 for item in values):
        raise ConfigurationError(f"{source}: {key} must be an id or a list of ids, got {value!r}.")
    return tuple(dict.fromkeys(values))


def read_tokenizer_config(
    raw: Mapping[str, Any], special_tokens_map: Mapping[str, Any], source: str
) -> TokenizerConfig:
    """Read ``tokenizer_config.json``; *special_tokens_map* fills what it leaves out.

    Raises:
        ConfigurationError: A value has the wrong type; *source* is named.
    """
    special: dict[str, str] = {}
    for layer in (special_tokens_map, raw):
        for key, value in layer.items():
            if key.endswith("_token") and (text := _token_text(value)) is not None:
                special[key] = text
    default, named = _templates(raw.get("chat_template"), source)
    return TokenizerConfig(
        special_tokens=special,
        chat_template=default,
        named_templates=named,
    )


def _token_text(value: object) -> str | None:
    """A special token is a string, or an object with its text under ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _templates(value: object, source: str) -> tuple[str | None, dict[str, str]]:
    if value is None or isinstance(value, str):
        return value, {}
    if isinstance(value, list) and all(
        isinstance(item, Mapping)
        and isinstance(item.get("name"), str)
        and isinstance(item.get("template"), str)
        for item in value
    ):
        named = {item["name"]: item["template"] for item in value}
        default = named.pop("default", None)
        if default is None and len(named) == 1:
            default = next(iter(named.values()))
        return default, named
    raise ConfigurationError(
        f"{source}: chat_template must be a string, or a list of objects with name and template."
    )
