"""A streamed answer of one choice that goes on by calls: its engine's, and its client's end."""

import logging

from vllmfront.api._errors import respond_with_error
from vllmfront.api.http import Exchange, ResponseWriter
from vllmfront.api.openai._call import InferenceCall
from vllmfront.api.openai._closing import close_cause, shutting_down
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.engine import RequestStream
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import VllmFrontError

_LOGGER = logging.getLogger(__name__)


class StreamExchange(Exchange):
    """Sends a request, and ends with its stream or its client, whichever comes first."""

    __slots__ = ("_answer", "_call", "_response", "_stream", "cause", "error")

    def __init__(
        self,
        call: InferenceCall,
        answer: StreamedAnswer,
        response: ResponseWriter,
        stream: RequestStream,
    ) -> None:
        """Make an exchange that has sent nothing yet.

        Args:
            call: The client's request.
            answer: What the sinks of *stream* write to.
            response: What *answer* is made of.
            stream: The engine's side, prepared.
        """
        super().__init__()
        self._call = call
        self._answer = answer
        self._response = response
        self._stream = stream
        self.cause: TerminalCause | None = None
        """Why it was cut; None where its stream says it."""

        self.error: VllmFrontError | None = None
        """What the client was told, where the stream failed."""

    def begin(self) -> None:
        """Send the request; where there is no engine just now, it waits for one.

        Raises:
            VllmFrontError: It could not be sent; there is no response yet.
        """
        stream = self._stream
        stream.on_begun = self._answer.start
        stream.on_waiting = self._answer.keep_alive
        stream.begin()
        stream.on_ended = self._on_stream_ended

    def cut(self) -> None:
        if self.ended:
            return
        cause = self.cause = close_cause(self._call.http)
        self._stream.on_ended = None
        self._stream.leave(cause)
        if cause is TerminalCause.SHUTDOWN:
            self._tell(shutting_down())
        self._answer.abandon()
        self.end()

    def _on_stream_ended(self) -> None:
        self._stream.on_ended = None  # else they would hold each other, for the collector to find
        self.error = self._stream.error
        if self.error is not None:
            self._tell(self.error)
        self.end()

    def _tell(self, error: VllmFrontError) -> None:
        try:
            if self._stream.begun:
                self._answer.fail(error)  # does nothing where the choice has said so already
            elif not self._response.started:
                respond_with_error(self._response, error)
        except Exception:  # the engine's reader calls this
            _LOGGER.exception("Telling a client of an error failed")
