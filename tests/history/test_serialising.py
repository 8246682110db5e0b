"""pydantic, and so FastAPI, serialises histories and items as `to_dict` gives them, and never their private parts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from arbiter import ArbiterOS, EvaluationResult, History, HistoryItem
from arbiter.history import RunHistory
from arbiter.instructions import GENERATE
from tests.support import Judge, Spy, chain, good


class Part:
    """Has no JSON form."""

    def __str__(self) -> str:
        return "a part"


@pytest.fixture
def history() -> RunHistory:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("good", lambda h: EvaluationResult(0.5, True, "fine", {"part": Part()})))
    arbiter_os.govern(chain(Spy("a"), odd), {"a": GENERATE}).invoke({"log": ["in"]})
    return arbiter_os.history


def odd(state: Any) -> Any:
    return {"log": [Part(), b"\x00", {1: {2}}, float("inf")]}


class Page(BaseModel):
    """As a response model has them."""

    model_config = ConfigDict(arbitrary_types_allowed=False)

    history: History
    runs: RunHistory
    items: list[HistoryItem]
    last: HistoryItem | None = None
    anything: Any = None


@pytest.mark.parametrize("kind", [History, RunHistory])
def test_a_history_is_serialised_by_to_dicts(kind: Any, history: RunHistory) -> None:
    adapter = TypeAdapter[Any](kind)
    assert adapter.validate_python(history) is history
    assert adapter.dump_python(history) == adapter.dump_python(history, mode="json") == history.to_dicts()
    assert json.loads(adapter.dump_json(history)) == history.to_dicts()


def test_an_item_is_serialised_by_to_dict(history: RunHistory) -> None:
    adapter = TypeAdapter(HistoryItem)
    item = history.last()
    assert item is not None
    assert adapter.validate_python(item) is item
    assert adapter.dump_python(item) == adapter.dump_python(item, mode="json") == item.to_dict()
    assert json.loads(adapter.dump_json(item)) == item.to_dict()


def test_fields_of_models_are_serialised_so(history: RunHistory) -> None:
    """Also fields of type `Any`, as in a dict that an endpoint returns."""
    items, dicts = list(history.items()), history.to_dicts()
    page = Page(
        history=history, runs=history, items=items, last=items[-1], anything={"h": history, "i": items[0]}
    )
    expected = {
        "history": dicts,
        "runs": dicts,
        "items": [item.to_dict() for item in items],
        "last": items[-1].to_dict(),
        "anything": {"h": dicts, "i": items[0].to_dict()},
    }
    assert json.loads(page.model_dump_json()) == page.model_dump(mode="json") == expected
    assert (
        TypeAdapter[Any](Any).dump_python({"h": history, "i": items[0]}, mode="json") == expected["anything"]
    )
    assert to_jsonable_python([history, items[0]]) == [dicts, items[0].to_dict()]


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_the_json_schema_is_that_of_the_data(mode: Any) -> None:
    history, item = TypeAdapter(History), TypeAdapter(HistoryItem)
    assert history.json_schema(mode=mode) == {
        "title": "History",
        "type": "array",
        "items": {"type": "object", "additionalProperties": True},
    }
    assert item.json_schema(mode=mode) == {
        "title": "HistoryItem",
        "type": "object",
        "additionalProperties": True,
    }
    assert Page.model_json_schema(mode=mode)["properties"]["items"]["type"] == "array"


def test_only_a_history_validates_as_a_history() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(History).validate_python([])
    with pytest.raises(ValidationError):
        TypeAdapter(HistoryItem).validate_python({"node": "a"})


def test_a_serialiser_without_types_sees_only_public_data(history: RunHistory) -> None:
    """FastAPI, for an endpoint that names no type of what it returns, encodes `dict(value)`, else `vars(value)`."""
    item = history.last()
    assert item is not None
    assert dict(item) == item.to_dict()
    assert vars(history) == {"entries": history.entries}
    assert dict(item.evaluation_results) == {"good": item.evaluation_results["good"]}


def test_half_of_a_character_in_the_name_of_a_rule_is_written_to_a_file() -> None:
    """JSON has an escape for it."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("kind\ud800", good))
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    line = arbiter_os.history.to_jsonl().encode()
    assert [*json.loads(line)["evaluation_results"]] == ["kind\ud800"]
