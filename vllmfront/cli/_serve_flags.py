"""Every option that ``serve`` serves; the tables of each section are modules beside this one."""

from collections.abc import Mapping, Sequence

from vllmfront.cli import _unserved_flags
from vllmfront.cli._control_flags import CONTROL
from vllmfront.cli._flag import Flag
from vllmfront.cli._listen_flags import ENGINES, LISTENER
from vllmfront.cli._model_flags import DECODING, MODEL
from vllmfront.cli._parallel_flags import PARALLEL
from vllmfront.cli._request_flags import REQUESTS
from vllmfront.cli._restart_flags import RESTARTS
from vllmfront.cli._server_flags import SERVER, TLS

GROUPS = (LISTENER, ENGINES, PARALLEL, RESTARTS, MODEL, DECODING, REQUESTS, CONTROL, SERVER, TLS)

SHARED = (
    "--revision",
    "--tokenizer",
    "--tokenizer-revision",
    "--hf-config-path",
    "--max-model-len",
    "--max-logprobs",
    "--language-model-only",
    "--disable-log-stats",
    "--shutdown-timeout",
    "--limit-mm-per-prompt",
    "--hf-overrides",
    "--structured-outputs-config",
    "--profiler-config",
)
"""Options that the managed engine gets as well when they are given, in this order."""


def option_names() -> Sequence[str]:
    """List every option word that stays on our side, unserved ones included."""
    names = ["--help", "--debug-cli"]
    for group in GROUPS:
        for flag in group.flags:
            names += [flag.name, *flag.aliases]
    return [*names, *_unserved_flags.option_names()]


def flags() -> Mapping[str, Flag]:
    """Map each option that we serve to its description."""
    return {flag.name: flag for group in GROUPS for flag in group.flags}
