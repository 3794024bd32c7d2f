"""Child specs, restart policy, processes and signals; knows neither engines nor HTTP."""

from vllmfront.supervisor._errors import ChildCannotEnd, ChildNotReady, ChildReturned
from vllmfront.supervisor._events import (
    ChildFailed,
    ChildReady,
    ChildStuck,
    Event,
    GaveUp,
    Response,
    RestartDropped,
)
from vllmfront.supervisor._notify import (
    Notifier,
    microseconds,
    serve_extensions,
    serve_watchdog,
    watchdog_interval,
)
from vllmfront.supervisor._parent import Parent, open_parent
from vllmfront.supervisor._policy import Backoff, RestartPolicy
from vllmfront.supervisor._process import (
    ManagedProcess,
    ProcessEnded,
    adopt_process,
    open_process,
)
from vllmfront.supervisor._process_spec import ProcessExit, ProcessHandle, ProcessSpec
from vllmfront.supervisor._shutdown import Shutdown
from vllmfront.supervisor._signals import Reloads, SignalActions, serve_signals
from vllmfront.supervisor._snapshot import ChildSnapshot, SupervisorSnapshot
from vllmfront.supervisor._spec import ChildSpec, Restart, Run
from vllmfront.supervisor._stack import describe_task
from vllmfront.supervisor._state import ChildState
from vllmfront.supervisor._strategy import Strategy
from vllmfront.supervisor._supervisor import Supervisor
from vllmfront.supervisor._wait import wait_any

__all__ = [
    "Backoff",
    "ChildCannotEnd",
    "ChildFailed",
    "ChildNotReady",
    "ChildReady",
    "ChildReturned",
    "ChildSnapshot",
    "ChildSpec",
    "ChildState",
    "ChildStuck",
    "Event",
    "GaveUp",
    "ManagedProcess",
    "Notifier",
    "Parent",
    "ProcessEnded",
    "ProcessExit",
    "ProcessHandle",
    "ProcessSpec",
    "Reloads",
    "Response",
    "Restart",
    "RestartDropped",
    "RestartPolicy",
    "Run",
    "Shutdown",
    "SignalActions",
    "Strategy",
    "Supervisor",
    "SupervisorSnapshot",
    "adopt_process",
    "describe_task",
    "microseconds",
    "open_parent",
    "open_process",
    "serve_extensions",
    "serve_signals",
    "serve_watchdog",
    "wait_any",
    "watchdog_interval",
]
