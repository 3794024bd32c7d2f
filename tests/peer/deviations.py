"""Where we answer otherwise than the peer, on purpose; docs/compatibility.md gives the reasons."""

import fnmatch

import attrs


@attrs.frozen
class Deviation:
    """A set of cases whose answers differ."""

    pattern: str
    reason: str
    message_only: bool = False
    """Status, type, param and code are equal; only the error's sentence differs."""


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation("chat-messages-call-bad-arguments", "the client's fault is a 400"),
    Deviation("chat-rank-7", "the refusal names the rank and the field"),
    Deviation("get-version", "our own version has our own name"),
    Deviation("get-v1-models", "the owner is named after us"),
    Deviation("post-v1-*", "unserved features are named", message_only=True),
    Deviation("chat-no-json", "another JSON parser", message_only=True),
    Deviation("completions-no-json", "another JSON parser", message_only=True),
    Deviation("chat-list-body", "a list is never a request", message_only=True),
    Deviation("*-not-utf8", "another JSON parser", message_only=True),
    Deviation("*-deep", "another JSON parser", message_only=True),
    Deviation("chat-odd-logit_bias-2", "another JSON parser", message_only=True),
    Deviation("chat-format-[34]", "another JSON parser", message_only=True),
    Deviation("chat-odd-temperature-1", "an infinity is shown as such", message_only=True),
    Deviation("completion-constraint-6", "the member is named", message_only=True),
    Deviation("*-stops-ids-and-minimum*", "some engines die of so many ids"),
    Deviation("chat-format-2", "a structural tag needs its members"),
    Deviation("completion-prompt-5", "several prompts are served; one of them is empty"),
)


def deviation_of(name: str) -> Deviation | None:
    """Return the first deviation that covers the case *name*."""
    for deviation in DEVIATIONS:
        if fnmatch.fnmatchcase(name, deviation.pattern):
            return deviation
    return None
