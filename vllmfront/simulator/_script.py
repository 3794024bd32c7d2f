"""What scripted requests say in place of the token source."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import cattrs
import msgspec
from cattrs.errors import ClassValidationError
from cattrs.gen import make_dict_structure_fn, override

from vllmfront.engine import EngineError, FinishReason
from vllmfront.errors import ConfigurationError


@attrs.frozen(kw_only=True)
class Act:
    """One thing that a scripted request does, in one step."""

    after: float = 0.0
    """Seconds of silence before it, beyond the step that it is due in."""

    tokens: Sequence[int] = ()
    """Said in one output, whatever the configured number of tokens an output is."""

    finish: int | None = None
    """The finish reason; numbers that no release knows are sent as they are."""

    stop_reason: int | str | None = None
    error: EngineError | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    raw: bytes | None = None
    """Sent as one frame of its own, before anything else of this act (hex in a file)."""

    silence: bool = False
    """Say nothing more, and stay among the running requests until aborted."""

    die: bool = False
    """Send the sentinel of a dead engine core, then nothing more."""

    vanish: bool = False
    """Close all sockets without a word, as a killed process does."""


@attrs.frozen(kw_only=True)
class Rule:
    """Which requests are scripted, and with what.

    Those that match all conditions; without conditions all requests.
    """

    prompt: Sequence[int] | None = None
    request_id: str | None = None
    """A regular expression that is searched in the engine's request id."""

    nth: int | None = None
    """The number of the request in order of arrival at this rank, from 0."""

    times: int | None = None
    """How many requests take this rule before it is spent; None: all that match."""

    tokens: Sequence[int] = ()
    """Said at the configured pace; after them come the acts."""

    acts: Sequence[Act] = ()

    def matches(self, request_id: str, prompt: Sequence[int], nth: int) -> bool:
        return (
            (self.prompt is None or list(self.prompt) == list(prompt))
            and (self.request_id is None or re.search(self.request_id, request_id) is not None)
            and (self.nth is None or self.nth == nth)
        )


@attrs.frozen(kw_only=True)
class Script:
    """Rules in order: the first that matches and is not spent counts."""

    rules: Sequence[Rule] = ()


def _finish(value: object, _: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    names = {reason.name.lower(): reason.value for reason in FinishReason}
    if isinstance(value, str) and value in names:
        return names[value]
    raise ValueError(f"finish must be a number or one of {', '.join(names)}, not {value!r}")


def _stop_reason(value: object, _: object) -> int | str | None:
    if value is None or isinstance(value, int | str):
        return value
    raise ValueError(f"stop_reason must be a number or a string, not {value!r}")


def _raw(value: object, _: object) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else bytes.fromhex(value)
    raise ValueError(f"raw must be hexadecimal digits, not {value!r}")


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    structure_act = make_dict_structure_fn(
        Act,
        converter,
        _cattrs_forbid_extra_keys=True,
        finish=override(struct_hook=_finish),
        stop_reason=override(struct_hook=_stop_reason),
        raw=override(struct_hook=_raw),
    )
    converter.register_structure_hook(Act, structure_act)
    return converter


def _reason(error: BaseException, wanted: type | None) -> str:
    # cattrs names the wanted type alone; the readers above say more.
    if type(error) is ValueError and error.args:
        return str(error)
    return cattrs.v.format_exception(error, wanted)


def load_script(path: Path) -> Script:
    """Read a script from a JSON file: ``{"rules": [{"prompt": [1, 2], "tokens": [3]}]}``.

    Raises:
        ConfigurationError: the file cannot be read, or does not say a script.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes())
        return _converter().structure(raw, Script)
    except OSError as error:
        raise ConfigurationError(f"cannot read the script {path}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"the script {path} is not JSON") from error
    except ClassValidationError as error:
        reasons = "; ".join(cattrs.transform_error(error, format_exception=_reason))
        raise ConfigurationError(f"the script {path} makes no sense: {reasons}") from error
