"""The engine core as a pure object: the test is its clock."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.simulator._frontend import request
from vllmfront.engine import (
    EngineError,
    EngineOutput,
    EngineRequest,
    FinishReason,
    LoraRequest,
    PoolingParams,
)
from vllmfront.engine.wire import Abort, Add, Utility
from vllmfront.simulator import Act, Rule, Script, SimulatorConfig
from vllmfront.simulator._core import SimulatedCore
from vllmfront.simulator._messages import Answer, Death, Message, Raw, StepOutput, Vanishing


class Bench:
    """A core, and a hand on its clock."""

    def __init__(self, **config: object) -> None:
        fields = {"handshake": "tcp://127.0.0.1:1", "step_time": 1.0, "stats": False} | config
        self.core = SimulatedCore(SimulatorConfig(**fields))  # type: ignore[arg-type]  # keywords of the caller
        self.now = 0.0

    def add(self, request_id: str = "r", client: int = 0, **sampling: object) -> None:
        self.add_request(request(request_id, (5, 6, 7), **sampling), client)

    def add_request(self, asked: EngineRequest, client: int = 0) -> None:
        message = Add(
            internal_id=asked.request_id, request=asked, client_index=client, current_wave=0
        )
        self.core.receive(message, self.now)

    def abort(self, *request_ids: str) -> None:
        self.core.receive(Abort(list(request_ids)), self.now)

    def call(self, method: str, *args: object) -> None:
        self.core.receive(
            Utility(client_index=0, call_id=1, method=method, args=list(args)), self.now
        )

    def run(self, until: float) -> list[tuple[float, Message]]:
        """Let time pass up to *until*, as the engine's loop does; return what was said when."""
        said: list[tuple[float, Message]] = []
        while True:
            said += [(self.now, message) for message in self.core.advance(self.now)]
            wake = self.core.wake_at(self.now)
            if wake is None or wake > until:
                self.now = until
                return said
            self.now = max(self.now, wake)


def rows(
    said: Sequence[tuple[float, Message]],
) -> list[tuple[float, str, list[int], int | None]]:
    """Return time, id, tokens and finish reason of everything that was said of requests."""
    found: list[tuple[float, str, list[int], int | None]] = []
    for now, message in said:
        if isinstance(message, StepOutput):
            for request_id, row in message.rows:
                output = EngineOutput(new_token_ids=row) if isinstance(row, list) else row
                found.append((now, request_id, output.new_token_ids, output.finish_reason))
    return found


def times(said: Sequence[tuple[float, Message]], request_id: str = "r") -> list[float]:
    return [now for now, name, _, _ in rows(said) if name == request_id]


def answers(said: Sequence[tuple[float, Message]]) -> list[tuple[float, object]]:
    return [
        (now, message.failure or message.result)
        for now, message in said
        if isinstance(message, Answer)
    ]


def test_a_token_a_step() -> None:
    bench = Bench()
    bench.add(max_tokens=3)
    said = bench.run(10.0)

    assert [(now, len(ids), end) for now, _, ids, end in rows(said)] == [
        (1.0, 1, None),
        (2.0, 1, None),
        (3.0, 1, FinishReason.LENGTH),
    ]
    assert bench.core.wake_at(bench.now) is None


def test_several_tokens_a_step() -> None:
    bench = Bench(tokens_per_output=2)
    bench.add(max_tokens=5)

    assert [len(ids) for _, _, ids, _ in rows(bench.run(10.0))] == [2, 2, 1]


def test_prompts_take_time_but_for_what_is_cached() -> None:
    bench = Bench(prefill_time_per_token=0.5, block_size=4)
    bench.add_request(request("a", range(9), max_tokens=1))
    first = bench.run(20.0)
    bench.add_request(request("b", range(9), max_tokens=1))
    second = bench.run(40.0)

    assert times(first, "a") == [1.0 + 4.5]
    assert times(second, "b") == [20.0 + 1.0 + 0.5]


def test_no_more_run_than_the_batch_holds() -> None:
    bench = Bench(max_batch=2)
    for name in "abc":
        bench.add(name, max_tokens=2)
    said = bench.run(10.0)

    assert times(said, "a") == times(said, "b") == [1.0, 2.0]
    assert times(said, "c") == [3.0, 4.0]


@pytest.mark.parametrize(("scheduling", "first"), [(False, "a"), (True, "b")])
def test_priorities_count_where_the_policy_says_so(scheduling: bool, first: str) -> None:
    bench = Bench(max_batch=1, priority_scheduling=scheduling)
    bench.add("busy", max_tokens=1)
    bench.run(0.5)
    bench.add_request(replace(request("a", max_tokens=1), priority=5))
    bench.add_request(replace(request("b", max_tokens=1), priority=-5))

    assert rows(bench.run(10.0))[1][1] == first


