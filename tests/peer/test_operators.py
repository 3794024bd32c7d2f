"""What operators ask, in order, of the peer and of us: equal answers, or a reason."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import httpx
import pytest

from tests.peer.conftest import PEER, served
from tests.peer.normalise import Answer, normalise

pytestmark = pytest.mark.peer

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
OPTIONS = ["--profiler-config", '{"profiler": "torch"}']


@attrs.frozen
class Step:
    """One request, and why our answer differs, if it does."""

    path: str
    body: Any = None
    deviation: str | None = None
    method: str = "POST"


def get(path: str, deviation: str | None = None) -> Step:
    return Step(path, None, deviation, "GET")


def load(name: Any, path: Any, deviation: str | None = None, **fields: Any) -> Step:
    return Step(LOAD, {"lora_name": name, "lora_path": path, **fields}, deviation)


QUERY = "faults of a query are told in our words, as JSON"
EVICTED = "an adapter that the engine has evicted can be unloaded"
NAMED = "failures name the engines and what was ordered"
PYTHON = "Python's server answers, and so do we"

SEQUENCES: Mapping[str, list[Step]] = {
    "adapters": [
        load("a", "org/a"),
        load("a", "org/a"),
        load("a", "org/b", load_inplace=True),
        load("", "org/a"),
        load("b", ""),
        load("tiny", "org/a"),
        load("b", "/etc"),
        load("b", "./tiny"),
        load("b", "~/tiny"),
        load("b", 5),
        load("b", "p", load_inplace=None),
        Step(LOAD, {"lora_name": "b"}),
        Step(LOAD, {}),
        load("b", "repo", is_3d_lora_weight=True),
        Step("/tokenize", {"model": "a", "prompt": "Hello"}),
        Step("/v1/completions", {"model": "zz", "prompt": "Hello"}),
        Step("/v1/completions", {"model": "b", "prompt": "Hello", "max_tokens": 3}),
        Step("/v1/completions", {"model": "a", "prompt": "Hello", "max_tokens": 3}),
        Step(UNLOAD, {"lora_name": ""}),
        Step(UNLOAD, {"lora_name": "zz"}),
        Step(UNLOAD, {}),
        Step(UNLOAD, {"lora_name": "a", "lora_int_id": 9}),
        load("c", "org/c"),
        Step(UNLOAD, {"lora_name": "b"}, EVICTED),
        Step(UNLOAD, {"lora_name": "a"}),
        Step(UNLOAD, {"lora_name": "a"}),
        Step(UNLOAD, {"lora_name": "c", "lora_int_id": 3}),
    ],
    "sleep": [
        get("/is_sleeping"),
        Step("/sleep"),
        get("/is_sleeping"),
        get("/is_paused"),
        Step("/wake_up?tags=weights"),
        get("/is_sleeping"),
        Step("/wake_up?tags=kv_cache"),
        get("/is_sleeping"),
        Step("/wake_up"),
        Step("/sleep?level=0"),
        get("/is_sleeping"),
        Step("/wake_up?tags=scheduling"),
        Step("/sleep?level=2&mode=wait"),
        Step("/wake_up?tags=weights&tags=kv_cache"),
        Step("/sleep?level=3"),
        Step("/sleep?level=x", None, QUERY),
        Step("/sleep?mode=nap", None, QUERY),
        Step("/sleep?mode=keep&other=1"),
        Step("/wake_up?tags=other"),
        Step("/wake_up"),
        Step("/release_kv_cache_memory", None, "out of its time it is a conflict"),
        Step("/pause"),
        Step("/release_kv_cache_memory"),
        get("/is_sleeping"),
        Step("/wake_up"),
        get("/is_paused", "a pause outlasts a sleep inside it"),
        Step("/resume"),
    ],
    "caches": [
        Step("/reset_prefix_cache"),
        Step("/reset_prefix_cache?reset_running_requests=true&reset_external=true"),
        Step("/reset_prefix_cache?reset_external=x", None, QUERY),
        Step("/reset_mm_cache"),
        Step("/reset_encoder_cache"),
    ],
    "workers": [
        Step("/collective_rpc", {"method": "check_health"}),
        Step("/collective_rpc", {"method": "check_health", "timeout": None, "args": []}),
        Step("/collective_rpc", {"method": "compute_weight_checksums"}),
        Step("/collective_rpc", {}),
        Step("/collective_rpc", {"method": 5}),
        Step("/collective_rpc", {"method": "m", "args": "x"}),
        Step("/collective_rpc", {"method": "m", "args": None}),
        Step("/collective_rpc", {"method": "m", "kwargs": []}),
        Step("/collective_rpc", {"method": "other"}, NAMED),
    ],
    "profiles": [
        Step("/stop_profile"),
        Step("/start_profile"),
        Step("/start_profile", None, "a conflict names the present state"),
        Step("/stop_profile"),
        Step("/start_profile", {"profile_prefix": "p", "delay_iterations": 3}),
        Step("/stop_profile"),
        Step("/start_profile", {"profile_prefix": 5}),
        Step("/start_profile", {"num_steps": "x"}),
        Step("/stop_profile"),
    ],
    "information": [
        get("/kv_event_sources"),
        get("/get_world_size"),
        get("/get_world_size?include_dp=false"),
        get("/server_info?config_format=xml", QUERY),
        Step("/scale_elastic_ep", {}, PYTHON),
        Step("/is_scaling_elastic_ep", None, PYTHON),
    ],
}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The peer and us, with all gates open."""
    if not PEER.exists():
        pytest.skip(f"no peer at {PEER}: run `make test-peer`, or set VLLMFRONT_PEER")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        patch.setenv("VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES", "/usr")
        with (
            _served([str(PEER)], tmp_path_factory.mktemp("peer")) as peer,
            _served([sys.executable, "-m", "vllmfront"], tmp_path_factory.mktemp("ours")) as ours,
        ):
            yield peer, ours


def _served(program: list[str], folder: pathlib.Path) -> contextlib.AbstractContextManager[str]:
    loras = ["--max-loras", "2"]
    return served(program, "serve", folder, options=OPTIONS, engine_options=loras)


@pytest.mark.parametrize("name", SEQUENCES)
def test_operators_get_the_same_answers(name: str, urls: tuple[str, str]) -> None:
    differing, agreeing = [], []
    for number, step in enumerate(SEQUENCES[name]):
        theirs, ours = (ask(url, step) for url in urls)
        if step.deviation is None and theirs != ours:
            differing.append((number, step, theirs, ours))
        elif step.deviation is not None and theirs == ours:
            agreeing.append((number, step))

    assert differing == []
    assert agreeing == [], "no longer deviates"


def test_the_engine_never_sees_a_request_while_it_sleeps(urls: tuple[str, str]) -> None:
    _, ours = urls
    httpx.post(f"{ours}/sleep")
    refused = httpx.post(f"{ours}/v1/completions", json={"prompt": "Hello", "max_tokens": 1})
    httpx.post(f"{ours}/wake_up")

    assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "sleeping")


def ask(url: str, step: Step) -> Answer:
    response = httpx.request(step.method, url + step.path, json=step.body, timeout=30)
    return normalise(
        response.status_code, response.headers.get("content-type", ""), response.content
    )
