"""Parameters that are declared once, in the hints of the constructor that takes them.

`Annotated[int, Param("the most runs", ge=0, tighter="lower")]` is what `check_parameters` checks in Python. The loader
of packs, the JSON Schema, `arbiter explain` and the tables of docs/kinds/ read it too.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, cast, get_args, get_origin

from arbiter._values.states import is_number
from arbiter.errors import ParameterError, nearest

F = TypeVar("F", bound=Callable[..., None])
Tighter = Literal["lower", "higher", "fewer", "more", "wider", "true", "denial", "any"]
"""The change of a parameter that makes a rule tighter.

A lower or higher number (None is no limit), fewer members (None is all), more members (None is none), wider
targets (None is all), true, a denial that stops more, or any change. Other changes loosen it.
"""


@dataclass(frozen=True, slots=True)
class Param:
    """The meaning of a rule's parameter and its valid values, in addition to its type: `Annotated[int,
    Param(...)]`.

    `doc` is the sentence that editors, `arbiter explain` and tables show. `gt`, `ge` and `le` bound a number,
    and `min_length` a text, list or mapping. `forms` lists the texts that the parameter takes; one with a
    part in angle brackets, such as "redirect:<node>", takes any text there. `expected` describes the values
    if the type does not. `tighter` says which change makes a rule tighter, for packs that extend others:
    "lower", "higher", "fewer", "more", "wider", "true", "denial" or "any".
    """

    doc: str
    gt: float | None = None
    ge: float | None = None
    le: float | None = None
    min_length: int = 0
    forms: tuple[str, ...] = ()
    expected: str = ""
    tighter: Tighter | None = None


def problem(param: Param, hint: Any, value: Any) -> str | None:
    """The mistake in a value of a parameter with that hint, in one sentence without its full stop."""
    if _fits(param, hint, value):
        return None
    expected = words(param, hint)
    if expected == "a number" and isinstance(value, float):
        expected = "a finite number"
    got = repr(value) if "whole number" in expected else repr(value).removesuffix(".0")
    return f"expected {expected}, got {got:.80}"


def problems_of(settings: Any) -> list[str]:
    """The mistakes in the fields of a dataclass that are declared with `Param`, each behind the field's name."""
    declared = declared_in(cast(Any, type(settings)))
    found = {name: problem(param, hint, getattr(settings, name)) for name, hint, param in declared}
    return [f"{name}: {wrong}" for name, wrong in found.items() if wrong is not None]


@cache  # to read hints is slow
def declared_in(cls: type) -> tuple[tuple[str, Any, Param], ...]:
    """The fields of a dataclass that are declared with `Param`: name, hint and declaration."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((name, hint, param) for name, hint in hints.items() if (param := param_in(hint)) is not None)


def words(param: Param, hint: Any) -> str:
    """The valid values in words, such as "a whole number from 0"."""
    return param.expected or _listed(map(repr, param.forms)) or " or ".join(_kinds(param, hint))


def sentence(param: Param) -> str:
    """`doc` as it stands alone."""
    return f"{param.doc[:1].upper()}{param.doc[1:]}."


def keywords(param: Param) -> dict[str, Any]:
    """The keywords of its JSON Schema besides the type."""
    if param.forms:
        prefixes = [form.partition("<")[0] for form in param.forms if "<" in form]
        texts = {"enum": [form for form in param.forms if "<" not in form]}
        return {"anyOf": [texts, *({"type": "string", "pattern": f"^{start}."} for start in prefixes)]}
    found = {
        "exclusiveMinimum": param.gt,
        "minimum": param.ge,
        "maximum": param.le,
        **dict.fromkeys(("minLength", "minItems", "minProperties"), param.min_length or None),
    }
    return {name: value for name, value in found.items() if value is not None}


def _fits(param: Param, hint: Any, value: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if param.forms and isinstance(value, str):
        return any(_is_form(form, value) for form in param.forms)
    if origin is Annotated:
        return _fits(param, arguments[0], value)
    if origin in (Union, types.UnionType):
        return any(_fits(param, part, value) for part in arguments)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in arguments)
    if hint in (int, float):
        return is_number(value) and (isinstance(value, int) or hint is float) and _in_bounds(param, value)
    if hint in _SIMPLE:
        return isinstance(value, hint) and (not isinstance(value, str) or len(value) >= param.min_length)
    if origin in _LISTS:
        return is_several(value) and _is_long_enough(param, value) and _all_fit(arguments, value)
    if origin in _MAPPINGS:
        keys: Any = value
        fits = isinstance(value, Mapping) and _is_long_enough(param, value)
        return fits and all(_fits(_KEY, hint, key) for hint in arguments[:1] for key in keys)
    return True


def _in_bounds(param: Param, value: float) -> bool:
    return (
        (param.gt is None or value > param.gt)
        and (param.ge is None or value >= param.ge)
        and (param.le is None or value <= param.le)
    )


def _is_long_enough(param: Param, value: Any) -> bool:
    parts: Any = value
    return not isinstance(value, Collection) or len(parts) >= param.min_length


def _kinds(param: Param, hint: Any) -> list[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kinds(param, arguments[0])
    if origin in (Union, types.UnionType):
        kinds = [kind for part in arguments if part is not type(None) for kind in _kinds(param, part)]
        return list(dict.fromkeys(kinds))
    if origin is Literal:
        return [_listed(map(repr, arguments))]
    if hint in (int, float):
        bounds = (("above", param.gt), ("from", param.ge), ("to", param.le))
        said = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
        return [" ".join(["a whole number" if hint is int else "a number", *said])]
    some = "non-empty " if param.min_length else ""
    if hint is str:
        return [f"a {some}text"]
    if origin in _LISTS:
        return [f"a {some}list" + (f" of {_PLURAL[arguments[0]]}" if arguments[0] in _PLURAL else "")]
    if origin in _MAPPINGS:
        return [f"a {some}mapping"]
    return [_SIMPLE[hint]] if hint in _SIMPLE else []


_SIMPLE: Mapping[Any, str] = {str: "a text", bool: "true or false", type(None): "nothing"}
_PLURAL: Mapping[Any, str] = {str: "texts", int: "whole numbers", float: "numbers"}
_LISTS = (list, tuple, set, frozenset, Iterable, Sequence, Collection, AbstractSet)
_MAPPINGS = (dict, Mapping)
_MEMBER = Param("", min_length=1)
"""The condition on each member of a list: texts are not empty."""
_KEY = Param("")


def _is_form(form: str, text: str) -> bool:
    start, is_open, _ = form.partition("<")
    return text.startswith(start) and text != start if is_open else text == form


def is_several(value: object) -> TypeGuard[Iterable[Any]]:
    """True for what has members, and is no single text or mapping."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _all_fit(arguments: tuple[Any, ...], value: Any) -> bool:
    """True if the members of a list fit. An iterator is not read here, because it can be read only once."""
    parts: Any = value
    return not isinstance(value, Collection) or all(_fits(_MEMBER, arguments[0], part) for part in parts)


def _listed(words: Iterable[str]) -> str:
    *most, last = list(words) or [""]
    return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True, slots=True)
class Declared:
    """A parameter of a constructor, its hint, and its declaration if it has one. A parameter from `**options:
    Unpack[...]` has the default of the base class.
    """

    parameter: Parameter
    hint: Any
    param: Param | None
    is_option: bool = False

    @property
    def is_required(self) -> bool:
        return self.parameter.default is Parameter.empty

    def optional(self) -> Declared:
        """The same, left out unless it is given."""
        parameter = self.parameter.replace(default=None) if self.is_required else self.parameter
        return replace(self, parameter=parameter)

    def completed_by(self, base: Declared) -> Declared:
        """The same, completed by the base class's declaration."""
        takes_default = self.is_option and not base.is_required
        return replace(
            self,
            param=self.param or base.param,
            parameter=base.parameter if takes_default else self.parameter,
            is_option=self.is_option and base.is_option,
        )


def parameters(constructor: Callable[..., Any]) -> Iterator[Declared]:
    """The parameters of a constructor after `self`, with those of `**options: Unpack[...]` instead of
    `**options`.

    Raises `TypeError` for annotations that cannot be read.
    """
    try:
        hints = typing.get_type_hints(constructor, include_extras=True)
    except NameError as error:  # imported under TYPE_CHECKING, say
        raise TypeError(f"the annotations of its constructor cannot be read: {error}") from None
    for parameter in list(signature(constructor).parameters.values())[1:]:
        hint = hints.get(parameter.name, Any)
        if get_origin(hint) is typing.Unpack:
            options = typing.get_type_hints(get_args(hint)[0], include_extras=True)
            for name, option in options.items():
                keyword = Parameter(name, Parameter.KEYWORD_ONLY, default=None)
                yield Declared(keyword, option, param_in(option), is_option=True)
        else:
            yield Declared(parameter, hint, param_in(hint))


def param_in(hint: Any) -> Param | None:
    """The declaration in a hint, if there is one."""
    parts = get_args(hint) if get_origin(hint) is Annotated else ()
    return next((part for part in parts if isinstance(part, Param)), None)


def _of_subclasses(rule: object, init: object, declared: Iterable[Declared]) -> dict[str, Any]:
    """The parameters of `init` that subclasses of the class that defines it have as plain attributes."""
    names = {each.parameter.name for each in declared if each.param is not None}
    found: dict[str, Any] = {}
    for each in type(rule).__mro__:
        if vars(each).get("__init__") is init:
            break
        for name in names.intersection(vars(each)).difference(found):
            if not hasattr(vars(each)[name], "__get__"):
                found[name] = vars(each)[name]
    return found


def _ensure_known(rule: object, given: Iterable[str], declared: Iterable[Declared]) -> None:
    """Raise `TypeError`, with the nearest name, for a keyword that the constructor does not take."""
    known = {each.parameter.name: each.parameter.kind for each in declared}
    unknown = [name for name in given if name not in known]
    if unknown and Parameter.VAR_KEYWORD not in known.values():
        hint = nearest(unknown[0], known)
        if unknown[0] == "mode" and hasattr(rule, "mode"):
            hint = " Set it on the rule itself, as in rule.mode = 'audit'."
        raise TypeError(f"{type(rule).__name__}() got an unexpected keyword argument {unknown[0]!r}.{hint}")


def check_parameters(init: F) -> F:
    """Decorates the `__init__` of a rule: each parameter declared with `Param` is checked before the body runs.

    A value that does not fit raises `ParameterError`. A parameter that is not given has the value that a subclass
    declares as an attribute of the class, such as `on_deny = "end"`, else its default.
    """

    @cache  # hints are read when the first rule is made, not when its class is
    def reading() -> tuple[Signature, tuple[Declared, ...]]:
        return signature(init), tuple(parameters(init))

    @wraps(init)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        called_with, declared = reading()
        _ensure_known(self, kwargs, declared)
        try:
            given = called_with.bind(self, *args, **kwargs).arguments
            own = _of_subclasses(self, construct, declared)
            kwargs = {**{name: value for name, value in own.items() if name not in given}, **kwargs}
            bound = called_with.bind(self, *args, **kwargs)
        except TypeError:
            init(self, *args, **kwargs)  # raises it with the name of the class
            return
        bound.apply_defaults()
        for each in declared:
            name = each.parameter.name
            if each.param is not None and name in bound.arguments:
                wrong = problem(each.param, each.hint, bound.arguments[name])
                if wrong is not None:
                    raise ParameterError(f"{self.kind} {bound.arguments['name']!r}", name, f"{wrong}.")
        init(self, *args, **kwargs)

    return cast("F", construct)
