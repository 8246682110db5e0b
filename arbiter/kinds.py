"""The kinds of rules that a pack can name: which class each is, what YAML may give it, what makes it tighter.

A kind's constructor is its schema: `parameters_of` reads the signature and makes the pydantic model that a
pack's entry is held against. What YAML cannot give (a function, a model object) is left out.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, Optional, TypeVar, Union, cast, get_args, get_origin
from weakref import WeakKeyDictionary

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    WithJsonSchema,
    create_model,
)

from arbiter.contracts import Contract
from arbiter.errors import UnknownInstructionError, nearest
from arbiter.evaluation import NodeEvaluator
from arbiter.instructions import Instruction, find_instruction
from arbiter.packs import PackModel
from arbiter.policy import PolicyChecker, PolicyRouter

C = TypeVar("C", bound=Contract)
Section = Literal["checkers", "routers", "evaluators"]
Tighter = Literal["lower", "higher", "fewer", "more", "wider", "true", "denial", "any"]
"""Which change of a parameter makes a rule tighter: a lower or higher number (None is no limit), fewer members (None is
all), more members (None is none), wider targets (None is all), true, a denial that stops more, or any change. Other
changes loosen it."""

CONTRACTS: Mapping[Section, type[Contract]] = {
    "checkers": PolicyChecker,
    "routers": PolicyRouter,
    "evaluators": NodeEvaluator,
}
KINDS: Mapping[Section, Mapping[str, str]] = {
    "checkers": {
        "approval": "arbiter.checkers.approval.ApprovalChecker",
        "at_most": "arbiter.checkers.at_most.AtMost",
        "budget": "arbiter.checkers.budget.BudgetChecker",
        "condition": "arbiter.checkers.condition.ConditionChecker",
        "flow": "arbiter.checkers.flow.FlowChecker",
        "forbid_sequence": "arbiter.checkers.history.HistoryPolicyChecker",
        "never_after": "arbiter.checkers.never_after.NeverAfter",
        "rate_limit": "arbiter.checkers.rate_limit.RateLimitChecker",
        "require_before": "arbiter.checkers.require_before.RequireBefore",
        "schema": "arbiter.checkers.schema.SchemaChecker",
        "tools": "arbiter.checkers.tools.ToolsChecker",
        "within_steps": "arbiter.checkers.within_steps.WithinSteps",
    },
    "routers": {
        "escalate": "arbiter.routers.escalation.EscalationRouter",
        "evaluation_failed": "arbiter.routers.quality.EvaluationRouter",
        "metric_below": "arbiter.routers.quality.MetricThresholdPolicyRouter",
        "on_error": "arbiter.routers.errors.ErrorRouter",
    },
    "evaluators": {
        "adherence": "arbiter.personas.evaluators.AdherenceEvaluator",
        "condition": "arbiter.evaluators.condition.ConditionEvaluator",
        "convergence": "arbiter.personas.evaluators.ConvergenceEvaluator",
        "cost": "arbiter.evaluators.cost.CostEvaluator",
        "fluency": "arbiter.personas.evaluators.FluencyEvaluator",
        "ideas_quantity": "arbiter.personas.evaluators.IdeasQuantityEvaluator",
        "judge": "arbiter.evaluators.judge.JudgeEvaluator",
        "latency": "arbiter.evaluators.latency.LatencyEvaluator",
        "length": "arbiter.evaluators.length.LengthEvaluator",
        "schema_valid": "arbiter.evaluators.schema_valid.SchemaEvaluator",
        "self_consistency": "arbiter.personas.evaluators.SelfConsistencyEvaluator",
        "text_similarity": "arbiter.evaluators.consistency.TextSimilarityEvaluator",
        "threshold": "arbiter.evaluators.threshold.ThresholdEvaluator",
        "weighted": "arbiter.evaluators.weighted.WeightedEvaluator",
    },
}
UNCLEAR: Mapping[str, str] = {
    "consistency": "Write self_consistency, which has a judge see whether an agent sounds like itself, "
    "or text_similarity, which compares words and was called consistency before."
}
"""What to write in the place of names that may mean two kinds."""
_TIGHTER: Mapping[str, Mapping[str, Tighter]] = {
    "approval": {"approvers": "fewer", "expires_after": "lower", "retries": "lower", "reason": "any"},
    "at_most": {"times": "lower"},
    "budget": {
        "calls": "lower",
        "tokens": "lower",
        "cost": "lower",
        "seconds": "lower",
        "reserve_tokens": "higher",
        "reserve_cost": "higher",
    },
    "condition": {"reason": "any"},
    "rate_limit": {"calls": "lower", "per_seconds": "higher", "burst": "lower"},
    "require_before": {"once_per_use": "true", "bound_to": "more"},
    "tools": {"allow": "fewer", "deny": "more"},
    "within_steps": {"steps": "lower"},
    "threshold": {"threshold": "higher"},
    "length": {"at_least": "higher", "at_most": "lower"},
    "latency": {"at_most": "lower"},
    "cost": {"at_most": "lower"},
    "text_similarity": {"at_least": "higher"},
    "judge": {"at_least": "higher"},
    "weighted": {"at_least": "higher"},
    "adherence": {"at_least": "higher"},
    "self_consistency": {"at_least": "higher"},
    "fluency": {"at_least": "higher"},
    "convergence": {"at_least": "higher"},
    "ideas_quantity": {"at_least": "higher"},
    "metric_below": {"threshold": "higher"},
    "escalate": {
        "below": "higher",
        "approvers": "fewer",
        "expires_after": "lower",
        "on_reject": "denial",
        "reason": "any",
    },
}
_TARGETS: Mapping[str, Tighter] = {"target_instructions": "wider", "target_nodes": "wider"}
_BY_SECTION: Mapping[Section, Mapping[str, Tighter]] = {
    # A checker that is too late has denied, so no deadline of one lets anything pass.
    "checkers": {**_TARGETS, "on_deny": "denial", "deadline": "any"},
    "routers": _TARGETS,
    "evaluators": {**_TARGETS, "durable": "true"},
}


def class_at(path: str) -> type[Any]:
    """The class at a dotted path. Raises `ImportError`, or whatever importing its module raises."""
    module, _, name = path.rpartition(".")
    there = import_module(module)
    found = getattr(there, name, None)
    if isinstance(found, type):
        return found
    if found is not None:
        kind = "function" if inspect.isroutine(found) else type(found).__name__
        raise ImportError(f"module {module!r} has no class {name!r}, but a {kind} of that name")
    classes = [each for each, value in vars(there).items() if isinstance(value, type)]
    raise ImportError(f"module {module!r} has no class {name!r}.{nearest(name, classes)}")


def tightening(section: Section, use: str, cls: type[Any], parameter: str) -> Tighter | None:
    """Which change of that parameter makes a rule of that kind tighter; None: none is known to.

    A class that is not built in says so itself, in a mapping `tighter`.
    """
    own: Mapping[str, Tighter] = (
        _TIGHTER.get(use, {}) if use in KINDS[section] else getattr(cls, "tighter", {})
    )
    if use == "on_error" and parameter in _TARGETS:
        return None  # in more nodes, more exceptions would end there
    return own.get(parameter) or _BY_SECTION[section].get(parameter)


def in_effect(use: str, cls: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a rule's parameters are together with those that it leaves out."""
    values = {name: info.get_default() for name, info in parameters_of(cls).model_fields.items()}
    values.update(given)
    values.update((name, _one_or_more(values[name])) for name in _TARGETS if name in values)
    if use == "rate_limit" and values.get("burst") is None:
        values["burst"] = values.get("calls")
    return values


