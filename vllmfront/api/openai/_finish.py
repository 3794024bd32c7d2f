"""How a choice ends."""

import attrs

from vllmfront.engine import EngineOutput, FinishReason
from vllmfront.errors import (
    EngineRequestFailed,
    EngineUnavailable,
    RequestRejected,
    VllmFrontError,
)

FINISH_NAMES = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.REPETITION: "repetition",
}
"""The reasons that are no error, as clients read them."""


@attrs.frozen(kw_only=True)
class FinishRules:
    """What the end of a choice depends on."""

    include_stop: bool = False
    """Whether the text of the token that stopped the engine is kept."""

    constraint: str | None = None
    """The request's structured-output constraint, for engines that refuse one without a word."""

    def visible(self, token_ids: list[int], reason: FinishReason) -> list[int]:
        """Return the last ids without the one that is no text."""
        if reason is FinishReason.STOP and not self.include_stop:
            return token_ids[:-1]
        return token_ids

    def error_of(self, output: EngineOutput, num_tokens: int) -> VllmFrontError:
        """Return the error that *output* ended a choice with after *num_tokens* tokens."""
        error = output.error
        if error is None:
            if self.constraint is not None and not num_tokens:
                return RequestRejected(
                    f"The engine refused this request's {self.constraint} constraint: it could"
                    " not be compiled.",
                    param="structured_outputs",
                )
            return EngineRequestFailed("the engine gave no reason")
        if error.code == "validation_error":
            return RequestRejected(error.message)
        if error.retryable:
            return EngineUnavailable(error.message)
        return EngineRequestFailed(f"{error.code}: {error.message}")
