"""A checker of tool calls: which tools may be called, and with what arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Unpack, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage

from arbiter._threads.forks import new_lock
from arbiter._values.parameters import Param, check_parameters
from arbiter._values.states import ROOT
from arbiter.checkers._arguments import (
    ArgumentRule,
    Test,
    UnclearError,
    by_name,
    canonical,
    coerced,
    normalised,
    readings,
    tests_of,
)
from arbiter.checkers._received import SHOWN, received, refuse_alike, short
from arbiter.errors import ParameterError, PolicyViolationError, nearest
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History
from arbiter.instructions import TOOL_CALL
from arbiter.policy import CheckerOptions, OnCaught, PolicyChecker
from arbiter.verdicts import Verdict

if TYPE_CHECKING:
    from arbiter._conditions import Condition

_NO_TOOLS: Mapping[str, Sequence[Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ToolRule:
    """A tool, and the conditions on its arguments under which the rule holds.

    `tool` is the exact name, or a pattern with `*` and `?`. `when` is a CEL condition over `args` and `tool`.
    `arguments` maps the names of single arguments to their rules. `reason` is added to a denial.
    """

    tool: Annotated[str, Param("the name of a tool, or a pattern with `*` and `?`")]
    when: Annotated[str | None, Param("a condition in CEL over `args` and `tool` that must hold")] = None
    arguments: Annotated[
        Mapping[str, ArgumentRule] | None, Param("what single arguments must be, by name")
    ] = None
    reason: Annotated[str | None, Param("the text that is shown with a denial")] = None


class ToolsChecker(PolicyChecker):
    """Lets nodes call only allowed tools with allowed arguments.

    With `allow` a tool that is not in it is denied; a tool in `deny` is always denied. An entry is a tool's
    name or a `ToolRule`. If the node's body holds the tool, the arguments are read by the tool's own schema,
    with its aliases and defaults, otherwise as they were sent; and in their normalised form. The tool itself
    gets them as they were sent. An argument that is missing, that the tool does not have, or that cannot be
    read is not allowed.

    It checks twice. Before a node runs, it checks the calls that the node is about to make: the unanswered
    calls of the last AI message of its input if the node is a TOOL_CALL, and calls that were sent to it
    (`Send`) in any case. And when a tool starts, in any node to which the checker applies: then the tool's
    function does not run and `PolicyViolationError` is raised in the node, whatever `on_deny` says (but not
    with "audit"). If the node's code catches that, the item records it, and "end" and "redirect" follow after
    the body: the output is not committed, unless it answers the call with a `ToolMessage`, so that the model
    sees the refusal. `on_caught` changes this: with "deny" `on_deny` follows in any case, with "answered"
    unless the call is answered, with "continue" never.

    `history.tally(name, tool)` counts how often a tool was stopped when it started, or would have been.
    """

    reads_history = False
    counts_consumption = True
    counts_stops = True

    @check_parameters
    def __init__(
        self,
        name: str,
        allow: Annotated[
            Sequence[str | ToolRule] | None,
            Param(
                "the only tools that may be called, by name, pattern or rule; an empty list allows none",
                expected="a list of tools",
                tighter="fewer",
            ),
        ] = None,
        *,
        deny: Annotated[
            Sequence[str | ToolRule] | None,
            Param(
                "tools that may not be called, even if `allow` names them",
                expected="a list of tools",
                tighter="more",
            ),
        ] = None,
        on_caught: Annotated[
            OnCaught | None,
            Param(
                "what follows where a node's code catches a denial in its body: `continue` goes on, `deny` does what "
                "`on_deny` says, `answered` does so unless the output answers the call; by default `continue` "
                "with `raise`, else `answered`"
            ),
        ] = None,
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        self.on_caught = on_caught
        owner = f"checker {name!r}"
        self.deny = tuple(_rules(() if deny is None else deny, owner, "deny"))
        if allow is None and not self.deny:
            raise ParameterError(owner, "allow", "expected a list of tools for allow or deny, got neither.")
        self.allow = None if allow is None else tuple(_rules(allow, owner, "allow"))
        self._allowed = None if self.allow is None else _entries(self.allow, owner, "allow")
        self._denied = _entries(self.deny, owner, "deny")
        self._gates: WeakKeyDictionary[History, _Gate] = WeakKeyDictionary()
        self._lock = new_lock()
        looks_at_files = any(
            asked.under is not None
            for rule in (*(self.allow or ()), *self.deny)
            for asked in (rule.arguments or {}).values()
        )
        self.blocking = None if looks_at_files else False

    @property
    def conditions(self) -> Sequence[Condition]:
        """The conditions of its entries."""
        return [entry.condition for entry in (*(self._allowed or ()), *self._denied) if entry.condition]

    def tools_not_in(self, held: Collection[str]) -> Sequence[str]:
        return [
            *_names_not_in(held, self._allowed or (), every=True),
            *_names_not_in(held, self._denied, every=False),
        ]

    def check_before(self, history: History) -> Verdict:
        own = history.item
        tools = _tools_of(history)
        for call in calls_to_make(own.input_state, runs_messages=own.instruction is TOOL_CALL):
            if (reason := self.denial(*call, tools=tools)) is not None:
                return Verdict.deny(reason)
        return Verdict.allow()

    def handlers(self, history: History) -> Sequence[BaseCallbackHandler]:
        gate = _Gate(self, history)
        with self._lock:
            self._gates[history] = gate
        return (gate,)

    def observe(self, history: History) -> Mapping[str, float] | None:
        with self._lock:
            gate = self._gates.pop(history, None)
            if gate is None or not gate.stopped:
                return None
            own = history.item
            if own.status == "completed" or own.redirected_to is not None:
                # The nodes around this one saw the same calls, which are counted once, here.
                for around in self._gates.values():
                    for call in gate.stopped:
                        around.stopped.pop(call, None)
        return Counter(gate.stopped.values())

    def denial(
        self, tool: object, arguments: object, *, tools: Mapping[str, Sequence[Any]] = _NO_TOOLS
    ) -> str | None:
        """The reason why a tool may not be called with these arguments, or None if it may.

        `tools` are the tools that the name may mean, by name: their schemas determine the arguments that they
        would get.
        """
        if not isinstance(tool, str) or not tool:
            return "a tool call names no tool"
        known = tools.get(tool, ())
        for entry in self._denied:
            if entry.names(tool, every=False):
                for answers in entry.judge(tool, arguments, known, every=False):
                    unclear = [answer for answer in answers if answer.holds is None]
                    if unclear or all(answer.holds for answer in answers):
                        return entry.denies(tool, unclear or answers)
        if self._allowed is None:
            return None
        refused = ""
        for entry in self._allowed:
            if entry.names(tool, every=True):
                judged = entry.judge(tool, arguments, known, every=True)
                failed = [answer for answers in judged for answer in answers if not answer.holds]
                if not failed:
                    return None
                refused = refused or entry.refuses(tool, failed[0])
        hint = nearest(tool, [entry.rule.tool for entry in self._allowed])
        return refused or f"tool {short(tool)} is not on the allow-list.{hint}"


class _Gate(BaseCallbackHandler):
    """Checks each tool call in the body of one node run."""

    raise_error = True
    run_inline = True

    def __init__(self, checker: ToolsChecker, history: History) -> None:
        self.checker = checker
        self.item = history.item
        self.tools = _tools_of(history)
        self.stopped: dict[UUID, str] = {}

    @property
    def ignore_chat_model(self) -> bool:
        return True  # otherwise LangChain renders all messages for it, as for an older kind of handler

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # A tool called with a bare text has no `inputs`, and the argument's name is unknown here.
        tool = (serialized or {}).get("name") or kwargs.get("name")
        cause = None
        try:
            given = input_str if inputs is None else inputs
            reason = self.checker.denial(tool, given, tools=self.tools)
        except Exception as exc:
            reason, cause = "", exc
        if reason is None:
            return
        self.stopped[run_id] = str(tool)[:SHOWN]
        if self.checker.enforced:
            raise PolicyViolationError(
                policy=self.checker.name,
                node=self.item.node,
                instruction=self.item.instruction,
                reason=reason,
                cause=cause,
            )


def _tools_of(history: History) -> Mapping[str, Sequence[Any]]:
    """The tools that the node's body holds."""
    return history.tools if isinstance(history, CausalHistory) else _NO_TOOLS


