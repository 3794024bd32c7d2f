"""One model's configuration, read from its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from vllmfront.errors import ConfigurationError
from vllmfront.models._config import (
    GenerationDefaults,
    ModelConfig,
    TokenizerConfig,
    read_generation_config,
    read_model_config,
    read_tokenizer_config,
)
from vllmfront.models._files import ModelFiles


@attrs.frozen(kw_only=True)
class ModelDescription:
    """All that a frontend knows of a model before it meets its engine."""

    files: ModelFiles
    config: ModelConfig
    generation: GenerationDefaults
    tokenizer_config: TokenizerConfig
    chat_template: str | None = None
    """The default template: its own file, else the one of ``tokenizer_config.json``."""

    named_templates: Mapping[str, str] = attrs.field(factory=dict)
    """Further templates by name, for example ``tool_use``."""


def load_model_description(
    files: ModelFiles, *, hf_overrides: Mapping[str, Any] | None = None
) -> ModelDescription:
    """Read a model's files; blocks for a few milliseconds, so call it in a worker thread.

    Args:
        files: Where they are.
        hf_overrides: A merge patch (RFC 7396) on ``config.json``: null removes a member.

    Raises:
        ConfigurationError: A file is missing or malformed; file and field are named.
    """
    if files.config is None:
        raise ConfigurationError(
            f"{files.root} has no config.json: {files.name!r} is not a model folder."
        )
    config = merge_patch(read_json_object(files.config), hf_overrides or {})
    tokenizer_config = read_tokenizer_config(
        _optional(files.tokenizer_config),
        _optional(files.special_tokens_map),
        str(files.tokenizer_config),
    )
    model_config = read_model_config(config, str(files.config))
    generation = read_generation_config(
        _optional(files.generation_config), str(files.generation_config)
    )
    eos = dict.fromkeys((*generation.eos_token_ids, *model_config.eos_token_ids))
    named = dict(tokenizer_config.named_templates)
    named.update((path.stem, read_text(path)) for path in files.additional_templates)
    template = tokenizer_config.chat_template
    if files.chat_template is not None:
        template = _template_file(files.chat_template)
    return ModelDescription(
        files=files,
        config=model_config,
        generation=attrs.evolve(generation, eos_token_ids=tuple(eos)),
        tokenizer_config=tokenizer_config,
        chat_template=template,
        named_templates=named,
    )


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396); neither argument is changed."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        ConfigurationError: The file cannot be read, or holds something else.
    """
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path} is nested too deeply.") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must hold a JSON object.")
    return value


def _optional(path: Path | None) -> dict[str, Any]:
    return {} if path is None else read_json_object(path)


def read_text(path: Path) -> str:
    """Read a UTF-8 file.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _template_file(path: Path) -> str:
    if path.suffix != ".json":
        return read_text(path)
    template = read_json_object(path).get("chat_template")
    if not isinstance(template, str):
        raise ConfigurationError(f"{path}: chat_template must be a string.")
    return template
