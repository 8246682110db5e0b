"""The kinds of rules that a pack can name: the class of each, its parameters in YAML, and the changes that
tighten it.

A kind's constructor is its schema: `parameters_of` reads the signature and makes the pydantic model that
validates a pack's entry. Parameters that YAML cannot express (a function, a model object) are left out.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, Optional, TypeVar, Union, cast, get_args, get_origin
from weakref import WeakKeyDictionary

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
    create_model,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from arbiter._constitution.documents import INSTRUCTION, InstructionText, PackModel, Text
from arbiter._constitution.functions import rule_class
from arbiter._contracts import Contract
from arbiter._values.parameters import (
    Declared,
    Param,
    Tighter,
    keywords,
    param_in,
    parameters,
    problem,
    sentence,
    words,
)
from arbiter.errors import ConfigurationError, nearest, with_article
from arbiter.evaluation import NodeEvaluator
from arbiter.instructions import Instruction
from arbiter.policy import PolicyChecker, PolicyRouter

C = TypeVar("C", bound=Contract)
Section = Literal["checkers", "routers", "evaluators"]

CONTRACTS: Mapping[Section, type[Contract]] = {
    "checkers": PolicyChecker,
    "routers": PolicyRouter,
    "evaluators": NodeEvaluator,
}
KINDS: Mapping[Section, Mapping[str, str]] = {
    "checkers": {
        "approval": "arbiter.checkers._approval.ApprovalChecker",
        "at_most": "arbiter.checkers._at_most.AtMost",
        "budget": "arbiter.checkers._budget.BudgetChecker",
        "condition": "arbiter.checkers._condition.ConditionChecker",
        "flow": "arbiter.checkers._flow.FlowChecker",
        "forbid_sequence": "arbiter.checkers._history.HistoryPolicyChecker",
        "never_after": "arbiter.checkers._never_after.NeverAfter",
        "rate_limit": "arbiter.checkers._rate_limit.RateLimitChecker",
        "require_before": "arbiter.checkers._require_before.RequireBefore",
        "schema": "arbiter.checkers._schema.SchemaChecker",
        "tools": "arbiter.checkers._tools.ToolsChecker",
        "within_steps": "arbiter.checkers._within_steps.WithinSteps",
    },
    "routers": {
        "escalate": "arbiter.routers._escalation.EscalationRouter",
        "evaluation_failed": "arbiter.routers._quality.EvaluationRouter",
        "metric_below": "arbiter.routers._quality.MetricThresholdPolicyRouter",
        "on_error": "arbiter.routers._errors.ErrorRouter",
    },
    "evaluators": {
        "adherence": "arbiter.personas._evaluators.AdherenceEvaluator",
        "condition": "arbiter.evaluators._condition.ConditionEvaluator",
        "convergence": "arbiter.personas._evaluators.ConvergenceEvaluator",
        "cost": "arbiter.evaluators._cost.CostEvaluator",
        "fluency": "arbiter.personas._evaluators.FluencyEvaluator",
        "ideas_quantity": "arbiter.personas._evaluators.IdeasQuantityEvaluator",
        "judge": "arbiter.evaluators._judge.JudgeEvaluator",
        "latency": "arbiter.evaluators._latency.LatencyEvaluator",
        "length": "arbiter.evaluators._length.LengthEvaluator",
        "schema_valid": "arbiter.evaluators._schema_valid.SchemaEvaluator",
        "self_consistency": "arbiter.personas._evaluators.SelfConsistencyEvaluator",
        "text_similarity": "arbiter.evaluators._consistency.TextSimilarityEvaluator",
        "threshold": "arbiter.evaluators._threshold.ThresholdEvaluator",
        "weighted": "arbiter.evaluators._weighted.WeightedEvaluator",
    },
}
UNCLEAR: Mapping[str, str] = {
    "consistency": "Write self_consistency, which lets a judge decide whether an agent sounds like itself, "
    "or text_similarity, which compares words and was called consistency before."
}
"""The remedy for names that may mean two kinds."""


def class_at(path: str) -> type[Any]:
    """The class at a dotted path. Raises `ImportError`, and any exception that importing its module raises."""
    module, _, name = path.rpartition(".")
    there = import_module(module)
    found = getattr(there, name, None)
    if isinstance(found, type):
        return found
    if found is not None:
        kind = with_article(type(found).__name__)
        raise ImportError(f"module {module!r} has no class or function {name!r}, but {kind} of that name")
    names = [
        each for each, value in vars(there).items() if isinstance(value, type) or inspect.isroutine(value)
    ]
    raise ImportError(f"module {module!r} has no class or function {name!r}.{nearest(name, names)}")


def rule_class_at(path: str, contract: type[C]) -> type[Any]:
    """The class at a dotted path, or the class that the function there becomes as a `contract`.

    Raises as `class_at`, and `RegistrationError` for a function with an unknown parameter.
    """
    module, _, name = path.rpartition(".")
    found = getattr(import_module(module), name, None)
    return rule_class(found, contract) if inspect.isroutine(found) else class_at(path)


def tightening(cls: type[Any], parameter: str) -> Tighter | None:
    """The change of that parameter that makes a rule of that kind tighter; None if no change does.

    A user's class declares it in a mapping `tighter`.
    """
    declared = constructor_of(cls).get(parameter)
    return None if declared is None or declared.param is None else declared.param.tighter


def in_effect(use: str, cls: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A rule's parameters, including the defaults of those that it leaves out."""
    values = {name: info.get_default() for name, info in parameters_of(cls).model_fields.items()}
    values.update(given)
    values.update((name, _one_or_more(values[name])) for name in _TARGET_FIELDS if name in values)
    if use == "rate_limit" and values.get("burst") is None:
        values["burst"] = values.get("calls")
    return values