# What YAML may give -------------------------------------------------------------------------------


def _instruction(value: object) -> Instruction:
    try:
        return find_instruction(value)
    except UnknownInstructionError as error:
        raise ValueError(str(error)) from None


Text = Annotated[str, Field(min_length=1)]
InstructionText = Annotated[
    Instruction, PlainValidator(_instruction), WithJsonSchema({"type": "string", "minLength": 1})
]


def _no_pattern(node: str) -> str:
    if "*" in node or "?" in node:
        raise ValueError(
            f"expected the name of a node, got {node!r}. Patterns are for `instructions`: bind the nodes to an "
            "instruction there, and name it under target_instructions"
        )
    return node


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


NodeName = Annotated[Text, AfterValidator(_no_pattern)]


def _some_of(text: Any) -> Any:
    """One text or a list of them, as in Python; in the JSON Schema too."""
    some: Any = Annotated[list[text], Field(min_length=1)]
    return Annotated[
        Optional[some],  # noqa: UP045
        BeforeValidator(_one_or_more, json_schema_input_type=Optional[Union[text, some]]),  # noqa: UP007, UP045
    ]


_TARGET_FIELDS: dict[str, Any] = {
    "target_instructions": _some_of(InstructionText),
    "target_nodes": _some_of(NodeName),
}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Unfit:
    """The place of a type that YAML has no value for."""


def parameters_of(cls: type[Any]) -> type[PackModel]:
    """The model of what an entry of that class may hold, besides `use` and what all entries have.

    Raises `TypeError` if the constructor needs something that YAML cannot give.
    """
    model = _models.get(cls)
    if model is None:
        model = _models[cls] = _model_of(cls)
    return model


_models: WeakKeyDictionary[type[Any], type[PackModel]] = WeakKeyDictionary()


def _model_of(cls: type[Any]) -> type[PackModel]:
    members: dict[str, Any] = {}
    for parameter, hint in constructor_of(cls).values():
        required = parameter.default is parameter.empty
        annotation = _TARGET_FIELDS.get(parameter.name) or yaml_type(hint)
        if annotation is Unfit:
            if required:
                raise TypeError(f"its parameter {parameter.name!r} cannot be given in YAML")
            continue
        members[parameter.name] = (annotation, ... if required else _default(parameter.default))
    with warnings.catch_warnings():
        # A parameter called "schema" is in the way of a deprecated method of pydantic's that nobody calls here.
        warnings.filterwarnings("ignore", message="Field name .* shadows an attribute")
        return create_model(cls.__name__, __base__=PackModel, __doc__=inspect.getdoc(cls), **members)


