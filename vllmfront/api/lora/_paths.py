"""Which folders of this host clients may name as adapters."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from vllmfront.errors import ConfigurationError, RequestRejected

VARIABLE = "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES"
_PARAM = "lora_path"


@attrs.frozen
class AdapterPaths:
    """The folders below which local adapters may be; what is no local path goes to the hub."""

    prefixes: Sequence[str] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "AdapterPaths":
        """Read the folders, which are separated by colons."""
        return cls(tuple(one for one in environ.get(VARIABLE, "").split(os.pathsep) if one))

    def check(self, path: str) -> None:
        """Refuse a local path outside of all prefixes; touches the file system.

        Raises:
            RequestRejected: It is one.
            ConfigurationError: A prefix does not exist.
        """
        if not _is_local(path):
            return
        if not self.prefixes:
            raise RequestRejected(
                f"Local LoRA adapter paths require {VARIABLE} to be configured.", param=_PARAM
            )
        if not Path(path).is_absolute():
            raise RequestRejected(
                "Local LoRA adapter paths must be absolute and under one of the prefixes "
                f"configured by {VARIABLE}.",
                param=_PARAM,
            )
        roots = [_resolved_prefix(prefix) for prefix in self.prefixes]
        try:
            real = Path(path).resolve(strict=True)
        except (OSError, ValueError) as error:
            raise RequestRejected(
                "Local LoRA adapter path must exist and be accessible.", param=_PARAM
            ) from error
        if not any(real.is_relative_to(root) for root in roots):
            raise RequestRejected(
                "Local LoRA adapter path is outside the configured allowed prefixes.",
                param=_PARAM,
            )


def _is_local(path: str) -> bool:
    """Tell whether an engine would look for *path* on its host, and not on the hub."""
    if path.startswith(("/", ".", "~")):
        return True
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long, or no path at all
        return False


def _resolved_prefix(prefix: str) -> Path:
    try:
        return Path(prefix).resolve(strict=True)
    except OSError as error:
        raise ConfigurationError(
            f"configured {VARIABLE} path prefix must exist and be accessible"
        ) from error
