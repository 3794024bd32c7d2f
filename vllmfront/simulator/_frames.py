"""What a simulated engine says, in the wire form of the release that it plays."""

from typing import Any

from vllmfront.engine import EngineOutput
from vllmfront.engine.wire import (
    EngineAddresses,
    PrefixCacheStats,
    Registration,
    SchedulerStats,
    UtilityAnswer,
    encode_batch,
    encode_registration,
    encode_row,
    encode_stats,
    plain_row,
)
from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._messages import Answer, LoadNotice, Notice, StepOutput, StepStats

ROW_LENGTH_0_32 = 18
SINCE_0_33 = ("coord_store_port", "coordinator_input_address", "coordinator_output_address")
"""Keys of the registration."""

KV_FETCH_STAGES = ("waiting_to_start", "in_progress", "completed_waiting")


class FrameWriter:
    """Writes one rank's messages."""

    def __init__(self, config: SimulatorConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._row_length = None if config.reports_errors else ROW_LENGTH_0_32

    def registration(self, addresses: EngineAddresses, instance_id: str, size: int = 1) -> bytes:
        """Return the first message on each input socket; *size* ranks step together."""
        config = self._config
        tokens = config.block_size * config.num_gpu_blocks
        registration = Registration(
            max_model_len=config.max_model_len,
            num_gpu_blocks=config.num_gpu_blocks,
            block_size=config.block_size,
            dp_stats_address=addresses.frontend_stats_publish_address,
            dtype=config.dtype,
            vllm_version=config.vllm_version,
            world_size=1,
            data_parallel_size=size,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            data_parallel_rank=self._rank,
            max_num_seqs=config.max_batch,
            max_num_batched_tokens=config.max_model_len,
            instance_id=instance_id,
            supports_lora=config.max_loras > 0,
            max_loras=config.max_loras,
            kv_cache_size_tokens=tokens,
            kv_cache_max_concurrency=tokens / config.max_model_len,
            enable_sleep_mode=config.sleep_mode,
            effective_attention_block_size=config.block_size,
            coord_store_port=0,
            coordinator_input_address=addresses.coordinator_input,
            coordinator_output_address=addresses.coordinator_output,
        )
        return encode_registration(
            registration, leave_out=() if config.reports_errors else SINCE_0_33
        )

    def step(self, output: StepOutput) -> list[bytes]:
        return encode_batch(
            [self._row(request_id, row) for request_id, row in output.rows],
            engine_index=self._rank,
            scheduler_stats=None if output.stats is None else scheduler_stats(output.stats),
            timestamp=output.timestamp,
            finished_requests=output.finished,
            weight_version=output.weight_version,
        )

    def answer(self, answer: Answer) -> list[bytes]:
        return encode_batch(
            engine_index=self._rank,
            timestamp=answer.timestamp,
            utility=UtilityAnswer(answer.call_id, answer.failure, answer.result),
        )

    def notice(self, notice: Notice) -> list[bytes]:
        """Return what the coordinator is told."""
        if isinstance(notice, LoadNotice):
            return encode_batch(
                engine_index=self._rank,
                timestamp=notice.timestamp,
                scheduler_stats=scheduler_stats(notice.stats),
            )
        return encode_batch(
            engine_index=self._rank, wave_complete=notice.ended, start_wave=notice.started
        )

    def _row(self, request_id: str, output: list[int] | EngineOutput) -> list[Any]:
        if isinstance(output, list):
            row = plain_row(request_id, output)
        else:
            row = encode_row(request_id, output)
        return row[: self._row_length]


def scheduler_stats(stats: StepStats) -> dict[str, Any]:
    """Return statistics in their wire form."""
    return encode_stats(
        SchedulerStats(
            num_running_reqs=stats.running,
            num_waiting_reqs=stats.waiting,
            num_kv_fetch_reqs_by_stage=dict.fromkeys(KV_FETCH_STAGES, 0),
            step_counter=stats.step,
            current_wave=stats.wave,
            kv_cache_usage=stats.kv_cache_usage,
            prefix_cache_stats=PrefixCacheStats(
                reset=stats.prefix_reset,
                requests=stats.prefix_requests,
                queries=stats.prefix_queries,
                hits=stats.prefix_hits,
            ),
            waiting_lora_adapters=stats.waiting_loras,
            running_lora_adapters=stats.running_loras,
        )
    )
