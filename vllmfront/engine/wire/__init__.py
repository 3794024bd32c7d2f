"""The wire form of everything that frontends, engines and coordinators say to each other.

Pure functions between frames of bytes and values; nothing outside knows the format. Frontends use
``encode_add``, ``decode_batch`` and their like, engine stand-ins the inverse directions.
"""

from vllmfront.engine.wire._batch import (
    DEAD_FRAME,
    Batch,
    EngineDead,
    UtilityAnswer,
    decode_batch,
    is_plain,
    row_id,
)
from vllmfront.engine.wire._batch_encoder import encode_batch, encode_row, plain_row
from vllmfront.engine.wire._coordinator import (
    READY_GATE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    EngineLoad,
    FirstRequest,
    LoadReport,
    ScaleNotice,
    decode_frontend_notice,
    decode_load_report,
    encode_frontend_notice,
    encode_load_report,
)
from vllmfront.engine.wire._handshake import (
    EngineAddresses,
    Hello,
    Init,
    Ready,
    decode_handshake,
    decode_init,
    encode_hello,
    encode_init,
    encode_ready,
)
from vllmfront.engine.wire._registration import (
    KvEventsConfig,
    Registration,
    decode_registration,
    encode_registration,
)
from vllmfront.engine.wire._request import (
    MessageType,
    encode_abort,
    encode_add,
    encode_lora,
    encode_start_dp_wave,
    encode_utility,
)
from vllmfront.engine.wire._request_decoder import (
    Abort,
    Add,
    StartWave,
    Utility,
    decode_lora,
    decode_request,
)
from vllmfront.engine.wire._row import decode_output
from vllmfront.engine.wire._stats import (
    CudagraphStats,
    EvictionEvent,
    PerfStats,
    PrefixCacheStats,
    SchedulerStats,
    SpecDecodingStats,
    decode_stats,
    encode_stats,
)
from vllmfront.engine.wire._tensor import Tensor, decode_tensor

__all__ = [
    "DEAD_FRAME",
    "READY_GATE",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "Abort",
    "Add",
    "Batch",
    "CudagraphStats",
    "EngineAddresses",
    "EngineDead",
    "EngineLoad",
    "EvictionEvent",
    "FirstRequest",
    "Hello",
    "Init",
    "KvEventsConfig",
    "LoadReport",
    "MessageType",
    "PerfStats",
    "PrefixCacheStats",
    "Ready",
    "Registration",
    "ScaleNotice",
    "SchedulerStats",
    "SpecDecodingStats",
    "StartWave",
    "Tensor",
    "Utility",
    "UtilityAnswer",
    "decode_batch",
    "decode_frontend_notice",
    "decode_handshake",
    "decode_init",
    "decode_load_report",
    "decode_lora",
    "decode_output",
    "decode_registration",
    "decode_request",
    "decode_stats",
    "decode_tensor",
    "encode_abort",
    "encode_add",
    "encode_batch",
    "encode_frontend_notice",
    "encode_hello",
    "encode_init",
    "encode_load_report",
    "encode_lora",
    "encode_ready",
    "encode_registration",
    "encode_row",
    "encode_start_dp_wave",
    "encode_stats",
    "encode_utility",
    "is_plain",
    "plain_row",
    "row_id",
]
