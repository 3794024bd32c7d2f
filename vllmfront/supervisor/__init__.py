"""Child specs, restart policy, processes and signals; knows neither engines nor HTTP."""

from vllmfront.supervisor._process import ManagedProcess, ProcessExit, ProcessSpec, open_process

__all__ = ["ManagedProcess", "ProcessExit", "ProcessSpec", "open_process"]