# The calls that a node is about to make -----------------------------------------------------------

Call = tuple[object, object]
"""A tool's name and its arguments, as found: both may be invalid."""


def calls_to_make(state: Mapping[str, Any], *, runs_messages: bool) -> Iterator[Call]:
    """The tool calls that a node with that input runs, as LangGraph's `ToolNode` reads it.

    Calls that were sent as such (a list of them, or one with its context) are always run. With
    `runs_messages`, so are those of the last AI message in any of the state's lists, except calls that have
    an answer.
    """
    if state.get("__type") == "tool_call_with_context":
        yield _call(state.get("tool_call"))
        return
    for value in _unfrozen(state):
        if isinstance(value, list | tuple):
            parts = cast("Sequence[Any]", value)
            if parts and _is_call(next(_backwards(parts))):
                if runs_messages or ROOT in state:
                    yield from map(_call, _forwards(parts))
            elif runs_messages:
                yield from _unanswered(parts)
        elif runs_messages and _is_call(value):
            yield _call(value)
    if runs_messages and _is_call(state):
        yield _call(state)


# The view would copy each message that it returns; this module changes none.
def _unfrozen(state: Mapping[str, Any]) -> Iterable[Any]:
    return dict[str, Any].values(state) if isinstance(state, dict) else state.values()