def constructor_of(cls: type[Any]) -> dict[str, tuple[inspect.Parameter, Any]]:
    """The parameters of a class but its name, each with its type hint. With `**` its constructor takes those of its
    base class too, and may give them itself: of those, none is required."""
    found: dict[str, tuple[inspect.Parameter, Any]] = {}
    own, *inherited = [vars(owner)["__init__"] for owner in cls.__mro__ if "__init__" in vars(owner)]
    for constructor in (own, *inherited):
        try:
            hints = typing.get_type_hints(constructor, include_extras=True)
        except NameError as error:  # imported under TYPE_CHECKING, say
            raise TypeError(f"the annotations of its constructor cannot be read: {error}") from None
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        for parameter in parameters:
            if parameter.name in ("name", *found) or parameter.kind in _VARIADIC:
                continue
            if constructor is not own and parameter.default is parameter.empty:
                parameter = parameter.replace(default=None)
            found[parameter.name] = parameter, hints.get(parameter.name, Any)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def make(cls: type[C], name: str, parameters: Mapping[str, Any]) -> C:
    """An object of that class with that name, which a constructor may also give itself: then it is renamed."""
    signature = inspect.signature(cls.__init__).parameters
    constructor = cast("Callable[..., C]", cls)
    named = signature.get("name")
    if named is not None and named.kind is named.POSITIONAL_ONLY:
        return constructor(name, **parameters)
    if named is not None:
        return constructor(name=name, **parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.values()):
        try:
            return constructor(name=name, **parameters)
        except TypeError as error:
            if _NAMED_ITSELF.search(str(error)) is None:
                raise
    made = constructor(**parameters)
    made.name = name
    return made


_NAMED_ITSELF = re.compile(r"(multiple values for|unexpected keyword) .*argument 'name'")


def takes_model(cls: type[Any]) -> frozenset[str]:
    """The parameters of a class that take a chat model: there YAML gives its name."""
    return frozenset(
        name
        for name, (_, hint) in constructor_of(cls).items()
        if any(_is_chat_model(part) for part in (hint, *get_args(hint)))
    )


def _is_chat_model(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and any(base.__name__ == "Runnable" for base in kind.__mro__)


def _default(value: Any) -> Any:
    """A default for the JSON Schema: plain data, else none."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return list(cast("Sequence[Any]", value))
    return None


_PLAIN = (str, int, float, bool, Any, type(None), object)
_LISTS = (list, tuple, set, frozenset, Iterable, Sequence, Collection, Set)


def yaml_type(hint: Any) -> Any:
    """What YAML may give for a parameter with that hint; `Unfit` if nothing."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return Any if hint is object else hint
    if origin is Annotated:
        inner = yaml_type(arguments[0])
        return inner if inner is Unfit else Annotated[(inner, *arguments[1:])]
    if origin is Literal:
        return hint
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin in _LISTS or hint in _LISTS:
        return _list(arguments)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        key, value = map(yaml_type, arguments or (str, Any))
        return Unfit if Unfit in (key, value) else dict[key, value]  # type: ignore[valid-type]
    if hint is Instruction:
        return InstructionText
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint
    if isinstance(hint, type) and is_dataclass(hint):
        return _of_dataclass(hint)
    return Unfit


def _union(arguments: tuple[Any, ...]) -> Any:
    # An instruction is given as text; where both will do, the constructor reads the text.
    wanted = [hint for hint in arguments if not (hint is Instruction and str in arguments)]
    fitting = [found for found in map(yaml_type, wanted) if found is not Unfit]
    if not [found for found in fitting if found is not type(None)]:
        return Unfit
    return Union[tuple(fitting)]  # noqa: UP007 - made of a list


def _list(arguments: tuple[Any, ...]) -> Any:
    if len(arguments) == 2 and arguments[1] is not ...:
        return Annotated[list[Any], Field(min_length=2, max_length=2)]
    inner = yaml_type(arguments[0]) if arguments else Any
    return Unfit if inner is Unfit else list[inner]  # type: ignore[valid-type]


def _of_dataclass(cls: type[Any]) -> type[PackModel]:
    hints = typing.get_type_hints(cls, include_extras=True)
    members: dict[str, Any] = {}
    for member in fields(cls):
        if member.default is not MISSING:
            default: Any = _default(member.default)
        else:
            default = None if member.default_factory is not MISSING else ...
        members[member.name] = (yaml_type(hints[member.name]), default)
    return create_model(cls.__name__, __base__=PackModel, __doc__=inspect.getdoc(cls), **members)
