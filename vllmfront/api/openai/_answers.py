"""Whole answers of both completion routes, member by member as the peer orders them."""

from collections.abc import Sequence

import attrs
import msgspec

from vllmfront.api.openai._frames import AnswerHead
from vllmfront.api.openai._logprobs import (
    ChatLogprobsWriter,
    CompletionLogprobsWriter,
    prompt_logprobs_json,
)
from vllmfront.api.openai._usage import Usage
from vllmfront.api.openai._whole_choice import WholeChoice
from vllmfront.errors import EngineRequestFailed
from vllmfront.text import LogprobDecoder

_encode = msgspec.json.encode
_NULL = b"null"
_OTHER_MESSAGE_MEMBERS = (
    b',"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}'
)
_EMPTY_STRING = b'""'


INLINE_CELLS = 512
"""Log probabilities that are written in less than a millisecond."""

_TOKENS_A_CELL = 16
"""Plain tokens that are decoded in the time that one log probability takes."""


@attrs.frozen(kw_only=True)
class AnswerParts:
    """What an answer consists of, besides its choices."""

    head: AnswerHead
    usage: Usage
    metrics: bytes = _NULL
    prompt_token_ids: Sequence[Sequence[int]]
    """One a prompt."""

    return_token_ids: bool = False
    echoes: Sequence[str] = ("",)
    """Text that goes before the choices of each prompt."""

    decoder: LogprobDecoder
    """For ``prompt_logprobs``."""


def is_short(choices: Sequence[WholeChoice]) -> bool:
    """Whether the answer with *choices* is written in about a millisecond, or less."""
    cells = 0
    for choice in choices:
        cells += len(choice.token_ids) // _TOKENS_A_CELL
        cells += sum(
            len(part.ranks) * len(part.token_ids[0]) for part in choice.logprobs if part.token_ids
        )
        prompt = choice.prompt_logprobs
        if prompt is not None and prompt.token_ids:
            cells += len(prompt.ranks) * len(prompt.token_ids[0])
    return cells <= INLINE_CELLS


def chat_answer(
    parts: AnswerParts, choices: Sequence[WholeChoice], logprobs: ChatLogprobsWriter | None
) -> bytes:
    """Return the body of a chat completion.

    Raises:
        EngineLacksLogprobs: They were asked for and did not come.
    """
    written = [
        b'{"index":%d,"message":{"role":"assistant","content":%b%b,"logprobs":%b,%b,'
        b'"token_ids":%b,"routed_experts":null,"weight_versions":%b}'
        % (
            index,
            _content(choice.text_json(parts.echoes[0])),
            _OTHER_MESSAGE_MEMBERS,
            _chat_logprobs(choice, logprobs),
            _reasons(choice),
            _encode(choice.token_ids) if parts.return_token_ids else _NULL,
            choice.weight_versions() or _NULL,
        )
        for index, choice in enumerate(choices)
    ]
    first = choices[0]
    prompt_ids = _encode(parts.prompt_token_ids[0]) if parts.return_token_ids else _NULL
    return (
        b'%b,"choices":[%b],"service_tier":null,"usage":%b,"metrics":%b,'
        b'"system_fingerprint":null,"prompt_logprobs":%b,"prompt_token_ids":%b,'
        b'"prompt_text":null,"kv_transfer_params":%b,"ec_transfer_params":%b}'
        % (
            parts.head.fields_json(),
            b",".join(written),
            parts.usage.json(),
            parts.metrics,
            prompt_logprobs_json(parts.decoder, first.prompt_logprobs),
            prompt_ids,
            _encode(first.kv_transfer_params),
            _encode(first.ec_transfer_params),
        )
    )


def completion_answer(
    parts: AnswerParts,
    choices: Sequence[WholeChoice],
    logprobs: CompletionLogprobsWriter | None,
    *,
    echo: bool = False,
    echoes_only: bool = False,
) -> bytes:
    """Return the body of a text completion.

    Args:
        parts: The rest of the answer.
        choices: All choices of the first prompt, then those of the next.
        logprobs: Writes them, where they were asked for.
        echo: Whether prompts lead the text, and their positions the logprobs.
        echoes_only: Whether nothing that was generated is shown.

    Raises:
        EngineLacksLogprobs: They were asked for and did not come.
    """
    per_prompt = len(choices) // len(parts.prompt_token_ids)
    written: list[bytes] = []
    for index, choice in enumerate(choices):
        prompt = index // per_prompt
        prompt_ids = parts.prompt_token_ids[prompt]
        before = parts.echoes[prompt]
        written.append(
            b'{"index":%d,"text":%b,"logprobs":%b,%b,"prompt_logprobs":%b,"token_ids":%b,'
            b'"prompt_token_ids":%b%b}'
            % (
                index,
                _encode(before) if echoes_only else choice.text_json(before),
                _completion_logprobs(
                    choice, logprobs, prompt_ids if echo else (), hidden=echoes_only
                ),
                _reasons(choice),
                prompt_logprobs_json(parts.decoder, choice.prompt_logprobs),
                _encode(choice.token_ids) if parts.return_token_ids else _NULL,
                _encode(prompt_ids) if parts.return_token_ids else _NULL,
                _weight_versions(choice),
            )
        )
    return (
        b'%b,"choices":[%b],"usage":%b,"metrics":%b,"system_fingerprint":null,'
        b'"kv_transfer_params":%b,"ec_transfer_params":%b}'
        % (
            parts.head.fields_json(),
            b",".join(written),
            parts.usage.json(),
            parts.metrics,
            _encode(choices[0].kv_transfer_params),
            _encode(choices[0].ec_transfer_params),
        )
    )


class EngineLacksLogprobs(EngineRequestFailed):
    """Raised when an engine was asked for log probabilities and sent none. Becomes a 500."""


def _content(text: bytes) -> bytes:
    return _NULL if text == _EMPTY_STRING else text


def _reasons(choice: WholeChoice) -> bytes:
    return b'"finish_reason":%b,"stop_reason":%b' % (
        _encode(choice.finish_reason),
        _encode(choice.stop_reason),
    )


def _weight_versions(choice: WholeChoice) -> bytes:
    """Return the member of a completion's choice, which only those have that were asked for it."""
    versions = choice.weight_versions()
    return b"" if versions is None else b',"weight_versions":%b' % versions


def _chat_logprobs(choice: WholeChoice, writer: ChatLogprobsWriter | None) -> bytes:
    if writer is None:
        return _NULL
    if not choice.logprobs and choice.token_ids:
        raise EngineLacksLogprobs("chat response requested logprobs but generation returned none")
    return writer.write(choice.logprobs)


def _completion_logprobs(
    choice: WholeChoice,
    writer: CompletionLogprobsWriter | None,
    echoed: Sequence[int],
    *,
    hidden: bool,
) -> bytes:
    if writer is None:
        return _NULL
    if not choice.logprobs and choice.token_ids:
        raise EngineLacksLogprobs(
            "completion response requested logprobs but generation returned none"
        )
    shown = [] if hidden else choice.logprobs
    if not echoed:
        return writer.write(shown)
    if len(echoed) > 1 and choice.prompt_logprobs is None:
        raise EngineLacksLogprobs(
            "echoed completion logprobs require prompt logprobs but generation returned none"
        )
    return writer.write_after_prompt(shown, echoed, choice.prompt_logprobs)