def _forwards(parts: Sequence[Any]) -> Iterator[Any]:
    return list[Any].__iter__(parts) if isinstance(parts, list) else iter(parts)


def _backwards(parts: Sequence[Any]) -> Iterator[Any]:
    return list[Any].__reversed__(parts) if isinstance(parts, list) else reversed(parts)


def _is_call(value: Any) -> bool:
    return _field(value, "type") in ("tool_call", "invalid_tool_call")


def _unanswered(messages: Sequence[Any]) -> Iterator[Call]:
    answered: set[Any] = set()
    for message in _backwards(messages):
        kind, calls, answers = _look_at(message)
        if kind in ("tool", "ToolMessage"):
            answered.add(answers)
        elif kind in ("ai", "AIMessageChunk", "assistant"):
            # For a call without an id, an answer cannot be found.
            yield from (_call(call) for call in calls if _field(call, "id") not in answered - {None})
            return


def _look_at(message: Any) -> tuple[Any, Sequence[Any], Any]:
    """A message's kind, its tool calls, and the id of the call that it answers; also for a message as plain
    data.
    """
    if isinstance(message, AIMessage):
        return "ai", [*message.tool_calls, *message.invalid_tool_calls], None
    if isinstance(message, ToolMessage):
        return "tool", (), message.tool_call_id
    if not isinstance(message, Mapping):
        return None, (), None
    calls = _field(message, "tool_calls")
    return (
        _field(message, "role") or _field(message, "type"),
        cast("Sequence[Any]", calls) if isinstance(calls, list | tuple) else (),
        _field(message, "tool_call_id"),
    )


