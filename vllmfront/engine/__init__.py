"""The boundary to headless vLLM engines: what they are asked, what they answer, who may ask."""

from vllmfront.engine._fan_out import fan_out
from vllmfront.engine._output import (
    EngineError,
    EngineOutput,
    FinishReason,
    Logprobs,
    OutputSink,
    PrefillStats,
)
from vllmfront.engine._request import (
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
    "fan_out",
    "open_engine_client",
]
