"""`schema`: what goes into a node and what comes out of it fits a JSON Schema or a class."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from arbiter import ArbiterOS, PolicyViolationError
from arbiter._values import shapes
from arbiter._values.shapes import shape_of
from arbiter.checkers import SchemaChecker
from arbiter.errors import ParameterError
from tests.support import MODES, Spy, chain, examples, quick, run, statuses

AMOUNT = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "minimum": 1}},
    "required": ["amount"],
}


class Paid(BaseModel):
    amount: int = Field(ge=1)


FORMS = pytest.mark.parametrize(
    "schema", [AMOUNT, Paid, f"{__name__}.Paid"], ids=["JSON Schema", "class", "dotted path"]
)


def mistakes(schema: Any, value: Any, root: str = "input") -> list[str]:
    return shape_of(schema, "checker 'c'", "input").mistakes(value, root)


@FORMS
@MODES
def test_an_input_that_does_not_fit_denies_the_node(schema: Any, mode: str) -> None:
    """The body does not run, and the reason says where the mistake is."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(SchemaChecker("shape", input=schema))
    app = arbiter_os.govern(chain(pay))
    assert run(app, {"log": [], "amount": 5}, mode=mode)["log"] == ["pay"]
    with pytest.raises(PolicyViolationError, match=r"input\.amount: .*(minimum|greater)"):
        run(app, {"log": [], "amount": 0}, mode=mode)
    with pytest.raises(PolicyViolationError, match=r"'amount' is a required property|Field required"):
        run(app, {"log": []}, mode=mode)
    assert len(pay.calls) == 1


@FORMS
@MODES
def test_an_output_that_does_not_fit_is_not_committed(schema: Any, mode: str) -> None:
    """Under `on_deny="end"` the run ends without what the node wrote."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(SchemaChecker("shape", output=schema, target_nodes=["bad"], on_deny="end"))
    app = arbiter_os.govern(chain(Spy("good", amount=1), Spy("bad", amount=0), Spy("last")))
    assert run(app, {"log": []}, mode=mode) == {"log": ["good"], "amount": 1}
    item = arbiter_os.history.last(node="bad")
    assert item is not None
    assert item.check_policy_results["shape"].reason.startswith("output.amount: ")
    assert statuses(arbiter_os) == [("good", "completed"), ("bad", "denied")]


def test_in_audit_nothing_changes() -> None:
    """Both verdicts are recorded, and the run is that without a rule."""
    arbiter_os = ArbiterOS()
    checker = SchemaChecker("shape", input=AMOUNT, output={"required": ["nothing"]})
    checker.mode = "audit"
    arbiter_os.add_policy_checker(checker)
    assert arbiter_os.govern(chain(Spy("pay"))).invoke({"log": []}) == {"log": ["pay"]}
    assert "'nothing'" in arbiter_os.history.entries[-1][-1].check_policy_results["shape"].reason


def test_at_most_five_mistakes_are_named() -> None:
    """A state that is all wrong gives a reason that can be read."""
    found = mistakes({"additionalProperties": {"type": "string"}}, dict.fromkeys("abcdefgh", 1))
    assert found == [f"input.{key}: is not of type 'string'" for key in "abcde"] + ["..."]
    assert len(mistakes({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 50_000})[0]) < 250


def test_a_mistake_says_where_it_is() -> None:
    """Keys, positions and keys that are no names."""
    schema = {"properties": {"items": {"items": {"properties": {"odd key": {"type": "string"}}}}}}
    assert mistakes(schema, {"items": [{}, {"odd key": 1}]}) == [
        "input.items[1]['odd key']: is not of type 'string'"
    ]


class Colour(Enum):
    RED = "red"


def test_a_state_is_seen_as_json() -> None:
    """Messages, models, tuples, enums and dates have a JSON form; NaN and infinity have none."""
    state = {
        "messages": [HumanMessage("hi"), AIMessage("hello")],
        "paid": Paid(amount=3),
        "pair": (1, 2),
        "colour": Colour.RED,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    message = {
        "properties": {"content": {"type": "string"}, "type": {"enum": ["human", "ai"]}},
        "required": ["content"],
    }
    schema = {
        "properties": {
            "messages": {"type": "array", "items": message},
            "paid": AMOUNT,
            "pair": {"type": "array", "maxItems": 2},
            "colour": {"const": "red"},
            "at": {"type": "string", "pattern": "^2026-"},
        },
        "additionalProperties": False,
    }
    assert mistakes(schema, state) == []
    for number in (math.nan, math.inf, -math.inf):
        assert mistakes({"properties": {"x": {"type": "number", "maximum": 5}}}, {"x": number})
    assert mistakes({"properties": {"x": {"type": "number"}}}, {"x": 10**400}) == []


def test_fields_that_the_schema_does_not_name_cost_nothing() -> None:
    """Only the fields that a schema looks at are read."""

    class Untouchable(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            assert key == "amount"
            return super().__getitem__(key)

    assert mistakes(AMOUNT, Untouchable(amount=5, other=object())) == []


def total(numbers: list[int]) -> dict[str, int]:
    return {"sum": sum(numbers)}


def test_a_state_that_is_no_mapping_is_checked_as_it_is() -> None:
    """A function that gets a list is checked by a schema of a list."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        SchemaChecker("shape", input={"type": "array", "items": {"type": "integer"}})
    )
    assert arbiter_os.execute([1, 2], total) == {"sum": 3}
    with pytest.raises(PolicyViolationError, match=r"input\[1\]: is not of type 'integer'"):
        arbiter_os.execute([1, "x"], total)


