import json
from collections.abc import Mapping, Sequence

import pytest

from vllmfront.cli import UsageError
from vllmfront.cli import _serve_flags as table
from vllmfront.cli import _unserved_flags as unserved
from vllmfront.cli import _values as values
from vllmfront.cli._parse import build_parser, parse
from vllmfront.cli._serve import build_config, shared_words, split_words
from vllmfront.lifecycles import (
    AdapterConfig,
    RequestsConfig,
    RestartConfig,
    RestartIntensity,
    ServeConfig,
)


def config(*words: str, environment: Mapping[str, str] | None = None) -> ServeConfig:
    model, split = split_words(["model", *words])
    return build_config(model, parse(split.own, environment or {}), split.engine)


def forwarded(*words: str) -> Sequence[str]:
    return config(*words).engine.shared_arguments


def test_the_defaults_are_those_of_the_reference() -> None:
    made = config()

    assert made.model.model == "model"
    assert (made.listen.host, made.listen.port, made.listen.uds) == ("127.0.0.1", 8000, None)
    assert made.server.shutdown_timeout == 0
    assert made.server.keep_alive_timeout == 5
    assert made.server.log_stats
    assert made.engine.python == "python3"
    assert made.engine.ready_timeout == 600
    assert made.engine.managed
    assert made.decoding.max_logprobs == 20
    assert made.decoding.structured_outputs_backend == "xgrammar"
    assert made.engine.arguments == made.engine.shared_arguments == ()


def test_every_option_reaches_a_field_that_exists() -> None:
    sections = ServeConfig(model=config().model)
    for flag in table.flags().values():
        value: object = sections
        for part in (flag.target or "").split(".") if flag.target else ():
            value = getattr(value, part)


def test_values_arrive_with_their_types() -> None:
    made = config(
        *(
            "--port",
            "0",
            "--listen-fd",
            "3",
            "--listen-fd",
            "4",
            "--http-send-timeout",
            "1.5",
            "--max-logprobs",
            "-1",
        ),
        *("--hf-overrides", '{"a": {"b": null}}', "--allowed-origins", '["https://a"]'),
        *("--served-model-name", "one", "two", "--api-key", "k", "--api-key=l"),
        *("--trust-request-chat-template", "--enable-request-id-headers", "false"),
        *("--disable-log-stats", "--custom-histogram-buckets", '{"request_tokens": [1, 2]}'),
        *("--structured-outputs-config", '{"backend": "guidance", "x": 1}', "--ssl-certfile", "c"),
    )

    assert (made.listen.port, made.listen.fds) == (0, (3, 4))
    assert made.server.send_timeout == 1.5
    assert made.decoding.max_logprobs == -1
    assert made.model.overrides == {"a": {"b": None}}
    assert made.server.cors.origins == ("https://a",)
    assert made.server.served_model_names == ("one", "two")
    assert made.server.api_keys == ("k", "l")
    assert made.chat.trust_request_template
    assert not made.server.request_id_headers
    assert not made.server.log_stats
    assert made.server.histogram_buckets == {"request_tokens": (1.0, 2.0)}
    assert made.decoding.structured_outputs_backend == "guidance"
    assert made.server.tls.certfile == "c"


def test_the_managed_engine_is_restarted_by_default() -> None:
    restart = config().engine.restart

    assert restart.enabled
    assert (restart.intensity.restarts, restart.intensity.seconds) == (3, 600.0)
    assert config().engine.stall_timeout == 60.0
    assert config().engine.stall_restart is None


def test_restarts_are_as_asked_for() -> None:
    made = config(
        *("--engine-restart", "transient", "--engine-restart-intensity", "5/90.5"),
        *("--engine-restart-backoff", "0.5", "--engine-restart-backoff-cap", "8"),
        *("--engine-restart-backoff-reset", "30", "--engine-stall-timeout", "20"),
        *("--engine-stall-restart", "40"),
    ).engine

    assert made.restart == RestartConfig(
        kind="transient",
        intensity=RestartIntensity(5, 90.5),
        backoff=0.5,
        backoff_cap=8.0,
        backoff_reset=30.0,
    )
    assert (made.stall_timeout, made.stall_restart) == (20.0, 40.0)


@pytest.mark.parametrize(
    "words", [("--engine-restart", "never"), ("--engine-restart-intensity", "0/60")]
)
def test_restarts_can_be_switched_off(words: Sequence[str]) -> None:
    assert not config(*words).engine.restart.enabled


def test_keys_are_in_no_repr() -> None:
    assert "secret" not in repr(config("--api-key", "secret", "--admin-api-key", "secret"))


def test_the_environment_fills_what_is_not_given() -> None:
    environment = {
        "VLLM_API_KEY": "from-environment",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "7",
        "VLLM_ENGINE_READY_TIMEOUT_S": "30",
        "VLLM_RS_PYTHON": "python3.13",
    }
    made = config(environment=environment)

    assert made.server.api_keys == ("from-environment",)
    assert made.server.keep_alive_timeout == 7
    assert made.engine.ready_timeout == 30
    assert made.engine.python == "python3.13"

    made = config("--api-key", "mine", "--python", "py", environment=environment)

    assert made.server.api_keys == ("mine",)
    assert made.engine.python == "py"


