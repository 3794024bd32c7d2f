"""The pure parts."""

from pathlib import Path

import attrs
import pytest

from tests.lifecycles.rig import config
from vllmfront.errors import ConfigurationError, EngineDied
from vllmfront.lifecycles import (
    EngineConfig,
    RestartConfig,
    RestartIntensity,
    ServerConfig,
    TlsConfig,
)
from vllmfront.lifecycles._api import http_config
from vllmfront.lifecycles._command import engine_command
from vllmfront.lifecycles._model import DrainingSlot, _operators_template
from vllmfront.lifecycles._one_error import one_error
from vllmfront.lifecycles._units import plan_units


def test_the_engines_command_is_that_of_the_reference() -> None:
    engine = EngineConfig(
        python="py",
        host="10.0.0.1",
        data_parallel_size=2,
        arguments=("--dtype", "half", "--x", "1"),
        shared_arguments=("--revision", "r"),
    )

    [unit] = plan_units(engine, lockstep=True)

    assert " ".join(engine_command("m", engine, unit, 4711)) == (
        "py -m vllm.entrypoints.cli.main serve m --headless --data-parallel-address 10.0.0.1 "
        "--data-parallel-rpc-port 4711 --data-parallel-size 2 --dtype half --x 1 --revision r"
    )


def test_the_body_limit_comes_from_the_environment() -> None:
    server = ServerConfig(keep_alive_timeout=0.0, send_timeout=7.0)
    made = http_config(server, {"VLLM_HTTP_MAX_REQUEST_BODY_SIZE": "99"})

    assert made.max_body_bytes == 99
    assert (made.keep_alive_timeout, made.send_timeout) == (0.0, 7.0)
    assert made.tls is None
    assert http_config(server, {}).max_body_bytes == 32 * 1024 * 1024


def test_certificates_reach_the_server() -> None:
    made = http_config(ServerConfig(tls=TlsConfig(certfile="c", keyfile="k", cert_reqs=2)), {})

    assert made.tls is not None
    assert (made.tls.certfile, made.tls.keyfile, made.tls.cert_reqs) == ("c", "k", 2)


@pytest.mark.parametrize("text", ["x", "-1", "1.5"])
def test_a_body_limit_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="VLLM_HTTP_MAX_REQUEST_BODY_SIZE"):
        http_config(ServerConfig(), {"VLLM_HTTP_MAX_REQUEST_BODY_SIZE": text})


def test_an_operators_template_is_a_file_or_a_template(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}\n")

    assert _operators_template(str(file)) == "{{ messages }}"
    assert _operators_template("{{ x }}") == "{{ x }}"
    assert _operators_template("{{ x }}" * 1000) == "{{ x }}" * 1000
    with pytest.raises(ConfigurationError, match="there is no such file"):
        _operators_template("nothing.jinja")


async def test_a_slot_that_is_empty_or_closed_says_why() -> None:
    slot = DrainingSlot()
    with pytest.raises(Exception, match="LOADING"):
        slot.require()
    slot.close()
    with pytest.raises(Exception, match="shutting down"):
        slot.require()


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (EngineConfig(data_parallel_size=0), "--data-parallel-size must be at least 1"),
        (EngineConfig(data_parallel_size_local=2), "--data-parallel-size-local 2 exceeds"),
    ],
)
def test_engines_that_make_no_sense_are_refused(engine: EngineConfig, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        attrs.evolve(config(), engine=engine).check()


def test_of_several_errors_the_first_is_raised_and_names_the_others() -> None:
    first, second = EngineDied("engine 0 is gone"), ConfigurationError("no certificate")
    with pytest.raises(EngineDied) as caught, one_error():
        raise ExceptionGroup("", [ExceptionGroup("", [first]), second])

    assert caught.value is first
    assert first.__notes__ == ["besides: no certificate"]


def test_a_bug_among_errors_is_not_hidden() -> None:
    group = ExceptionGroup("", [EngineDied("gone"), KeyError("bug")])
    with pytest.RaisesGroup(EngineDied, KeyError), one_error():
        raise group


def test_tls_options_need_a_certificate() -> None:
    with pytest.raises(ConfigurationError, match="--ssl-certfile is required"):
        config(server=ServerConfig(tls=TlsConfig(ciphers="x"))).check()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (EngineConfig(stall_restart=30.0), "30 must not be below --engine-stall-timeout 60"),
        (EngineConfig(stall_restart=90.0, data_parallel_size_local=0), "remove the option"),
        (
            EngineConfig(restart=RestartConfig(intensity=RestartIntensity(100, 60.0))),
            "--engine-restart-intensity 100/60, .* do not go together",
        ),
    ],
)
def test_options_about_engines_must_fit_together(settings: EngineConfig, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        config(engine=settings).check()
