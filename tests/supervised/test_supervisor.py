"""Life under vLLM's own supervisor, of both releases. The order matters: the last ones end it."""

import json
import os
import signal

import pytest

from tests.end_to_end.rig import wait_until
from tests.lifecycles.rig import alive
from tests.supervised.conftest import MOST_TOKENS, NAMES
from tests.supervised.rig import KEY, START_SECONDS, Supervised

pytestmark = pytest.mark.engine


def test_clients_are_answered_while_the_engines_load(
    over_tcp: Supervised, over_uds: Supervised
) -> None:
    first: dict[Supervised, int] = {}

    def note() -> bool:
        for each in (over_tcp, over_uds):
            status = first.get(each) or each.health()
            if status is not None:
                first[each] = status
            assert not each.has_ended(), each.log[-4000:]
        return len(first) == 2

    wait_until(note, START_SECONDS)

    assert set(first.values()) == {503}
    over_tcp.wait_ready()
    over_uds.wait_ready()


def test_the_key_the_names_and_the_certificate_are_those_that_vllm_was_given(
    over_tcp: Supervised,
) -> None:
    over_tcp.wait_ready()

    models = over_tcp.http.get("/v1/models").json()["data"]
    stranger = over_tcp.http.get("/v1/models", headers={"Authorization": "Bearer other"})

    assert tuple(model["id"] for model in models) == NAMES
    assert stranger.status_code == 401
    assert KEY not in over_tcp.log


def test_the_template_and_the_sampling_defaults_are_those_that_vllm_was_given(
    over_tcp: Supervised,
) -> None:
    over_tcp.wait_ready()
    prompts = "hi", "Tell me something else, at length, please."

    answers = [
        over_tcp.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": prompt}],
            ignore_eos=True,
            max_tokens=tokens,
        ).json()
        for prompt, tokens in zip(prompts, (None, MOST_TOKENS + 100), strict=True)
    ]

    first, second = answers
    assert first["usage"] == second["usage"]  # the template repeats nothing of what was said
    assert first["usage"]["completion_tokens"] == MOST_TOKENS
    assert first["choices"][0]["message"] == second["choices"][0]["message"]  # greedy


def test_a_unix_socket_is_served(over_uds: Supervised) -> None:
    over_uds.wait_ready()

    answer = over_uds.post("/v1/completions", prompt="hi", max_tokens=5, ignore_eos=True).json()

    assert answer["usage"]["completion_tokens"] == 5
    assert answer["model"].endswith("tiny-chat")


def test_the_order_to_stop_lets_a_running_stream_end(over_tcp: Supervised) -> None:
    over_tcp.wait_ready()
    frontend = over_tcp.frontend
    with over_tcp.stream(max_tokens=MOST_TOKENS) as stream:
        stream.next()
        over_tcp.process.send_signal(signal.SIGTERM)
        rest = stream.rest()

    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "length"
    assert over_tcp.process.wait(20) == 0
    assert not alive(frontend)


def test_the_death_of_the_engine_is_told_to_clients_and_ends_all(over_uds: Supervised) -> None:
    over_uds.wait_ready()
    frontend, [engine] = over_uds.frontend, over_uds.engines
    with over_uds.stream(max_tokens=1000) as stream:
        stream.next()
        os.kill(engine, signal.SIGKILL)
        rest = stream.rest()

    error = json.loads(rest[-2])["error"]
    assert rest[-1] == "[DONE]"
    assert (error["code"], error["reason"]) == (503, "interrupted")
    wait_until(over_uds.has_ended)
    assert over_uds.process.returncode == 1
    assert not alive(frontend)
    assert not over_uds.accepts()
