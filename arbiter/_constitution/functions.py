"""Rules made of functions. A function names, in its parameters, the parts of the node run that it wants.

`rule_class` turns a function into a contract's class, so that a function can be used wherever a class can,
for example in YAML.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from arbiter._contracts import ADDERS, Contract, is_generator
from arbiter._values.parameters import Param
from arbiter.errors import RegistrationError, nearest, with_article
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.history._items import History
from arbiter.policy import Answer, CheckerOptions, PolicyChecker, PolicyRouter, Route, RouterOptions
from arbiter.verdicts import Evaluated

C = TypeVar("C", bound=Contract)
Checks = TypeVar("Checks", bound=Callable[..., Answer | Awaitable[Answer]])
Routes = TypeVar("Routes", bound=Callable[..., Route | Awaitable[Route]])
Evaluates = TypeVar("Evaluates", bound=Callable[..., Evaluated | Awaitable[Evaluated]])


class FunctionChecker(CheckerOptions, total=False):
    """The options of `ArbiterOS.checker`. Without `name` a rule has the name of the function."""

    name: str


class FunctionEvaluator(EvaluatorOptions, total=False):
    """The options of `ArbiterOS.evaluator`."""

    name: str
    needs: Iterable[str]


class FunctionRouter(RouterOptions, total=False):
    """The options of `ArbiterOS.router`."""

    name: str
    on_error: bool
    targets: Iterable[str]
    needs: Iterable[str]


_Targets = Annotated[str | Iterable[str], Param("the names of the nodes that it may return")]
_Needs = Annotated[str | Iterable[str], Param("the evaluators whose results it reads")]


class _Router(PolicyRouter):
    def __init__(self, name: str, *, targets: _Targets = (), needs: _Needs = (), **options: Any) -> None:
        super().__init__(name, **options)
        _declare(self, targets=targets, needs=needs)


class _Evaluator(NodeEvaluator):
    def __init__(self, name: str, *, needs: _Needs = (), **options: Any) -> None:
        super().__init__(name, **options)
        _declare(self, needs=needs)


_BASES: Mapping[type[Contract], type[Contract]] = {PolicyRouter: _Router, NodeEvaluator: _Evaluator}
"""Contracts that take as parameters what a class declares in its body."""


def _declare(rule: Contract, **attributes: str | Iterable[str]) -> None:
    for attribute, names in attributes.items():
        if names:
            setattr(rule, attribute, names if isinstance(names, str) else tuple(names))


_Give = Callable[[History, Any], Any]
_ALWAYS: Mapping[str, _Give] = {
    "state": lambda history, output: history.item.input_state,
    "item": lambda history, output: history.item,
    "history": lambda history, output: history,
}
_GIVES: Mapping[type[Contract], Mapping[str, _Give]] = {
    # During `check_after` the item does not have the output yet.
    PolicyChecker: {**_ALWAYS, "output": lambda history, output: output},
    PolicyRouter: {
        **_ALWAYS,
        "output": lambda history, output: history.item.output_state,
        "current_output": lambda history, output: output,
    },
    NodeEvaluator: {**_ALWAYS, "output": lambda history, output: history.item.output_state},
}
"""The parameters that a function may have, by its contract, and the way to find their values."""


def rule_of(function: Callable[..., Any], contract: type[C], options: Mapping[str, Any]) -> C:
    """The rule that a decorator with these options makes of a function."""
    given = dict(options)
    cls = rule_class(function, contract)
    name = given.pop("name", None) or cls.__name__
    if not options.get("name") and not name.isidentifier():
        raise RegistrationError(f"{function!r:.80} has no name. Pass name=.")
    return cast("Callable[..., C]", cls)(name, **given)


def rule_class(function: Callable[..., Any], contract: type[C]) -> type[C]:
    """A class of that contract whose method calls the function.

    Its constructor takes the parameters of the contract, and `targets` and `needs` where there are such.

    Raises `RegistrationError` if the function has an unknown parameter.
    """
    call = _caller(function, contract)
    called: Any = function
    doc = inspect.getdoc(cast(Any, called.func if isinstance(called, partial) else called))
    name: str = getattr(function, "__name__", "")
    names = inspect.signature(function).parameters

    def reduced(self: Contract) -> tuple[Any, ...]:
        return _without_state, (function, contract), self.__getstate__()

    body: dict[str, Any] = {
        "__doc__": doc,
        "__module__": getattr(function, "__module__", None) or __name__,
        "__reduce__": reduced,
        "_versioned_as": contract,  # declarations are no part of it, as in the body of a class
        "description": (doc or "").partition("\n")[0],
    }
    body |= _methods(contract, call, looks_at_output="output" in names)
    return cast("type[C]", type(name, (_BASES.get(contract, contract),), body))


def _without_state(function: Callable[..., Any], contract: type[C]) -> C:
    cls = rule_class(function, contract)
    return cls.__new__(cls)


_Call = Callable[[History, Any], Any]


def _methods(contract: type[Contract], call: _Call, *, looks_at_output: bool) -> dict[str, Any]:
    is_async = inspect.iscoroutinefunction(call)
    if contract is not PolicyChecker:
        return {contract.method: _method(call, is_async)}
    if not looks_at_output:
        return {"check_before": _method(call, is_async)}

    def check_before(self: Contract, history: History) -> bool:
        return True

    return {"check_before": check_before, "check_after": _method(call, is_async, swapped=True)}


def _method(call: _Call, is_async: bool, *, swapped: bool = False) -> Any:
    """A method that takes a history, and an output if there is one; `swapped`: the output first.

    Callers inspect the method itself, not its result, to learn whether it is async.
    """

    def method(self: Any, first: Any, second: Any = None) -> Any:
        return call(second, first) if swapped else call(first, second)

    async def async_method(self: Any, first: Any, second: Any = None) -> Any:
        return await (call(second, first) if swapped else call(first, second))

    return async_method if is_async else method


def _caller(function: Callable[..., Any], contract: type[Contract]) -> _Call:
    """Calls the function with the arguments that its parameters name, from a history and an output."""
    gives = _GIVES[contract]
    by_position: list[_Give] = []
    by_name: dict[str, _Give] = {}
    for parameter in _parameters_of(function, contract):
        if parameter.name in gives and parameter.kind is parameter.POSITIONAL_ONLY:
            by_position.append(gives[parameter.name])
        elif parameter.name in gives:
            by_name[parameter.name] = gives[parameter.name]
        elif parameter.default is parameter.empty:
            asked = str(parameter).partition(":")[0]  # with its stars, if it has some
            raise RegistrationError(
                f"{contract.kind} {_name_of(function)}() asks for {asked}; the function of "
                f"{with_article(contract.kind)} can ask for {', '.join(gives)}.{nearest(parameter.name, gives)}"
            )

    def call(history: History, output: Any) -> Any:
        return function(
            *[give(history, output) for give in by_position],
            **{name: give(history, output) for name, give in by_name.items()},
        )

    async def async_call(history: History, output: Any) -> Any:
        return await call(history, output)

    called: Any = function
    if not inspect.isroutine(function) and not isinstance(function, partial):
        called = type(function).__call__
    if is_generator(called):
        raise RegistrationError(
            f"{contract.kind} {_name_of(function)}() has a yield. Return the answer instead."
        )
    return async_call if inspect.iscoroutinefunction(called) else call


def _parameters_of(function: Any, contract: type[Contract]) -> Iterable[inspect.Parameter]:
    if isinstance(function, type) or not callable(function):
        raise RegistrationError(
            f"the {contract.kind} {function!r:.80} is not a function. Give options by name, as in "
            f"@arbiter_os.{contract.kind}(target_nodes=[...]); an object of a {contract.__name__} "
            f"class is registered with arbiter_os.{ADDERS[contract.kind]}."
        )
    try:
        return inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise RegistrationError(
            f"{contract.kind} {_name_of(function)}() has no signature that can be read. "
            "Wrap it in a function with named parameters."
        ) from None


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
