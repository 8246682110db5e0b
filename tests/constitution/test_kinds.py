"""The kinds that packs name, their pages, their schema, and the packs that ship."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from langchain_core.language_models import FakeListChatModel

from arbiter import ArbiterOS
from arbiter._constitution.kinds import CONTRACTS, KINDS, class_at, parameters_of
from arbiter._constitution.loading import FOLDERS, SHIPPED, load_constitution, shipped_names
from arbiter._contracts import Contract
from arbiter.cli._schema import HEADER, NAME, schema_text
from arbiter.packs import pack_files, pack_folder
from tests.docs_check import ROOT
from tests.kind_pages import ALL, PAGES, page, with_table

MODEL = FakeListChatModel(responses=["none"])


def packs_in(text: str) -> list[str]:
    """The YAML blocks of a page that are whole packs."""
    return [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "version: 1" in block]


@pytest.mark.parametrize(("section", "use"), ALL)
def test_a_kind_is_a_class_that_yaml_can_describe(section: Any, use: str) -> None:
    """Also one that its package exports, for those who write code."""
    kind = class_at(KINDS[section][use])
    assert issubclass(kind, CONTRACTS[section])
    assert parameters_of(kind)
    package = import_module(".".join(KINDS[section][use].split(".")[:2]))
    assert getattr(package, kind.__name__) is kind
    assert kind.__name__ in package.__all__


@pytest.mark.parametrize(("section", "use"), ALL)
def test_every_kind_has_a_page_whose_pack_loads(tmp_path: Path, section: str, use: str) -> None:
    """The example in YAML is a pack with that kind; the one in Python is run by `make docs`."""
    text = page(section, use).read_text(encoding="utf-8")
    packs = packs_in(text)
    assert packs
    kinds: list[str] = []
    for number, pack in enumerate(packs):
        file = tmp_path / f"{number}.yaml"
        file.write_text(pack, encoding="utf-8")
        models = {"judge": MODEL, "openai:gpt-5-mini": MODEL}
        load_constitution(file, allow=["mycompany.", "pydantic."], models=models)
        kinds += [rule.get("use") for rule in yaml.safe_load(pack).get(section, ())]
    assert use in kinds
    assert "```python" in text


@pytest.mark.parametrize(("section", "use"), ALL)
def test_the_table_on_a_page_is_the_one_that_the_code_gives(section: str, use: str) -> None:
    """`python -m tests.kind_pages` writes them again."""
    text = page(section, use).read_text(encoding="utf-8")
    assert text == with_table(text, section, use)


def test_no_page_is_about_a_kind_that_is_not_there() -> None:
    assert {path.name for path in PAGES.glob("*.md")} == {page(section, use).name for section, use in ALL}


# The schema ---------------------------------------------------------------------------------------


@pytest.mark.lengthy
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_schema_that_ships_is_the_one_that_the_models_give(folder: Any) -> None:
    """`arbiter schema .` writes them again."""
    assert (ROOT / folder / NAME).read_text(encoding="utf-8") == schema_text()


@pytest.mark.lengthy
def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("pack", "sound"),
    [
        ({"checkers": [{"name": "x", "use": "at_most", "times": 3}]}, True),
        ({"checkers": [{"name": "x", "use": "at_most", "times": "3"}]}, False),
        ({"checkers": [{"name": "x", "use": "at_mots", "times": 3}]}, False),
        ({"checkers": [{"name": "x", "use": "mycompany.Rule", "anything": 3}]}, True),
        ({"checkers": [{"name": "x", "times": 3}]}, True),
        ({"checkers": [{"use": "at_most", "times": 3}]}, False),
        ({"checkers": [{"name": "x", "use": "at_most"}]}, False),
        ({"checker": []}, False),
        ({"mode": "strict"}, False),
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(pack: dict[str, Any], sound: bool) -> None:
    """For editors: kinds, their parameters, and changes of rules."""
    schema = json.loads(schema_text())
    whole = {"version": 1, "name": "x", "description": "d", **pack}
    assert jsonschema.Draft202012Validator(schema).is_valid(whole) is sound


def test_every_parameter_has_a_description_in_the_schema() -> None:
    """Editors show it when the pointer is over a key, and beside what they offer."""
    schema = json.loads(schema_text())
    places = {"": schema, **schema["$defs"]}
    missing = [
        f"{place}.{name}"
        for place, definition in places.items()
        for name, member in definition.get("properties", {}).items()
        if not member.get("description")
    ]
    assert not missing


def test_the_schema_offers_instructions_and_what_a_denial_may_do() -> None:
    schema = json.loads(schema_text())
    parameters = schema["$defs"]["checkers.budget"]["properties"]
    assert {"$ref": "#/$defs/instruction"} in parameters["target_instructions"]["anyOf"]
    offered = schema["$defs"]["instruction"]["anyOf"][0]["enum"]
    assert len(offered) == 32
    assert "TOOL_CALL" in offered
    validator = jsonschema.Draft202012Validator(parameters["on_deny"])
    assert validator.is_valid("redirect:review")
    assert parameters["on_deny"]["anyOf"][0] == {"enum": ["raise", "end", "audit"]}
    assert not [wrong for wrong in ("explode", "redirect:", "redirect", 3) if validator.is_valid(wrong)]


# What ships ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_names())
def test_a_pack_that_ships_loads_and_fits_its_schema(name: str) -> None:
    loaded = load_constitution(SHIPPED + name, models={"judge": MODEL})
    assert loaded.packs[-1].endswith(name)
    names = [contract.name for contract in loaded.contracts]
    assert len(names) == len(set(names))


@pytest.mark.lengthy
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_pack_that_ships_is_named_as_its_file_and_names_its_schema(folder: Any) -> None:
    schema = jsonschema.Draft202012Validator(json.loads(schema_text()))
    for file in pack_files(pack_folder(folder)):
        text = file.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
        assert data["name"] == file.name.removesuffix(".yaml")
        assert text.startswith(HEADER)
        assert not list(schema.iter_errors(data))


def test_the_kernel_has_ten_rules() -> None:
    """The benchmark of a kernel measures these ten."""
    assert len(load_constitution("arbiter:kernel").checkers) == 10


def test_the_page_of_the_constitution_lists_kinds_and_packs() -> None:
    text = (ROOT / "docs" / "constitution.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `arbiter:([a-z-]+)`", text, re.MULTILINE))
    bindings = {"langchain-create-agent", "langgraph-prebuilt"}
    assert told == set(shipped_names()) - bindings
    assert all(f"`{use}`" in text for _, use in ALL)


@pytest.mark.parametrize(("page_name", "section"), [("policies", "checkers"), ("evaluators", "evaluators")])
def test_the_pages_of_contracts_list_what_is_built_in(page_name: str, section: Any) -> None:
    text = (ROOT / "docs" / f"{page_name}.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| \[`(\w+)`\]\([^)]*\) \| `(\w+)` \|", text, re.MULTILINE))
    assert told == {use: path.rpartition(".")[2] for use, path in KINDS[section].items()}


def test_every_pack_that_ships_can_be_in_force_at_once() -> None:
    """None takes another's names."""
    names = [SHIPPED + name for name in shipped_names()]
    contracts: list[Contract] = []
    for name in names:
        contracts += load_constitution(name, models={"judge": MODEL}).contracts
    by_name = {(contract.kind, contract.name): contract.source for contract in contracts}
    assert all(by_name[contract.kind, contract.name] == contract.source for contract in contracts)
    ArbiterOS.from_constitution("arbiter:kernel")
