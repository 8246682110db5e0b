"""The expectations of a case, as checks: functions of a `CaseRun` that return None, or why they fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias, cast

import jsonschema
from jsonschema.validators import validator_for

from arbiter._conditions import Condition
from arbiter._values.copies import MAX_VALUES, jsonable
from arbiter.errors import ConditionError, ConfigurationError, nearest
from arbiter.harness.canonical import canonical, text_of
from arbiter.harness.cases import Case
from arbiter.harness.results import CaseRun
from arbiter.harness.scores import Score, failed
from arbiter.harness.trajectories import chosen, mismatch, node_steps, problem_in, tool_steps

Check: TypeAlias = Callable[[CaseRun], str | None]
VARIABLES = ("input", "output", "expected", "duration", "tokens")
"""The variables of a condition about a run."""
_ABOUT_CHECKERS = frozenset({"denied_by", "waits_for"})
_ABOUT_GRAPHS = frozenset({"nodes", "tools", "redirected_to", "waits_for"})
_A_TARGET = {"function": "a function", "outputs": "recorded outputs"}
ABOUT_OUTPUT = frozenset({"equals", "contains", "matches", "json_schema", "condition"})
"""The keys that need nothing but the output of a run."""


class Expectations:
    """The checks of all cases. Equal expectations are compiled once."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def mistakes(
        self,
        cases: Iterable[Case],
        nodes: Sequence[str] | None = None,
        checkers: Sequence[str] | None = None,
        *,
        kind: str = "graph",
    ) -> list[tuple[Case, str]]:
        """The cases with an expectation that the target could not meet (see `broken`), each with a sentence."""
        return [
            (case, f"case {case.id!r}: expect.{key}: {why}")
            for case in cases
            for key, why in self.broken(case.assertions, nodes, checkers, kind=kind)
        ]

    def broken(
        self,
        assertions: Mapping[str, Any],
        nodes: Sequence[str] | None = None,
        checkers: Sequence[str] | None = None,
        *,
        kind: str = "graph",
    ) -> Iterator[tuple[str, str]]:
        """Compile the checks of these assertions. Yields the keys that no target could meet, such as a broken pattern,
        that name a node or a checker which the target has not (None: its names are unknown), and that are about
        graphs when the target is of another kind, each with the reason.
        """
        for key, value in assertions.items():
            try:
                if kind != "graph" and key in _ABOUT_GRAPHS:
                    raise ConfigurationError(f"expected a graph as target, got {_A_TARGET.get(kind, kind)}.")
                self._check(key, value, nodes)
                if key in _ABOUT_CHECKERS and checkers is not None:
                    _refuse_unknown(value, checkers)
            except ConfigurationError as error:
                yield key, str(error)

    def _check(self, key: str, value: Any, nodes: Sequence[str] | None = None) -> Check:
        if key == "equals":  # of a value of any type, whose repr may be that of another one
            return equals(value)
        mark = f"{key}:{value!r}"
        check = self._checks.get(mark)
        if check is None:
            check = self._checks[mark] = check_for(key, value, nodes)
        return check

    def scores(self, run: CaseRun) -> list[Score]:
        """One assertion for each key of the case's `expect`."""
        return [
            _assertion(f"expect.{key}", self._check(key, value), key, run)
            for key, value in run.case.assertions.items()
        ]


def _refuse_unknown(checker: str, checkers: Sequence[str]) -> None:
    if checker not in checkers:
        known = ", ".join(checkers) or "none; target.constitution names the rules"
        raise ConfigurationError(
            f"the target has no checker {checker!r}. Checkers: {known}.{nearest(checker, checkers)}"
        )


def _assertion(name: str, check: Check, key: str, run: CaseRun) -> Score:
    if key in ABOUT_OUTPUT and run.status != "completed":
        return Score(name, 0.0, False, reason=f"the run ended as {run.status!r}")
    try:
        fault = check(run)
    except ConditionError as error:
        return Score(name, outcome="error", reason=str(error))
    except Exception as error:
        # Such as a schema that refers to nothing, or an array, which equals nothing as a whole.
        return failed(name, error)
    return Score(name, 1.0, True) if fault is None else Score(name, 0.0, False, reason=fault)


_ENDS = ("completes", "raises", "denied_by", "waits_for")
"""The assertions about how a run ends."""