def test_an_abort_counts_in_the_step_in_flight() -> None:
    bench = Bench()
    bench.add("a", max_tokens=9)
    bench.add("b", max_tokens=1)
    bench.run(0.5)
    bench.abort("a")

    assert [name for _, name, _, _ in rows(bench.run(10.0))] == ["b"]


def test_an_abort_reaches_what_waits() -> None:
    bench = Bench(max_batch=1)
    bench.add("a", max_tokens=2)
    bench.add("b", max_tokens=2)
    bench.run(0.5)
    bench.abort("b")

    assert times(bench.run(10.0), "b") == []


def test_what_comes_in_a_step_joins_the_next() -> None:
    bench = Bench()
    bench.add("a", max_tokens=3)
    bench.run(0.5)
    bench.add("b", max_tokens=1)

    assert times(bench.run(10.0), "b") == [2.0]


def test_each_client_gets_its_own_rows_and_one_of_them_the_statistics() -> None:
    bench = Bench(stats=True)
    bench.add("a", client=0, max_tokens=1)
    bench.add("b", client=1, max_tokens=1)
    steps = [message for _, message in bench.run(1.0) if isinstance(message, StepOutput)]

    assert [(step.client, [name for name, _ in step.rows]) for step in steps] == [
        (0, ["a"]),
        (1, ["b"]),
        (0, []),
    ]
    assert [step.stats is not None for step in steps] == [True, False, True]


def test_statistics_count_since_the_last_message() -> None:
    bench = Bench(stats=True, max_batch=1)
    bench.add("a", max_tokens=2)
    bench.add("b", max_tokens=1)
    stats = [message.stats for _, message in bench.run(9.0) if isinstance(message, StepOutput)]

    assert [
        (one.running, one.waiting, one.prefix_requests, one.prefix_queries)
        for one in stats
        if one is not None
    ] == [(1, 1, 1, 3), (0, 1, 0, 0), (0, 0, 1, 3), (0, 0, 0, 0)]


def test_calls_wait_for_the_end_of_the_step() -> None:
    bench = Bench()
    bench.add(max_tokens=1)
    bench.run(0.5)
    bench.call("is_sleeping")

    assert answers(bench.run(9.0)) == [(1.0, False)]


def test_a_pause_holds_kept_requests_back() -> None:
    bench = Bench()
    bench.add(max_tokens=3)
    bench.run(1.5)
    bench.call("pause_scheduler", "keep", False)
    paused = bench.run(10.0)
    bench.call("resume_scheduler")
    resumed = bench.run(20.0)

    assert times(paused) == [2.0]
    assert answers(paused) == [(2.0, None)]
    assert times(resumed) == [11.0]


def test_a_kept_request_is_recomputed_after_its_cache_was_cleared() -> None:
    bench = Bench(stats=True)
    bench.add(max_tokens=3)
    bench.run(1.5)
    bench.call("pause_scheduler", "keep", True)
    bench.run(5.0)
    bench.call("resume_scheduler")
    said = bench.run(20.0)
    outputs = [
        row for _, message in said if isinstance(message, StepOutput) for row in message.rows
    ]
    output = outputs[0][1]

    assert isinstance(output, EngineOutput)
    assert [kind for kind, _ in output.events] == [3, 2]


def test_a_waiting_pause_answers_after_the_last_output() -> None:
    bench = Bench()
    bench.add("a", max_tokens=3)
    bench.run(0.5)
    bench.call("pause_scheduler", "wait", True)
    bench.run(1.5)
    bench.add("b", max_tokens=1)
    said = bench.run(20.0)

    assert answers(said) == [(3.0, None)]
    assert times(said, "b") == []


def test_the_cache_stays_while_a_running_request_uses_it() -> None:
    bench = Bench()
    bench.add(max_tokens=5)
    bench.run(0.5)
    bench.call("reset_prefix_cache", False, False)
    bench.call("reset_prefix_cache", True, False)

    assert [result for _, result in answers(bench.run(1.0))] == [False, True]


def test_sleep_needs_waking_to_serve() -> None:
    bench = Bench()
    bench.call("sleep", 1, "wait")
    bench.add(max_tokens=1)
    asleep = bench.run(10.0)
    bench.call("wake_up", ["weights"])
    half = bench.run(20.0)
    bench.call("wake_up", None)
    awake = bench.run(30.0)

    assert rows(asleep) == rows(half) == []
    assert answers(half) == [(10.0, False)]
    assert times(awake) == [21.0]


