"""``POST /v1/load_lora_adapter`` and ``POST /v1/unload_lora_adapter``."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import trio

from vllmfront.api._errors import respond_with_error
from vllmfront.api.http import Handler, HttpRequest, ResponseWriter
from vllmfront.api.lora._paths import AdapterPaths
from vllmfront.api.openai import Body
from vllmfront.engine import LoraRequest
from vllmfront.environment import switch
from vllmfront.errors import RequestRejected, UtilityCallFailed, VllmFrontError

_LOGGER = logging.getLogger(__name__)

ENABLED_BY = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""The environment variable without which the routes do not exist."""

_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

_TEXT = b"text/plain; charset=utf-8"
_WRITTEN = 200


class Adapters(Protocol):
    """The part of the engine's ``Adapters`` that the routes use."""

    def check_enabled(self) -> None:
        """Refuse adapters where an engine has no support for them."""

    async def load(self, lora: LoraRequest) -> LoraRequest:
        """Load an adapter on all engines and serve it."""

    async def unload(self, name: str, int_id: int | None = None) -> None:
        """Serve an adapter no longer."""


class LoadLoraAdapterRequest(msgspec.Struct, kw_only=True, frozen=True):
    lora_name: str
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadLoraAdapterRequest(msgspec.Struct, kw_only=True, frozen=True):
    lora_name: str
    lora_int_id: int | None = None


_LOAD_BODY = Body(LoadLoraAdapterRequest)
_UNLOAD_BODY = Body(UnloadLoraAdapterRequest)


class LoraRoutes:
    """Handlers for *adapters*, if the environment opens their gate."""

    def __init__(
        self, adapters: Adapters, served_names: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        self._adapters = adapters
        self._served_names = served_names
        self._paths = AdapterPaths.from_environment(environ)
        self._enabled = switch(environ, ENABLED_BY)

    def __iter__(self) -> Iterator[tuple[str, str, Handler]]:
        """Yield method, path and handler of each route."""
        if self._enabled:
            yield "POST", _LOAD, _guarded(self._load)
            yield "POST", _UNLOAD, _guarded(self._unload)

    async def _load(self, request: HttpRequest) -> str:
        body = _LOAD_BODY.decode(request)
        for field, value in (("lora_name", body.lora_name), ("lora_path", body.lora_path)):
            if not value:
                raise RequestRejected(f"{field} must not be empty")
        if body.lora_name in self._served_names:
            raise RequestRejected(
                f"LoRA adapter `{body.lora_name}` conflicts with a served base model",
                param="lora_name",
            )
        await trio.to_thread.run_sync(self._paths.check, body.lora_path, abandon_on_cancel=True)
        try:
            await self._adapters.load(
                LoraRequest(
                    name=body.lora_name,
                    int_id=0,
                    path=body.lora_path,
                    load_inplace=body.load_inplace,
                    is_3d_lora_weight=body.is_3d_lora_weight,
                )
            )
        except UtilityCallFailed as error:
            raise UtilityCallFailed(
                f"failed to load LoRA adapter `{body.lora_name}`: {error}"
            ) from error
        return f"Success: LoRA adapter '{body.lora_name}' added successfully."

    async def _unload(self, request: HttpRequest) -> str:
        body = _UNLOAD_BODY.decode(request)
        if not body.lora_name:
            raise RequestRejected(
                "'lora_name' needs to be provided to unload a LoRA adapter.", param="lora_name"
            )
        await self._adapters.unload(body.lora_name, body.lora_int_id)
        return f"Success: LoRA adapter '{body.lora_name}' removed successfully."


def _guarded(serve: Callable[[HttpRequest], Awaitable[str]]) -> Handler:
    """Return a handler that answers with the text of *serve*, or with what it raises."""

    async def handle(request: HttpRequest, response: ResponseWriter) -> None:
        try:
            text = await serve(request)
        except VllmFrontError as error:
            respond_with_error(response, error)
        except Exception as error:
            _LOGGER.exception("Handling %s %s failed", request.method, request.path)
            respond_with_error(response, error)
        else:
            response.respond(_WRITTEN, text.encode(), content_type=_TEXT)

    return handle