def ended_as_expected(run: CaseRun) -> bool:
    """True if the run completed, or ended in the way that its case expects."""
    if run.status == "completed":
        return True
    asked = run.case.assertions
    ends = [key for key in _ENDS if key in asked]
    return bool(ends) and all(check_for(key, asked[key])(run) is None for key in ends)


def reads_time(assertions: Mapping[str, Any]) -> bool:
    """True if an assertion is about how long the run took."""
    said = assertions.get("condition", "")
    return "max_seconds" in assertions or (
        "duration" in said and ("duration",) in Condition(said, VARIABLES, records=()).fields
    )


# Checks -------------------------------------------------------------------------------------------


def check_for(key: str, value: Any, nodes: Sequence[str] | None = None) -> Check:
    """The check for a key of `Expect`. Raises `ConfigurationError` for a value that it cannot take."""
    if key == "nodes":
        return ran(value, nodes)
    if key == "redirected_to" and nodes is not None and value not in nodes:
        found = problem_in([value], nodes)
        raise ConfigurationError(str(found))
    if isinstance(value, str) and not value.strip() and key in _NAMES:
        raise ConfigurationError(f"expected {_NAMES[key]}, got {value!r:.80}.")
    if (compare := _COMPARED.get(key)) is not None:
        return lambda run: compare(run, value)
    return _MAKERS[key](value)


def _short(value: Any) -> str:
    text = text_of(value)
    return text if len(text) <= 200 else text[:197] + "..."


def equals(expected: Any) -> Check:
    def check(run: CaseRun) -> str | None:
        if run.output == expected or _is_same(run.output, expected):
            return None
        wanted, found = _short(expected), _short(run.output)
        if wanted == found:  # such as "5" and 5; a cell of a CSV file is a text
            wanted, found = (
                json.dumps(text, ensure_ascii=False) if isinstance(value, str) else text
                for value, text in ((expected, wanted), (run.output, found))
            )
        return f"expected {wanted}, got {found}"

    return check


def _is_same(output: Any, expected: Any) -> bool:
    """True if both have the same JSON form, whose end counts as its beginning does."""
    whole = jsonable(expected, most=inf)
    values = len(canonical(whole))  # or fewer
    return bool(jsonable(output, most=max(values, MAX_VALUES)) == whole)


def contains(wanted: str | Sequence[str]) -> Check:
    texts = [wanted] if isinstance(wanted, str) else list(wanted)
    if not any(texts):
        raise ConfigurationError(f"expected a text that an output may lack, got {wanted!r:.80}.")

    def check(run: CaseRun) -> str | None:
        output = text_of(run.output)
        missing = [text for text in texts if text not in output]
        return f"{', '.join(map(repr, missing))} is not in {_short(output)}" if missing else None

    return check


def matches(pattern: str) -> Check:
    if not pattern:
        raise ConfigurationError("expected a regular expression that an output may lack, got ''.")
    try:
        holds = Condition(
            f"output.matches({json.dumps(pattern, ensure_ascii=False)})", ["output"], records=()
        )
        holds.evaluate({"output": ""})
    except ConditionError as error:
        raise ConfigurationError(f"{pattern!r} is not a regular expression: {error.problem}") from None

    def check(run: CaseRun) -> str | None:
        found = holds.evaluate({"output": text_of(run.output)})
        return None if found else f"{pattern!r} does not match {_short(run.output)}"

    return check


def _refuses_its_type(error: jsonschema.ValidationError) -> bool:
    """True if a whole value is refused for what it is, and not for its size or its parts."""
    if error.absolute_path:
        return False
    inner = error.context
    return all(map(_refuses_its_type, inner)) if inner else error.validator in ("type", "enum", "const")


