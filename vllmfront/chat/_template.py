"""Compiled templates."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import jinja2

from vllmfront.chat._budget import (
    DEFAULT_FUEL,
    Budget,
    BudgetExceeded,
    budget_for,
    current_budget,
    metered_budget_for,
)
from vllmfront.chat._content_format import ContentFormat, detect_content_format
from vllmfront.chat._environment import ChatEnvironment, describe
from vllmfront.chat._errors import TemplateFailed
from vllmfront.chat._metered import MeteredEnvironment
from vllmfront.errors import RequestRejected

_T = TypeVar("_T")

_CACHED_REQUEST_TEMPLATES = 32
"""Clients that send a template send the same one again and again."""


@attrs.frozen
class ChatTemplate:
    """A template ready to run; it may run in several threads at once."""

    _compiled: jinja2.Template
    content_format: ContentFormat
    """What the text of the template asks for: never AUTO."""

    metered: bool
    """Whether it came with a request and is bounded in all ways."""

    def render(self, variables: Mapping[str, Any], *, fuel: int, items: int) -> str:
        """Print the template.

        Args:
            variables: What the template sees.
            fuel: Steps that it may take, apart from those that the items add.
            items: How many messages, tools and documents there are.

        Raises:
            RequestRejected: The template called ``raise_exception``.
            TemplateFailed: It failed in another way, or exceeded its budget.
        """

        def budget() -> Budget:
            if self.metered:
                return metered_budget_for(fuel, items, variables)
            return budget_for(fuel, items)

        return _within(budget, lambda: self._compiled.render(variables))


def compile_template(source: str) -> ChatTemplate:
    """Compile the template of a model or an operator.

    Raises:
        TemplateFailed: It is no valid template.
    """
    return _within(
        lambda: budget_for(DEFAULT_FUEL, 0),
        lambda: _compile(_trusted_environment(), source, metered=False),
    )


@functools.lru_cache(maxsize=_CACHED_REQUEST_TEMPLATES)
def compile_request_template(source: str) -> ChatTemplate:
    """Compile a template that came with a request, or find it compiled.

    Raises:
        TemplateFailed: It is no valid template, or it is too long.
    """
    return _within(
        lambda: metered_budget_for(DEFAULT_FUEL, 0, {}),
        lambda: _compile(_metered_environment(), source, metered=True),
    )


@functools.cache
def _trusted_environment() -> ChatEnvironment:
    return ChatEnvironment()


@functools.cache
def _metered_environment() -> MeteredEnvironment:
    return MeteredEnvironment()


def _compile(environment: ChatEnvironment, source: str, *, metered: bool) -> ChatTemplate:
    parsed = environment.parse(source)
    content_format = detect_content_format(parsed)
    code = environment.compile(parsed)
    # A plain dict: Jinja copies the globals for every rendering, and is given a chain of maps.
    variables = dict(environment.make_globals(None))
    compiled = jinja2.Template.from_code(environment, code, variables)
    return ChatTemplate(compiled, content_format, metered)


def _within(budget: Callable[[], Budget], work: Callable[[], _T]) -> _T:
    token = None
    try:
        token = current_budget.set(budget())
        return work()
    except RequestRejected:
        raise
    # A template's text decides what is raised here: anything from TypeError to MemoryError.
    except Exception as error:
        kind = "" if isinstance(error, BudgetExceeded) else "failed to render jinja template: "
        raise TemplateFailed(f"chat template error: {kind}{describe(error)}") from error
    finally:
        if token is not None:
            current_budget.reset(token)