def test_the_kv_cache_may_be_released_in_a_pause() -> None:
    bench = Bench()
    bench.call("release_kv_cache_memory")
    bench.call("pause_scheduler", "abort", False)
    bench.call("release_kv_cache_memory")
    bench.call("is_sleeping")
    bench.call("release_kv_cache_memory")
    bench.call("wake_up", ["kv_cache"])
    results = [result for _, result in answers(bench.run(1.0))]

    assert "requires a completed pause first" in str(results[0])
    assert results[1:4] == [None, None, True]
    assert "requires all executor memory to be resident" in str(results[4])
    assert results[5] is True


def test_adapters_come_and_go() -> None:
    bench = Bench(max_loras=1)
    for call in (
        ("add_lora", ["a", 1, "/a"]),
        ("pin_lora", 2),
        ("add_lora", ["b", 2, "/b"]),
        ("list_loras",),
        ("pin_lora", 2),
        ("add_lora", ["c", 3, "/c"]),
        ("remove_lora", 1),
        ("remove_lora", 2),
        ("add_lora", ["d", 4, ""]),
    ):
        bench.call(*call)
    results = [result for _, result in answers(bench.run(1.0))]

    assert results[0] is True
    assert "LoRA 2 is not registered" in str(results[1])
    assert results[2:5] == [True, [2], True]
    assert "All adapters are pinned" in str(results[5])
    assert results[6:8] == [False, True]
    assert "No adapter found" in str(results[8])


def tokens_with(bench: Bench, request_id: str, lora: LoraRequest | None) -> list[int]:
    """Return four tokens of a greedy request."""
    asked = request(request_id, (1, 2, 3), max_tokens=4, temperature=0.0)
    bench.add_request(replace(asked, lora=lora))
    said = rows(bench.run(bench.now + 10.0))
    return [token for _, name, ids, _ in said if name == request_id for token in ids]


def test_tokens_depend_on_the_adapter_that_is_loaded() -> None:
    bench = Bench(max_loras=2)
    sql = LoraRequest(name="sql", int_id=1, path="/sql")
    plain, first = tokens_with(bench, "r0", None), tokens_with(bench, "r1", sql)
    assert len(plain) == len(first) == 4
    assert plain != first
    assert tokens_with(bench, "r2", replace(sql, path="/ignored")) == first, "its id is loaded"

    bench.call("add_lora", ["sql", 1, "/new", None, True])
    again = tokens_with(bench, "r3", sql)

    assert again not in (plain, first)
    assert tokens_with(bench, "r4", replace(sql, int_id=2, path="/new")) == again


def test_an_adapter_that_cannot_be_loaded_ends_the_engine_that_is_asked_for_it() -> None:
    bench = Bench(max_loras=1, missing_loras=("/gone",))
    bench.call("add_lora", ["a", 1, "/gone"])
    assert "No adapter found for /gone" in str(answers(bench.run(1.0))[0][1])

    asked = request("r", (1,), max_tokens=4)
    bench.add_request(replace(asked, lora=LoraRequest(name="a", int_id=1, path="/gone")))
    bench.run(2.0)

    assert "No adapter found for /gone" in str(bench.core.dead)


def test_checksums_profiles_and_the_rest_answer() -> None:
    bench = Bench()
    bench.call("compute_weight_checksums")
    bench.call("collective_rpc", "compute_weight_checksums", None, [], {})
    bench.call("profile", True, "p", None, None, {"a": 1})
    bench.call("save_sharded_state", "/path", None, None)
    results = [result for _, result in answers(bench.run(1.0))]

    assert results[0] == results[1]
    assert results[2:] == [None, None]


def test_a_request_without_parameters_is_an_error() -> None:
    bench = Bench()
    bench.add_request(EngineRequest(request_id="r", prompt_token_ids=[1]))
    ((_, message),) = bench.run(1.0)

    assert isinstance(message, StepOutput)
    assert message.finished == ["r"]
    assert rows([(0.0, message)]) == [(0.0, "r", [], FinishReason.ERROR)]


def test_a_marker_to_free_blocks_gets_no_output() -> None:
    bench = Bench()
    bench.add_request(replace(request(), abort_immediately=True))

    assert bench.run(5.0) == []


