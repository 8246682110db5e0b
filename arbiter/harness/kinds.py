"""The built-in scorers, as files name them with `use`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Literal

from pydantic import Field, ValidationError

from arbiter._constitution.documents import PackModel, explain
from arbiter._values.kinds import is_list, is_mapping
from arbiter._values.versions import hash_of, version_from
from arbiter.errors import ConfigurationError, ParameterError, nearest
from arbiter.evaluators import JudgeEvaluator
from arbiter.harness.cases import Order
from arbiter.harness.dimensions import DIMENSIONS, DimensionScorer, RowName
from arbiter.harness.expectations import Check, condition, contains, equals, fits_schema, matches, ran
from arbiter.harness.results import CaseRun
from arbiter.harness.scorers import NamedScorer, Scorer
from arbiter.harness.scores import COUNT, SHARE, Scale, Score, of_judge
from arbiter.models import Judge, judge_of
from arbiter.testing import history_of

NOTHING_EXPECTED = Score("", outcome="not_applicable", reason="the case has no `expected`")


class BuiltIn:
    """A scorer that a file declares. `version` says what its numbers depend on."""

    def __init__(
        self, name: str, call: Callable[[CaseRun], Any], entry: PackModel, *, scale: Scale = SHARE
    ) -> None:
        self.name = name
        self.scale = scale
        self.entry = entry
        self.call = call

    def score(self, run: CaseRun) -> Any:
        return self.call(run)

    @property
    def reads_expected(self) -> bool:
        """True if it judges nothing without the `expected` of the case."""
        return isinstance(self.entry, _About) and self.entry.text is None

    @property
    def version(self) -> str:
        return version_from(self.version_parts())

    def version_parts(self) -> Mapping[str, str]:
        return {"entry": hash_of(self.entry.model_dump(mode="json"))}


class _Entry(PackModel):
    name: RowName


class ScorerEntry(_Entry):
    """A scorer of the user: its row is called `name`, and `use` is the path of a function."""

    use: str = Field(min_length=1, description="the kind, or a function of yours: package.module:name")


class _About(_Entry):
    what: Literal["expected"] = Field("expected", description="the `expected` of the case")
    text: str | None = Field(None, description="a text for all cases, in place of `expected`")


class _Equals(_About):
    use: Literal["equals"]


class _Contains(_About):
    use: Literal["contains"]


class _Matches(_Entry):
    use: Literal["matches"]
    pattern: str = Field(description="a regular expression (RE2) that is found in the output")


class _Schema(_Entry):
    use: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(description="the JSON Schema of the output")


class _Condition(_Entry):
    use: Literal["condition"]
    condition: str = Field(description="CEL over input, output, expected, duration and tokens")


UNTIMED = "a replay takes no time"
"""The reason of a score that judges the seconds of a replay."""


class _Amount(_Entry):
    most: float | None = Field(
        None, ge=0, description="more fails; without it the row shows the amount alone"
    )


class _Tokens(_Amount):
    use: Literal["tokens"]


class _Usd(_Amount):
    use: Literal["usd"]


class _Seconds(_Amount):
    use: Literal["seconds"]


class _Trajectory(Order):
    name: RowName
    use: Literal["trajectory"]


class _Judge(_Entry):
    use: Literal["judge"]
    rubric: str = Field(min_length=1, description="what is good")
    judge: str = Field(description="the name of a model under `models`, or a text like openai:gpt-5-mini")
    at_least: float = Field(0.7, ge=0, le=1, description="passes from here on")
    include_input: bool = Field(True, description="whether the judge sees the input too")


def _checking(check: Check) -> Callable[[CaseRun], Score]:
    def score(run: CaseRun) -> Score:
        fault = check(run)
        return Score("", 1.0, True) if fault is None else Score("", 0.0, False, reason=fault)

    return score


def _compared(entry: _About, check: Callable[[Any], Check]) -> Callable[[CaseRun], Score]:
    if entry.text is not None:
        return _checking(check(entry.text))

    def score(run: CaseRun) -> Score:
        if run.expected is None:
            return NOTHING_EXPECTED
        try:
            judge = check(run.expected)
        except ConfigurationError as error:  # such as an empty text, which any output contains
            return Score("", outcome="not_applicable", reason=f"the `expected` of the case: {error}")
        return _checking(judge)(run)

    return score


def _contained(expected: Any) -> Check:
    return contains([*map(str, expected)] if is_list(expected) else str(expected))


def _amount(entry: _Amount, of: Callable[[CaseRun], float | None]) -> Callable[[CaseRun], Any]:
    def score(run: CaseRun) -> Any:
        amount = of(run)
        if amount is None:
            return Score(
                "", outcome="abstained", reason="a model has no price, or does not report its tokens"
            )
        # A run that begins takes some time, however little.
        untimed = UNTIMED if isinstance(entry, _Seconds) and not amount else ""
        if entry.most is None:
            return Score("", float(amount), scale=COUNT, reason=untimed)
        passed = amount <= entry.most
        return Score("", float(passed), passed, reason=untimed or f"{amount:g}")

    return score


class RubricScorer(BuiltIn):
    """Lets a judge grade the output of a run by a rubric."""

    def __init__(self, entry: _Judge, models: Mapping[str, Any]) -> None:
        super().__init__(entry.name, self._grade, entry)
        self.judge = JudgeEvaluator(
            entry.name,
            entry.rubric,
            models.get(entry.judge, entry.judge),
            at_least=entry.at_least,
            include_input=entry.include_input,
        )

    def _grade(self, run: CaseRun) -> Score:
        state = run.input if is_mapping(run.input) else {"input": run.input}
        result: Any = self.judge.evaluate(history_of(state=state, output={"output": run.output}))
        return Score("", result.score, result.passed, reason=result.feedback, **of_judge(result.metadata))

    def with_judges(self, wrap: Callable[[Judge], Judge], votes: int | None = None) -> RubricScorer:
        """A copy that asks the judge that `wrap` returns."""
        new = copy(self)
        new.judge = self.judge.with_judges(wrap, votes)
        new.call = new._grade
        return new

    def version_parts(self) -> Mapping[str, str]:
        return self.judge.version_parts()


Maker = Callable[[Any, Mapping[str, Any]], Scorer]


def _checks(check: Callable[[Any], Check]) -> Maker:
    return lambda entry, models: BuiltIn(entry.name, _checking(check(entry)), entry)


def _dimension(entry: Any, models: Mapping[str, Any]) -> DimensionScorer:
    return DimensionScorer(entry, entry.use, judge_of(models.get(entry.judge, entry.judge)))


def _counts(of: Callable[[CaseRun], float | None]) -> Maker:
    return lambda entry, models: BuiltIn(
        entry.name, _amount(entry, of), entry, scale=COUNT if entry.most is None else SHARE
    )


SCORERS: Mapping[str, tuple[type[PackModel], Maker]] = {
    "equals": (_Equals, lambda entry, models: BuiltIn(entry.name, _compared(entry, equals), entry)),
    "contains": (_Contains, lambda entry, models: BuiltIn(entry.name, _compared(entry, _contained), entry)),
    "matches": (_Matches, _checks(lambda entry: matches(entry.pattern))),
    "json_schema": (_Schema, _checks(lambda entry: fits_schema(entry.json_schema))),
    "condition": (_Condition, _checks(lambda entry: condition(entry.condition))),
    "tokens": (_Tokens, _counts(lambda run: run.known_tokens)),
    "usd": (_Usd, _counts(lambda run: run.usd)),
    "seconds": (_Seconds, _counts(lambda run: run.duration)),
    "trajectory": (_Trajectory, _checks(ran)),
    "judge": (_Judge, lambda entry, models: RubricScorer(entry, models)),
    **{use: (model, _dimension) for use, model in DIMENSIONS.items()},
}
"""The model of each kind's entry, and the function that makes the scorer of it."""


