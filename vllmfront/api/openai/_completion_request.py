"""The body of a text completion: its fields, and the rules between them."""

from collections.abc import Sequence
from typing import Any

from vllmfront.api.openai._fields import (
    I32,
    GenerationFields,
    check_form,
    refuse_unsupported,
)
from vllmfront.errors import MalformedRequest, RequestRejected

Prompt = str | Sequence[int]
"""Text, or token ids."""


class CompletionRequest(GenerationFields, kw_only=True, frozen=True):
    prompt: str | list[str | int | list[int]]
    prompt_embeds: Any = None
    suffix: str | None = None
    logprobs: I32 | None = None

    @property
    def echoes_only(self) -> bool:
        """Whether the client wants its prompt back and nothing generated."""
        return self.max_tokens == 0


def check_completion(request: CompletionRequest) -> None:
    """Check what has to do with text completions; sampling is checked elsewhere.

    Raises:
        RequestRejected: A rule is broken, or something is not served.
    """
    names = [name for name in ("prompt_embeds", "suffix") if getattr(request, name) is not None]
    refuse_unsupported(request, names)
    if request.stream_options is not None and not request.stream:
        raise RequestRejected(
            "stream_options are only supported when stream=true.", param="stream_options"
        )


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """Return the prompts of a request, one or many, in order.

    Raises:
        MalformedRequest: A list mixes kinds, or another field has a form that no client may send.
    """
    check_form(request)
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if all(type(item) is int for item in prompt):
        ids: list[int] = prompt  # type: ignore[assignment] # just checked
        return [_checked_ids(ids)]
    if all(isinstance(item, str) for item in prompt):
        return list(prompt)  # type: ignore[arg-type] # just checked
    if all(isinstance(item, list) for item in prompt):
        return [_checked_ids(item) for item in prompt]  # type: ignore[arg-type] # just checked
    raise _no_prompt()


def _checked_ids(ids: list[int]) -> list[int]:
    if ids and (min(ids) < 0 or max(ids) > 2**32 - 1):
        raise _no_prompt()
    return ids


def _no_prompt() -> MalformedRequest:
    return MalformedRequest.misfit(
        "data did not match any variant of untagged enum Prompt", "prompt"
    )
