"""Constraints on the text are checked here, not obeyed: a simulated engine has no grammar."""

import json
import re

from vllmfront.engine import StructuredOutputs


def constraint_fault(constraint: StructuredOutputs) -> str | None:
    """Return why an engine refuses *constraint*, as its ``validation_error`` says it, or None."""
    if not constraint.backend:
        return "Invalid structured outputs: no backend"
    try:
        if isinstance(constraint.json, str):
            json.loads(constraint.json)
        if constraint.structural_tag is not None:
            json.loads(constraint.structural_tag)
        if constraint.regex is not None:
            re.compile(constraint.regex)
    except (ValueError, re.error, RecursionError, OverflowError) as error:
        return f"Invalid structured outputs: {error}"
    grammar = constraint.grammar
    if grammar is not None and (
        "::=" not in grammar or any(not body.strip() for body in grammar.split("::=")[1:])
    ):
        return "Invalid structured outputs: EBNF parser error: a rule without a body"
    return None
