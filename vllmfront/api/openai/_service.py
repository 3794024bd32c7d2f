"""What the completion routes serve: a model, its engine, and the operator's options."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from vllmfront.api.openai._sampling import SamplingMemo
from vllmfront.chat import ChatRenderer
from vllmfront.engine import (
    EngineRequest,
    EngineState,
    LoraRequest,
    OutputSink,
    RequestStream,
)
from vllmfront.errors import EngineUnavailable, ModelNotFound, Reason, VllmFrontError
from vllmfront.models import GenerationDefaults
from vllmfront.text import GrammarChecker, LogprobDecoder, SamplingLimits, Surface, Tokenizer


class WaitingStream(Protocol):
    """The part of a ``RequestStream`` that keeps its client patient."""

    @property
    def begun(self) -> bool:
        """Whether it has had an engine before: its client has a response head."""

    @property
    def on_waiting(self) -> Callable[[], None] | None:
        """What to call now and then."""


class NamedAdapters(Protocol):
    """The part of ``Adapters`` that a request needs."""

    def find(self, name: str) -> LoraRequest | None:
        """Return the adapter of that name."""


class Engine(Protocol):
    """The part of an ``EngineClient`` that routes use."""

    @property
    def adapters(self) -> NamedAdapters:
        """What requests may name besides the model."""

    @property
    def state(self) -> EngineState:
        """Whether requests can be sent now."""

    @property
    def error(self) -> VllmFrontError | None:
        """Why the state is not READY."""

    @property
    def max_model_len(self) -> int | None:
        """The smallest context of all engines; None until one has joined."""

    @property
    def waiting_streams(self) -> Sequence[WaitingStream]:
        """Those that wait for an engine in place of a lost one."""

    def submit_one(self, request: EngineRequest, sink: OutputSink) -> RequestStream:
        """Prepare a request of one choice.

        Raises:
            RequestRejected: An engine could not survive it.
        """

    async def prepare_all(
        self,
        requests: Sequence[EngineRequest],
        sinks: Sequence[Sequence[OutputSink]] | None = None,
    ) -> RequestStream:
        """Prepare requests that begin and end together; one sink a choice of each."""


@attrs.frozen(kw_only=True)
class ServiceOptions:
    """How an operator wants requests answered."""

    stream_interval: int = 1
    """Ids that make a stream event, unless the request says otherwise."""

    return_tokens_as_token_ids: bool = False
    prompt_tokens_details: bool = False
    per_request_metrics: bool = False
    log_requests: bool = False
    default_timeout: float | None = None
    """Seconds from arrival to end, unless a request says otherwise."""

    limits: SamplingLimits = attrs.field(factory=SamplingLimits)


@attrs.define(kw_only=True, eq=False)
class ModelService:
    """One served model. Made once tokenizer and templates are loaded; engines may come and go."""

    served_names: Sequence[str]
    """The first one stands in responses."""

    tokenizer: Tokenizer
    renderer: ChatRenderer
    generation: GenerationDefaults
    engine: Engine
    options: ServiceOptions = attrs.field(factory=ServiceOptions)
    grammars: GrammarChecker = attrs.field(factory=GrammarChecker)
    chat_sampling: SamplingMemo = attrs.field(init=False)
    completion_sampling: SamplingMemo = attrs.field(init=False)
    _decoders: dict[tuple[bool, bool], LogprobDecoder] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        interval = self.options.stream_interval
        self.chat_sampling = SamplingMemo(Surface.CHAT, interval)
        self.completion_sampling = SamplingMemo(Surface.COMPLETION, interval)

    @property
    def model(self) -> str:
        return self.served_names[0]

    @property
    def max_model_len(self) -> int:
        """The smallest context of all engines.

        Raises:
            EngineUnavailable: None has joined.
        """
        length = self.engine.max_model_len
        if length is None:
            raise EngineUnavailable(
                "The engine is not ready: it has not joined yet.", reason=Reason.LOADING
            )
        return length

    def find_adapter(self, name: str | None) -> LoraRequest | None:
        """Return the adapter that *name* stands for; None where it, or no name, means the model.

        Raises:
            ModelNotFound: It stands for nothing that is served now.
        """
        if not name or name in self.served_names:
            return None
        lora = self.engine.adapters.find(name)
        if lora is None:
            raise ModelNotFound(f"The model `{name}` does not exist.", param="model")
        return lora

    def check_ready(self) -> None:
        """Refuse work that no engine could take now.

        Raises:
            EngineUnavailable: The engines are loading, or gone: others may take their place.
        """
        state = self.engine.state
        if state is EngineState.READY or state is EngineState.RECOVERING:
            return  # the engine client knows whether waiting is worth while
        error = self.engine.error
        if state is EngineState.FAILED and error is not None:
            raise EngineUnavailable(
                f"The engine is gone: {str(error).rstrip('.')}.", reason=Reason.FAILED
            ) from error
        reason = Reason.STALLED if state is EngineState.STALLED else Reason.LOADING
        raise EngineUnavailable(
            f"The engine is not ready: its state is {state.name}.", reason=reason
        )

    def logprob_decoder(self, *, skip_special_tokens: bool, as_token_ids: bool) -> LogprobDecoder:
        """Return the decoder for one way of asking; it is made once."""
        key = skip_special_tokens, as_token_ids
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = LogprobDecoder(
                self.tokenizer, skip_special_tokens=skip_special_tokens, as_token_ids=as_token_ids
            )
        return decoder

    def new_id(self) -> str:
        """Return an id for a request whose client chose none."""
        return f"{random.getrandbits(32):08x}"  # it names, and guards nothing


class ServiceSlot:
    """Where routes find the model, which is loaded while they answer already."""

    def __init__(self) -> None:
        self._service: ModelService | None = None
        self.load = 0
        """Inference requests that are not answered in full yet."""

    def put(self, service: ModelService) -> None:
        self._service = service

    @property
    def waiting_streams(self) -> Sequence[WaitingStream]:
        """Those of the service that wait for an engine in place of a lost one."""
        return () if self._service is None else self._service.engine.waiting_streams

    def require(self) -> ModelService:
        """Return the service.

        Raises:
            EngineUnavailable: It is still being loaded.
        """
        if self._service is None:
            raise EngineUnavailable(
                "The model is not ready: its state is LOADING.", reason=Reason.LOADING
            )
        return self._service
