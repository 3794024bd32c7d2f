"""The Jinja environment that model templates are written for.

Templates are made with Hugging Face's environment in mind: an immutable sandbox with trimmed
blocks, loop controls, a ``generation`` tag, ``raise_exception``, ``strftime_now`` and a
``tojson`` that escapes no HTML.
"""

import datetime as dt
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllmfront.chat._budget import current_budget
from vllmfront.chat._codegen import SteppingGenerator, insert_steps
from vllmfront.errors import RequestRejected

_DICT_ATTRIBUTES = frozenset(dir(dict))


class _GenerationTag(Extension):
    """``{% generation %}`` marks what an assistant wrote, for training; it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own protocol

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body, lineno=line)]


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs the templates of models and operators, counting their steps."""

    code_generator_class = SteppingGenerator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols", "jinja2.ext.do"],
        )
        self.filters["tojson"] = to_json
        self.filters.update(_PEER_FILTERS)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return insert_steps(super()._parse(source, name, filename))

    def spend(self, steps: int) -> bool:
        """Pay for steps of the template at work; called from compiled templates."""
        current_budget.get().spend(steps)
        return True

    def getattr(self, obj: Any, attribute: str) -> Any:
        # Nearly all attributes are keys of messages: this spares a failed look at the class.
        if type(obj) is dict and attribute in obj and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute]
        return super().getattr(obj, attribute)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write *value* as JSON; the argument order is part of what templates rely on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


# Jinja has none of these; the peer's engine does, and templates may have been tried there.
_PEER_FILTERS: Mapping[str, Callable[..., Any]] = {
    "bool": bool,
    "chain": lambda *values: list(itertools.chain(*values)),
    "lines": lambda text: str(text).splitlines(),
    "split": lambda text, sep=None, maxsplit=-1: str(text).split(sep, maxsplit),
    "zip": lambda *values: list(zip(*values, strict=False)),
}


def _raise_exception(message: Any) -> None:
    raise RequestRejected(
        message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    )


def _strftime_now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form)


def describe(error: BaseException) -> str:
    """Say in one line what a template did wrong, and where."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"syntax error: {error.message} (in chat:{error.lineno})"
    line = _line_of(error)
    if isinstance(error, RecursionError):
        what = "it calls itself too deeply"
    else:
        what = f"{error}" or type(error).__name__
    return f"{what[:500]} (in chat:{line})" if line else what[:500]


def _line_of(error: BaseException) -> int | None:
    """Return the template line that an error came from; Jinja rewrites tracebacks to tell."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in _TEMPLATE_FILES:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


_TEMPLATE_FILES: Iterable[str] = ("<template>", "<unknown>")
