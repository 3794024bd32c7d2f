"""Words of ``serve`` to values: argparse, fed from the tables."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import attrs

from vllmfront.cli import _serve_flags as table
from vllmfront.cli import _unserved_flags as unserved
from vllmfront.cli._errors import UsageError
from vllmfront.cli._flag import Arity, Flag
from vllmfront.lifecycles import ModelConfig, ServeConfig

USAGE = "vllmfront serve MODEL [options] [-- ENGINE_ARGUMENTS...]"

_ADVICE = (
    "Remove this argument to continue.\n\nIf you intend it for the Python engine alone, put it "
    "after `--` (for example `-- {name}`); this frontend then ignores it completely."
)

_WORDS: Mapping[Arity, int | str | None] = {
    Arity.ONE: None,
    Arity.SWITCH: 0,
    Arity.BOOL: "?",
    Arity.MANY: "*",
    Arity.REPEATED: None,
}


@attrs.frozen
class Given:
    """What a command line says; nothing in here is a default."""

    values: Mapping[str, Any]
    """By option name; from the command line or the environment."""

    words: Mapping[str, str | None]
    """By option name: the word behind it on the command line, None for a switch."""

    ineffective: Sequence[str]
    debug: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Store(argparse.Action):
    """Read a value by its flag's own rules, once."""

    def __init__(self, *, flag: Flag, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.flag = flag

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        flag = self.flag
        found: dict[str, Any] = namespace.found
        if flag.arity is Arity.REPEATED:
            found[flag.name] = (*found.get(flag.name, ()), _read(flag, values))
            return
        if flag.name in found:
            raise UsageError(f"the argument '{flag.shown}' cannot be used multiple times")
        if flag.arity is Arity.MANY:
            found[flag.name] = tuple(_read(flag, word) for word in values)
            return
        # No word: a switch has an empty list, an optional value None.
        word = values or None if flag.arity is not Arity.ONE else values
        namespace.words[flag.name] = word
        found[flag.name] = _read(flag, "true" if word is None else word)


class _Reject(argparse.Action):
    """Refuse an option whatever its value is."""

    def __init__(self, *, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser, namespace, values
        raise rejection(option_string or self.option_strings[0], self.reason)


class _Ignore(argparse.Action):
    """Accept an option that has no effect, and remember it for a warning."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser, values
        namespace.ineffective.append(option_string)


def rejection(name: str, reason: str) -> UsageError:
    """Say that an option is not served, and what to do."""
    return UsageError(f"'{name}' is not served: {reason}\n\n{_ADVICE.format(name=name)}")


def parse(words: Sequence[str], environment: Mapping[str, str]) -> Given:
    """Read the words that are ours; what is not given is looked up in *environment*.

    Raises:
        UsageError: A word or variable makes no sense.
        SystemExit: The help text was asked for and has been printed.
    """
    space = argparse.Namespace(found={}, words={}, ineffective=[], debug_cli=False)
    _, stray = build_parser().parse_known_args(list(words), space)
    if stray:
        raise UsageError(f"unexpected argument '{stray[0]}' found")
    for flag in table.flags().values():
        text = environment.get(flag.env or "")
        if text and flag.name not in space.found:
            value = _read(flag, text)
            space.found[flag.name] = (value,) if flag.arity is Arity.REPEATED else value
    debug = space.debug_cli or _debug_variable(environment)
    return Given(space.found, space.words, tuple(space.ineffective), debug)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all options; the model is taken off before."""
    parser = _Parser(
        prog="vllmfront serve",
        usage=USAGE,
        add_help=True,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Serve a model through an OpenAI-compatible API: start a headless vLLM engine and\n"
            "answer for it. Options that are not listed go to the engine."
        ),
        epilog="not served (after `--` they reach the engine):\n"
        + _columns((*unserved.UNSERVED, *unserved.REJECTED))
        + "\n\naccepted without effect:\n"
        + _columns((*unserved.INEFFECTIVE, *unserved.PROBES)),
    )
    for group in table.GROUPS:
        section = parser.add_argument_group(group.title)
        for flag in group.flags:
            section.add_argument(
                flag.name,
                *flag.aliases,
                action=_Store,
                flag=flag,
                nargs=_WORDS[flag.arity],
                metavar=flag.metavar or ("BOOL" if flag.arity is Arity.BOOL else None),
                help=_help(flag),
            )
    parser.add_argument("--debug-cli", action="store_true", help=argparse.SUPPRESS)
    _add_unserved(parser)
    return parser


def _help(flag: Flag) -> str:
    text = flag.help
    if flag.env is not None:
        text += f" (env: {flag.env})"
    default = _default(flag)
    if default not in (None, (), {}) and not isinstance(default, bool):
        text += f" (default: {default})"
    return text.replace("%", "%%")


def _default(flag: Flag) -> object:
    value: object = ServeConfig(model=ModelConfig(model=""))
    for part in flag.target.split(".") if flag.target is not None else ():
        value = getattr(value, part)
    return None if flag.target is None else value


def _add_unserved(parser: argparse.ArgumentParser) -> None:
    """Know the options that we do not serve, without showing them one by one."""
    reasons = {
        name: f"{feature} is not part of this build yet"
        for name, feature in unserved.UNSERVED.items()
    }
    for name in unserved.REJECTED:
        reasons[name] = reasons[unserved.negated(name)] = "this frontend does not implement it"
    for name, reason in reasons.items():
        parser.add_argument(name, action=_Reject, reason=reason, nargs="*", help=argparse.SUPPRESS)
    for name in (*unserved.INEFFECTIVE, *unserved.PROBES):
        parser.add_argument(
            name, unserved.negated(name), action=_Ignore, nargs="?", help=argparse.SUPPRESS
        )


def _columns(names: Sequence[str]) -> str:
    lines, line = [], " "
    for name in sorted(names):
        if len(line) + len(name) > 78:  # noqa: PLR2004 - a terminal's usual width
            lines.append(line)
            line = " "
        line += f" {name}"
    return "\n".join([*lines, line])


def _read(flag: Flag, text: str) -> Any:
    if flag.arity in {Arity.SWITCH, Arity.BOOL}:
        return _boolean(flag, text)
    try:
        return flag.parse(text)
    except ValueError as exc:
        raise UsageError(f"invalid value '{text}' for '{flag.shown}': {exc}") from None


def _boolean(flag: Flag, text: str) -> bool:
    if text not in {"true", "false"}:
        raise UsageError(
            f"invalid value '{text}' for '{flag.shown}'\n  [possible values: true, false]"
        )
    return text == "true"


def _debug_variable(environment: Mapping[str, str]) -> bool:
    text = environment.get("VLLM_RS_DEBUG_CLI") or "false"
    return _boolean(Flag(name="--debug-cli", help=""), text)