class Popping(BaseModel):
    """A class with a validator that takes its input apart."""

    amount: int

    @model_validator(mode="before")
    @classmethod
    def take(cls, data: Any) -> Any:
        data.pop("log").append("taken")
        return data


def test_a_class_cannot_change_the_state() -> None:
    """Its validators get a copy."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(SchemaChecker("shape", input=Popping))
    result = arbiter_os.govern(chain(Spy("a"), Spy("b"))).invoke({"log": ["x"], "amount": 1})
    assert result == {"log": ["x", "a", "b"], "amount": 1}


# Patterns -----------------------------------------------------------------------------------------

EVIL = "(a+)+$"
LONG = "a" * 50_000 + "!"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"x": {"pattern": EVIL}}}, {"x": LONG}),
        ({"patternProperties": {EVIL: {"type": "string"}}}, {LONG: 1}),
        ({"patternProperties": {EVIL: True}, "additionalProperties": False}, {LONG: 1}),
        ({"propertyNames": {"pattern": EVIL}}, {LONG: 1}),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"x": {"pattern": EVIL}}},
            {"x": LONG},
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"pattern": EVIL}}}}}, {"x": LONG}),
    ],
)
def test_no_pattern_hangs(schema: Any, value: Any) -> None:
    """Python's own engine would not be done with these in a lifetime."""
    shape = shape_of(schema, "checker 'c'", "input")
    with quick(1):
        shape.mistakes(value, "input")


