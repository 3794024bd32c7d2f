"""Which text is the chat template."""

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
