"""Clients that leave: the engine hears of it."""

import pytest

from tests.end_to_end.rig import Server, wait_until

pytestmark = pytest.mark.engine


def test_the_engine_drops_what_nobody_waits_for(server: Server) -> None:
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)
    made = server.metric("vllm:generation_tokens_total")
    with server.stream(tokens=1000) as stream:
        stream.next()
        wait_until(lambda: server.metric("vllm:num_requests_running") == 1)
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)

    assert 0 < server.metric("vllm:generation_tokens_total") - made < 1000
