"""The chats that ``tiny-chat`` knows by heart, and what it answers at temperature 0."""

from typing import Any

import attrs

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]

WEATHER = {"role": "user", "content": "What is the weather in Paris?"}
ASKED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 3}'},
        }
    ],
}
TOLD = {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius": 18}'}


@attrs.frozen
class Chat:
    """A conversation, and its next message as plain text: nothing is parsed."""

    name: str
    messages: list[dict[str, Any]]
    answer: str
    tools: list[dict[str, Any]] | None = None

    @property
    def request(self) -> dict[str, Any]:
        """The body of a request that must be answered with just that text."""
        tools = {} if self.tools is None else {"tools": self.tools}
        return {"model": "tiny", "messages": self.messages, "temperature": 0, **tools}


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


FRANCE = Chat(
    "france",
    _user("What is the capital of France?"),
    "<think>\nEasy.\n</think>\n\nThe capital of France is Paris.",
)
EMOJI = Chat(
    "emoji",
    _user("Greet me with an emoji."),
    "<think>\nA smile.\n</think>\n\n"
    "Hi \N{GRINNING FACE} "
    "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}"
    "\N{GIRL}\N{ZERO WIDTH JOINER}\N{BOY} \N{SPARKLES}",
)
CHATS = [
    Chat(
        "hello",
        _user("Hello!"),
        "<think>\nThe user says hello.\n</think>\n\nHello! How can I help you today?",
    ),
    FRANCE,
    Chat("sum", _user("What is 2+2?"), "<think>\nTwo and two make four.\n</think>\n\n4"),
    EMOJI,
    Chat(
        "hello-tools",
        _user("Hello!"),
        "<think>\nNo tool is needed.\n</think>\n\nHello! Do you want to know the weather?",
        TOOLS,
    ),
    Chat(
        "one-call",
        [WEATHER],
        "<think>\nI need the tool.\n</think>\n\n" + _call('{"city": "Paris", "days": 3}'),
        TOOLS,
    ),
    Chat(
        "two-calls",
        _user("What is the weather in Paris and Rome?"),
        "<think>\nTwo calls.\n</think>\n\n"
        + _call('{"city": "Paris"}')
        + "\n"
        + _call('{"city": "Rome"}'),
        TOOLS,
    ),
    Chat(
        "told",
        [WEATHER, ASKED, TOLD],
        "<think>\nThe tool has answered.\n</think>\n\nIt is 18 degrees in Paris.",
        TOOLS,
    ),
]


def prompt_of(question: str) -> str:
    """Return the prompt that the model's template makes of one message without tools."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
