"""Whether a constraint can be compiled at all, as far as that is known without the engine.

The engines' grammar libraries differ in what they know, so only what every one of them refuses is
refused here: broken brackets in a regular expression, types that JSON schema has not. Where
llguidance is the engine's backend and is installed here as well, it has the last word.
"""

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
_LONG_GRAMMAR = 4096
"""Characters from which compiling may take milliseconds, and happens in a thread."""


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


def can_check_grammar(constraint: StructuredOutputs | None) -> bool:
    """Whether ``check_grammar`` has anything to say."""
    return (
        constraint is not None
        and constraint.backend == "guidance"
        and importlib.util.find_spec("llguidance") is not None
    )


async def check_grammar(constraint: StructuredOutputs | None) -> None:
    """Compile a constraint as the engine will, where the same library is installed here.

    Long ones are compiled in a worker thread.

    Raises:
        RequestRejected: The library refuses it, in the library's words.
    """
    if constraint is None or not can_check_grammar(constraint):
        return
    source = _grammar_source(constraint)
    if len(source) < _LONG_GRAMMAR:
        fault = _llguidance_fault(constraint, source)
    else:
        fault = await trio.to_thread.run_sync(
            _llguidance_fault, constraint, source, abandon_on_cancel=True
        )
    if fault:
        raise RequestRejected(f"Grammar error: {fault}", param="structured_outputs")


def _grammar_source(constraint: StructuredOutputs) -> str:
    """Return the constraint's text; empty for those that cannot be wrong."""
    if constraint.json is not None:
        schema = constraint.json
        return schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return constraint.regex or constraint.grammar or ""


def _llguidance_fault(constraint: StructuredOutputs, source: str) -> str | None:
    if not source:
        return None
    matcher = importlib.import_module("llguidance").LLMatcher
    try:
        if constraint.json is not None:
            flexible = not constraint.disable_any_whitespace
            grammar = matcher.grammar_from_json_schema(
                source, defaults={"whitespace_flexible": flexible}
            )
        elif constraint.regex is not None:
            grammar = matcher.grammar_from_regex(source)
        else:
            grammar = matcher.grammar_from_lark(source)
    except (ValueError, TypeError) as error:
        return str(error)
    fault: str = matcher.validate_grammar(grammar)
    return fault or None
