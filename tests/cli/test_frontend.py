import json
from collections.abc import Mapping
from typing import Any

import pytest

from vllmfront.cli._args_json import read_args_json
from vllmfront.cli._frontend import build_config, build_parser, run
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles.worker import WorkerConfig

SUPERVISORS_WORDS = [
    *("--listen-fd", "3", "--input-listener-fd", "4", "--output-listener-fd", "5"),
    *("--engine-start-index", "2", "--engine-count", "2", "--data-parallel-size", "8"),
    *("--coordinator-address", "ipc:///tmp/c"),
]
"""In the order of vLLM 0.32 and 0.33; ``--args-json`` follows."""


def words(*before: str, **args: Any) -> list[str]:
    return [*before, "--args-json", json.dumps({"model_tag": "model", **args}, sort_keys=True)]


def config(given: list[str], environment: Mapping[str, str] | None = None) -> WorkerConfig:
    options = build_parser().parse_args(given)
    return build_config(options, read_args_json(options.args_json), environment or {})


def test_the_supervisors_words_are_understood() -> None:
    made = config(words(*SUPERVISORS_WORDS, served_model_name=["tiny"]))

    bootstrap = made.bootstrap
    assert (bootstrap.listen_fd, bootstrap.input_fd, bootstrap.output_fd) == (3, 4, 5)
    assert (bootstrap.start_rank, bootstrap.engine_count, bootstrap.data_parallel_size) == (2, 2, 8)
    assert bootstrap.coordinator_address == "ipc:///tmp/c"
    assert made.settings.model.model == "model"
    assert made.settings.server.served_model_names == ("tiny",)
    made.check()


def test_ranks_have_the_defaults_of_the_reference() -> None:
    fds = SUPERVISORS_WORDS[:6]
    alone = config(words(*fds)).bootstrap
    several = config(words(*fds, "--engine-count", "4")).bootstrap

    assert (alone.start_rank, alone.engine_count, alone.data_parallel_size) == (0, 1, 1)
    assert several.data_parallel_size == 4
    assert alone.coordinator_address is None


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--grpc-listen-fd", "6"), "--grpc-listen-fd 6: gRPC is not part of this build"),
        (("--engine-count", "0"), "--engine-count 0 must be from 1 to"),
        (("--engine-count", "9"), "--engine-count 9 must be from 1 to --data-parallel-size 8"),
        (("--engine-start-index", "7"), "engines 7 to 8"),
        (("--data-parallel-size", "70000", "--engine-start-index", "65535"), "65535 to 65536"),
    ],
)
def test_what_is_not_served_is_refused_by_name(more: tuple[str, ...], complaint: str) -> None:
    made = config(words(*SUPERVISORS_WORDS, *more))

    with pytest.raises(ConfigurationError, match=complaint):
        made.check()


def test_what_makes_no_sense_together_is_refused_before_anything_is_loaded() -> None:
    made = config(words(*SUPERVISORS_WORDS, ssl_keyfile="key.pem"))

    with pytest.raises(ConfigurationError, match="--ssl-certfile is required"):
        made.check()


@pytest.mark.parametrize(
    "given",
    [
        words("--listen-fd", "3", "--input-listener-fd", "4"),
        words(*SUPERVISORS_WORDS, "--listen-fd", "-1"),
        words(*SUPERVISORS_WORDS, "--engine-count", "1.5"),
        words(*SUPERVISORS_WORDS, "--listener-fd", "3"),
        SUPERVISORS_WORDS,
    ],
)
def test_other_words_end_with_status_2(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(given)

    assert caught.value.code == 2
    assert "vllmfront frontend: error: " in capsys.readouterr().err


def test_the_key_of_the_environment_is_used_unless_there_are_others() -> None:
    environment = {"VLLM_API_KEY": "from-environment"}

    assert config(words(*SUPERVISORS_WORDS), environment).settings.server.api_keys == (
        "from-environment",
    )
    assert config(words(*SUPERVISORS_WORDS, api_key=["a"]), environment).settings.server.api_keys \
        == ("a",)  # fmt: skip
