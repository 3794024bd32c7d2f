"""Compiled templates."""

import functools
from collections.abc import Mapping
from types import TracebackType
from typing import Any

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
from vllmfront.chat._content_format import ContentFormat
from vllmfront.chat._environment import ChatEnvironment, describe
from vllmfront.chat._errors import TemplateFailed
from vllmfront.chat._format_detection import detect_content_format
from vllmfront.chat._metered import MeteredEnvironment
from vllmfront.errors import RequestRejected

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
        with _failing_by_name():
            budget = (
                metered_budget_for(fuel, items, variables)
                if self.metered
                else budget_for(fuel, items)
            )
            token = current_budget.set(budget)
            try:
                return self._print(variables)
            finally:
                current_budget.reset(token)

    def _print(self, variables: Mapping[str, Any]) -> str:
        template = self._compiled
        # As ``Template.render`` does, but that the globals are copied once, and not thrice.
        context = template.new_context({**template.globals, **variables}, shared=True)
        try:
            return "".join(template.root_render_func(context))
        except Exception:  # noqa: BLE001 (Jinja makes it name the line, and raises it again)
            template.environment.handle_exception()


def compile_template(source: str) -> ChatTemplate:
    """Compile the template of a model or an operator.

    Raises:
        TemplateFailed: It is no valid template.
    """
    with _failing_by_name():
        return _compile(_trusted_environment(), source, budget_for(DEFAULT_FUEL, 0), metered=False)


@functools.lru_cache(maxsize=_CACHED_REQUEST_TEMPLATES)
def compile_request_template(source: str) -> ChatTemplate:
    """Compile a template that came with a request, or find it compiled.

    Raises:
        TemplateFailed: It is no valid template, or it is too long.
    """
    with _failing_by_name():
        budget = metered_budget_for(DEFAULT_FUEL, 0, {})
        return _compile(_metered_environment(), source, budget, metered=True)


@functools.cache
def _trusted_environment() -> ChatEnvironment:
    return ChatEnvironment()


@functools.cache
def _metered_environment() -> MeteredEnvironment:
    return MeteredEnvironment()


def _compile(
    environment: ChatEnvironment, source: str, budget: Budget, *, metered: bool
) -> ChatTemplate:
    token = current_budget.set(budget)
    try:
        parsed = environment.parse(source)
        content_format = detect_content_format(parsed)
        code = environment.compile(parsed)
    finally:
        current_budget.reset(token)
    # A plain dict: Jinja copies the globals for every rendering, and is given a chain of maps.
    variables = dict(environment.make_globals(None))
    compiled = jinja2.Template.from_code(environment, code, variables)
    return ChatTemplate(compiled, content_format, metered)


class _failing_by_name:  # noqa: N801 (used as a function; a generator costs each chat 2 us)
    """Turns what a template's text makes Jinja raise, from TypeError to MemoryError, into ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, RequestRejected) or not isinstance(error, Exception):
            return
        what = "" if isinstance(error, BudgetExceeded) else "failed to render jinja template: "
        raise TemplateFailed(f"chat template error: {what}{describe(error)}") from error
