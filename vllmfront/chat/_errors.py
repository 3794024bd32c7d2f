"""What goes wrong between messages and prompt, beyond the client's own faults."""

from vllmfront.errors import RequestRejected, VllmFrontError


class TemplateFailed(VllmFrontError):
    """Raised when a chat template is missing, broken, or beyond its bounds. Becomes a 500.

    What a template refuses by ``raise_exception`` is the client's fault, and a
    ``RequestRejected`` with the template's own words instead.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.message = f"failed to submit chat request: {reason}"
        super().__init__(self.message)


class InvalidMessages(RequestRejected):
    """Raised when messages have the right types and are empty where they must not be."""
