"""The one place that writes down what supervisors do."""

import logging

from vllmfront.supervisor._events import (
    ChildFailed,
    ChildReady,
    ChildStuck,
    Event,
    GaveUp,
    Response,
    RestartDropped,
)
from vllmfront.supervisor._failures import is_bug

_LOGGER = logging.getLogger(__name__)


def log_event(event: Event) -> None:
    """Write one line, with the traceback of what is a bug."""
    match event:
        case ChildFailed():
            _log_failure(event)
        case ChildReady():
            level = logging.INFO if event.generation > 1 else logging.DEBUG
            text = "%s is ready, %.3g s after attempt %d began"
            _LOGGER.log(level, text, event.path, event.took, event.generation)
        case RestartDropped():
            _LOGGER.info("%s is not restarted any more: shutting down", event.path)
        case ChildStuck():
            _LOGGER.error(
                "%s is stuck: cancelled, it has not ended within %g s; it hangs at\n%s",
                event.path,
                event.budget,
                event.stack,
            )
        case GaveUp():
            _LOGGER.debug("%s gives up: %s", event.supervisor, event.reason)


def _log_failure(event: ChildFailed) -> None:
    bug = event.error if is_bug(event.error) else None
    match event.response:
        case Response.RESTART:
            text = (
                "%s failed and is restarted %s, attempt %d (restart %d of at most %d in %g s): %s"
            )
            _LOGGER.log(
                logging.WARNING if bug is None else logging.ERROR,
                text,
                event.path,
                f"in {event.delay:.3g} s" if event.delay else "at once",
                event.generation + 1,
                event.restarts,
                event.intensity,
                event.period,
                event.text,
                exc_info=bug,
            )
        case Response.GIVE_UP:
            # Whoever gets the supervisor's error sees the whole text.
            text = "%s failed, and %s gives up: %s"
            _LOGGER.error(text, event.path, event.supervisor, event.summary, exc_info=bug)
        case Response.LEAVE:
            text = "%s failed; it is not restarted, the others go on without it: %s"
            level = logging.WARNING if bug is None else logging.ERROR
            _LOGGER.log(level, text, event.path, event.text, exc_info=bug)
        case Response.DROP:
            text = "%s failed; it is not restarted, since %s is about to end: %s"
            _LOGGER.warning(text, event.path, event.supervisor, event.text, exc_info=bug)
        case Response.STOP:
            text = "%s failed while stopping: %s"
            _LOGGER.warning(text, event.path, event.text, exc_info=bug)
