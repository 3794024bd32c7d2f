"""The boundary to headless vLLM engines: what they are asked, what they answer, who may ask."""

from vllmfront.engine._fan_out import check_choices, fan_out
from vllmfront.engine._output import (
    PREEMPTED,
    QUEUED,
    SCHEDULED,
    EngineError,
    EngineOutput,
    FinishReason,
    Logprobs,
    OutputSink,
    PrefillStats,
)
from vllmfront.engine._request import (
    GREEDY_BELOW,
    STRUCTURED_BACKENDS,
    EngineRequest,
    LoraRequest,
    PoolingParams,
    RepetitionDetection,
    SamplingParams,
    StructuredOutputs,
)
from vllmfront.engine.client import (
    ClientSnapshot,
    EngineClient,
    EngineClientConfig,
    EngineInfo,
    EngineState,
    RankSnapshot,
    RequestStream,
    open_engine_client,
)
from vllmfront.engine.guard import GuardLimits
from vllmfront.engine.metrics import EngineMetrics, MetricsSnapshot, TerminalCause

__all__ = [
    "GREEDY_BELOW",
    "PREEMPTED",
    "QUEUED",
    "SCHEDULED",
    "STRUCTURED_BACKENDS",
    "ClientSnapshot",
    "EngineClient",
    "EngineClientConfig",
    "EngineError",
    "EngineInfo",
    "EngineMetrics",
    "EngineOutput",
    "EngineRequest",
    "EngineState",
    "FinishReason",
    "GuardLimits",
    "Logprobs",
    "LoraRequest",
    "MetricsSnapshot",
    "OutputSink",
    "PoolingParams",
    "PrefillStats",
    "RankSnapshot",
    "RepetitionDetection",
    "RequestStream",
    "SamplingParams",
    "StructuredOutputs",
    "TerminalCause",
    "check_choices",
    "fan_out",
    "open_engine_client",
]
