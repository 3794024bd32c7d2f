"""Which text is the chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class NamedTemplates:
    """The templates that a model comes with, of which tools may choose another."""

    default: str | None
    tool_use: str | None = None

    def choose(self, *, with_tools: bool) -> str | None:
        """Return the template for a request, or None when there is none."""
        if with_tools and self.tool_use is not None:
            return self.tool_use
        return self.default


def is_inline_template(argument: str) -> bool:
    """Whether a ``--chat-template`` argument that names no file is a template itself."""
    return any(mark in argument for mark in "{}\n")


def clean_template_file(text: str) -> str:
    r"""Return the text of a ``--chat-template`` file: trimmed, and with ``\n`` as line ends."""
    return text.strip().replace("\\n", "\n")


def templates_from_config(value: Any) -> NamedTemplates:
    """Read ``chat_template`` of a tokenizer config: a string, or a list of named ones.

    A list without one called ``default`` has none, and a sole template is the default.
    """
    if isinstance(value, str):
        return NamedTemplates(value)
    named: dict[str, str] = {}
    if isinstance(value, Mapping):
        named = {str(name): text for name, text in value.items() if isinstance(text, str)}
    elif isinstance(value, Sequence):
        for entry in value:
            if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
                named[str(entry.get("name"))] = entry["template"]
    default = named.get("default")
    if default is None and len(named) == 1:
        default = next(iter(named.values()))
    return NamedTemplates(default, named.get("tool_use"))
