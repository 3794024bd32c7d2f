"""Requests that one process answers for all: a worker passes them on, and main answers."""

import logging
from collections.abc import Awaitable, Callable, Collection

from vllmfront.api.edge import ADMIN_PATHS
from vllmfront.api.http import Handler, Headers, HttpRequest, ResponseWriter, Router
from vllmfront.errors import EngineUnavailable, Reason
from vllmfront.interprocess import CallFailed, Line, LineBroken, LineFull
from vllmfront.lifecycles.workers._messages import Answered, Forwarded

_LOGGER = logging.getLogger(__name__)

_FAILED = 500
_TOO_LARGE = 413
_UNAVAILABLE = 503

PASSED_ON = ADMIN_PATHS | {"/ready", "/load", "/metrics"}
"""What is about the server as a whole; a worker answers all other paths by itself."""

_RETRY = ((b"retry-after", b"1"),)

_NOT_PASSED_ON = frozenset({b"origin", b"connection", b"content-length", b"transfer-encoding"})
"""Headers that are about the connection, or that a worker has dealt with."""

_NOT_PASSED_BACK = frozenset(
    {b"content-length", b"content-type", b"connection", b"date", b"server"}
)


class Forwarding:
    """A handler around *own*: passes on what is about the server as a whole."""

    def __init__(self, own: Handler, line: Line, *, hidden: Collection[str] = ()) -> None:
        """Pass on what ``PASSED_ON`` tells.

        Args:
            own: The worker's routes.
            line: To main.
            hidden: Paths that are not there for whom we answer.
        """
        self._own = own
        self._line = line
        self._hidden = frozenset(hidden)
        self._nowhere = Router()

    def __call__(self, request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
        if request.path in self._hidden:
            return self._nowhere(request, response)
        if request.path in PASSED_ON:
            return self._forward(request, response)
        return self._own(request, response)

    async def _forward(self, request: HttpRequest, response: ResponseWriter) -> None:
        """Let main answer; the client's leaving cancels what is done there."""
        try:
            # Some of what is asked for takes as long as the longest request.
            answer = await self._line.call(forwarded(request), Answered, seconds=None)
        except LineFull as error:
            _LOGGER.warning("Cannot ask main for %s %s: %s", request.method, request.path, error)
            if error.too_long:
                response.respond(_TOO_LARGE, b"", content_type=b"")
            else:
                response.respond(_UNAVAILABLE, b"", content_type=b"", headers=_RETRY)
            return
        except CallFailed as error:
            _LOGGER.error("Main could not answer %s %s: %s", request.method, request.path, error)  # noqa: TRY400 - it has logged the bug
            response.respond(_FAILED, b"", content_type=b"")
            return
        except LineBroken:
            response.respond(_UNAVAILABLE, b"", content_type=b"")  # we end in a moment as well
            return
        content_type = next((v for n, v in answer.headers if n == b"content-type"), b"")
        headers = tuple(pair for pair in answer.headers if pair[0] not in _NOT_PASSED_BACK)
        response.respond(answer.status, answer.body, content_type=content_type, headers=headers)


def forwarded(request: HttpRequest) -> Forwarded:
    """Bring *request* into the form in which it is passed on."""
    return Forwarded(
        method=request.method,
        path=request.path,
        raw_path=request.raw_path,
        query=request.query,
        headers=[pair for pair in request.headers if pair[0] not in _NOT_PASSED_ON],
        body=request.body,
        client=request.client,
    )


class Answering:
    """Answers what workers pass on, by a handler that does not know of them."""

    def __init__(self) -> None:
        self.handler: Handler | None = None
        """None while there is none yet, or any more."""

    async def answer(self, call: Forwarded) -> Answered:
        """Let the handler answer.

        Raises:
            EngineUnavailable: There is none.
        """
        if self.handler is None:
            raise EngineUnavailable("The server is starting or ending.", reason=Reason.DRAINING)
        request = HttpRequest(
            method=call.method,
            path=call.path,
            raw_path=call.raw_path,
            query=call.query,
            headers=call.headers,
            body=call.body,
            client=call.client,
        )
        recorder = Recorder()
        await self.handler(request, recorder)
        return Answered(recorder.status, recorder.headers, bytes(recorder.body))


class Recorder:
    """A ``ResponseWriter`` that keeps what it gets."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.head_time = 0.0
        self.congested = False

    @property
    def started(self) -> bool:
        return self.status != 0

    @property
    def content_type(self) -> bytes:
        """What the body is; empty where it was not said."""
        return next((value for name, value in self.headers if name == b"content-type"), b"")

    def add_headers(self, headers: Headers) -> None:
        self.headers.extend(headers)

    def on_drained(self, callback: Callable[[], None] | None) -> None:
        """Do nothing: it is never congested."""

    def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        lines = [(b"content-type", content_type)] if content_type else []
        self.start(status, [*lines, *headers])
        self.finish(body)

    def start(self, status: int, headers: Headers, *, hold: bool = False) -> None:
        del hold
        self.status = status
        self.headers.extend((name.lower(), value) for name, value in headers)

    def flush(self) -> None:
        """Do nothing: nothing is held."""

    def write(self, data: bytes) -> None:
        self.body += data

    def offer(self, head: bytes, middle: bytes, tail: bytes) -> bool:
        self.body += head + middle + tail
        return True

    def finish(self, last: bytes = b"") -> None:
        self.body += last
