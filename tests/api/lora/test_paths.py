"""Which folders clients may name."""

from pathlib import Path

import pytest

from vllmfront.api.lora import AdapterPaths
from vllmfront.errors import ConfigurationError, RequestRejected


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    folder = tmp_path / "adapters"
    (folder / "sql").mkdir(parents=True)
    (tmp_path / "adapters-of-others").mkdir()
    (folder / "out").symlink_to("/etc")
    (tmp_path / "in").symlink_to(folder / "sql")
    return folder


def paths(*folders: object) -> AdapterPaths:
    text = ":".join(map(str, folders))
    return AdapterPaths.from_environment({"VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES": text})


def test_what_lies_below_a_prefix_is_allowed(allowed: Path) -> None:
    checked = paths("/usr/lib", allowed)

    for path in (allowed, allowed / "sql", f"{allowed}/sql/../sql", allowed.parent / "in"):
        checked.check(str(path))


@pytest.mark.parametrize("path", ["org/adapter", "adapter", "s3://bucket/a", "http://x/y"])
def test_what_is_no_local_path_goes_to_the_hub(path: str) -> None:
    paths().check(path)


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("{}/../adapters-of-others", "outside the configured allowed prefixes"),
        ("{}/out", "outside the configured allowed prefixes"),
        ("/etc", "outside the configured allowed prefixes"),
        ("{}/gone", "must exist and be accessible"),
        ("{}/a\0b", "must exist and be accessible"),
        ("./adapters", "must be absolute"),
        ("../adapters", "must be absolute"),
        ("~/adapters", "must be absolute"),
        ("tests", "must be absolute"),
    ],
)
def test_other_local_paths_are_refused(
    allowed: Path, path: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (allowed / "tests").mkdir()
    monkeypatch.chdir(allowed)

    with pytest.raises(RequestRejected, match=complaint) as caught:
        paths(allowed).check(path.format(allowed))
    assert caught.value.param == "lora_path"


def test_without_prefixes_no_local_path_is_allowed(allowed: Path) -> None:
    with pytest.raises(RequestRejected, match="require VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES"):
        paths().check(str(allowed))


def test_a_prefix_must_exist(allowed: Path) -> None:
    with pytest.raises(ConfigurationError, match="must exist and be accessible"):
        paths("/nowhere/at/all").check(str(allowed))