def fits_schema(schema: Mapping[str, Any]) -> Check:
    kind = validator_for(cast(Any, schema), default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(cast(Any, schema))
    except jsonschema.SchemaError as error:
        raise ConfigurationError(f"expected a JSON Schema: {error.message}") from None
    validator: Any = kind(cast(Any, schema))

    def check(run: CaseRun) -> str | None:
        output = jsonable(run.output)
        read = output
        if isinstance(output, str):
            try:
                read = json.loads(output)
            except (ValueError, RecursionError):
                pass  # a text, which the schema may allow
        error = next(iter(validator.iter_errors(read)), None)
        # "1234" and "true" are texts, too, for a schema that takes no number there: what it says of numbers, objects
        # and lists, it says of no text.
        if error is None or (
            validator.is_valid(output) and any(map(_refuses_its_type, validator.iter_errors(read)))
        ):
            return None
        return f"{error.json_path}: {error.message}"[:500]

    return check


def condition(expression: str) -> Check:
    try:
        holds = Condition(expression, VARIABLES, records=())
    except ConditionError as error:
        raise ConfigurationError(str(error)) from None

    def check(run: CaseRun) -> str | None:
        values = {
            "input": run.input,
            "output": run.output,
            "expected": run.expected,
            "duration": run.duration,
            **({} if run.known_tokens is None else {"tokens": run.known_tokens}),
        }
        return None if holds.evaluate(values) else f"{expression} is false"

    return check


def completes(run: CaseRun, wanted: bool) -> str | None:
    if (run.status == "completed") == wanted:
        return None
    return f"the run ended as {run.status!r}" + (f": {run.error}" if run.error else "")


def raises(run: CaseRun, name: str) -> str | None:
    if run.status == "failed" and any(
        found == name or found.endswith(f".{name}") for found in run.error_types
    ):
        return None
    return f"expected {name}, got {run.error or run.status}"


def denied_by(run: CaseRun, name: str) -> str | None:
    denied = [v.policy for step in run.trajectory for v in step if v.status == "denied" and v.policy]
    if run.status == "denied":
        denied += run.policies
    if name in denied:
        return None
    return f"denied by {', '.join(dict.fromkeys(map(str, denied))) or 'no checker'}"


def waits_for(run: CaseRun, name: str) -> str | None:
    if run.status != "waits":
        return f"the run ended as {run.status!r}"
    return None if name in run.policies else f"asked by {', '.join(run.policies)}"


def redirected_to(run: CaseRun, node: str) -> str | None:
    redirected = [v for step in run.trajectory for v in step if v.redirected_to]
    # A redirect stays in its graph.
    found = ["/".join([*v.node.split("/")[:-1], str(v.redirected_to)]) for v in redirected]
    is_there = node in found or any(v.redirected_to == node for v in redirected)
    return None if is_there else f"redirected to {', '.join(found) or 'no node'}"


def ran(given: Any, nodes: Sequence[str] | None = None) -> Check:
    how, expected = chosen(given)
    # A subset says what may run, so a name of a node that is not there yet, or no longer, contradicts nothing.
    if (problem := problem_in(expected, None if how == "subset" else nodes)) is not None:
        raise ConfigurationError(problem)
    return lambda run: mismatch(how, expected, node_steps(run.trajectory, expected))


def called(given: Any) -> Check:
    how, expected = chosen(given)
    if (problem := problem_in(expected)) is not None:
        raise ConfigurationError(problem)
    return lambda run: mismatch(how, expected, tool_steps(run.trajectory))


def max_tokens(run: CaseRun, most: int) -> str | None:
    if run.tokens > most:
        return f"used {run.tokens:,} tokens; expected at most {most:,}"
    return "the tokens are unknown: no call reported its own" if run.known_tokens is None else None


def max_seconds(run: CaseRun, most: float) -> str | None:
    return None if run.duration <= most else f"took {run.duration:.3g} s; expected at most {most:g}"


def max_usd(run: CaseRun, most: float) -> str | None:
    if run.usd is None:
        return "the cost is unknown: a model has no price, or does not report its tokens"
    return None if run.usd <= most else f"cost ${run.usd:.4f}; expected at most ${most:g}"


_MAKERS: Mapping[str, Callable[[Any], Check]] = {
    "equals": equals,
    "contains": contains,
    "matches": matches,
    "json_schema": fits_schema,
    "condition": condition,
    "tools": called,
}
_COMPARED: Mapping[str, Callable[[CaseRun, Any], str | None]] = {
    "completes": completes,
    "raises": raises,
    "denied_by": denied_by,
    "waits_for": waits_for,
    "redirected_to": redirected_to,
    "max_tokens": max_tokens,
    "max_usd": max_usd,
    "max_seconds": max_seconds,
}
"""The checks that need nothing but the run and the value of the key."""
_NAMES: Mapping[str, str] = {
    "raises": "the name of an exception, such as 'ValueError'",
    "denied_by": "the name of a checker",
}
