"""The end of a managed frontend, of its engine, and of engines that others run."""

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.end_to_end.chats import FRANCE
from tests.end_to_end.deployments import Deployment, engines_for
from tests.end_to_end.rig import START_SECONDS, Server, wait_until
from tests.lifecycles.rig import alive

pytestmark = pytest.mark.engine

GONE_SECONDS = 5.0


def test_a_drain_lets_a_stream_end(managed: Deployment) -> None:
    server = managed.server
    below = server.descendants()
    with server.stream(tokens=1000) as stream:
        stream.next()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.health() == 503)
        refused = server.post("/v1/completions", prompt="hi")
        *events, last, done = stream.rest()
    status = server.wait_end()

    assert refused.status_code == 503
    assert done == "[DONE]"
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert '"error"' not in "".join(events)
    assert status == 0, server.log[-4000:]
    assert len(below) > 1
    assert not any(map(alive, below))


def test_a_stream_outlives_its_engine(managed: Deployment) -> None:
    server = managed.server
    undisturbed = "".join(greedy_text(server))
    pieces = greedy_text(server)
    text = next(pieces)
    os.kill(managed.core(), signal.SIGKILL)
    text += "".join(pieces)
    shown = server.http.get("/supervisor").json()

    assert text == undisturbed
    assert shown["tree"]["children"][0]["tree"]["restarts"] == 1
    assert shown["engines"]["continued_requests"] == 1
    assert server.health() == 200


def greedy_text(server: Server) -> Iterator[str]:
    """Stream a completion of 800 tokens, which every run of the model gives alike."""
    stream = (
        server.openai()
        .with_options(timeout=START_SECONDS)
        .completions.create(
            model="tiny",
            prompt="hi",
            max_tokens=800,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
    )
    for chunk in stream:
        yield chunk.choices[0].text


def test_without_restarts_the_death_of_the_engine_ends_the_frontend(mortal: Deployment) -> None:
    server = mortal.server
    below = server.descendants()
    core = mortal.core()
    with server.stream(tokens=1000) as stream:
        stream.next()
        os.kill(core, signal.SIGKILL)
        *_, error, done = stream.rest()
    status = server.wait_end()
    message = server.log[server.log.rindex("error: ") :]

    assert done == "[DONE]"
    assert "error" in json.loads(error)
    assert status == 1
    assert re.match(
        r"error: the managed engine failed, and is not started again\n\nCaused by:\n"
        # On a busy machine the launcher takes its time to notice, and is stopped.
        r"  the managed engine (failed \(.*\)|\(.*\) ended with status \d+)\n"
        r"its last lines were:\n  \| ",
        message,
    )
    assert not any(map(alive, below))


def test_a_killed_frontend_leaves_no_process(managed: Deployment) -> None:
    server = managed.server
    below = server.descendants()
    with server.stream(tokens=1000) as stream:
        stream.next()
        server.process.kill()
        server.wait_end()
        wait_until(lambda: not any(map(alive, below)), GONE_SECONDS)

    assert len(below) > 2


def test_an_external_engine_may_die_and_come_back(external: Deployment) -> None:
    server = external.server
    with server.stream(tokens=1000) as stream:
        stream.next()
        os.kill(external.core(), signal.SIGKILL)
        *_, error, done = stream.rest()
    wait_until(lambda: server.health() == 503)
    refused = server.post("/v1/completions", prompt="hi")
    with engines_for(server):
        server.wait_ready()
        answer = server.post("/v1/chat/completions", **FRANCE.request)

    assert done == "[DONE]"
    assert json.loads(error)["error"]["code"] == 503
    assert refused.status_code == 503
    assert refused.json()["error"]["type"] == "ServiceUnavailableError"
    assert answer.json()["choices"][0]["message"]["content"] == FRANCE.answer
