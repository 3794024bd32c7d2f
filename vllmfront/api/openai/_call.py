"""One inference request of a client, from its arrival to its one end."""

from collections.abc import Sequence

from msgspec import Struct

from vllmfront.api.http import HttpRequest
from vllmfront.api.openai._gate import Gate
from vllmfront.api.openai._marks import RequestMarks
from vllmfront.api.openai._service import ModelService
from vllmfront.engine import EngineRequest, RequestStream


class Admitted(Struct, kw_only=True, frozen=True):
    """What is to be sent: everything that the request's own words can have against it was said."""

    service: ModelService
    marks: RequestMarks
    requests: Sequence[EngineRequest]
    """One a prompt."""

    @property
    def model(self) -> str:
        """What its answer names: the model, or its adapter."""
        lora = self.requests[0].lora
        return self.service.model if lora is None else lora.name


class InferenceCall:
    """What is known of a request so far; its route fills it in, its edge keeps the books by it."""

    __slots__ = ("admitted", "choices", "gate", "http", "stream")

    def __init__(self, http: HttpRequest, gate: Gate) -> None:
        self.http = http
        self.gate = gate
        self.choices = 0
        """How many places it takes up; none before it was let in, and after it has left."""

        self.admitted: Admitted | None = None
        """None until everything that can be refused has been."""

        self.stream: RequestStream | None = None
        """What its engines say to it; None until it was prepared for sending."""

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of its choices that have no token yet."""
        if self.stream is None:
            return 0
        records = [child.record for child in self.stream.children]
        return sum(record.prompt_tokens for record in records if not record.num_tokens)
