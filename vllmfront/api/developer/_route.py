"""The edge of a developer route: what it raises becomes its answer."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from vllmfront.api._errors import respond_with_error
from vllmfront.api.http import HttpRequest, ResponseWriter
from vllmfront.errors import VllmFrontError

_LOGGER = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

Answer = Callable[[HttpRequest], Awaitable[Any]]
"""Returns what the JSON of a 200 says; None: nothing, the body is empty."""

_OK = 200


class DeveloperRoute:
    """A handler around *answer*. A client that leaves does not undo what it has asked for."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        try:
            value = await self._answer(request)
        except trio.Cancelled:
            raise
        except VllmFrontError as error:
            answer = respond_with_error(response, error)
            _LOGGER.info("%s %s: %d, %s", request.method, request.path, answer.status, error)
        except Exception as error:
            _LOGGER.exception("Handling %s %s failed", request.method, request.path)
            respond_with_error(response, error)
        else:
            if value is None:
                response.respond(_OK, b"", content_type=b"")
            else:
                response.respond(_OK, _encode(value))
