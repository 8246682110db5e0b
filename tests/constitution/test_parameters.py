"""Parameters that a rule of one's own declares once: the check in Python and in YAML, and what is tighter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import pytest
import yaml

from arbiter import History, NodeEvaluator, Param, PolicyChecker, Verdict, check_parameters
from arbiter._constitution.kinds import parameter_rows, parameters_of
from arbiter._constitution.loading import load_constitution
from arbiter.checkers import AtMost
from arbiter.errors import PackError, ParameterError
from arbiter.evaluation import EvaluatorOptions
from arbiter.policy import CheckerOptions
from arbiter.verdicts import EvaluationResult


class Limit(PolicyChecker):
    """Denies a payment above `most`."""

    @check_parameters
    def __init__(
        self,
        name: str,
        most: Annotated[float, Param("the most that one payment may be", gt=0, tighter="lower")],
        *,
        payees: Annotated[list[str] | None, Param("who may be paid", min_length=1, tighter="fewer")] = None,
        currency: Annotated[Literal["eur", "usd"], Param("the currency")] = "eur",
        exact: Annotated[bool, Param("whether cents count")] = True,
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        self.most = most
        self.payees = payees
        self.currency = currency

    def check_before(self, history: History) -> Verdict:
        return Verdict.allow()


class Eager(Limit):
    """A subclass without a constructor of its own."""


class Own(PolicyChecker):
    """Its parameters have no declaration; those of its base class have."""

    def __init__(self, name: str, most: int, on_deny: str = "raise", **rest: Any) -> None:
        super().__init__(name, on_deny=on_deny, **rest)
        self.most = most

    def check_before(self, history: History) -> Verdict:
        return Verdict.allow()


class Patient(NodeEvaluator):
    """Another default for a parameter of its base class, as a class attribute."""

    deadline = 90.0

    def __init__(self, name: str, **options: Unpack[EvaluatorOptions]) -> None:
        super().__init__(name, **options)

    def evaluate(self, history: History) -> EvaluationResult:
        return EvaluationResult(1.0, True)


class Ending(PolicyChecker):
    """Defaults of its own, as class attributes."""

    on_deny = "end"
    target_nodes = ("pay",)
    max_redirects = 2

    def check_before(self, history: History) -> Verdict:
        return Verdict.allow()


class Strict(Limit):
    on_deny = "end"
    currency = "usd"


def test_a_class_attribute_is_the_default_of_a_parameter() -> None:
    """An argument of the constructor wins over it, by keyword or by position."""
    rule = Ending("rule")
    assert (rule.on_deny, rule.target_nodes, rule.max_redirects) == ("end", ("pay",), 2)
    rule = Ending("rule", None, ["tell"], on_deny="audit")
    assert (rule.on_deny, rule.target_nodes, rule.max_redirects) == ("audit", ("tell",), 2)
    limit = Strict("limit", 5)
    assert (limit.on_deny, limit.currency) == ("end", "usd")
    limit = Strict("limit", 5, currency="eur", on_deny="raise")
    assert (limit.on_deny, limit.currency) == ("raise", "eur")


def test_a_class_attribute_that_does_not_fit_is_an_error() -> None:
    class Wrong(PolicyChecker):
        on_deny = "stop"

    with pytest.raises(ParameterError, match="checker 'rule': on_deny: expected 'raise'"):
        Wrong("rule")


HERE = f"{__name__}."
HEAD = "version: 1\nname: it\ndescription: A test.\n"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "bound": ({"most": 0}, "most: expected a number above 0, got 0"),
    "type": ({"most": "ten"}, "most: expected a number"),
    "truth value": ({"most": True}, "most: expected a number"),
    "infinite": ({"most": float("inf")}, "most: expected a "),
    "empty list": ({"payees": []}, "payees: expected a non-empty list of texts, got []"),
    "empty member": ({"payees": ["ann", ""]}, "payees: expected a non-empty list of texts, got ['ann', '']"),
    "a text": ({"payees": "ann"}, "payees: expected a "),
    "another word": ({"currency": "gbp"}, "currency: expected 'eur' or 'usd', got 'gbp'"),
    "a number": ({"exact": 1}, "exact: expected true or false, got 1"),
    "common": ({"on_deny": "explode"}, "on_deny: expected 'raise', 'redirect:<node>', 'end' or 'audit', got"),
    "deadline": ({"deadline": 0}, "deadline: expected seconds above 0, got 0"),
    "targets": ({"target_nodes": 3}, "target_nodes: expected "),
    "no target": ({"target_nodes": []}, "target_nodes: expected at least one, got []"),
    "empty target": ({"target_nodes": ""}, "target_nodes: expected "),
    "no instruction": ({"target_instructions": []}, "target_instructions: expected at least one, got []"),
    "huge": ({"most": 10**400}, "most: expected "),
}


@pytest.mark.parametrize("cls", [Limit, Eager])
@pytest.mark.parametrize(("given", "problem"), WRONG.values(), ids=WRONG)
def test_a_declared_parameter_is_checked_in_python(
    cls: type[Limit], given: dict[str, Any], problem: str
) -> None:
    values: dict[str, Any] = {"most": 5, **given}
    with pytest.raises(ParameterError) as caught:
        cls("small", **values)
    assert str(caught.value).startswith(f"checker 'small': {problem}")


@pytest.mark.parametrize("cls", [Limit, Eager])
@pytest.mark.parametrize(("given", "problem"), WRONG.values(), ids=WRONG)
def test_a_declared_parameter_is_checked_in_yaml(
    tmp_path: Path, cls: type[Limit], given: dict[str, Any], problem: str
) -> None:
    rule = {"name": "small", "use": HERE + cls.__name__, "most": 5, **given}
    file = tmp_path / "a.yaml"
    file.write_text(HEAD + yaml.safe_dump({"checkers": [rule]}, default_flow_style=None, width=1000))
    with pytest.raises(PackError) as caught:
        load_constitution(file, allow=[HERE])
    (mistake,) = caught.value.mistakes
    assert f"checkers[0].{problem}".startswith(mistake.path)
    assert mistake.line >= 5
    assert mistake.message.startswith("expected ")


class Span(PolicyChecker):
    """Its parameters are tuples, with a type for each place."""

    def __init__(
        self,
        name: str,
        of: tuple[int, int],
        at: tuple[str, int, float] = ("", 0, 0.0),
        files: tuple[Path, Path] | None = None,
    ) -> None:
        super().__init__(name)
        self.of, self.at = of, at
        self.files = [Path(file) for file in files or ()]

    def check_before(self, history: History) -> Verdict:
        return Verdict.allow()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("of: [1, 2], at: [ann, 1, 2.5], files: [a, b]", ""),
        ("of: [1, 2], files: [a]", "files: expected at least 2, got ['a']"),
        ("of: [1]", "of: expected at least 2, got [1]"),
        ("of: [1, 2, 3]", "of: expected at most 2, got [1, 2, 3]"),
        ("of: [1, x]", "of[1]: expected a whole number, got 'x'"),
    ],
)
def test_a_tuple_has_a_length_and_types(tmp_path: Path, given: str, problem: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{HEAD}checkers:\n  - {{name: span, use: {HERE}Span, {given}}}\n")
    if problem:
        with pytest.raises(PackError, match=re.escape(f"checkers[0].{problem}")):
            load_constitution(file, allow=[HERE])
    else:
        (rule,) = load_constitution(file, allow=[HERE]).checkers
        assert isinstance(rule, Span)
        assert (list(rule.of), list(rule.at)) == ([1, 2], ["ann", 1, 2.5])
        assert rule.files == [Path("a"), Path("b")]


@pytest.mark.parametrize("given", ["'0.5'", "'1,000.25'", "1e3", "'2E-3'", "-1.5e10", "'-7'"])
def test_the_remedy_of_a_number_that_is_a_text_is_read_as_that_number(tmp_path: Path, given: str) -> None:
    """A parameter that is a whole number gets no remedy for a text with a fraction or an exponent."""
    file = tmp_path / "a.yaml"

    def load(number: str, rule: str = "use: budget, cost") -> str:
        file.write_text(f"{HEAD}checkers:\n  - {{name: x, {rule}: {number}}}\n")
        with pytest.raises(PackError) as caught:
            load_constitution(file)
        return caught.value.mistakes[0].message

    said, written = load(given).split(". Write ")
    assert said == f"expected a number, got {given.strip(chr(39))!r}"
    number = float(given.strip("'").replace(",", ""))
    assert yaml.safe_load(written) == number
    whole = load(given, "use: at_most, target_nodes: [a], times")
    assert whole.endswith("Write -7") if given == "'-7'" else "Write" not in whole


def test_positions_keywords_and_generators_are_taken_as_before() -> None:
    rule = AtMost("x", 0, target_nodes=["a"], target_instructions="TOOL_CALL", on_deny="redirect:b")
    assert (rule.times, rule.target_nodes, rule.on_deny) == (0, ("a",), "redirect:b")
    assert AtMost("x", 1, target_nodes=(name for name in "ab")).target_nodes == ("a", "b")
    assert Eager("x", 5.5, payees=["ann"]).most == 5.5


def test_a_call_that_fits_no_signature_names_the_constructor() -> None:
    with pytest.raises(
        TypeError, match=r"Limit\.__init__\(\) missing 1 required positional argument: 'most'"
    ):
        Limit("small")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("rule", [Limit, Eager, Own])
def test_an_unknown_keyword_names_the_class_and_the_nearest_parameter(rule: type[PolicyChecker]) -> None:
    make: Any = rule
    said = "got an unexpected keyword argument 'target_node'. Did you mean 'target_nodes'"
    with pytest.raises(TypeError, match=rf"^{rule.__name__}\(\) {said}\?$"):
        make("limit", 3, target_node=["pay"])


def test_a_mode_among_the_parameters_is_told_where_it_is_set() -> None:
    make: Any = Limit
    with pytest.raises(TypeError, match=r"'mode'\. Set it on the rule itself, as in rule\.mode = 'audit'\.$"):
        make("limit", 3, mode="audit")


def test_parameters_without_a_declaration_have_that_of_the_base_class() -> None:
    fields = parameters_of(Own).model_fields
    assert fields["on_deny"].description == parameters_of(PolicyChecker).model_fields["on_deny"].description
    assert fields["most"].description is None
    assert "deadline" in fields


def test_tables_show_the_default_that_a_class_sets() -> None:
    shown = {row.name: row for row in parameter_rows(Patient)}
    assert shown["deadline"].default == "90"
    limit = {row.name: (row.expected, row.default, row.sentence) for row in parameter_rows(Limit)}
    assert limit["most"] == ("number above 0", "required", "The most that one payment may be.")
    assert limit["currency"] == ("`eur` or `usd`", "`eur`", "The currency.")
    assert limit["payees"] == ("non-empty list of texts", "none", "Who may be paid.")


@pytest.mark.parametrize(
    ("change", "is_tighter"),
    [("most: 3", True), ("most: 7", False), ("payees: [ann]", True), ("currency: usd", False)],
)
def test_a_declaration_says_which_change_is_tighter(tmp_path: Path, change: str, is_tighter: bool) -> None:
    base = f"{HEAD}checkers:\n  - {{name: small, use: {HERE}Limit, most: 5}}\n".replace("it\n", "base\n", 1)
    mine = f"{HEAD}extends: [base]\ncheckers:\n  - {{name: small, {change}}}\n".replace("it\n", "mine\n", 1)
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "base.yaml").write_text(base)
    (folder / "mine.yaml").write_text(mine)
    if is_tighter:
        assert load_constitution(tmp_path, allow=[HERE]).checkers
    else:
        with pytest.raises(PackError, match="Make it tighter, or write override: true"):
            load_constitution(tmp_path, allow=[HERE])
