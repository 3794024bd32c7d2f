import math
from typing import Any

import msgpack
import pytest

from tests.engine.wire.golden import BATCHES, Entry, find, raw
from tests.engine.wire.test_requests import inlined
from vllmfront.engine._output import (
    EngineError,
    EngineOutput,
    FinishReason,
    Logprobs,
    PrefillStats,
)
from vllmfront.engine.wire import (
    DEAD_FRAME,
    Batch,
    EngineDead,
    Tensor,
    UtilityAnswer,
    decode_batch,
    decode_output,
    decode_stats,
    encode_batch,
    encode_row,
    encode_stats,
    is_plain,
    plain_row,
    row_id,
)
from vllmfront.errors import ProtocolError

ROW_DEFAULTS: list[Any] = [*[None] * 13, 0, *[None] * 5]


def batch_of(entry: Entry) -> Batch:
    batch = decode_batch(entry.frames)
    assert isinstance(batch, Batch)
    return batch


def outputs_of(entry: Entry) -> list[EngineOutput]:
    batch = batch_of(entry)
    return [decode_output(row, entry.frames, batch.weight_version) for row in batch.rows]


def encoded_again(entry: Entry, inline_limit: int) -> list[bytes]:
    batch = batch_of(entry)
    rows = []
    for row, output in zip(batch.rows, outputs_of(entry), strict=True):
        name = row_id(row)
        assert name is not None
        rows.append(encode_row(name, output))
    return encode_batch(
        rows,
        engine_index=batch.engine_index,
        scheduler_stats=batch.scheduler_stats,
        timestamp=batch.timestamp,
        utility=batch.utility,
        finished_requests=batch.finished_requests,
        wave_complete=batch.wave_complete,
        start_wave=batch.start_wave,
        weight_version=batch.weight_version,
        inline_limit=inline_limit,
    )


def numbers(value: Any) -> Any:
    """Turn inline arrays into what they say, whatever the width of their elements."""
    if isinstance(value, list):
        if len(value) == 3 and isinstance(value[2], msgpack.ExtType):
            flat = Tensor(value[0], tuple(value[1]), value[2].data)
            return ["array", flat.floating, flat.shape, flat.tolist()]
        return [numbers(item) for item in value]
    return value


def meaning(frames: list[bytes]) -> Any:
    message = raw(frames[0])
    rows = [[*row, *ROW_DEFAULTS[len(row) :]] for row in message[1]]
    answer = message[4]
    if answer is not None and answer[2] is not None:
        # The types that an engine may name beside a result say nothing to us.
        answer = [*answer[:2], [None, answer[2][1]]]
    return [message[0], numbers(inlined(rows, frames)), *message[2:4], answer, *message[5:]]


@pytest.mark.parametrize("inline_limit", [0, 256, 1 << 30])
@pytest.mark.parametrize("entry", BATCHES, ids=str)
def test_a_golden_message_is_encoded_again_with_the_same_meaning(
    entry: Entry, inline_limit: int
) -> None:
    again = encoded_again(entry, inline_limit)

    assert meaning(again) == meaning(entry.frames)


@pytest.mark.parametrize("entry", BATCHES, ids=str)
def test_golden_statistics_are_encoded_again_exactly(entry: Entry) -> None:
    stats = batch_of(entry).scheduler_stats
    if stats is not None:
        assert encode_stats(decode_stats(stats)) == stats


@pytest.mark.parametrize("entry", BATCHES, ids=str)
def test_a_row_is_plain_exactly_when_it_decodes_to_tokens_alone(entry: Entry) -> None:
    for row, output in zip(batch_of(entry).rows, outputs_of(entry), strict=True):
        version = output.weight_version
        alone = EngineOutput(new_token_ids=output.new_token_ids, weight_version=version)
        assert is_plain(row) is (output == alone)


def test_the_dead_frame_is_no_message() -> None:
    assert decode_batch([DEAD_FRAME]) == EngineDead()
    assert decode_batch([memoryview(DEAD_FRAME)]) == EngineDead()


