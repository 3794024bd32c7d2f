"""The output pipeline of a choice that is answered as a whole: collect first, decode at the end."""

from collections.abc import Callable
from typing import Any

from vllmfront.api.openai._choice_text import ChoiceText, EscapedText
from vllmfront.api.openai._finish import FINISH_NAMES, visible_ids
from vllmfront.api.openai._logprobs import first_rows
from vllmfront.api.openai._usage import Usage
from vllmfront.engine import EngineOutput, Logprobs
from vllmfront.errors import VllmFrontError
from vllmfront.text import json_escape


class WholeChoice:
    """Keeps what an engine says about a choice until it has ended.

    Text is decoded at once only where stop strings may end it.
    """

    __slots__ = (
        "_include_stop",
        "_matching",
        "_new_text",
        "_texts",
        "_usage",
        "_visible",
        "ec_transfer_params",
        "finish_reason",
        "kv_transfer_params",
        "logprobs",
        "prompt_logprobs",
        "stop_reason",
        "token_ids",
    )

    def __init__(
        self,
        usage: Usage,
        new_text: Callable[[], EscapedText | ChoiceText],
        *,
        include_stop: bool,
        matching: ChoiceText | None = None,
    ) -> None:
        """Make a pipeline.

        Args:
            usage: Counts what the request uses.
            new_text: Makes the decoder of the whole text.
            include_stop: Whether the token that stopped the engine is text.
            matching: Decodes at once instead, and looks for stop strings.
        """
        self._include_stop = include_stop
        self._usage = usage
        self._new_text = new_text
        self._matching = matching
        self._texts: list[str] = []
        self._visible = 0
        """How many of the ids are text; the others come last."""

        self.token_ids: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.prompt_logprobs: Logprobs | None = None
        self.finish_reason: str | None = None
        """None until the choice has ended well."""

        self.stop_reason: int | str | None = None
        self.kv_transfer_params: Any = None
        self.ec_transfer_params: Any = None

    def on_tokens(self, token_ids: list[int]) -> bool:
        if self._matching is None:
            self.token_ids += token_ids
            return False
        return self._match(token_ids)

    def on_output(self, output: EngineOutput) -> bool:
        self._note(output)
        before = len(self.token_ids)
        reason = output.finish_reason
        visible = output.new_token_ids
        if reason is not None:
            visible = visible_ids(visible, reason, include_stop=self._include_stop)
        matched = self.on_tokens(visible)
        if not matched:
            self._visible = len(self.token_ids)
            self.token_ids += output.new_token_ids[len(visible) :]
        if output.logprobs is not None:
            self.logprobs.append(first_rows(output.logprobs, len(self.token_ids) - before))
        if reason is not None and not matched:
            self._end(output)
        return matched

    def on_error(self, error: VllmFrontError) -> None:
        """Do nothing: the request's task gets the error and answers with it."""

    def text_json(self, prefix: str) -> bytes:
        """Return *prefix* and all text as a JSON string; to be called once, after the end."""
        if self._matching is not None:
            inside = json_escape("".join(self._texts))
        else:
            visible = self.token_ids[: self._visible]
            text = self._new_text()
            if isinstance(text, EscapedText):
                inside = text.feed(visible) + text.finish()
            else:
                inside = json_escape(text.feed(visible)[0] + text.finish())
        return b'"%b%b"' % (json_escape(prefix), inside)

    def weight_versions(self) -> bytes | None:
        """Return which weights made which tokens, as JSON; None: nobody has asked."""
        return None

    def _match(self, token_ids: list[int]) -> bool:
        text = self._matching
        assert text is not None
        shown, used = text.feed(token_ids)
        self._texts.append(shown)
        self.token_ids += token_ids[:used]
        if text.match is None:
            return False
        self.finish_reason = "stop"
        self.stop_reason = text.match.stop
        self._usage.completion_tokens += len(self.token_ids)
        return True

    def _note(self, output: EngineOutput) -> None:
        self._usage.note(output)
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if output.kv_transfer_params is not None:
            self.kv_transfer_params = output.kv_transfer_params
        if output.ec_transfer_params is not None:
            self.ec_transfer_params = output.ec_transfer_params

    def _end(self, output: EngineOutput) -> None:
        assert output.finish_reason is not None
        self._usage.completion_tokens += len(self.token_ids)
        if self._matching is not None:
            self._texts.append(self._matching.finish())
        self.finish_reason = FINISH_NAMES.get(output.finish_reason)
        self.stop_reason = output.stop_reason
