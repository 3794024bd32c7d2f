"""For trainers: keep the weights of serving engines in step. Needs the extra ``vllmfront[rl]``."""

from vllmfront.rl._blocking import BlockingWeightSyncClient
from vllmfront.rl._client import WeightSyncClient
from vllmfront.rl._errors import (
    CallFailed,
    CallRefused,
    ControlTimeout,
    EngineFailed,
    LeaseLost,
    ServerOutcome,
    ServerState,
    ServerUnreachable,
    StateConflict,
    UpdateAbandoned,
    UpdateFailed,
    WeightSyncError,
)
from vllmfront.rl._progress import Phase, Progress
from vllmfront.rl._server import RetryPolicy
from vllmfront.rl._upload import Upload
from vllmfront.rl._window import UpdateWindow

__all__ = [
    "BlockingWeightSyncClient",
    "CallFailed",
    "CallRefused",
    "ControlTimeout",
    "EngineFailed",
    "LeaseLost",
    "Phase",
    "Progress",
    "RetryPolicy",
    "ServerOutcome",
    "ServerState",
    "ServerUnreachable",
    "StateConflict",
    "UpdateAbandoned",
    "UpdateFailed",
    "UpdateWindow",
    "Upload",
    "WeightSyncClient",
    "WeightSyncError",
]
