"""The environment for templates that come with a request: the same language, on a budget.

Everything a template can do that makes a value, or walks through one, passes through here and
is paid for, where possible before it is done. What cannot be bounded that way is missing.
"""

import re
from collections.abc import Callable, Iterable
from functools import wraps
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedFormatter
from jinja2.utils import Namespace, pass_eval_context

from vllmfront.chat._budget import BudgetExceeded, MeteredBudget, metered
from vllmfront.chat._codegen import MeteringGenerator, count_nodes
from vllmfront.chat._environment import ChatEnvironment
from vllmfront.chat._guards import FILTER_GUARDS, METHOD_GUARDS, METHODS, guard_pairs, guard_percent

_UNBOUNDED_FILTERS = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters whose cost can grow with the square of a text, or that follow no rule we could
charge by; no chat template is known to use one."""

_UNBOUNDED_GLOBALS = ("lipsum",)

_MAX_SOURCE = 64 << 10
"""Characters of a template: four times the longest that models are known to come with."""

_MAX_NODES = 12_000
"""Nodes of a parsed template, as above: compiling takes about 100 us and 5 kB for each."""

_COMPILERS_KEYWORDS = ("_loop_vars", "_block_vars")
"""What generated code adds to each call in a loop or block."""

_ITEM = 8
"""Bytes for an entry of a list whose members are not new."""


class MeteredEnvironment(ChatEnvironment):
    """Compiles and runs templates that nobody has vouched for."""

    code_generator_class = MeteringGenerator
    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self) -> None:
        super().__init__()
        # Constant expressions are not to be evaluated ahead of time: the budget could not say
        # where, and a finalizer that wants the context is what stops the compiler from it.
        self.optimized = False
        self.finalize = _print
        for name in _UNBOUNDED_FILTERS:
            del self.filters[name]
        for name in _UNBOUNDED_GLOBALS:
            del self.globals[name]
        self.globals["namespace"] = _Namespace
        self.filters = {
            name: _metered_filter(name, function) for name, function in self.filters.items()
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
        if len(source) > _MAX_SOURCE:
            raise BudgetExceeded(f"the template is longer than {_MAX_SOURCE} characters")
        template = super()._parse(source, name, filename)
        if count_nodes(template) > _MAX_NODES:
            raise BudgetExceeded("the template is too long: it has too many parts")
        return template

    def concat(self, parts: Iterable[str]) -> str:
        """Join what a template, macro or block has printed."""
        budget = metered()
        collected: list[str] = []
        total = 0
        for part in parts:
            total += len(part)
            if total > budget.largest:
                break
            collected.append(part)
        budget.charge(total)
        return "".join(collected)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = metered()
        if operator == "%" and isinstance(left, str):
            guard_percent(budget, left, right)
        elif operator == "*":
            _guard_repetition(left, right)
        elif operator == "**":
            _guard_power(left, right)
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            per_item = 1 if isinstance(left, str) else _ITEM
            budget.charge(per_item * (len(left) + len(right)))
        result = super().call_binop(context, operator, left, right)
        if not isinstance(result, str | float):
            budget.weigh(result)
        return result

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = metered()
        budget.spend(1)
        for name, value in kwargs.items():
            if name not in _COMPILERS_KEYWORDS:
                budget.weigh(value)
        for value in args:
            budget.weigh(value)
        if obj is dict:
            args = guard_pairs(budget, *args)
        elif isinstance(obj, BuiltinMethodType | MethodType):
            args, kwargs = _guarded(budget, obj, args, kwargs)
        return budget.take(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapper = super().wrap_str_format(value)
        if wrapper is None:
            return None
        text: str = value.__self__
        by_mapping = value.__name__ == "format_map"

        def wrapped(*args: Any, **kwargs: Any) -> str:
            if by_mapping:
                (mapping,) = args
                return _Formatter(self).vformat(text, (), mapping)
            return _Formatter(self).vformat(text, args, kwargs)

        return wrapped

    # What generated code calls.

    def join_parts(self, *parts: Any) -> str:
        budget = metered()
        budget.charge(sum(map(budget.weigh, parts)))
        return "".join(map(str, parts))

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return metered().take(value[start:stop:step], _ITEM)

    def built(self, value: Any) -> Any:
        return metered().take(value)

    def comparable(self, value: Any) -> Any:
        budget = metered()
        size = budget.weigh(value)
        if size > _CHEAP_TO_COMPARE:
            budget.charge(size >> _COMPARED_PER_CHARACTER_SHIFT)
        return value


_CHEAP_TO_COMPARE = 4096
_COMPARED_PER_CHARACTER_SHIFT = 6
"""Comparing reads memory and makes none: 64 characters cost as much as making one."""


@pass_eval_context
def _print(_: Any, value: Any) -> Any:
    """Charge what ``{{ value }}`` prints."""
    budget = metered()
    if isinstance(value, str):
        budget.charge(len(value) + 1)
    else:
        budget.charge(budget.weigh(value))
    return value


class _Namespace(Namespace):
    """A namespace that does not print what is in it: it may hold itself, twice."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Formatter(SandboxedFormatter):
    """``str.format`` that looks at each field before it is widened."""

    def format_field(self, value: Any, format_spec: str) -> str:
        budget = metered()
        budget.charge(budget.weigh(value) + _digits(format_spec))
        return str(budget.take(super().format_field(value, format_spec)))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        metered().weigh(value)
        return super().convert_field(value, conversion)


def _guarded(
    budget: MeteredBudget,
    method: BuiltinMethodType | MethodType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Look at a call of a plain value's method; return the arguments to call it with."""
    owner, name = method.__self__, method.__name__
    allowed = next((names for kind, names in METHODS if isinstance(owner, kind)), None)
    if allowed is None:
        return args, kwargs
    if name not in allowed:
        raise SecurityError(f"{name!r} may not be called in a request's template")
    budget.charge(budget.weigh(owner))
    guard = METHOD_GUARDS.get(name)
    if guard is None:
        return args, kwargs
    given = {key: value for key, value in kwargs.items() if key not in _COMPILERS_KEYWORDS}
    return guard(budget, owner, *args, **given), {}


def _digits(text: str) -> int:
    """Return the sum of all numbers in *text*: no width or precision in it is larger."""
    return sum(int(number[:12]) for number in re.findall(r"\d+", text))


def _guard_repetition(left: Any, right: Any) -> None:
    budget = metered()
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(value, str | bytes | list | tuple):
            per_item = 1 if isinstance(value, str | bytes) else _ITEM
            budget.charge(per_item * len(value) * max(times, 0))
            if per_item == _ITEM:
                budget.charge(budget.weigh(value) * max(times, 0))


def _guard_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        metered().weigh(1 << min(left.bit_length() * max(right, 0), 1 << 16))


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function* as a filter that pays for what it reads and makes."""
    guard = FILTER_GUARDS.get(name)
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        budget = metered()
        budget.spend(1)
        for argument in (*args[passed:], *kwargs.values()):
            budget.charge(budget.weigh(argument))
        if guard is not None:
            context, values = args[:passed], args[passed:]
            args = (*context, *guard(budget, *values, **kwargs))
            kwargs = {}
        return budget.take(function(*args, **kwargs), _ITEM if name == "list" else 64)

    return paying