def test_the_first_token_brings_events_and_prefill_statistics() -> None:
    [output] = outputs_of(find("first_token", "engine-0.33"))

    assert len(output.new_token_ids) == 1
    assert [kind for kind, _at in output.events] == [1, 2]
    assert isinstance(output.prefill_stats, PrefillStats)
    assert output.prefill_stats.num_prompt_tokens == 3
    assert output.weight_version == "default"
    assert output.finish_reason is None


@pytest.mark.parametrize("series", ["engine-0.32", "engine-0.33"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("finished_eos", FinishReason.STOP),
        ("finished_length", FinishReason.LENGTH),
        ("finished_stop_token", FinishReason.STOP),
        ("finished_repetition", FinishReason.REPETITION),
        ("error_bad_grammar", FinishReason.ERROR),
    ],
)
def test_finish_reasons_of_real_engines(name: str, reason: FinishReason, series: str) -> None:
    [output] = outputs_of(find(name, series))

    assert output.finish_reason is reason


def test_stop_reasons_are_ids_or_text() -> None:
    [by_token] = outputs_of(find("out_finished_stop_token"))
    [by_pattern] = outputs_of(find("out_finished_repetition"))

    assert isinstance(by_token.stop_reason, int)
    assert by_pattern.stop_reason == "repetition_detected"


def test_a_stop_token_of_id_zero_is_told() -> None:
    row = ["r", [0], None, None, None, 0, 0]

    output = decode_output(row, [b""])

    assert output.stop_reason == 0
    assert output.finish_reason is FinishReason.STOP


def test_logprobs_come_as_rows() -> None:
    [output] = outputs_of(find("out_sample_logprobs_int64"))

    assert isinstance(output.logprobs, Logprobs)
    assert output.logprobs.token_ids == [[7, 7, 9]]
    assert output.logprobs.ranks == [14]
    assert [round(value, 3) for value in output.logprobs.logprobs[0]] == [-0.328, -0.132, -6.506]


@pytest.mark.parametrize("series", ["engine-0.32", "engine-0.33"])
def test_large_arrays_are_found_in_auxiliary_frames(series: str) -> None:
    [output] = outputs_of(find("prompt_logprobs_aux", series))

    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs.token_ids) == 99
    assert {len(row) for row in output.prompt_logprobs.token_ids} == {6}
    assert len(output.prompt_logprobs.ranks) == 99


def test_sampling_masks_are_one_list_a_position() -> None:
    first, second = outputs_of(find("out_sampling_mask"))

    assert first.sampling_mask == [[3, 7]]
    assert second.sampling_mask == [[3, 7], [8]]


def test_errors_of_the_engine_are_values() -> None:
    [paused] = outputs_of(find("out_error_engine_paused"))
    [invalid] = outputs_of(find("out_error_validation"))

    assert paused.error is not None
    assert (paused.error.code, paused.error.retryable) == ("engine_paused", True)
    assert invalid.error == EngineError(code="validation_error", message="bad grammar")


def test_rare_fields_of_an_output() -> None:
    [transfer] = outputs_of(find("out_kv_transfer"))
    [speculation] = outputs_of(find("out_spec_decode_metrics"))
    [miss] = outputs_of(find("out_mm_cache_miss"))
    [experts] = outputs_of(find("out_routed_experts"))
    [pooled] = outputs_of(find("out_pooling_inline"))
    [scored] = outputs_of(find("out_prompt_token_id_logprobs"))

    assert transfer.kv_transfer_params == {"do_remote_prefill": True, "remote_block_ids": [1, 2]}
    assert transfer.trace_headers == {"traceparent": "00-aa-bb-01"}
    assert transfer.num_nans_in_logits == 2
    assert speculation.spec_decode_metrics is not None
    assert speculation.spec_decode_metrics["num_spec_tokens"] == 3
    assert miss.mm_cache_miss_hashes
    assert experts.routed_experts.dtype == "|u1"
    assert len(experts.routed_experts.shape) == 3
    assert pooled.pooling_output.tolist() == [0.5, -0.5]
    assert scored.prompt_token_id_logprobs.tolist() == [[-1.0, -2.0]]


