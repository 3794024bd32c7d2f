"""Child specs, restart policy, processes and signals; knows neither engines nor HTTP."""

from vllmfront.supervisor._process import (
    ManagedProcess,
    ProcessEnded,
    ProcessExit,
    ProcessHandle,
    ProcessSpec,
    adopt_process,
    open_process,
)
from vllmfront.supervisor._shutdown import Shutdown, serve_signals
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
    "ProcessEnded",
    "ProcessExit",
    "ProcessHandle",
    "ProcessSpec",
    "Restart",
    "RestartWindow",
    "Run",
    "Shutdown",
    "Supervisor",
    "SupervisorSnapshot",
    "adopt_process",
    "describe_task",
    "open_process",
    "serve_signals",
    "wait_any",
]
