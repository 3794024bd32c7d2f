"""Which files of a model folder matter to a frontend."""

from pathlib import Path

import attrs

ADDITIONAL_TEMPLATES = "additional_chat_templates"

HUB_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tekken.json",
    "tiktoken.model",
    "*.tiktoken",
    "chat_template.json",
    "*.jinja",
    f"{ADDITIONAL_TEMPLATES}/*.jinja",
)
"""What is fetched from a hub: never weights."""


@attrs.frozen(kw_only=True)
class ModelFiles:
    """Paths of one model's files; None for those it does not have."""

    name: str
    """As the operator named the model: a hub id or a folder."""

    root: Path
    tokenizer_root: Path
    """Differs from ``root`` only when a tokenizer of its own was named."""

    config: Path | None = None
    generation_config: Path | None = None
    tokenizer: Path | None = None
    """The ``tokenizer.json``."""

    tokenizer_config: Path | None = None
    special_tokens_map: Path | None = None
    tekken: Path | None = None
    tiktoken: Path | None = None
    chat_template: Path | None = None
    """``chat_template.jinja``, else ``chat_template.json``, else the first other ``*.jinja``."""

    additional_templates: tuple[Path, ...] = ()
    """``additional_chat_templates/*.jinja``; the stem is the template's name. Sorted."""


def files_in_folder(
    name: str,
    root: Path,
    *,
    tokenizer_root: Path | None = None,
    config_root: Path | None = None,
) -> ModelFiles:
    """List what the folders of a model hold.

    Args:
        name: How the operator named the model.
        root: Holds ``generation_config.json``, and all that no other folder is given for.
        tokenizer_root: Holds the tokenizer and the templates.
        config_root: Holds ``config.json``.
    """
    tokens = tokenizer_root or root
    tiktoken = _first(tokens, "tiktoken.model") or _first_match(tokens, "*.tiktoken")
    return ModelFiles(
        name=name,
        root=root,
        tokenizer_root=tokens,
        config=_first(config_root or root, "config.json"),
        generation_config=_first(root, "generation_config.json"),
        tokenizer=_first(tokens, "tokenizer.json"),
        tokenizer_config=_first(tokens, "tokenizer_config.json"),
        special_tokens_map=_first(tokens, "special_tokens_map.json"),
        tekken=_first(tokens, "tekken.json"),
        tiktoken=tiktoken,
        chat_template=(
            _first(tokens, "chat_template.jinja", "chat_template.json")
            or _first_match(tokens, "*.jinja")
        ),
        additional_templates=tuple(sorted((tokens / ADDITIONAL_TEMPLATES).glob("*.jinja"))),
    )


def _first(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _first_match(folder: Path, pattern: str) -> Path | None:
    return next((path for path in sorted(folder.glob(pattern)) if path.is_file()), None)
