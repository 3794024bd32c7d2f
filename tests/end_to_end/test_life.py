"""The end of a managed frontend, of its engine, and of engines that others run."""

import json
import os
import re
import signal

import pytest

from tests.end_to_end.chats import FRANCE
from tests.end_to_end.deployments import Deployment, engines_for
from tests.end_to_end.rig import wait_until
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


def test_the_death_of_the_engine_ends_its_streams_and_the_frontend(managed: Deployment) -> None:
    server = managed.server
    below = server.descendants()
    core = managed.core()
    with server.stream(tokens=1000) as stream:
        stream.next()
        os.kill(core, signal.SIGKILL)
        *_, error, done = stream.rest()
    status = server.wait_end()
    message = server.log[server.log.rindex("the managed engine") :]

    assert done == "[DONE]"
    assert json.loads(error)["error"]["code"] == 500
    assert status == 1
    assert re.match(
        r"the managed engine .* ended with status \d+; its last lines were:\n  \| ", message
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
    assert json.loads(error)["error"]["code"] == 500
    assert refused.status_code == 503
    assert refused.json()["error"]["type"] == "ServiceUnavailableError"
    assert answer.json()["choices"][0]["message"]["content"] == FRANCE.answer