ANY_DEEP: dict[str, Any] = {"oneOf": [{"items": {"$ref": "#/$defs/any"}, "minItems": 1}] * 4}
HEAVY: dict[str, tuple[dict[str, Any], Any]] = {
    "many choices": (
        {"items": {"enum": [f"choice{n}" for n in range(5000)]}},
        ["choice4999"] * 20_000,
    ),
    "branches in branches": ({"$ref": "#/$defs/any", "$defs": {"any": ANY_DEEP}}, [[[[[[[[[[[1]]]]]]]]]]]),
    "many elements": ({"items": {"type": "integer"}}, [1] * 150_000),
    "patterns for each field": (
        {"patternProperties": {f"^a{n}": {} for n in range(200)}},
        {f"b{n}": 1 for n in range(20_000)},
    ),
    "contains": ({"contains": {"const": "x"}, "minContains": 2}, ["y"] * 150_000),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("name", HEAVY)
def test_a_value_that_takes_too_long_to_check_does_not_fit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason says so, instead of the run standing still."""
    schema, value = HEAVY[name]
    if name != "many elements":  # a tenth of the steps shows the same
        monkeypatch.setattr(shapes, "MAX_STEPS", 10_000)
    begun = time.process_time()
    (problem,) = mistakes({"properties": {"x": schema}, "$defs": schema.pop("$defs", {})}, {"x": value})
    assert time.process_time() - begun < 20
    assert problem == f"input: takes more than {shapes.MAX_STEPS:,} steps to check, so the check stops here"


@pytest.mark.lengthy
def test_unique_elements_are_found_in_linear_time() -> None:
    """1,000 objects, which cannot be sorted, are not compared with one another."""
    rows = [{"id": n, "tags": ["a", {"b": None}]} for n in range(5000)]
    schema = {"properties": {"rows": {"uniqueItems": True}}}
    with quick(2):
        assert mistakes(schema, {"rows": rows}) == []
        assert mistakes(schema, {"rows": [*rows, {"tags": ["a", {"b": None}], "id": 7.0}]}) == [
            "input.rows: has non-unique elements"
        ]
    unequal: list[Any] = [[1, True], [0, False], [[1], [True]], [{"a": 1}, {"a": True}], ["1", 1], [[], {}]]
    for different in unequal:
        assert mistakes(schema, {"rows": different}) == []
    equal: list[Any] = [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], [[True], [True]], [None, None]]
    for same in equal:
        assert mistakes(schema, {"rows": same}) != []


def test_patterns_mean_what_they_say() -> None:
    """They are searched for, in values and in the names of properties."""
    assert mistakes({"properties": {"x": {"pattern": "b"}}}, {"x": "abc"}) == []
    assert mistakes({"properties": {"x": {"pattern": "^b"}}}, {"x": "abc"})
    schema: Any = {
        "patternProperties": {"^x_": {"type": "string"}},
        "properties": {"y": {}},
        "additionalProperties": False,
    }
    assert mistakes(schema, {"x_1": "a", "y": 1}) == []
    assert mistakes(schema, {"x_1": 2}) == ["input.x_1: is not of type 'string'"]
    assert mistakes(schema, {"z": 2}) == ["input: 'z' is none of the properties that it may have"]
    assert mistakes({"pattern": r"^\p{Lu}"}, "Émile") == []
    assert mistakes({"properties": {"pattern": {"type": "string"}}}, {"pattern": "("}) == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", "b1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "ab", "b1", "c"]), inner, max_size=3)
    ),
    max_leaves=8,
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "integer", "number", "null", "boolean"]),
            "pattern": st.sampled_from(["^a", "b$", "[0-9]"]),
            "minimum": st.integers(-2, 2),
            "maxLength": st.integers(0, 2),
            "required": st.lists(st.sampled_from(["a", "ab", "c"]), max_size=2, unique=True),
            "enum": st.lists(st.sampled_from(["a", 1, None, True]), min_size=1, max_size=2, unique=True),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "ab", "c"]), inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b", "[0-9]$"]), inner, max_size=2),
            "additionalProperties": inner | st.booleans(),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "propertyNames": inner,
        },
    ),
    max_leaves=5,
)


@pytest.mark.lengthy
@given(SCHEMAS, VALUES)
@examples(3)
def test_it_agrees_with_the_library(schema: dict[str, Any], value: Any) -> None:
    """The other engine and the view of states change nothing of what a schema means."""
    assert (not mistakes(schema, value)) == Draft202012Validator(schema).is_valid(value)


# Configuration ------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, str]] = {
    "no schema": ({"type": "strng"}, r"input\.type: expected a JSON Schema"),
    "deep in it": ({"properties": {"a": {"minimum": "x"}}}, r"input\.properties\.a\.minimum: "),
    "dialect": ({"$schema": "http://example.org/mine"}, r"input\.\$schema: expected a dialect"),
    "remote": (
        {"$ref": "https://example.org/x.json"},
        r"Nothing is fetched: put the schema that it refers to under \$defs",
    ),
    "remote in unused": ({"$defs": {"a": {"$ref": "x.json"}}}, "Nothing is fetched"),
    "nowhere": ({"$ref": "#/$defs/absent"}, r"expected a place in this schema, as in '#/\$defs/name'"),
    "look-ahead": ({"properties": {"a": {"pattern": "(?=x)"}}}, "linear time: look-around"),
    "no pattern": ({"patternProperties": {"(": {}}}, "linear time: unclosed group"),
    "behind a reference": ({"$ref": "#/x", "x": {"pattern": r"(a)\1"}}, "linear time: backreferences"),
    "both": ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "not supported together"),
    "no path": ("Paid", "cannot be imported"),
    "no module": ("absent.module.Paid", "cannot be imported: No module named 'absent'"),
    "no such class": (f"{__name__}.Absent", "cannot be imported"),
    "a function": (f"{__name__}.mistakes", "not a class"),
    "number": (3, "expected a JSON Schema"),
    "number as keyword": ({1: 2}, "expected keywords of JSON Schema, got '1'"),
    "object": (object(), "expected a JSON Schema"),
    "no model": (ArbiterOS, "expected a class that pydantic validates"),
}


@pytest.mark.parametrize(("schema", "problem"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_schema_fails_when_the_checker_is_made(schema: Any, problem: str) -> None:
    """No mistake shows up in the middle of a run, and no schema is fetched from the network."""
    with pytest.raises(ParameterError, match=problem) as caught:
        SchemaChecker("shape", input=schema)
    assert caught.value.owner == "checker 'shape'"
    with pytest.raises(ParameterError, match=problem.replace("input", "output")):
        SchemaChecker("shape", output=schema)


def test_a_schema_nested_too_deep_is_refused() -> None:
    """Also one that Python itself could not print."""
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"not": schema}
    with pytest.raises(ParameterError, match="nested too deep"):
        SchemaChecker("shape", input=schema)


def test_neither_input_nor_output_is_an_error() -> None:
    """A checker that would check nothing is a mistake."""
    with pytest.raises(ParameterError, match="got neither"):
        SchemaChecker("shape")


def test_a_value_nested_too_deep_denies() -> None:
    """A check that cannot be finished refuses."""
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(SchemaChecker("shape", input={"properties": {"amount": {"type": "array"}}}))
    pay = Spy("pay")
    with pytest.raises(PolicyViolationError, match="RecursionError"):
        arbiter_os.govern(chain(pay)).invoke({"log": [], "amount": value})
    assert pay.calls == []


def test_references_inside_the_schema_are_followed() -> None:
    """By pointer, by anchor, by the schema's own address, and to itself."""
    tree = {"type": "object", "properties": {"kids": {"items": {"$ref": "#"}}}, "required": ["name"]}
    assert mistakes(tree, {"name": 1, "kids": [{"name": 2}, {}]}) == [
        "input.kids[1]: 'name' is a required property"
    ]
    named = {
        "$id": "https://example.org/a",
        "properties": {"x": {"$ref": "#n"}},
        "$defs": {"n": {"$anchor": "n", "type": "null"}},
    }
    assert mistakes(named, {"x": 1}) == ["input.x: is not of type 'null'"]
    assert mistakes(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"n": {"type": "null"}},
            "properties": {"x": {"$ref": "#/definitions/n"}},
        },
        {"x": 1},
    )


def test_a_later_change_of_the_schema_changes_nothing() -> None:
    """The checker has its own copy."""
    schema: dict[str, Any] = {"properties": {"x": {"pattern": "a"}}}
    shape = shape_of(schema, "c", "input")
    schema["properties"]["x"]["pattern"] = "b"
    assert shape.mistakes({"x": "a"}, "input") == []


def test_the_types_of_the_constructor_can_be_read_by_a_loader() -> None:
    """Both forms that a file can hold are valid, and have a JSON Schema of their own."""
    from typing import get_type_hints

    hints = get_type_hints(SchemaChecker.__init__)
    for name in SchemaChecker.DOTTED_PARAMETERS:
        adapter = TypeAdapter[Any](hints[name])
        assert adapter.validate_python(AMOUNT) == AMOUNT
        assert adapter.validate_python("a.B") == "a.B"
        assert adapter.json_schema()
