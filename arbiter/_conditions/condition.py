"""The condition: compiled once, evaluated with the fields that it names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from arbiter._conditions.answers import compared
from arbiter._conditions.failures import broken_text, kind_of, kinds
from arbiter._conditions.handover import Handover
from arbiter._conditions.needs import RECORDS, TYPES, Field, Scan
from arbiter._conditions.program import MAX_LENGTH, compile_cel, is_failure
from arbiter._conditions.totals import check_history
from arbiter._conditions.work import Work, refuse_deep
from arbiter.errors import ConditionError, ParameterError
from arbiter.instructions import Instruction, find_instruction


class Condition:
    """A CEL expression over `variables`, compiled once, that evaluates to True or False.

    Raises `ConditionError` if the expression is not CEL, is longer than 4,000 characters, nests macros more
    than 5 deep, names a variable or function that does not exist, or would need a whole state. `fields` are
    the fields that it gets: those that it names, each as far as the text shows. `records` are the variables
    of which it may not need all.
    """

    def __init__(
        self, expression: str, variables: Collection[str], *, records: Collection[str] = RECORDS
    ) -> None:
        given: Any = expression
        if not isinstance(given, str):
            raise ConditionError(str(given), f"expected a text, got {given!r}")
        self.expression = expression
        self.variables = frozenset(variables)
        if len(expression) <= MAX_LENGTH:
            refuse_deep(expression)
        self._program = compile_cel(expression)
        scan = Scan(expression, self.variables, records)
        self._records = frozenset(records)
        named = set(self._program.variables())
        if audited := named - scan.needs.keys() - scan.bound - TYPES:
            raise ConditionError(expression, f"the use of {min(audited)!r} could not be followed")
        self._work = Work(expression, self.variables)
        self._needs = scan.needs
        for need in self._needs.values():
            need.settle()
        self.fields: frozenset[Field] = frozenset(
            (name, *path) for name, need in self._needs.items() for path in need.leaves()
        )

    @property
    def grows(self) -> bool:
        """True if it looks at each of several elements, so that more elements take longer."""
        return not self._work.is_simple or any(need.iterates for need in self._needs.values())

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes that it names: whose runs it counts, or with which it compares the node of the run."""
        counted = [str(field[2]) for field in self.fields if field[:2] == ("history", "nodes")]
        return sorted({*counted, *self.compared("node")})

    def compared(self, variable: str) -> Iterator[str]:
        """The texts that it compares one of its variables with."""
        return compared(self.expression, variable) if variable in self.variables else iter(())

    def evaluate(self, values: Mapping[str, Any]) -> bool:
        """The answer for these values of the variables. Variables that the expression does not name are not
        read.

        Raises `ConditionError`, and no other error, if a field is missing or has a value that CEL cannot
        take, if the evaluation could take longer than about a quarter of a second, or if it fails.
        """
        handover = Handover(self.expression)
        handed: dict[str, Any] = {}
        for name, need in self._needs.items():
            handed[name] = handover.root(need, values, name)
        self._work.refuse_if_too_much(handed, handover.weight)
        try:
            answer = self._program.execute(handed)
        except BaseException as exc:
            if not is_failure(exc):
                raise
            for value in handover.unread[:1]:
                with suppress(Exception):  # it notes that it was used
                    bool(value)
            raise self._failure(exc, handover, handed) from None
        if answer is True or answer is False:
            return answer
        raise ConditionError(
            self.expression, f"it gave {kind_of(answer)}, expected true or false. Compare it with something"
        )

    def _failure(self, exc: BaseException, handover: Handover, handed: dict[str, Any]) -> ConditionError:
        if isinstance(exc, KeyError | IndexError):
            key = exc.args[0] if exc.args else ""
            absent = handover.absent(str(key))
            if absent:
                return ConditionError(self.expression, f"{absent} is missing", field=absent)
            # A key that the expression does not name comes from the state, so it is not quoted.
            named = isinstance(exc, KeyError) and str(key) in self.expression
            problem = f"there is no key {key!r}" if named else "there is no such key"
            return ConditionError(self.expression, problem)
        text = str(exc)
        if isinstance(exc, TypeError) or text.startswith("Undefined"):
            found = [kind for name, need in self._needs.items() for kind in kinds(need, handed[name])]
            where = f": {', '.join(found[:6])}" if found else ""
            return ConditionError(
                self.expression, f"an operator or function does not take these kinds of values{where}"
            )
        if isinstance(exc, ValueError) and text.startswith("Conversion"):
            for name, need in self._needs.items():
                if (field := broken_text(need, handed[name])) is not None:
                    return ConditionError(
                        self.expression, f"{field} holds a text that is not valid Unicode", field=field
                    )
        return ConditionError(
            self.expression, _engine_said(text) or f"it cannot be evaluated ({type(exc).__name__})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _condition, (self.expression, tuple(sorted(self.variables)), tuple(sorted(self._records)))

    def __repr__(self) -> str:
        return f"<Condition {self.expression!r}>"


def _condition(expression: str, variables: Collection[str], records: Collection[str]) -> Condition:
    return Condition(expression, variables, records=records)


_FUNCTION = re.compile(r"Function '(\w+)' error")
_ARITHMETIC = re.compile(r"(division by zero.*|Arithmetic overflow in '\w+')", re.IGNORECASE)


def _engine_said(text: str) -> str:
    """The engine's error message without the values that it quotes: reasons are kept longer than states."""
    if found := _FUNCTION.match(text):
        if "not a valid regex" in text:
            return f"the function {found[1]!r} is given what is not a valid regex"
        return f"the function {found[1]!r} does not take this value"
    return found[1] if (found := _ARITHMETIC.match(text)) else ""


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


def condition_of(owner: str, parameter: str, expression: str, variables: Collection[str]) -> Condition:
    """The condition for a contract's parameter. Raises `ParameterError` if the expression is wrong.

    Beyond the checks of `Condition` it rejects unknown instructions and LangGraph's own part of the config.
    """
    given: Any = expression
    if not isinstance(given, str):
        raise ParameterError(
            owner,
            parameter,
            f"expected a condition, got {given!r}. Write it as a text, as in 'input.amount > 9'.",
        )
    try:
        condition = Condition(expression, variables)
        for field in condition.fields:
            check_history(expression, field)
            if field[0] == "config" and str(field[1]).startswith("__"):
                raise ConditionError(expression, f"{field[1]} of the config is LangGraph's own")
    except ConditionError as exc:
        shown = expression if len(expression) <= 200 else expression[:197] + "..."
        raise ParameterError(
            owner, parameter, f"expected a condition, got {shown!r}: {_ended(exc.problem)}"
        ) from None
    return condition


def instructions_in(conditions: Iterable[Condition]) -> dict[str, Instruction]:
    """The instructions whose totals the conditions name, so that they are looked up only once."""
    fields = [field for condition in conditions for field in condition.fields]
    return {
        str(field[2]): find_instruction(field[2]) for field in fields if field[:2] == ("history", "counts")
    }