def test_an_empty_variable_is_unset() -> None:
    assert config(environment={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": ""}).server.keep_alive_timeout == 5


def test_shared_options_are_forwarded_in_the_references_order() -> None:
    words = forwarded(
        *(
            "--structured-outputs-config",
            '{"backend": "guidance"}',
            "--hf-overrides",
            '{"b":1, "a":2}',
        ),
        *("--limit-mm-per-prompt", '{"image" : 3}'),
        *("--shutdown-timeout", "3", "--disable-log-stats", "--language-model-only"),
        *("--max-logprobs", "30", "--max-model-len", "8k", "--hf-config-path", "h"),
        *("--tokenizer-revision", "tr", "--tokenizer", "t", "--revision", "r"),
    )

    assert list(words) == [
        *("--revision", "r", "--tokenizer", "t", "--tokenizer-revision", "tr"),
        *("--hf-config-path", "h", "--max-model-len", "8k", "--max-logprobs", "30"),
        *("--language-model-only", "--disable-log-stats", "--shutdown-timeout", "3"),
        *("--limit-mm-per-prompt", '{"image":3}'),
        *("--hf-overrides", '{"b":1,"a":2}'),
        *("--structured-outputs-config", '{"backend":"guidance"}'),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("--shutdown-timeout", "0"),
        ("--limit-mm-per-prompt", "{}"),
        ("--generation-config", "vllm"),
        ("--stream-interval", "3"),
        ("--reasoning-parser", "none", "--tool-call-parser", "none"),
        ("--api-key", "x"),
    ],
)
def test_what_says_nothing_to_the_engine_is_not_forwarded(words: Sequence[str]) -> None:
    assert list(forwarded(*words)) == []


def test_an_option_with_no_word_behind_it_has_no_words() -> None:
    assert shared_words(parse(["--served-model-name"], {})) == []


def test_unknown_options_go_to_the_engine() -> None:
    made = config("-tp", "2", "--dtype", "half", "--port", "1", "--", "--x")

    assert made.engine.arguments == ("--tensor-parallel-size", "2", "--dtype", "half", "--x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required arguments were not provided:\n  <MODEL>"),
        (["--port", "3", "model"], "the model must appear immediately after the command"),
        (["--", "model"], "the model must appear immediately after the command"),
        (["m", "--port", "x"], "invalid value 'x' for '--port <PORT>': not a whole number"),
        (["m", "--port", "70000"], "70000 is not in 0..=65535"),
        (["m", "--port", "1_0"], "not a whole number"),
        (["m", "--port"], "expected one argument"),
        (["m", "--port", "1", "2"], "unexpected argument '2' found"),
        (["m", "--port", "1", "--port", "2"], "'--port <PORT>' cannot be used multiple times"),
        (["m", "--handshake-port", "0"], "0 is not in 1..=65535"),
        (["m", "--host", "-x"], "expected one argument"),
        (["m", "--max-logprobs", "-2"], "-2 is not in -1..="),
        (["m", "--stream-interval", "0"], "0 is not in 1..="),
        (["m", "--shutdown-timeout", "1.5"], "not a whole number"),
        (["m", "--http-send-timeout", "-1"], ": must be a positive number of seconds"),
        (["m", "--http-send-timeout", "inf"], ": must be finite"),
        (["m", "--http-send-timeout", "1m"], ": not a number of seconds"),
        (["m", "--http-timeout-keep-alive", "-1"], "must be zero or a positive number of seconds"),
        (["m", "--http-send-timeout", "0"], "must be a positive number of seconds"),
        (["m", "--http-timeout-keep-alive", "nan"], ": must be finite"),
        (["m", "--enable-log-requests", "true"], "unexpected argument 'true' found"),
        (["m", "--allow-credentials", "maybe"], "[possible values: true, false]"),
        (["m", "--generation-config", "/x"], "generation config source `/x` is not implemented"),
        (["m", "--tokenizer-mode", "slow"], "expected one of: auto, hf"),
        (["m", "--hf-overrides", "[1]"], "expected a JSON object"),
        (["m", "--hf-overrides", "{"], "invalid JSON"),
        (["m", "--hf-overrides", "[" * 100_000], "nested too deeply"),
        (["m", "--allowed-methods", '"x"'], "expected a JSON list of strings"),
        (["m", "--custom-histogram-buckets", '{"x": [1]}'], "unknown family `x`"),
        (["m", "--custom-histogram-buckets", '{"request_tokens": [2, 1]}'], "strictly increasing"),
        (["m", "--custom-histogram-buckets", '{"request_tokens": [0]}'], "positive, finite"),
        (["m", "--limit-mm-per-prompt", '{"image": -1}'], "expected an item count"),
        (["m", "--structured-outputs-config", '{"backend": "nah"}'], "unknown backend"),
        (["m", "--api-key", ""], "must not be empty"),
        (["m", "--admin-api-key", ""], "must not be empty"),
        (["m", "--engine-restart", "no"], "expected one of: permanent, transient, never"),
        (["m", "--engine-restart-intensity", "3"], "expected N/SECONDS, as 3/600"),
        (["m", "--engine-restart-intensity", "x/600"], "not a whole number"),
        (["m", "--engine-restart-intensity", "3/0"], "must be a positive number of seconds"),
        (["m", "--engine-restart-backoff", "0"], "must be a positive number of seconds"),
        (["m", "--lora-modules", "a"], "expected name=path, or a JSON object"),
        (["m", "--lora-modules", "=b"], "name: expected a string that is not empty"),
        (["m", "--lora-modules", '{"name": "a"}'], "path: expected a string that is not empty"),
        (["m", "--grpc-port", "1"], "gRPC is not part of this build yet"),
        (["m", "--enable-tokenizer-info-endpoint"], "/tokenizer_info is not part of this build"),
    ],
)
def test_usage_errors_name_the_option_and_the_reason(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        model, split = split_words(words)
        build_config(model, parse(split.own, {}), split.engine)

    assert message in str(caught.value)


@pytest.mark.parametrize("name", unserved.REJECTED)
def test_rejected_options_say_where_to_put_them(name: str) -> None:
    for word in (name, unserved.negated(name)):
        with pytest.raises(UsageError, match="put it after `--`"):
            config(word)


def test_a_rejected_option_behind_the_separator_is_the_engines() -> None:
    assert config("--", "--config", "x").engine.arguments == ("--config", "x")


def test_the_rank_of_a_frontend_may_come_from_the_environment() -> None:
    made = config("--data-parallel-size", "4", environment={"VLLM_DP_RANK": "3"})

    assert made.engine.local_ranks == made.engine.ranks == range(3, 4)


def test_options_without_effect_are_remembered() -> None:
    given = parse(["--no-enable-server-load-tracking", "--disable-fastapi-docs"], {})

    assert given.ineffective == ("--no-enable-server-load-tracking", "--disable-fastapi-docs")


@pytest.mark.parametrize(("word", "count"), [("3", 3), ("1", 1), ("auto", None)])
def test_how_many_processes_serve_is_a_number_or_left_to_us(word: str, count: int | None) -> None:
    assert config("-asc", word).server.api_server_count == count


@pytest.mark.parametrize("word", ["0", "-1", "many", "65"])
def test_a_server_without_processes_or_with_hundreds_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--api-server-count"):
        config("--api-server-count", word)


def test_the_help_shows_every_option_that_is_served() -> None:
    text = build_parser().format_help()

    assert [name for name in table.flags() if name not in text] == []
    assert "(default: 127.0.0.1)" in text


def test_all_options_that_the_reference_rejects_are_known() -> None:
    served = {
        *("--max-num-queued-reqs", "--max-num-queued-tokens"),
        *("--data-parallel-rank", "--data-parallel-hybrid-lb", "--data-parallel-external-lb"),
    }

    assert len(served.union(unserved.REJECTED)) == len(unserved.REJECTED) + len(served) == 51
    assert served < set(table.flags())
    assert not set(unserved.REJECTED) & set(table.flags())


def test_what_becomes_of_requests_is_policy() -> None:
    made = config(
        *("--default-request-timeout", "2.5", "--max-num-queued-reqs", "0"),
        *("--max-num-queued-tokens", "32K", "--max-loop-lag", "0", "--no-request-continuation"),
        *("--request-recovery-wait", "0", "--request-retries", "0"),
    )

    assert config().requests == RequestsConfig()
    assert made.requests == RequestsConfig(
        default_timeout=2.5,
        max_queued=0,
        max_queued_tokens=32768,
        max_loop_lag=0,
        continuation=False,
        recovery_wait=0,
        retries=0,
    )


def test_adapters_are_told_by_name_and_path_or_in_json() -> None:
    made = config(
        "--lora-modules",
        "sql=/adapters/sql=1",
        '{"name": "chat", "path": "org/chat", "base_model_name": "m", "is_3d_lora_weight": true}',
    )

    assert config().model.adapters == ()
    assert made.model.adapters == (
        AdapterConfig(name="sql", path="/adapters/sql=1"),
        AdapterConfig(name="chat", path="org/chat", base_model_name="m", is_3d_lora_weight=True),
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("100", 100), ("32k", 32_000), ("1K", 1024), ("2.5k", 2500), ("1M", 2**20)],
)
def test_counts_may_be_short(text: str, value: int) -> None:
    assert values.count(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5K", "1.5", "-1", "1x", "1e3", "9999999T"])
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|fraction|is not in"):
        values.count(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_no_time_at_all_is_no_time_limit(text: str) -> None:
    with pytest.raises(UsageError, match="--default-request-timeout"):
        config("--default-request-timeout", text)


def test_json_is_forwarded_as_it_was_meant() -> None:
    (_, word) = forwarded("--hf-overrides", '{"é": "\\u00e9", "n": 1.50}')

    assert json.loads(word) == {"é": "é", "n": 1.5}
