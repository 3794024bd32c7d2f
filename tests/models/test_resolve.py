"""Finding a model's files. The hub is a fake with the real one's errors."""

import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
import trio
from huggingface_hub import errors

from vllmfront.errors import ConfigurationError
from vllmfront.models import resolve_model

TINY_CHAT = Path(__file__).parent.parent / "data" / "tiny-chat"


class FakeHub:
    """Holds repositories as folders; a cached one is found without asking."""

    def __init__(self, root: Path) -> None:
        self.remote = root / "remote"
        self.cache = root / "cache"
        self.calls: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def publish(self, name: str, source: Path) -> None:
        shutil.copytree(source, self.remote / name)

    def snapshot_download(self, name: str, **options: Any) -> str:
        if name.count("/") > 1:
            raise errors.HFValidationError(f"{name!r} is no repository id")
        self.calls.append({"name": name, **options})
        cached = self.cache / name
        if options.get("local_files_only"):
            if not cached.exists():
                raise errors.LocalEntryNotFoundError("not cached")
            return str(cached)
        self.gate.wait(5)
        if self.failure is not None:
            raise self.failure
        cached.mkdir(parents=True, exist_ok=True)
        for pattern in options["allow_patterns"]:
            for path in (self.remote / name).glob(pattern):
                shutil.copy(path, cached / path.name)
        return str(cached)

    @property
    def downloads(self) -> list[dict[str, Any]]:
        return [call for call in self.calls if not call.get("local_files_only")]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


async def test_a_folder_needs_no_hub(hub: FakeHub) -> None:
    files = await resolve_model(str(TINY_CHAT))

    assert files.root == files.tokenizer_root == TINY_CHAT
    assert files.tokenizer == TINY_CHAT / "tokenizer.json"
    assert hub.calls == []


async def test_the_hub_is_asked_for_no_weights(hub: FakeHub) -> None:
    hub.publish("org/tiny", TINY_CHAT)

    files = await resolve_model("org/tiny", revision="v1", token="secret")

    assert files.name == "org/tiny"
    assert files.config is not None
    assert files.tokenizer is not None
    assert files.chat_template is not None
    assert not list(files.root.glob("*.safetensors"))
    assert [(c["revision"], c["token"]) for c in hub.downloads] == [("v1", "secret")]


async def test_what_is_cached_is_not_downloaded(hub: FakeHub) -> None:
    hub.publish("org/tiny", TINY_CHAT)
    await resolve_model("org/tiny")

    await resolve_model("org/tiny")

    assert len(hub.downloads) == 1


async def test_a_cache_without_a_tokenizer_is_completed(hub: FakeHub) -> None:
    hub.publish("org/tiny", TINY_CHAT)
    (hub.cache / "org/tiny").mkdir(parents=True)
    (hub.cache / "org/tiny/config.json").write_text("{}")

    files = await resolve_model("org/tiny")

    assert files.tokenizer is not None


async def test_tokenizer_and_config_may_come_from_elsewhere(hub: FakeHub, tmp_path: Path) -> None:
    hub.publish("org/tiny", TINY_CHAT)
    config = tmp_path / "config"
    config.mkdir()
    (config / "config.json").write_text("{}")

    files = await resolve_model(
        str(tmp_path), tokenizer="org/tiny", revision="v1", hf_config_path=str(config)
    )

    assert files.root == tmp_path
    assert files.tokenizer == hub.cache / "org/tiny/tokenizer.json"
    assert files.config == config / "config.json"
    assert hub.downloads[0]["revision"] == "v1"


async def test_a_tokenizer_revision_of_its_own(hub: FakeHub) -> None:
    hub.publish("org/tiny", TINY_CHAT)

    await resolve_model("org/tiny", revision="v1", tokenizer_revision="v2")

    assert [call["revision"] for call in hub.calls if call.get("local_files_only")] == ["v1", "v2"]


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/model"])
async def test_a_folder_that_is_not_there(hub: FakeHub, name: str) -> None:
    with pytest.raises(ConfigurationError, match="no such folder"):
        await resolve_model(name)

    assert hub.calls == []


async def test_a_file_is_no_folder(hub: FakeHub) -> None:
    del hub
    with pytest.raises(ConfigurationError, match="is a file"):
        await resolve_model(str(TINY_CHAT / "config.json"))


async def test_a_name_that_is_no_hub_id(hub: FakeHub) -> None:
    del hub
    with pytest.raises(ConfigurationError, match="neither a folder nor a valid hub id"):
        await resolve_model("a/b/c")


def _response(status: int) -> Any:
    """The hub's library wants one of its own HTTP library, whichever that is."""
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.example"))


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (errors.RepositoryNotFoundError("x", response=_response(404)), "no such model on the hub"),
        (errors.GatedRepoError("x", response=_response(403)), "gated"),
        (errors.RevisionNotFoundError("x", response=_response(404)), "no revision 'v1'"),
        (errors.LocalEntryNotFoundError("x"), "offline"),
        (errors.HfHubHTTPError("x", response=_response(500)), "cannot be fetched"),
        (OSError("disk full"), "disk full"),
        (RuntimeError("handshake failed"), "handshake failed"),
    ],
)
async def test_what_the_hub_refuses(hub: FakeHub, failure: Exception, told: str) -> None:
    hub.failure = failure

    with pytest.raises(ConfigurationError, match=told) as caught:
        await resolve_model("org/tiny", revision="v1")

    assert "org/tiny" in str(caught.value)


async def test_a_download_can_be_left(hub: FakeHub) -> None:
    hub.publish("org/tiny", TINY_CHAT)
    hub.gate.clear()

    with trio.move_on_after(0.02) as scope:
        await resolve_model("org/tiny")
    hub.gate.set()

    assert scope.cancelled_caught