def test_pooling_gives_a_unit_vector() -> None:
    bench = Bench(supported_tasks=("embed",), embedding_size=8)
    asked = EngineRequest(
        request_id="r", prompt_token_ids=[1, 2], pooling=PoolingParams(task="embed")
    )
    bench.add_request(asked)
    ((_, message),) = bench.run(1.0)
    assert isinstance(message, StepOutput)
    output = message.rows[0][1]
    assert isinstance(output, EngineOutput)
    vector = output.pooling_output.tolist()

    assert len(vector) == 8
    assert abs(sum(value * value for value in vector) - 1.0) < 1e-5
    assert output.finish_reason is FinishReason.STOP


def test_a_fatal_request_is_the_last_thing() -> None:
    bench = Bench()
    bench.add("a", max_tokens=5)
    bench.run(0.5)
    bench.add("a")
    said = bench.run(5.0)
    bench.add("b")

    assert isinstance(said[-1][1], Death)
    assert bench.core.dead == "request a is in flight already"
    assert bench.run(10.0) == []


def scripted(*rules: Rule, **config: object) -> Bench:
    return Bench(script=Script(rules=rules), **config)


def test_scripted_tokens_come_at_the_usual_pace_and_end_with_eos() -> None:
    bench = scripted(Rule(tokens=(7, 8, 9)), tokens_per_output=2)
    bench.add(max_tokens=10, eos_token_id=2)

    assert rows(bench.run(10.0)) == [
        (1.0, "r", [7, 8], None),
        (2.0, "r", [9], None),
        (3.0, "r", [2], FinishReason.STOP),
    ]


def test_a_script_without_eos_stops_all_the_same() -> None:
    bench = scripted(Rule(tokens=(7,)))
    bench.add(max_tokens=10)

    assert rows(bench.run(10.0))[-1] == (2.0, "r", [], FinishReason.STOP)


def test_limits_hold_for_scripted_tokens() -> None:
    bench = scripted(Rule(tokens=(7, 8, 9)))
    bench.add(max_tokens=2)

    assert rows(bench.run(10.0))[-1] == (2.0, "r", [8], FinishReason.LENGTH)


def test_acts_choose_their_time_and_end() -> None:
    bench = scripted(
        Rule(
            tokens=(7,),
            acts=(
                Act(after=5.0, tokens=(8, 9)),
                Act(finish=9, stop_reason="odd", kv_transfer_params={"a": 1}),
            ),
        )
    )
    bench.add(max_tokens=10)

    assert rows(bench.run(20.0)) == [
        (1.0, "r", [7], None),
        (7.0, "r", [8, 9], None),
        (8.0, "r", [], 9),
    ]


def test_a_script_may_begin_with_silence() -> None:
    bench = scripted(Rule(acts=(Act(after=5.0, tokens=(8,)),)))
    bench.add(max_tokens=1)

    assert times(bench.run(20.0)) == [6.0]


def test_an_error_ends_a_request() -> None:
    bench = scripted(Rule(acts=(Act(error=EngineError("internal", "no")),)))
    bench.add()

    assert rows(bench.run(2.0)) == [(1.0, "r", [], FinishReason.ERROR)]


def test_a_silent_request_stays_until_it_is_aborted() -> None:
    bench = scripted(Rule(acts=(Act(silence=True),)))
    bench.add()
    silent = bench.run(50.0)
    running = bench.core.running
    bench.abort("r")
    bench.run(60.0)

    assert silent == []
    assert running == 1
    assert bench.core.running == 0


def test_raw_frames_come_before_the_outputs_of_their_step() -> None:
    bench = scripted(Rule(acts=(Act(raw=b"garbage", tokens=(7,)),)))
    bench.add(max_tokens=1)

    assert [type(message) for _, message in bench.run(2.0)] == [Raw, StepOutput]


@pytest.mark.parametrize(("act", "end"), [(Act(die=True), Death), (Act(vanish=True), Vanishing)])
def test_a_script_may_end_the_engine(act: Act, end: type[Message]) -> None:
    bench = scripted(Rule(tokens=(7,), acts=(act,)))
    bench.add(max_tokens=9)
    said = bench.run(9.0)

    assert isinstance(said[-1][1], end)
    assert bench.core.dead is not None


def test_a_rule_is_spent_after_its_times() -> None:
    bench = scripted(Rule(times=1, tokens=(7,)), Rule(nth=1, tokens=(8,)))
    for name in "abc":
        bench.add(name, max_tokens=1)
    said = {name: ids for _, name, ids, _ in rows(bench.run(2.0))}

    assert said["a"] == [7]
    assert said["b"] == [8]
    assert said["c"] not in ([7], [8])
