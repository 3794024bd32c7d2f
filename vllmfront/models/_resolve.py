"""From a model's name to its files: a local folder, else the hub's cache, else the hub."""

import functools
from pathlib import Path

import trio

from vllmfront.errors import ConfigurationError
from vllmfront.models._files import HUB_PATTERNS, ModelFiles, files_in_folder


async def resolve_model(
    name_or_path: str,
    *,
    revision: str | None = None,
    tokenizer: str | None = None,
    tokenizer_revision: str | None = None,
    hf_config_path: str | None = None,
    token: str | None = None,
) -> ModelFiles:
    """Find a model's files, downloading them from the hub where needed.

    Runs in a worker thread. Cancelled, it returns at once; a download in progress is left to
    end by itself and only fills the hub's cache.

    Args:
        name_or_path: A folder, or a hub id such as ``Qwen/Qwen3-0.6B``.
        revision: Branch, tag or commit on the hub.
        tokenizer: Folder or hub id to take tokenizer and templates from.
        tokenizer_revision: As *revision*; falls back to it.
        hf_config_path: Folder or hub id to take ``config.json`` from.
        token: Access token of the hub; None leaves it to ``HF_TOKEN`` and the stored login.

    Raises:
        ConfigurationError: There is no such model, or it cannot be fetched.
    """

    def find() -> ModelFiles:
        root = _folder(name_or_path, revision, token, flag="model")
        tokens = config = None
        if tokenizer is not None and tokenizer != name_or_path:
            tokens = _folder(tokenizer, tokenizer_revision or revision, token, flag="--tokenizer")
        elif tokenizer_revision is not None and tokenizer_revision != revision:
            tokens = _folder(name_or_path, tokenizer_revision, token, flag="--tokenizer-revision")
        if hf_config_path is not None:
            config = _folder(hf_config_path, revision, token, flag="--hf-config-path")
        return files_in_folder(name_or_path, root, tokenizer_root=tokens, config_root=config)

    return await trio.to_thread.run_sync(find, abandon_on_cancel=True)


def _folder(name: str, revision: str | None, token: str | None, *, flag: str) -> Path:
    path = Path(name)
    if path.is_dir():
        return path
    if path.is_file():
        raise ConfigurationError(f"{flag} {name!r} is a file; give the folder that holds it.")
    if path.is_absolute() or name.startswith((".", "~")):
        raise ConfigurationError(f"{flag} {name!r}: there is no such folder.")
    return _snapshot(name, revision, token, flag=flag)


def _snapshot(name: str, revision: str | None, token: str | None, *, flag: str) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    fetch = functools.partial(
        huggingface_hub.snapshot_download,
        name,
        revision=revision,
        token=token,
        allow_patterns=list(HUB_PATTERNS),
    )
    try:
        cached = Path(fetch(local_files_only=True))
        if _is_complete(cached):
            return cached
    except (errors.LocalEntryNotFoundError, errors.HFValidationError):
        pass  # asking the hub below gives the better message
    try:
        return Path(fetch())
    except errors.HFValidationError as error:
        raise ConfigurationError(
            f"{flag} {name!r} is neither a folder nor a valid hub id: {error}"
        ) from error
    except errors.GatedRepoError as error:
        raise ConfigurationError(
            f"{flag} {name!r} is gated on the hub: accept its terms there and set HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigurationError(f"{flag} {name!r} has no revision {revision!r}.") from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigurationError(
            f"{flag} {name!r}: no such folder and no such model on the hub"
            " (if it is private, set HF_TOKEN)."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ConfigurationError(
            f"{flag} {name!r} is not in the hub's cache and the hub cannot be asked"
            f" (offline mode, or no connection): {error}"
        ) from error
    except Exception as error:  # of the hub's HTTP library, whichever that is, or of the disk
        raise ConfigurationError(f"{flag} {name!r} cannot be fetched: {error}") from error


def _is_complete(folder: Path) -> bool:
    """Whether a cached snapshot has what a frontend cannot do without."""
    files = files_in_folder("", folder)
    return (
        files.config is not None and (files.tokenizer or files.tekken or files.tiktoken) is not None
    )
