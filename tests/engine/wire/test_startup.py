import msgpack
import pytest

from tests.engine.wire.golden import HANDSHAKES, REGISTRATIONS, Entry, find, raw
from vllmfront.engine.wire import (
    READY_GATE,
    SUBSCRIBE,
    EngineAddresses,
    FirstRequest,
    Hello,
    Init,
    KvEventsConfig,
    LoadReport,
    Ready,
    Registration,
    ScaleNotice,
    decode_frontend_notice,
    decode_handshake,
    decode_init,
    decode_load_report,
    decode_registration,
    encode_frontend_notice,
    encode_hello,
    encode_init,
    encode_load_report,
    encode_ready,
    encode_registration,
)
from vllmfront.errors import ProtocolError

NEW_IN_033 = ("coord_store_port", "coordinator_input_address", "coordinator_output_address")


def encoded_again(entry: Entry) -> bytes:
    if entry.name.startswith("init"):
        init = decode_init(entry.frames[0])
        return encode_init(init.addresses, init.parallel_config)
    message = decode_handshake(entry.frames[0])
    return encode_hello(message) if isinstance(message, Hello) else encode_ready(message)


@pytest.mark.parametrize("entry", HANDSHAKES, ids=str)
def test_a_golden_handshake_is_encoded_again_exactly(entry: Entry) -> None:
    assert raw(encoded_again(entry)) == entry.raw()


@pytest.mark.parametrize("entry", REGISTRATIONS, ids=str)
def test_a_golden_registration_is_encoded_again_with_the_same_meaning(entry: Entry) -> None:
    registration = decode_registration(entry.frames[0])

    assert raw(encode_registration(registration)) == dict.fromkeys(NEW_IN_033) | entry.raw()


def test_what_a_real_engine_registers() -> None:
    registration = decode_registration(find("registration", "engine-0.32").frames[0])

    assert registration.vllm_version == "0.32.0"
    assert registration.max_model_len == 512
    assert registration.data_parallel_rank == 0
    assert registration.kv_cache_max_concurrency == 8192.0
    assert registration.supports_lora is False
    assert registration.coord_store_port is None


def test_an_empty_registration_reports_nothing() -> None:
    assert decode_registration(b"") == Registration()
    assert decode_registration(msgpack.packb({"unknown": 1})) == Registration()


def test_the_events_of_a_cache_have_an_address() -> None:
    config = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557", "hwm": 7, "new": 1}

    registration = decode_registration(msgpack.packb({"kv_events_config": config}))

    assert registration.kv_events_config == KvEventsConfig(
        enable_kv_cache_events=True, endpoint="tcp://*:5557", hwm=7
    )


def test_registrations_of_another_type_are_refused() -> None:
    with pytest.raises(ProtocolError, match="max_model_len must be an integer"):
        decode_registration(msgpack.packb({"max_model_len": "long"}))
    with pytest.raises(ProtocolError, match="registration must be a map"):
        decode_registration(msgpack.packb([1]))


def test_ready_may_carry_what_ranks_must_agree_on() -> None:
    ready = decode_handshake(find("ready_elastic_ep").frames[0])

    assert ready == Ready(
        local=False,
        headless=True,
        parallel_config_hash="ab" * 32,
        coord_store_port=40123,
        elastic_ep_max_dp_size=8,
        num_redundant_experts=4,
    )


def test_init_names_all_five_addresses() -> None:
    payload = encode_init(EngineAddresses(inputs=["ipc://in"], outputs=["ipc://out"]))

    assert raw(payload) == {
        "addresses": {
            "inputs": ["ipc://in"],
            "outputs": ["ipc://out"],
            "coordinator_input": None,
            "coordinator_output": None,
            "frontend_stats_publish_address": None,
        },
        "parallel_config": {},
    }
    assert decode_init(payload) == Init(
        EngineAddresses(inputs=["ipc://in"], outputs=["ipc://out"]), {}
    )


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"status": "BYE", "local": True, "headless": True}, "must be HELLO or READY, not 'BYE'"),
        ({"local": True, "headless": True}, "must be HELLO or READY"),
        ({"status": "HELLO", "headless": True}, "local must be true or false"),
        ({"status": "HELLO", "local": 1, "headless": True}, "local must be true or false"),
        ([], "handshake message must be a map"),
        ({1: 2}, "handshake message must be a map with text keys"),
    ],
)
def test_what_is_no_handshake_is_said(message: object, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_handshake(msgpack.packb(message))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({}, "addresses must be a map"),
        ({"addresses": {"inputs": ["a"]}}, "addresses.outputs must be an array"),
        ({"addresses": {"inputs": ["a"], "outputs": []}}, "differ in length"),
    ],
)
def test_what_is_no_init_is_said(message: object, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_init(msgpack.packb(message))


@pytest.mark.parametrize("series", ["0.32", "0.33"])
@pytest.mark.parametrize("name", ["coord_publish_counts", "coord_publish_wave"])
def test_golden_load_reports_are_encoded_again_exactly(name: str, series: str) -> None:
    entry = find(name, series)

    report = decode_load_report(entry.frames[0])

    assert report.wave in (4, 5)
    assert raw(encode_load_report(report)) == entry.raw()


def test_loads_are_one_an_engine() -> None:
    report = decode_load_report(find("coord_publish_counts").frames[0])

    assert isinstance(report, LoadReport)
    assert report.loads is not None
    assert [(load.waiting, load.running) for load in report.loads] == [(2, 1), (0, 0)]
    assert report.running is True


def test_what_frontends_tell_the_coordinator() -> None:
    scale = decode_frontend_notice(find("coord_scale").frames[0])
    first = decode_frontend_notice(msgpack.packb([1, 4]))

    assert scale == ScaleNotice(4)
    assert raw(encode_frontend_notice(scale)) == ["SCALE_ELASTIC_EP", 4]
    assert first == FirstRequest(1, 4)
    assert raw(encode_frontend_notice(first)) == [1, 4]
    with pytest.raises(ProtocolError, match="3 elements"):
        decode_frontend_notice(msgpack.packb([1, 4, 5]))


def test_the_raw_words_of_the_coordinator() -> None:
    assert find("coord_ready").frames == [READY_GATE]
    assert find("coord_subscribe").frames == [SUBSCRIBE]
