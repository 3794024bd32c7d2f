"""Whether a constraint can be compiled at all, as far as that is known without the engine.

The engines' grammar libraries differ in what they know, so only what every one of them refuses is
refused here: broken brackets in a regular expression, types that JSON schema has not. Where
llguidance is the engine's backend and is installed here as well, it has the last word.
"""

import functools
import importlib
import importlib.util
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import trio

from vllmfront.engine import StructuredOutputs
from vllmfront.errors import RequestRejected

_FATAL_IN_REGEX = (
    "missing ), unterminated subpattern",
    "unbalanced parenthesis",
    "unterminated character set",
    "nothing to repeat",
    "min repeat greater than max repeat",
)
"""Faults of which no dialect makes sense, unlike those of names, escapes and classes."""

_LONGEST_REGEX = 8192
"""Characters up to which a regular expression is parsed here."""

_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
_HOLD_SCHEMA = ("items", "additionalProperties", "contains", "not", "if", "then", "else")
_HOLD_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_HOLD_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LONGEST_GRAMMAR = 100_000
"""Characters up to which a constraint is compiled here; a schema of that takes 0.3 seconds, and
twice as long a one four times as much."""

CHECK_SECONDS = 2.0
"""Until a constraint is left to the engine."""


def regex_fault(pattern: str) -> str | None:
    """Return why no engine can compile *pattern*, or None."""
    if len(pattern) > _LONGEST_REGEX:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what Python may change, not the client's concern
        try:
            re.compile(pattern)
        except re.error as error:
            # An empty class is a broken one in Python alone.
            if error.msg.startswith(_FATAL_IN_REGEX) and not re.search(r"\[\^?\]", pattern):
                return str(error)
        except (RecursionError, OverflowError):
            pass
    return None


def schema_fault(schema: Any) -> str | None:
    """Return which type in a JSON schema does not exist, or None."""
    try:
        return next(_unknown_types(schema), None)
    except RecursionError:
        return "nested too deeply"


def _unknown_types(schema: Any) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    wanted = schema.get("type", ())
    for name in wanted if isinstance(wanted, list | tuple) else (wanted,):
        if not isinstance(name, str) or name not in _TYPES:
            yield f"unknown type {name!r}"
    for key in _HOLD_SCHEMA:
        yield from _unknown_types(schema.get(key))
    for key in _HOLD_SCHEMAS:
        members = schema.get(key)
        for member in members if isinstance(members, list) else ():
            yield from _unknown_types(member)
    for key in _HOLD_NAMED:
        named = schema.get(key)
        for member in named.values() if isinstance(named, Mapping) else ():
            yield from _unknown_types(member)


def can_check_grammar(constraint: StructuredOutputs) -> bool:
    """Whether ``check_grammar`` has anything to say."""
    return (
        constraint.backend == "guidance"
        and not constraint.json_object  # the library's own
        and constraint.choice is None
        and constraint.structural_tag is None
        and importlib.util.find_spec("llguidance") is not None
    )


class GrammarChecker:
    """Compiles constraints as the engine will, where the same library is installed here.

    It works in a thread. What is too long, or has not compiled in time, is left to the engine,
    which compiles without holding anybody up.
    """

    def __init__(self, seconds: float = CHECK_SECONDS) -> None:
        self._seconds = seconds
        self._limiter = trio.CapacityLimiter(1)  # a thread cannot be stopped, so one may be lost

    async def check(self, constraint: StructuredOutputs, *, param: str) -> None:
        """Return once *constraint*, of the request's field *param*, has compiled, or given up.

        Cancelled, it returns at once; the thread goes on to its end, and its result is dropped.

        Raises:
            RequestRejected: The library refuses it, in the library's words.
        """
        if not can_check_grammar(constraint):
            return
        fault = None
        with trio.move_on_after(self._seconds):
            fault = await trio.to_thread.run_sync(
                grammar_fault, constraint, abandon_on_cancel=True, limiter=self._limiter
            )
        if fault is not None:
            raise RequestRejected(f"Grammar error: {fault}", param=param)


def grammar_fault(constraint: StructuredOutputs) -> str | None:
    """Return why llguidance cannot compile *constraint*, or None; may take long."""
    flexible = not constraint.disable_any_whitespace
    if constraint.json is not None:
        schema = constraint.json
        text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
        kind = "json"
    elif constraint.regex is not None:
        kind, text = "regex", constraint.regex
    else:
        kind, text = "grammar", constraint.grammar or ""
    # Before the cache, which would keep what is too long.
    return None if len(text) > _LONGEST_GRAMMAR else _compile_fault(kind, text, flexible)


@functools.lru_cache(maxsize=64)  # clients send the same few again and again
def _compile_fault(kind: str, text: str, flexible_whitespace: bool) -> str | None:
    library = importlib.import_module("llguidance")
    try:
        if kind == "json":
            grammar = library.LLMatcher.grammar_from_json_schema(
                text, defaults={"whitespace_flexible": flexible_whitespace}
            )
        else:
            grammar = library.grammar_from(kind, text)
    except (ValueError, TypeError) as error:
        return str(error)
    fault: str = library.LLMatcher.validate_grammar(grammar)
    return fault or None
