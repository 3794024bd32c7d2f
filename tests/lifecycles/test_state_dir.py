"""Where engines are kept for the next start."""

import socket
from pathlib import Path

import pytest

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles import EngineConfig
from vllmfront.lifecycles._state_dir import default_folder, engine_state_file

EXTERNAL = EngineConfig(data_parallel_size_local=0, handshake_port=29550, host="10.0.0.1")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"STATE_DIRECTORY": "/var/lib/x:/var/lib/y", "HOME": "/home/me"}, "/var/lib/x"),
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/me"}, "/state/vllmfront"),
        ({"XDG_STATE_HOME": "state", "HOME": "/home/me"}, "/home/me/.local/state/vllmfront"),
        ({"HOME": "/home/me"}, "/home/me/.local/state/vllmfront"),
    ],
)
def test_the_usual_folder_is_the_one_of_the_service_or_of_the_user(
    environ: dict[str, str], folder: str
) -> None:
    assert default_folder(environ) == Path(folder)


def test_each_address_has_a_file_of_its_own(tmp_path: Path) -> None:
    environ = {"STATE_DIRECTORY": str(tmp_path / "a")}
    host = socket.gethostname()

    assert engine_state_file(EXTERNAL, environ) == (
        tmp_path / "a" / f"engines-{host}-10.0.0.1-29550.json"
    )
    ours = EngineConfig(
        data_parallel_size_local=0, handshake_port=1, host="::1", state_dir=str(tmp_path)
    )
    assert engine_state_file(ours, environ) == tmp_path / "engines-__1-1.json"


def test_engines_that_would_not_be_found_are_not_kept() -> None:
    assert engine_state_file(EngineConfig(handshake_port=29550), {"HOME": "/"}) is None
    assert engine_state_file(EngineConfig(data_parallel_size_local=0), {"HOME": "/"}) is None


def test_a_usual_folder_that_is_of_no_use_costs_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()

    assert engine_state_file(EXTERNAL, {"STATE_DIRECTORY": str(tmp_path / "file" / "x")}) is None
    assert "--state-dir" in caplog.text


@pytest.mark.parametrize("fields", [{"data_parallel_size_local": 0}, {"handshake_port": 29550}])
def test_naming_a_folder_for_nothing_is_refused(fields: dict[str, int]) -> None:
    config = EngineConfig(state_dir="/x", **fields)  # type: ignore[arg-type] # numbers

    with pytest.raises(ConfigurationError, match="--state-dir keeps engines"):
        config.check()
