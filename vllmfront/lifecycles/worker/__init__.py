"""``frontend``: one frontend that vLLM's own supervisor starts, and whose engines it starts too."""

from vllmfront.lifecycles.worker._config import Bootstrap, WorkerConfig
from vllmfront.lifecycles.worker._run import run_worker

__all__ = ["Bootstrap", "WorkerConfig", "run_worker"]
