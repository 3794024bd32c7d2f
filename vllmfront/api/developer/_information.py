"""``/server_info``: how the server was started, and where it runs."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec
import trio

from vllmfront.api.developer._question import Query
from vllmfront.api.developer._route import Answer
from vllmfront.api.http import HttpRequest

Configuration = Callable[[], Mapping[str, Any]]
"""Returns the configuration without its secrets, as plain data, by section."""

_PREFIX = "VLLM_"
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_HIDDEN = "***"


class ConfigFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class InformationRoute:
    """Iterate for method, path and what answers it."""

    def __init__(self, configuration: Configuration, environ: Mapping[str, str]) -> None:
        self._configuration = configuration
        self._environ = environ

    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        yield "GET", "/server_info", self.tell

    async def tell(self, request: HttpRequest) -> Any:
        form = Query(request).choice("config_format", ConfigFormat, ConfigFormat.TEXT)
        await trio.lowlevel.checkpoint()
        config = self._configuration()
        return {
            "vllm_config": config if form is ConfigFormat.JSON else as_text(config),
            "vllm_env": shown_variables(self._environ),
            "system_env": {
                "arch": platform.machine(),
                "family": os.name,
                "os": platform.system().lower(),
            },
        }


def as_text(config: Mapping[str, Any]) -> str:
    """Return one line ``key=value`` an item; keys are joined by dots."""
    return "\n".join(f"{key}={value}" for key, value in _items(config, ""))


def _items(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _items(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield prefix + key, value
        else:
            yield prefix + key, msgspec.json.encode(value).decode()


def shown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that vLLM and we read; of secrets only that they are there."""
    return {
        name: _HIDDEN if any(word in name for word in _SECRET) else value
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIX)
    }
