"""Child specs, restart policy, processes and signals; knows neither engines nor HTTP."""

from vllmfront.supervisor._notify import (
    Notifier,
    microseconds,
    serve_extensions,
    serve_watchdog,
    watchdog_interval,
)
from vllmfront.supervisor._process import (
    ManagedProcess,
    ProcessEnded,
    ProcessExit,
    ProcessHandle,
    ProcessSpec,
    adopt_process,
    open_process,
)
from vllmfront.supervisor._shutdown import Shutdown
from vllmfront.supervisor._signals import Reloads, SignalActions, serve_signals
from vllmfront.supervisor._spec import (
    ChildSnapshot,
    ChildSpec,
    ChildState,
    Restart,
    Run,
    SupervisorSnapshot,
)
from vllmfront.supervisor._stack import describe_task
from vllmfront.supervisor._supervisor import ChildNotReady, ChildReturned, Supervisor
from vllmfront.supervisor._wait import wait_any
from vllmfront.supervisor._window import RestartWindow

__all__ = [
    "ChildNotReady",
    "ChildReturned",
    "ChildSnapshot",
    "ChildSpec",
    "ChildState",
    "ManagedProcess",
    "Notifier",
    "ProcessEnded",
    "ProcessExit",
    "ProcessHandle",
    "ProcessSpec",
    "Reloads",
    "Restart",
    "RestartWindow",
    "Run",
    "Shutdown",
    "SignalActions",
    "Supervisor",
    "SupervisorSnapshot",
    "adopt_process",
    "describe_task",
    "microseconds",
    "open_process",
    "serve_extensions",
    "serve_signals",
    "serve_watchdog",
    "wait_any",
    "watchdog_interval",
]
