import pytest

from vllmfront.chat import ChatPrompt, ChatRenderer, Message, NamedTemplates
from vllmfront.errors import RequestRejected

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
TRIMMING = PLAIN.replace("m.content", "m.content | trim")
TWICE = PLAIN.replace("{{ m.content }}", "{{ m.content }}|{{ m.content }}")
TRIMMING_TWICE = PLAIN.replace("{{ m.content }}", "{{ m.content | trim }}|{{ m.content }}")
PARTS = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"


def continue_with(template: str, content: str, *, add_generation_prompt: bool | None = None) -> str:
    messages = [
        Message(role="user", content="hi"),
        Message(role="assistant", content=content),
    ]
    chat = ChatPrompt(
        messages=messages,
        continue_final_message=True,
        add_generation_prompt=add_generation_prompt,
    )
    return ChatRenderer(NamedTemplates(template)).render(chat).text


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (PLAIN, "abc", "<user>hi</user><assistant>abc"),
        (PLAIN, "  abc  ", "<user>hi</user><assistant>  abc  "),
        (PLAIN, "", "<user>hi</user><assistant>"),
        (PLAIN, "\ue000\ue001", "<user>hi</user><assistant>\ue000\ue001"),
        (TRIMMING, "  abc \n", "<user>hi</user><assistant>abc"),
        (TRIMMING, "", "<user>hi</user><assistant>"),
        (TRIMMING.replace("<{{ m.role }}>", "{{ m.role }}\n"), "", "user\nhi</user>assistant\n"),
        (TWICE, "abc", "<user>hi|hi</user><assistant>abc|abc"),
        (TRIMMING_TWICE, " abc ", "<user>hi|hi</user><assistant>abc | abc "),
        (PARTS, " abc ", "<hi>< abc "),
        (PLAIN.replace("m.content", "m.content | upper"), "abc", "<user>HI</user><assistant>ABC"),
    ],
)
def test_the_prompt_ends_with_the_final_message(template: str, content: str, expected: str) -> None:
    assert continue_with(template, content) == expected


@pytest.mark.parametrize(
    "template", ["nothing", PLAIN.replace("m.content", "m.content[:2]")], ids=["left-out", "cut"]
)
def test_a_message_that_does_not_appear_cannot_be_continued(template: str) -> None:
    with pytest.raises(RequestRejected, match=r"final message does not appear .* continue: abc$"):
        continue_with(template, " abc ")


def test_continuing_excludes_a_generation_prompt() -> None:
    with pytest.raises(RequestRejected, match="Cannot set both"):
        continue_with(PLAIN, "abc", add_generation_prompt=True)


def test_only_an_assistant_is_continued() -> None:
    chat = ChatPrompt(messages=[Message(role="user", content="hi")], continue_final_message=True)

    with pytest.raises(RequestRejected, match="the last message is not from the assistant"):
        ChatRenderer(NamedTemplates(PLAIN)).render(chat)
