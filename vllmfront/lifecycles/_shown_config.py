"""A configuration as operators may see it: plain data, without secrets."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import attrs

HIDDEN = "***"

_SECRET = ("key", "token", "secret", "password")
_HARMLESS = ("token-ids", "tokenizer", "num-batched-tokens", "tokens", "tokens-only")
"""What such words mean in options that hide nothing."""


def shown_config(config: Any) -> dict[str, Any]:
    """Return *config*, of attrs, by field; what has no repr is secret, and left out."""
    return {
        field.name: _plain(getattr(config, field.name))
        for field in attrs.fields(type(config))
        if field.repr
    }


def shown_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with the values of secret options hidden."""
    return list(_shown_words(words))


def _shown_words(words: Sequence[str]) -> Iterator[str]:
    hides = False
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("-"):
            secret = _is_secret(name)
            hides = secret and not equals
            yield f"{name}={HIDDEN}" if secret and equals else word
        else:
            yield HIDDEN if hides else word
            hides = False


def _is_secret(option: str) -> bool:
    name = option.lower().lstrip("-").replace("_", "-")
    return any(word in name for word in _SECRET) and not name.endswith(_HARMLESS)


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        return shown_config(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Sequence):
        plain = [_plain(item) for item in value]
        return shown_words(plain) if all(isinstance(item, str) for item in plain) else plain
    if isinstance(value, PurePath):
        return str(value)
    return repr(value)