def made_of_entry(scorer: Any, name: object, models: Mapping[str, Any]) -> Any:
    """The scorer that a suite in Python gets under that name, made if it is an entry as in a file.

    Raises `ConfigurationError` for an entry that is wrong.
    """
    is_scorer = callable(scorer) or callable(getattr(scorer, "score", None))  # it may be a mapping, too
    if is_scorer or not is_mapping(scorer):
        return scorer
    if name is not None and scorer.get("name", name) != name:
        raise ConfigurationError(
            f"the scorer {name!r:.80} has the name {scorer['name']!r:.80} in its entry, too. Leave one out."
        )
    return _made_of(scorer if name is None else {**scorer, "name": name}, models)


def refuse_unused(models: Mapping[str, Any], scorers: Iterable[NamedScorer]) -> None:
    """Raise `ConfigurationError` for models that no entry names."""
    made = (each.given for each in scorers if isinstance(each.given, BuiltIn | DimensionScorer))
    named = {getattr(each.entry, "judge", "") for each in made}
    if unused := [name for name in models if name not in named]:
        raise ConfigurationError(
            f"models has {', '.join(map(repr, unused))}, which no scorer names. A scorer does that in an entry, "
            "{'use': 'judge', 'judge': 'NAME', ...}; an evaluator gets its model itself."
        )


def _made_of(data: Mapping[str, Any], models: Mapping[str, Any]) -> Scorer:
    use = data.get("use")
    if not isinstance(use, str) or use not in SCORERS:
        raise ConfigurationError(
            f"the scorer {data!r:.80} has the use {use!r:.80}; expected one of {', '.join(SCORERS)}."
            f"{nearest(str(use), SCORERS)}"
        )
    model, make = SCORERS[use]
    try:
        entry = model.model_validate(data)
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, where))}: {what}" if where else what
            for where, what in explain(model, data, error)
        )
        end = "" if said.endswith("?") else "."
        raise ConfigurationError(f"the scorer {data.get('name', use)!r:.80}: {said}{end}") from None
    try:
        return make(entry, models)
    except ParameterError:
        raise  # names it
    except ConfigurationError as error:
        raise ConfigurationError(f"the scorer {data['name']!r:.80}: {error}") from error