# Values in YAML -----------------------------------------------------------------------------------


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
    """A single text or a list of them, as in Python; in the JSON Schema too."""
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


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter of a kind as tables show it."""

    name: str
    expected: str
    default: str
    sentence: str


def parameter_rows(cls: type[Any]) -> Iterator[ParameterRow]:
    """The parameters that YAML may give a class, for readers."""
    declared = constructor_of(cls)
    for name, field in parameters_of(cls).model_fields.items():
        param, hint = declared[name].param or Param(""), declared[name].hint
        expected = re.sub(r"^(an?|the) ", "", words(param, hint)).replace("'", "`")
        default = "required" if field.is_required() else _shown(field.default)
        yield ParameterRow(name, expected, default, sentence(param))


def _shown(default: Any) -> str:
    """A default as YAML has it."""
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    members: Any = default
    if isinstance(default, list):
        return f"[{', '.join(map(_shown, members))}]"
    return f"`{default}`" if isinstance(default, str) else repr(default).removesuffix(".0")


class Unfit:
    """Marks a type that has no value in YAML."""


def parameters_of(cls: type[Any]) -> type[PackModel]:
    """The model of the parameters of a class in YAML, without `use` and the other keys of all rules.

    Raises `TypeError` if the constructor needs a value that YAML cannot express.
    """
    model = _models.get(cls)
    if model is None:
        model = _models[cls] = _model_of(cls)
    return model


_models: WeakKeyDictionary[type[Any], type[PackModel]] = WeakKeyDictionary()


def _model_of(cls: type[Any]) -> type[PackModel]:
    members: dict[str, Any] = {}
    for name, declared in constructor_of(cls).items():
        annotation = _TARGET_FIELDS.get(name) or yaml_type(declared.hint)
        if annotation is Unfit:
            if declared.is_required:
                raise TypeError(f"its parameter {name!r} cannot be given in YAML")
            continue
        if declared.param is not None:
            annotation = _checked(annotation, declared.param, declared.hint)
        default = ... if declared.is_required else _default(effective_default(cls, declared))
        members[name] = (annotation, default)
    with warnings.catch_warnings():
        # A parameter called "schema" shadows a deprecated method of pydantic, which is not used here.
        warnings.filterwarnings("ignore", message="Field name .* shadows an attribute")
        return create_model(cls.__name__, __base__=PackModel, __doc__=inspect.getdoc(cls), **members)


def _checked(annotation: Any, param: Param, hint: Any) -> Any:
    """That type with all that a declaration says of it."""

    def fitting(value: Any) -> Any:
        if _is_plain(value) and (wrong := problem(param, hint, value)) is not None:
            raise ValueError(wrong)
        return value

    extra = keywords(param)
    return Annotated[
        annotation, AfterValidator(fitting), Field(description=sentence(param), json_schema_extra=extra)
    ]


def _is_plain(value: Any) -> bool:
    """True if the constructor gets the value in its YAML form."""
    return value is None or isinstance(value, bool | int | float | str | list | dict)


def effective_default(cls: type[Any], declared: Declared) -> Any:
    """A default of None stands for the class attribute of the same name, as with `NodeEvaluator.deadline`."""
    default = declared.parameter.default
    return getattr(cls, declared.parameter.name, None) if default is None else default


def constructor_of(cls: type[Any]) -> Mapping[str, Declared]:
    """The parameters of a class except its name, each with its type hint.

    A constructor with `**` also takes those of its base class. As it may set them itself, none of these is
    required.
    """
    constructor = _constructors.get(cls)
    if constructor is None:
        constructor = _constructors[cls] = _read(cls)
    return constructor


_constructors: WeakKeyDictionary[type[Any], Mapping[str, Declared]] = WeakKeyDictionary()


def _read(cls: type[Any]) -> dict[str, Declared]:
    found: dict[str, Declared] = {}
    takes_more = True
    constructors = [vars(owner)["__init__"] for owner in cls.__mro__[:-1] if "__init__" in vars(owner)]
    for constructor in constructors:
        passes_on = False
        for declared in parameters(constructor):
            parameter = declared.parameter
            passes_on = passes_on or parameter.kind is parameter.VAR_KEYWORD
            if parameter.name == "name" or parameter.kind in _VARIADIC:
                continue
            if known := found.get(parameter.name):
                found[parameter.name] = known.completed_by(declared)
            elif takes_more:
                is_own = constructor is constructors[0]
                found[parameter.name] = declared if is_own else declared.optional()
        takes_more = takes_more and passes_on
    return found


def make(cls: type[C], name: str, parameters: Mapping[str, Any]) -> C:
    """An object of that class with that name. If the constructor sets the name itself, the object is renamed."""
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
    """The parameters of a class that take a chat model. In YAML they are names of models."""
    return frozenset(
        name
        for name, declared in constructor_of(cls).items()
        if any(map(_is_chat_model, _parts(declared.hint)))
    )


def takes_instructions(cls: type[Any], parameter: str) -> bool:
    """True if the parameter takes instructions. In YAML they are names, with or without that of the core."""
    declared = constructor_of(cls).get(parameter)
    return declared is not None and Instruction in _parts(declared.hint)


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def _is_chat_model(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and any(base.__name__ == "Runnable" for base in kind.__mro__)


def _default(value: Any) -> Any:
    """A default in the form for the JSON Schema: plain data, else None."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return list(cast("Sequence[Any]", value))
    return None


