"""What one rendering may cost.

Steps count template nodes: each turn of a loop and each call of a macro pays for the nodes of
its body, so a template's work is bounded without looking at the clock. Templates that come
with a request are bounded in three more ways: by the characters they make in total, by the
size and depth of any one value, and by processor time, because one step over a long string
can be a thousand times dearer than one over a short one.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import GeneratorType
from typing import Any, TypeVar

import attrs

from vllmfront.environment import whole_number

_T = TypeVar("_T")

DEFAULT_FUEL = 500_000
"""Steps of a rendering, if ``VLLM_CHAT_TEMPLATE_FUEL`` does not say otherwise."""

_STEPS_PER_ITEM = 5_000
"""Steps that each message, tool and document adds: a long conversation is not the template's
fault. Real templates spend 50 to 500."""

_CHARACTERS = 8 << 20
_CHARACTERS_PER_INPUT = 16
_CHARACTERS_PER_ITEM = 8 << 10
"""Characters that a request's template may make in all: real ones copy each text a few times,
and grow lists of messages by adding to them."""

_LARGEST = 1 << 20
_LARGEST_PER_INPUT = 4
_LARGEST_FOR_INPUT = 40 << 20
"""Characters in one value, counted through nested containers: a few times the input, and in no
case much more than the longest input there can be."""

_CPU_SECONDS = 5.0
_CLOCK_EVERY = 16
"""Steps between two looks at the clock."""

_MAX_DEPTH = 160
"""Containers in containers; hashing and comparing recurse in C."""

_MAX_INT_BITS = 4096

_CONTAINERS = (
    list | tuple | dict | set | frozenset | type({}.keys()) | type({}.values()) | type({}.items())
)


class BudgetExceeded(Exception):
    """Raised inside a template that wants more than its budget."""


@attrs.define
class Budget:
    """The steps that are left; the bounds of trusted templates."""

    steps: int

    def spend(self, steps: int) -> None:
        """Pay for *steps*.

        Raises:
            BudgetExceeded: None are left.
        """
        self.steps -= steps
        if self.steps < 0:
            raise BudgetExceeded("the template ran out of fuel: it takes too many steps")


@attrs.define
class MeteredBudget(Budget):
    """The bounds of templates that nobody has vouched for."""

    characters: int
    largest: int
    deadline: float
    """In seconds of this thread's processor time."""

    _spends: int = 0

    def spend(self, steps: int) -> None:
        Budget.spend(self, steps)
        self._spends += 1
        if self._spends % _CLOCK_EVERY == 0 and time.thread_time() > self.deadline:
            raise BudgetExceeded("the template takes too much time")

    def charge(self, characters: int) -> None:
        """Pay for a value of so many characters, before it is made where that is possible."""
        if characters > self.largest:
            raise BudgetExceeded("the template makes a value that is too large")
        self.characters -= characters
        if self.characters < 0:
            raise BudgetExceeded("the template makes too much text")

    def weigh(self, value: Any) -> int:
        """Return the size of *value* in characters, about, refusing huge and deep ones.

        A value that is held in two places counts twice: what prints, hashes and compares
        walks through both.
        """
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, int):
            if value.bit_length() > _MAX_INT_BITS:
                raise BudgetExceeded("the template makes a number that is too large")
            return 8
        if isinstance(value, range):
            return 8 * len(value)
        return _weight(value, self.largest) if isinstance(value, _CONTAINERS) else 8

    def take(self, value: _T, per_item: int = 64) -> _T:
        """Account for a value that was just made, and return it.

        Generators come back wrapped: each item they give costs a step.
        """
        if isinstance(value, str | bytes):
            self.charge(len(value))
        elif isinstance(value, GeneratorType):
            return self._stepping(value)  # type: ignore[return-value]
        elif isinstance(value, _CONTAINERS):
            self.weigh(value)
            self.charge(per_item * len(value))
        elif isinstance(value, int):
            self.weigh(value)
        return value

    def _stepping(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(1)
            yield item


def _weight(value: Any, largest: float) -> int:
    total = 0
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > _MAX_DEPTH:
            raise BudgetExceeded("the template nests values too deeply")
        total += 8
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, dict):
            stack.extend((member, depth + 1) for pair in item.items() for member in pair)
        elif isinstance(item, _CONTAINERS):
            stack.extend((member, depth + 1) for member in item)
        if total + 8 * len(stack) > largest:
            raise BudgetExceeded("the template makes a value that is too large")
    return total


def budget_for(fuel: int, items: int) -> Budget:
    """Return the bounds of an operator's template, for so many messages and tools."""
    return Budget(fuel + _STEPS_PER_ITEM * items)


def metered_budget_for(fuel: int, items: int, given: Any) -> MeteredBudget:
    """Return the bounds of a request's template that is *given* these variables.

    Raises:
        BudgetExceeded: They are nested too deeply.
    """
    characters = _weight(given, math.inf)
    return MeteredBudget(
        steps=fuel + _STEPS_PER_ITEM * items,
        characters=(
            _CHARACTERS + _CHARACTERS_PER_INPUT * characters + _CHARACTERS_PER_ITEM * items
        ),
        largest=_LARGEST + min(_LARGEST_PER_INPUT * characters, _LARGEST_FOR_INPUT),
        deadline=time.thread_time() + _CPU_SECONDS,
    )


def fuel_from_environment(environ: Mapping[str, str]) -> int:
    """Return ``VLLM_CHAT_TEMPLATE_FUEL``, or the default.

    Raises:
        ConfigurationError: It is no positive number.
    """
    return whole_number(environ, "VLLM_CHAT_TEMPLATE_FUEL", DEFAULT_FUEL, low=1)


current_budget: ContextVar[Budget] = ContextVar("current_budget")
"""Set for the time of one compilation or rendering, which never leaves its thread."""


def metered() -> MeteredBudget:
    """Return the budget of the request's template that is at work."""
    budget = current_budget.get()
    assert isinstance(budget, MeteredBudget)
    return budget