def _field(value: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None


def _call(call: Any) -> Call:
    """The name and arguments of a call in LangChain's form, or in OpenAI's, whose arguments are JSON."""
    function = _field(call, "function")
    name = _field(function, "name") if function is not None else _field(call, "name")
    arguments = _field(function, "arguments") if function is not None else _field(call, "args")
    if isinstance(arguments, str):
        try:
            arguments = readings(arguments)[0]
        except UnclearError:
            arguments = None
    return name, {} if arguments == "" else arguments


# Rules --------------------------------------------------------------------------------------------


_Rule = TypeVar("_Rule", ToolRule, ArgumentRule)


@dataclass(frozen=True, slots=True)
class _Answer:
    """True or False if it is known that a condition holds or not, else None. `words` describe the condition
    or the problem.
    """

    holds: bool | None
    words: str


_FIELD = r"""args(?:\.\w+|\[\s*(?:'\w+'|"\w+")\s*\])"""
_COMPARED_TEXT = re.compile(
    rf"""
    {_FIELD} \s* (?: [=!]= \s* r?['"] | in \s* \[ \s* r?['"] | \.(?:startsWith|endsWith|matches)\( )
  | ['"] \s* [=!]= \s* {_FIELD}
    """,
    re.VERBOSE,
)
"""Comparisons of an argument with a text, which show that the argument is a text."""


class _When:
    """A condition, and the arguments that it reads; None for all of them."""

    def __init__(self, expression: str, owner: str, path: str) -> None:
        from arbiter._conditions import ConditionError, condition_of

        self.failure = ConditionError
        self.condition = condition_of(owner, path, expression, {"args", "tool"})
        fields = [field[1:] for field in self.condition.fields if field[0] == "args"]
        self.reads = None if () in fields else {str(field[0]) for field in fields}
        shown = _COMPARED_TEXT.sub("", expression)
        self._texts = {
            name for name in self.reads or () if re.search(rf"\b{re.escape(name)}\b", shown) is None
        }
        self._flags = re.search(r"\b(true|false)\b", expression) is not None

    def may_hold(self, reading: Mapping[str, Any], tool: str) -> bool:
        """True if it holds for the arguments as a tool may convert them. False if it cannot be evaluated."""
        return any(self._holds(args, tool) for args in coerced(reading, self._texts, flags=self._flags))

    def _holds(self, args: Mapping[str, Any], tool: str) -> bool:
        try:
            return self.condition.evaluate({"args": args, "tool": tool})
        except self.failure:
            return False


class _Entry:
    """A validated rule. `every` is true for a rule that allows: it must hold for every way in which a tool
    may read a value.
    """

    def __init__(self, rule: ToolRule, owner: str, path: str) -> None:
        self.rule = rule
        # Brackets are not wildcards.
        self._patterns = tuple(
            (spell, spell(rule.tool).replace("[", "[[]")) for spell in (canonical, normalised)
        )
        self._tests = [
            (argument, *test)
            for argument, asked in (rule.arguments or {}).items()
            for test in tests_of(asked, owner, f"{path}.arguments.{argument}")
        ]
        self._when = None if rule.when is None else _When(rule.when, owner, f"{path}.when")
        self._looked_at = {argument for argument, *_ in self._tests}
        if self._when is not None:
            self._looked_at |= self._when.reads or set()

    @property
    def condition(self) -> Condition | None:
        return None if self._when is None else self._when.condition

    @property
    def is_pattern(self) -> bool:
        return not {"*", "?"}.isdisjoint(self.rule.tool)

    @property
    def is_conditional(self) -> bool:
        return bool(self._tests) or self._when is not None

    def names(self, tool: str, *, every: bool) -> bool:
        fits = (fnmatchcase(spell(tool), pattern) for spell, pattern in self._patterns)
        return all(fits) if every else any(fits)

    def judge(
        self, tool: str, arguments: object, known: Sequence[Any], *, every: bool
    ) -> Iterator[list[_Answer]]:
        """The answers of all its conditions, for each of the tools that the name may mean."""
        if not self.is_conditional:
            yield []
            return
        given: Any = arguments
        if not isinstance(arguments, Mapping):
            yield [_Answer(None, "its arguments are not a mapping of names to values")]
            return
        for meant in known or (None,):
            try:
                by_name(given)
                looked_at = self._looked_at or given
                named = None if meant is None else received(meant, given, looked_at)
                if named is None:
                    refuse_alike(given, looked_at)
                    named = given
            except UnclearError as exc:
                yield [_Answer(None, f"its arguments are unclear: the call {exc}")]
                continue
            yield self._answers(tool, named, every)

    def _answers(self, tool: str, named: Mapping[str, Any], every: bool) -> list[_Answer]:
        answers = [self._ask(test, named, argument, words, every) for argument, words, test in self._tests]
        if self._when is not None:
            answers.append(self._ask_when(self._when, tool, named, every))
        return answers

    def _ask(self, test: Test, named: Mapping[str, Any], argument: str, words: str, every: bool) -> _Answer:
        if argument not in named:
            return _Answer(None, f"argument {argument!r} is missing")
        try:
            return _Answer(test(named[argument], every), f"with argument {argument!r} {words}")
        except UnclearError as exc:
            return _Answer(None, f"argument {argument!r} {exc}")

    def _ask_when(self, when: _When, tool: str, named: Mapping[str, Any], every: bool) -> _Answer:
        words = f"when {when.condition.expression}"
        given = {name: value for name, value in named.items() if when.reads is None or name in when.reads}
        name = normalised(tool)
        try:
            found = [when.condition.evaluate({"args": reading, "tool": name}) for reading in readings(given)]
            if not every and not any(found):
                # The tool may read the text '50' as the number 50.
                found.append(any(when.may_hold(reading, name) for reading in readings(given)))
        except (UnclearError, when.failure) as exc:
            return _Answer(None, f"{words!r} cannot be evaluated: {exc}")
        return _Answer(all(found) if every else any(found), words)

    def denies(self, tool: str, answers: Sequence[_Answer]) -> str:
        words = " and ".join(answer.words for answer in answers)
        if answers and answers[0].holds is None:
            words = f": {words}"
        elif words:
            words = f" {words}"
        return f"tool {short(tool)} is denied{words}{self._reason}"

    def refuses(self, tool: str, answer: _Answer) -> str:
        how = "not allowed: " if answer.holds is None else "allowed only "
        return f"tool {short(tool)} is {how}{answer.words}{self._reason}"

    @property
    def _reason(self) -> str:
        return f" ({self.rule.reason})" if self.rule.reason else ""


def _entries(rules: Sequence[ToolRule], owner: str, parameter: str) -> tuple[_Entry, ...]:
    return tuple(_Entry(rule, owner, f"{parameter}[{number}]") for number, rule in enumerate(rules))


def _names_not_in(held: Collection[str], entries: Sequence[_Entry], *, every: bool) -> Iterator[str]:
    """The names that are none of these tools, nor covered by a pattern of them: right or wrong, such a name changes
    nothing.
    """
    known = [each for each in entries if any(each.names(tool, every=every) for tool in held)]
    covering = [each for each in known if each.is_pattern and not each.is_conditional]
    right = {each.rule.tool for each in known}
    for entry in entries:
        name = entry.rule.tool
        if not (entry.is_pattern or name in right or any(each.names(name, every=every) for each in covering)):
            yield name


def _rules(entries: Iterable[Any], owner: str, parameter: str) -> Iterator[ToolRule]:
    for number, entry in enumerate(entries):
        path = f"{parameter}[{number}]"
        rule = ToolRule(entry) if isinstance(entry, str) else _made(ToolRule, entry, owner, path)
        tool: Any = rule.tool
        if not isinstance(tool, str) or not tool:
            raise ParameterError(owner, f"{path}.tool", f"expected the name of a tool, got {tool!r}.")
        asked: Any = rule.arguments
        if asked is None:
            yield rule
            continue
        if not isinstance(asked, Mapping) or not asked:
            raise ParameterError(
                owner, f"{path}.arguments", f"expected a mapping of argument names to rules, got {asked!r}."
            )
        made = {
            argument: _made(ArgumentRule, what, owner, f"{path}.arguments.{argument}")
            for argument, what in cast("Mapping[str, Any]", asked).items()
        }
        yield ToolRule(tool, rule.when, made, rule.reason)


def _made(kind: type[_Rule], given: Any, owner: str, path: str) -> _Rule:
    """A rule unchanged, or made from a mapping as in YAML."""
    if isinstance(given, kind):
        return given
    names = [field.name for field in fields(kind)]
    if not isinstance(given, Mapping):
        raise ParameterError(owner, path, f"expected a mapping with {', '.join(names)}, got {given!r}.")
    entries = cast("Mapping[str, Any]", given)
    for name in entries:
        if name not in names:
            hint = nearest(str(name), names)
            raise ParameterError(owner, path, f"expected one of {', '.join(names)}, got {name!r}.{hint}")
    if kind is ToolRule and "tool" not in entries:
        raise ParameterError(owner, f"{path}.tool", "expected the name of a tool, got nothing.")
    return kind(**entries)