_PLAIN = (str, int, float, bool, Any, type(None), object)
_LISTS = (list, tuple, set, frozenset, Iterable, Sequence, Collection, Set)


def yaml_type(hint: Any) -> Any:
    """The YAML type of a parameter with that hint; `Unfit` if there is none."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return Any if hint is object else hint
    if origin is Annotated:
        inner = yaml_type(arguments[0])
        more = [part for part in arguments[1:] if not isinstance(part, Param)]
        return inner if inner is Unfit or not more else Annotated[(inner, *more)]
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
        return model_of(hint)
    return Unfit


def _union(arguments: tuple[Any, ...]) -> Any:
    # In YAML an instruction is a text. If the constructor takes both, it reads the text itself.
    read_by_it: dict[Any, Any] = (
        {str: Annotated[str, WithJsonSchema(INSTRUCTION)]} if Instruction in arguments else {}
    )
    wanted = [hint for hint in arguments if not (hint is Instruction and str in arguments)]
    fitting = [found for hint in wanted if (found := read_by_it.get(hint) or yaml_type(hint)) is not Unfit]
    if not [found for found in fitting if found is not type(None)]:
        return Unfit
    return Union[tuple(fitting)]  # noqa: UP007 - made of a list


def _list(arguments: tuple[Any, ...]) -> Any:
    if len(arguments) > 1 and arguments[1] is not ...:  # a tuple with a type for each place
        number = len(arguments)
        # A constructor may make its values, such as paths or times, of what is in the file.
        kind = Any if Unfit in map(yaml_type, arguments) else _union(arguments)
        return Annotated[list[kind], Field(min_length=number, max_length=number)]  # type: ignore[valid-type]
    inner = yaml_type(arguments[0]) if arguments else Any
    return Unfit if inner is Unfit else list[inner]  # type: ignore[valid-type]


def _declared_type(hint: Any) -> Any:
    annotation, param = yaml_type(hint), param_in(hint)
    return annotation if param is None else _checked(annotation, param, hint)


def model_of(cls: type[Any]) -> type[PackModel]:
    """The model of a dataclass in YAML."""
    hints = typing.get_type_hints(cls, include_extras=True)
    members: dict[str, Any] = {}
    for member in fields(cls):
        if member.default is not MISSING:
            default: Any = _default(member.default)
        else:
            default = None if member.default_factory is not MISSING else ...
        members[member.name] = (_declared_type(hints[member.name]), default)
    return create_model(cls.__name__, __base__=PackModel, __doc__=inspect.getdoc(cls), **members)


class AsMapping:
    """In `Annotated`: a mapping in a file makes that dataclass, whose fields are declared with `Param`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def made(found: PackModel) -> Any:
            try:
                return source(**found.model_dump())
            except ConfigurationError as error:
                # Its first word names the setting, and so does the place in the file.
                raise ValueError(str(error).partition(": ")[2].removesuffix(".")) from None

        return no_info_after_validator_function(made, handler(model_of(source)))
