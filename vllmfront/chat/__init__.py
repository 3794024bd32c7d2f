"""Messages to text: parsing, templates and their bounds. Pure, and safe in any thread."""

from vllmfront.chat._budget import DEFAULT_FUEL, fuel_from_environment
from vllmfront.chat._content_format import ContentFormat
from vllmfront.chat._errors import InvalidMessages, TemplateFailed
from vllmfront.chat._message import ChatPrompt, Message, RenderedChat, Tool, ToolCall
from vllmfront.chat._parse import available_tools, parse_messages, parse_tools
from vllmfront.chat._renderer import ChatOptions, ChatRenderer
from vllmfront.chat._sources import (
    NamedTemplates,
    clean_template_file,
    is_inline_template,
)
from vllmfront.chat._type_errors import describe_value

__all__ = [
    "DEFAULT_FUEL",
    "ChatOptions",
    "ChatPrompt",
    "ChatRenderer",
    "ContentFormat",
    "InvalidMessages",
    "Message",
    "NamedTemplates",
    "RenderedChat",
    "TemplateFailed",
    "Tool",
    "ToolCall",
    "available_tools",
    "clean_template_file",
    "describe_value",
    "fuel_from_environment",
    "is_inline_template",
    "parse_messages",
    "parse_tools",
]