def test_utility_answers_lose_their_wrapper() -> None:
    typed = batch_of(find("out_util_ok_typed")).utility
    failure = batch_of(find("out_util_failure")).utility
    push = batch_of(find("out_util_eep_notification")).utility
    nothing = batch_of(find("out_util_ok_none")).utility

    assert typed == UtilityAnswer(1006, None, {"a": [True, None], "b": ["x"]})
    assert failure is not None
    assert failure.failure
    assert push == UtilityAnswer(-1, None, ["RECONFIGURE_FINISHED", 0])
    assert nothing is not None
    assert nothing.result is None


def test_messages_of_the_coordinator_link() -> None:
    assert batch_of(find("out_wave_complete")).wave_complete == 4
    start = batch_of(find("out_start_wave"))
    counts = batch_of(find("out_coord_counts"))

    assert (start.engine_index, start.start_wave) == (1, 5)
    stats = decode_stats(counts.scheduler_stats)
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (1, 2, 0.5)
    assert batch_of(find("out_finished_requests")).finished_requests


def test_short_messages_and_rows_are_filled_up_and_long_ones_cut() -> None:
    short = decode_batch([msgpack.packb([3, [["r", [1]]]])])
    long = decode_batch([msgpack.packb([0, [], None, 1.5, None, None, None, None, "v", "new"])])

    assert isinstance(short, Batch)
    assert (short.engine_index, short.timestamp, short.weight_version) == (3, 0.0, None)
    assert is_plain(short.rows[0])
    assert decode_output(short.rows[0], [b""]) == EngineOutput(new_token_ids=[1])
    assert isinstance(long, Batch)
    assert long.weight_version == "v"


@pytest.mark.parametrize("length", range(2, 24))
def test_plain_rows_of_any_length_are_plain(length: int) -> None:
    row = [*plain_row("r", [1, 2]), None, None, "new", 1, None][:length]

    assert is_plain(row)
    assert decode_output(row, [b""]) == EngineOutput(new_token_ids=[1, 2])


@pytest.mark.parametrize("index", [*range(2, 13), *range(14, 19)])
def test_a_row_that_says_anything_more_is_not_plain(index: int) -> None:
    row = plain_row("r", [1])
    row[index] = 0

    assert not is_plain(row)


@pytest.mark.parametrize("row", [None, 7, "r", {}, [], ["r"], ["r", None], ["r", {}]])
def test_malformed_rows_are_not_plain(row: object) -> None:
    assert not is_plain(row)
    with pytest.raises(ProtocolError):
        decode_output(row, [b""])


def test_the_id_of_a_row_is_read_where_there_is_one() -> None:
    assert row_id(["r", 1]) == "r"
    assert row_id([7, []]) is None
    assert row_id([]) is None
    assert row_id("r") is None


def test_unknown_finish_reasons_count_as_errors() -> None:
    assert decode_output(["r", [], None, None, None, 99], [b""]).finish_reason is (
        FinishReason.ERROR
    )


def test_a_plain_row_with_an_end_carries_the_reason() -> None:
    frames = encode_batch([plain_row("r", [1], FinishReason.LENGTH)])
    batch = decode_batch(frames)

    assert isinstance(batch, Batch)
    assert decode_output(batch.rows[0], frames).finish_reason is FinishReason.LENGTH


def test_minus_infinity_and_nan_survive() -> None:
    logprobs = Logprobs(token_ids=[[1, 2]], logprobs=[[-math.inf, math.nan]], ranks=[1])
    frames = encode_batch([encode_row("r", EngineOutput(new_token_ids=[1], logprobs=logprobs))])
    batch = decode_batch(frames)
    assert isinstance(batch, Batch)

    decoded = decode_output(batch.rows[0], frames).logprobs

    assert decoded is not None
    assert decoded.logprobs[0][0] == -math.inf
    assert math.isnan(decoded.logprobs[0][1])


def logprobs_row(ids: Any, values: Any, ranks: Any) -> list[Any]:
    return ["r", [1], [ids, values, ranks, None]]


