"""What one option of a subcommand is, as a frozen value."""

import enum
from collections.abc import Callable
from typing import Any

import attrs


class Arity(enum.Enum):
    """How many words follow an option."""

    ONE = enum.auto()
    SWITCH = enum.auto()  # none: present means true
    BOOL = enum.auto()  # none, true or false
    MANY = enum.auto()  # as many as there are
    REPEATED = enum.auto()  # one; the option may be given again


@attrs.frozen(kw_only=True)
class Flag:
    """An option that we serve."""

    name: str
    help: str
    target: str | None = None
    """Where the value goes, as ``section.field``; None: not in the configuration.

    The engine gets it all the same where it is one of the shared ones.
    """

    arity: Arity = Arity.ONE
    parse: Callable[[str], Any] = str
    metavar: str = ""
    env: str | None = None
    """Read when the option is not given; an empty variable counts as unset."""

    aliases: tuple[str, ...] = ()
    convert: Callable[[Any], Any] = lambda value: value
    """From what the words say to what the configuration holds."""

    @property
    def shown(self) -> str:
        """The option with its value, as messages name it."""
        metavar = f" <{self.metavar}>" if self.metavar else ""
        return f"{self.name}{metavar}"


@attrs.frozen(kw_only=True)
class Group:
    """Options that stand together in the help text."""

    title: str
    flags: tuple[Flag, ...]
