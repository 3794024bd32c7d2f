"""The first message of an engine on every input socket: what it is."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs

from vllmfront.engine.wire import _check as check
from vllmfront.engine.wire._msgpack import pack, unpack


@attrs.frozen(kw_only=True)
class KvEventsConfig:
    """Where an engine publishes events of its KV cache."""

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str | None = None
    replay_endpoint: str | None = None
    buffer_steps: int | None = None
    hwm: int | None = None
    max_queue_size: int | None = None
    topic: str | None = None


@attrs.frozen(kw_only=True)
class Registration:
    """What an engine reports about itself; None where it did not say."""

    max_model_len: int | None = None
    """May be lower than asked for: fitted to memory."""

    num_gpu_blocks: int | None = None
    """0 for models without a KV cache."""

    block_size: int | None = None
    dp_stats_address: str | None = None
    dtype: str | None = None
    vllm_version: str | None = None
    world_size: int | None = None
    data_parallel_size: int | None = None
    """Dense ranks report 1: they do not know each other."""

    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    decode_context_parallel_size: int | None = None
    data_parallel_rank: int | None = None
    """The engine's index over the whole deployment."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    instance_id: str | None = None
    """Unique a launch."""

    supports_lora: bool = False
    max_loras: int | None = None
    mamba_block_size: int | None = None
    kv_cache_size_tokens: int | None = None
    kv_cache_max_concurrency: float | None = None
    kv_events_config: KvEventsConfig | None = None
    weight_transfer_backend: str | None = None
    enable_sleep_mode: bool = False
    supports_draft_weight_updates: bool = False
    effective_attention_block_size: int | None = None
    coord_store_port: int | None = None
    coordinator_input_address: str | None = None
    coordinator_output_address: str | None = None


_Reader = Callable[[Any, str], Any]

_KV_EVENTS: Mapping[str, _Reader] = {
    "enable_kv_cache_events": check.boolean,
    "publisher": check.text,
    "endpoint": check.text,
    "replay_endpoint": check.text,
    "buffer_steps": check.integer,
    "hwm": check.integer,
    "max_queue_size": check.integer,
    "topic": check.text,
}


def _kv_events(value: object, name: str) -> KvEventsConfig:
    return KvEventsConfig(**_read(check.text_map(value, name), _KV_EVENTS))


_INTEGERS: Sequence[str] = (
    "max_model_len",
    "num_gpu_blocks",
    "block_size",
    "world_size",
    "data_parallel_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "data_parallel_rank",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_loras",
    "mamba_block_size",
    "kv_cache_size_tokens",
    "effective_attention_block_size",
    "coord_store_port",
)
_TEXTS: Sequence[str] = (
    "dp_stats_address",
    "dtype",
    "vllm_version",
    "instance_id",
    "weight_transfer_backend",
    "coordinator_input_address",
    "coordinator_output_address",
)
_BOOLEANS: Sequence[str] = ("supports_lora", "enable_sleep_mode", "supports_draft_weight_updates")
_READERS: Mapping[str, _Reader] = {
    **dict.fromkeys(_INTEGERS, check.integer),
    **dict.fromkeys(_TEXTS, check.text),
    **dict.fromkeys(_BOOLEANS, check.boolean),
    "kv_cache_max_concurrency": check.number,
    "kv_events_config": _kv_events,
}


def _read(fields: Mapping[str, Any], readers: Mapping[str, _Reader]) -> dict[str, Any]:
    return {
        name: read(fields[name], name)
        for name, read in readers.items()
        if fields.get(name) is not None
    }


def decode_registration(payload: bytes | memoryview) -> Registration:
    """Read a registration; unknown keys are ignored, absent ones stay None.

    An empty payload is what engines send that have nothing to report.

    Raises:
        ProtocolError: It is no map, or a key holds a value of another type.
    """
    if not payload:
        return Registration()
    return Registration(**_read(check.text_map(unpack(payload), "registration"), _READERS))


def encode_registration(registration: Registration, *, leave_out: Collection[str] = ()) -> bytes:
    """Return what an engine of the newest version sends: all keys but those to *leave_out*."""
    fields = attrs.asdict(registration)
    return pack({name: value for name, value in fields.items() if name not in leave_out})