IDS = Tensor.from_rows("<i4", [[1, 2]]).triple()
VALUES = Tensor.from_rows("<f4", [[-1.0, -2.0]]).triple()
RANKS = Tensor.from_values("<i8", [1]).triple()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["r", [1.5]], "new_token_ids must be an array of integers"),
        (["r", [True]], "new_token_ids must be an array of integers"),
        (["r", [1], 7], "logprobs: it must be an array"),
        (logprobs_row(IDS, VALUES, IDS), "logprobs: array of shape .1, 2. needs 1 axes"),
        (logprobs_row(VALUES, VALUES, RANKS), "logprobs: array has dtype <f4, of the wrong"),
        (logprobs_row(IDS, IDS, RANKS), "logprobs: array has dtype <i4, of the wrong kind"),
        (logprobs_row(RANKS, VALUES, RANKS), "needs 2 axes"),
        (
            logprobs_row(IDS, Tensor.from_rows("<f4", [[-1.0]]).triple(), RANKS),
            "different lengths",
        ),
        (logprobs_row(IDS, ["<f4", [1, 2], 1], RANKS), "frame 1, of 1"),
        (logprobs_row(IDS, ["<f4", [1, 2], "x"], RANKS), "raw view or a frame number"),
        (["r", [1], None, None, None, "stop"], "finish_reason: it must be an integer"),
        (["r", [1], None, None, None, None, 1.5], "stop_reason: it must be an integer"),
        (["r", [1], *[None] * 5, [{"type": 1}]], "events: event.timestamp must be a number"),
        (["r", [1], *[None] * 9, {"num_prompt_tokens": "3"}], "prefill_stats: num_prompt"),
        (["r", [1], *[None] * 13, [RANKS, IDS, None]], "sampling_mask: array of shape"),
        (
            ["r", [1], *[None] * 13, [RANKS, Tensor.from_values("<i8", [0, 9]).triple(), None]],
            "sampling_mask: its offsets do not fit",
        ),
        (["r", [1], *[None] * 16, {"code": "x"}], "error: message must be text"),
    ],
)
def test_a_bad_field_costs_its_row_and_is_named(row: list[Any], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode_output(row, [b""])


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ([], "no frame"),
        ([b""], "not valid MessagePack"),
        ([msgpack.packb({})], "output message must be an array"),
        ([msgpack.packb(["x"])], "engine_index must be an integer"),
        ([msgpack.packb([0, {}])], "outputs must be an array"),
        ([msgpack.packb([0, [], []])], "scheduler_stats must be a map"),
        ([msgpack.packb([0, [], None, "x"])], "timestamp must be a number"),
        ([msgpack.packb([0, [], None, 1, [1]])], "utility_output has 1 elements"),
        ([msgpack.packb([0, [], None, 1, [1, None, 7]])], "utility result must be an array"),
        ([msgpack.packb([0, [], None, 1, None, [1]])], "finished_requests must be an array"),
        ([msgpack.packb([0, [], None, 1, None, None, "x"])], "wave_complete must be"),
        ([msgpack.packb([0, [], *[None] * 7])], "timestamp must be a number"),
        ([msgpack.packb(msgpack.ExtType(1, b"evil"))], "pickled object"),
        ([msgpack.packb([0, [["r", msgpack.ExtType(2, b"evil")]]])], "pickled object"),
    ],
)
def test_a_bad_message_is_named(message: list[bytes], complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_batch(message)


def test_statistics_of_unknown_shape_cost_only_themselves() -> None:
    stats = decode_stats(
        {
            "num_running_reqs": "many",
            "num_waiting_reqs": 3,
            "prefix_cache_stats": {"hits": None, "queries": 7, "new": 1},
            "spec_decoding_stats": [],
            "new_key": {},
        }
    )

    assert stats.num_running_reqs == 0
    assert stats.num_waiting_reqs == 3
    assert stats.prefix_cache_stats.queries == 7
    assert stats.spec_decoding_stats is None
    assert decode_stats(None) == decode_stats({})
