"""The model's files, loaded beside the engine, and what routes need of them."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import trio

from vllmfront.api.openai import ModelService, ServiceOptions, ServiceSlot, shutting_down
from vllmfront.chat import (
    ChatOptions,
    ChatRenderer,
    ContentFormat,
    NamedTemplates,
    clean_template_file,
    fuel_from_environment,
    is_inline_template,
)
from vllmfront.engine import EngineClient, EngineState, GuardLimits
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._config import ChatConfig, ModelConfig, ServeConfig
from vllmfront.lifecycles._one_error import one_error
from vllmfront.models import (
    GenerationDefaults,
    ModelDescription,
    load_model_description,
    read_text,
    resolve_model,
)
from vllmfront.supervisor import wait_any
from vllmfront.text import SamplingLimits, Tokenizer, load_tokenizer

_LOGGER = logging.getLogger(__name__)


class DrainingSlot(ServiceSlot):
    """A slot that can be closed to new requests while the running ones go on."""

    def __init__(self) -> None:
        super().__init__()
        self.filled = False
        self.closed_at: float | None = None
        """When it was closed, by the event loop's clock."""

    def put(self, service: ModelService) -> None:
        super().put(service)
        self.filled = True

    def close(self) -> None:
        """Refuse every request from now on."""
        if self.closed_at is None:
            self.closed_at = trio.current_time()

    def require(self) -> ModelService:
        if self.closed_at is not None:
            raise shutting_down()
        return super().require()


@attrs.frozen(kw_only=True)
class LoadedModel:
    """What the model's files hold, ready for use."""

    model: ModelDescription
    tokenizer: Tokenizer
    renderer: ChatRenderer
    limits: SamplingLimits


@attrs.frozen(kw_only=True)
class ModelLoader:
    """Loads the model's files once, and fills the slot."""

    config: ServeConfig
    client: EngineClient
    slot: DrainingSlot
    on_loaded: Callable[[], None]
    preloaded: LoadedModel | None = None
    """What was loaded before the client was opened."""

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child: ready at once, because the slot says so when it is empty.

        What was loaded before is in the slot before that.

        Raises:
            ConfigurationError: The files are missing or unusable.
        """
        if self.preloaded is not None:
            self.slot.put(make_service(self.preloaded, self.config, self.client))
        task_status.started()
        with one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, stop, nursery.cancel_scope)
                if self.preloaded is None:
                    loaded = await load_files(self.config)
                    self.slot.put(make_service(loaded, self.config, self.client))
                self.on_loaded()
                await wait_any(self.client.wait_lost, self._announce)
                nursery.cancel_scope.cancel(reason="the model is loaded")

    async def _announce(self) -> None:
        await self.client.wait_state(lambda state: state is EngineState.READY)
        info = self.client.info
        _LOGGER.info(
            "serving %s: engine %s, context of %s tokens",
            ", ".join(served_names(self.config)),
            info.vllm_version,
            info.max_model_len,
        )


async def load_files(config: ServeConfig) -> LoadedModel:
    """Load tokenizer and templates in worker threads.

    Raises:
        ConfigurationError: The files are missing or unusable.
    """
    model = await _describe(config)
    limits = SamplingLimits.from_environment(
        os.environ,
        max_logprobs=config.decoding.max_logprobs,
        structured_backend=config.decoding.structured_outputs_backend,
    )
    renderer = await trio.to_thread.run_sync(
        lambda: _renderer(config.chat, model), abandon_on_cancel=True
    )
    if renderer.problem is not None:
        _LOGGER.warning("chats will fail: %s", renderer.problem)
    tokenizer = await load_tokenizer(model)
    return LoadedModel(model=model, tokenizer=tokenizer, renderer=renderer, limits=limits)


async def steps_together(config: ServeConfig) -> bool:
    """Tell whether the engines cannot do without each other: several of a mixture of experts.

    Raises:
        ConfigurationError: The model's files are missing or unusable.
    """
    if config.engine.data_parallel_size == 1:
        return False  # whatever the model is
    return (await _describe(config)).config.is_moe


async def _describe(config: ServeConfig) -> ModelDescription:
    wanted = config.model
    files = await resolve_model(
        wanted.model,
        revision=wanted.revision,
        tokenizer=wanted.tokenizer,
        tokenizer_revision=wanted.tokenizer_revision,
        hf_config_path=wanted.config_path,
    )
    return await trio.to_thread.run_sync(
        lambda: load_model_description(files, hf_overrides=wanted.overrides),
        abandon_on_cancel=True,
    )


def make_service(loaded: LoadedModel, config: ServeConfig, client: EngineClient) -> ModelService:
    """Join files and engines; what the files say of requests limits them from now on."""
    model, limits = loaded.model, loaded.limits
    client.set_limits(_guard_limits(model, limits))
    server, decoding = config.server, config.decoding
    return ModelService(
        served_names=served_names(config),
        tokenizer=loaded.tokenizer,
        renderer=loaded.renderer,
        generation=_generation(config.model, model),
        engine=client,
        options=ServiceOptions(
            stream_interval=decoding.stream_interval,
            return_tokens_as_token_ids=decoding.return_tokens_as_token_ids,
            prompt_tokens_details=server.prompt_tokens_details,
            per_request_metrics=server.per_request_metrics,
            log_requests=server.log_requests,
            default_timeout=config.requests.default_timeout,
            limits=limits,
        ),
    )


def _generation(wanted: ModelConfig, model: ModelDescription) -> GenerationDefaults:
    """Return the sampling defaults of requests: the model's or none, then the operator's."""
    defaults = model.generation
    if wanted.generation_config == "vllm":
        defaults = defaults.neutral()
    return defaults.overridden(wanted.generation_overrides, "override_generation_config")


def _guard_limits(model: ModelDescription, limits: SamplingLimits) -> GuardLimits:
    """Return what the engines bear: the operator's own limits hold there as well."""
    return GuardLimits(
        vocab_size=model.config.vocab_size,
        max_model_len=None,
        max_choices=limits.max_choices,
        max_bad_words=limits.max_bad_words,
        max_bad_words_token_ids=limits.max_bad_word_tokens,
    )


def served_names(config: ServeConfig) -> Sequence[str]:
    """Return the names that clients may use, the one in answers first."""
    return tuple(config.server.served_model_names) or (config.model.model,)


def _renderer(chat: ChatConfig, model: ModelDescription) -> ChatRenderer:
    templates = NamedTemplates(model.chat_template, model.named_templates.get("tool_use"))
    if chat.template is not None:
        templates = NamedTemplates(_operators_template(chat.template))
    return ChatRenderer(
        templates,
        special_tokens=model.tokenizer_config.special_tokens,
        options=ChatOptions(
            content_format=ContentFormat(chat.content_format),
            default_template_kwargs=chat.template_kwargs,
            exclude_tools_when_tool_choice_none=chat.exclude_tools_when_none,
            trust_request_template=chat.trust_request_template,
            fuel=fuel_from_environment(os.environ),
        ),
    )


def _operators_template(argument: str) -> str:
    try:
        is_file = Path(argument).is_file()
    except OSError:
        # A template may be too long for a file name.
        is_file = False
    if is_file:
        return clean_template_file(read_text(Path(argument)))
    if is_inline_template(argument):
        return argument
    raise ConfigurationError(
        f"--chat-template {argument}: there is no such file, and it is no template either"
    )


async def _cancel_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel(reason="stopped")
