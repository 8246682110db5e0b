"""Propositions and personas as files: their content, their mistakes, and the shipped ones."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from langchain_core.messages import AIMessage, HumanMessage

from arbiter import ArbiterOS
from arbiter.cli._schema import PERSONAS, persona_schema_text, write_schemas
from arbiter.errors import ConfigurationError, PackError
from arbiter.packs import pack_files, pack_folder
from arbiter.personas import (
    AdherenceEvaluator,
    AdherenceScorer,
    GateConfig,
    Persona,
    PersonaGate,
    Proposition,
    PropositionSet,
    PropositionWarning,
    load_propositions,
)
from tests.personas.gate_support import chat
from tests.personas.personas_support import Says, prompt_of, scores

ROOT = Path(__file__).parent.parent.parent
SHIPPED = pack_folder("evaluators").joinpath("propositions")
JUDGED = ("adherence", "consistency", "convergence", "fluency")


def write(folder: Path, dimension: str = "adherence", **files: Any) -> Path:
    """Files of one dimension, as YAML text or as data that gets what every file has."""
    (folder / dimension).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if not isinstance(content, str):
            content = yaml.safe_dump({"dimension": dimension, "agent_id": name, **content})
        (folder / dimension / f"{name}.yaml").write_text(content, encoding="utf-8")
    return folder


def entry(id: str, **known: Any) -> dict[str, Any]:
    return {"id": id, "claim": f"{id} is so", **known}


def test_the_agents_propositions_come_after_those_for_everybody(tmp_path: Path) -> None:
    folder = write(
        tmp_path, _default={"propositions": [entry("a")]}, jim={"propositions": [entry("b", weight=0.5)]}
    )
    found = load_propositions(folder, "adherence", "jim")
    assert [(proposition.id, proposition.weight) for proposition in found] == [("a", 1.0), ("b", 0.5)]
    assert found.files == ("adherence/_default.yaml", "adherence/jim.yaml")
    assert [p.id for p in load_propositions(folder, "adherence")] == ["a"]
    assert [p.id for p in load_propositions(folder, "adherence", "pam")] == ["a"]


@pytest.mark.parametrize("agent", ["jimm", "Jim", "ilka_brandt"])
def test_a_name_that_is_nearly_that_of_a_file_is_warned_of(agent: str, tmp_path: Path) -> None:
    """Another agent need not have a file, nor have one in each dimension."""
    said: Any = {"propositions": [entry("a")]}
    folder = write(tmp_path, _default=said, jim=said, **{"ilka-brandt": said})
    write(tmp_path, "fluency", _default=said)
    for dimension in ("adherence", "fluency"):
        with pytest.warns(PropositionWarning, match=f"no {dimension}/{agent}.yaml.*Did you mean"):
            load_propositions(folder, dimension, agent)
    for other in ("jim", "kim", "pam"):
        assert len(load_propositions(folder, "fluency", other)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_n": -1},
        {"last_n": "3"},
        {"target_type": "foo"},
        {"weight": True},
        {"weight": "1"},
        {"precondition": {"requires_action_type": ["TALK"]}},
    ],
)
def test_a_proposition_rejects_invalid_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"'p': {next(iter(wrong))}: expected"):
        Proposition("p", "x", **wrong)


def test_a_second_file_of_one_name_is_warned_of(tmp_path: Path) -> None:
    folder = write(tmp_path, _default={"propositions": [entry("a")]})
    (folder / "adherence" / "_default.yml").write_text("an older copy", encoding="utf-8")
    with pytest.warns(
        PropositionWarning, match=r"adherence/_default.yaml is read, and _default.yml beside it is not"
    ):
        assert [found.id for found in load_propositions(folder, "adherence")] == ["a"]


def test_every_option_is_read(tmp_path: Path) -> None:
    said = """
dimension: adherence
agent_id: jim
include_personas: false
target_type: environment
first_n: 5
last_n: 10
propositions:
  - id: plain
    claim: "{{agent_name}} is calm"
  - id: full
    claim: "{{agent_name}} is loud"
    weight: 0.25
    inverted: true
    recommendations_for_improvement: Be calm.
    include_personas: true
    target_type: agent
    first_n: 1
    last_n: 0
    double_check: true
    hard: true
    precondition: {requires_action_type: [TALK]}
"""
    plain, full = load_propositions(write(tmp_path, jim=said), "adherence", "jim")
    assert plain == Proposition(
        "plain",
        "{{agent_name}} is calm",
        include_personas=False,
        target_type="environment",
        first_n=5,
        last_n=10,
    )
    assert full.precondition is not None
    assert (full.weight, full.inverted, full.recommendations_for_improvement) == (0.25, True, "Be calm.")
    assert (full.include_personas, full.target_type, full.first_n, full.last_n) == (True, "agent", 1, 0)
    assert (full.double_check, full.hard) == (True, True)


def test_settings_that_the_agents_file_omits_stay(tmp_path: Path) -> None:
    """Its settings hold for all propositions, but its defaults do not undo those of the file for everybody."""
    folder = write(
        tmp_path,
        _default={"include_personas": False, "first_n": 3, "last_n": 4, "propositions": [entry("a")]},
        jim={"first_n": 7, "propositions": [entry("b", last_n=9)]},
    )
    found = load_propositions(folder, "adherence", "jim")
    assert [(p.include_personas, p.first_n, p.last_n) for p in found] == [(False, 7, 4), (False, 7, 9)]


def test_a_file_extends_others_of_its_folder_and_shipped_ones(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        sales={"hard": True, "propositions": [entry("s")]},
        jim={"extends": ["arbiter:_default", "sales"], "propositions": [entry("j")]},
        pam={"extends": ["sales"], "propositions": [entry("p")]},
    )
    shipped = [p.id for p in load_propositions(None, "adherence")]
    found = load_propositions(folder, "adherence", "jim")
    assert [p.id for p in found] == [*shipped, "s", "j"]
    assert all(p.hard for p in found)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": (
        {"propositions": [entry("a", wieght=1)]},
        ".wieght: expected one of claim, double_check, first_n, hard, id, include_personas, inverted, last_n, "
        "precondition, recommendations_for_improvement, target_type, weight, got 'wieght'. Did you mean 'weight'?",
    ),
    "weight above 1": (
        {"propositions": [entry("a", weight=2)]},
        "propositions[0].weight: expected less than",
    ),
    "weight as truth value": ({"propositions": [entry("a", weight=True)]}, "expected a number, got True"),
    "weight not a number": ({"propositions": [entry("a", weight=float("nan"))]}, "propositions[0].weight"),
    "weights that sum to zero": ({"propositions": [entry("a", weight=0)]}, "got weights that sum to 0"),
    "same id twice": ({"propositions": [entry("a"), entry("a")]}, "got 'a', which adherence/jim.yaml:"),
    "no propositions": ({"propositions": []}, "propositions: expected at least one"),
    "another dimension": ({"dimension": "fluency", "propositions": [entry("a")]}, "expected 'adherence'"),
    "another agent": ({"agent_id": "pam", "propositions": [entry("a")]}, "agent_id: expected 'jim'"),
    "window below zero": ({"first_n": -1, "propositions": [entry("a")]}, "first_n"),
    "unknown precondition": ({"propositions": [entry("a", precondition={"if": 1})]}, "requires_action_type"),
    "unknown file": (
        {"extends": ["sails"], "propositions": [entry("a")]},
        "expected one of jim, arbiter:_default, arbiter:ilka, arbiter:tomasz, got 'sails'.",
    ),
    "itself": ({"extends": ["jim"], "propositions": [entry("a")]}, "a file that does not extend this one"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, what: str) -> None:
    data, message = WRONG[what]
    with pytest.raises(PackError) as caught:
        load_propositions(write(tmp_path, jim=data), "adherence", "jim")
    assert message in str(caught.value)
    assert all(str(mistake).startswith("adherence/jim.yaml:") for mistake in caught.value.mistakes)


def test_all_mistakes_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        _default={"propositions": [entry("a", weight=3)]},
        jim={"first_n": "x", "propositions": [entry("a"), entry("a")]},
    )
    with pytest.raises(PackError) as caught:
        load_propositions(folder, "adherence", "jim")
    assert {mistake.file for mistake in caught.value.mistakes} == {
        "adherence/_default.yaml",
        "adherence/jim.yaml",
    }


def test_an_id_of_the_file_for_everybody_is_taken(tmp_path: Path) -> None:
    folder = write(
        tmp_path, _default={"propositions": [entry("a")]}, jim={"propositions": [entry("b"), entry("a")]}
    )
    with pytest.raises(
        PackError, match=r"propositions\[1\]\.id: .*'a', which adherence/_default\.yaml:\d+ has"
    ):
        load_propositions(folder, "adherence", "jim")


def test_no_file_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no propositions of 'adherance'.*adherence, consistency"):
        load_propositions(None, "adherance")
    with pytest.raises(ConfigurationError, match="no propositions"):
        load_propositions(tmp_path, "adherence", "jim")


@pytest.mark.filterwarnings("error")
def test_no_file_for_an_agent_names_the_files_there(tmp_path: Path) -> None:
    folder = write(tmp_path, jim={"propositions": [entry("a")]})
    match = r"no adherence/jimm\.yaml .* no _default\.yaml for all agents\. Files there: jim\. Did you mean 'jim'\?"
    with pytest.raises(ConfigurationError, match=match):
        load_propositions(folder, "adherence", "jimm")


@pytest.mark.parametrize("name", ["zoë", "李", "Jim"])
def test_an_agents_id_may_have_letters_of_any_language(name: str, tmp_path: Path) -> None:
    files: dict[str, Any] = {name: {"propositions": [entry("a")]}}
    folder = write(tmp_path, **files)
    assert [claim.id for claim in load_propositions(folder, "adherence", name)] == ["a"]
    assert load_propositions(None, "adherence", name)
    assert PersonaGate(Says(None), Persona("Zoe", "calm", name), GateConfig(gate_adherence_enabled=True))


@pytest.mark.parametrize("id", ["user:42", "jim@example.com", "a/b", "../_default", "jim smith"])
def test_an_agent_whose_id_is_no_name_of_a_file_has_the_default_propositions(id: str, tmp_path: Path) -> None:
    folder = write(tmp_path, _default={"propositions": [entry("a")]})
    jim = Persona("Jim", "calm", id)
    scorer = AdherenceScorer(Says(None), jim, str(folder))
    assert [claim.id for claim in scorer.propositions] == ["a"]
    assert AdherenceEvaluator(persona=jim, judge=Says(None), propositions=str(folder))
    assert PersonaGate(Says(None), jim, GateConfig(gate_adherence_enabled=True), propositions=folder)


def test_a_gate_reads_each_file_once_for_all_of_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent's own file holds for it alone."""
    opened: list[str] = []

    def counting(file: Any, *args: Any) -> int:
        opened.append(Path(file).name)
        return real(file, *args)

    default: Any = {"propositions": [entry("a")]}
    folder = write(tmp_path, _default=default, p7={"propositions": [entry("b")], "first_n": 2})
    people = [Persona(f"P {number}", "calm", f"p{number}") for number in range(20)]
    judge = Says(scores(a=9, b=9))
    config = GateConfig(gate_adherence_enabled=True)
    real = os.open
    monkeypatch.setattr(os, "open", counting)
    gate = PersonaGate(judge, people, config, propositions=folder)
    assert sorted(opened) == ["_default.yaml", "p7.yaml"]
    monkeypatch.undo()
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)

    def speak(state: Any) -> Any:
        return {"messages": [AIMessage("Hi", name=f"P {5 + len(state['messages'])}")]}

    def answer(state: Any) -> Any:
        return speak(state)

    arbiter_os.govern(chat(speak, answer)).invoke({"messages": [HumanMessage("Hello")]})
    asked = [re.findall(r"\b[ab] is so", prompt_of(request)) for request in judge.asked]
    assert asked == [["a is so"], ["a is so", "b is so"]]


@pytest.mark.parametrize("type", ["TLAK", "talk"])
def test_a_misspelt_type_of_action_is_warned_of(type: str, tmp_path: Path) -> None:
    """Such a precondition is never met, and the claim would always count as 9."""
    precondition = {"requires_action_type": [type, "SHOUT"]}
    folder = write(tmp_path, jim={"propositions": [entry("a", precondition=precondition)]})
    with pytest.warns(
        PropositionWarning, match=r"adherence/jim\.yaml:\d+: a: .* Did you mean 'TALK'\?"
    ) as caught:
        load_propositions(folder, "adherence", "jim")
    assert len(caught) == 1


def test_a_blank_claim_is_a_mistake_with_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path, jim={"propositions": [entry("a", claim=" ")]})
    with pytest.raises(PackError, match=r"adherence/jim\.yaml:\d+: propositions\[0\]\.claim: "):
        load_propositions(folder, "adherence", "jim")


@pytest.mark.parametrize("name", ["../adherence", "", "a/b", "..", "/etc"])
def test_names_lead_nowhere_else(name: str) -> None:
    with pytest.raises(ConfigurationError):
        load_propositions(None, name)
    if name:
        with pytest.raises(ConfigurationError):
            load_propositions(None, "adherence", name)


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("Jim would NEVER be dry", True),
        ("Jim doesn't listen", True),
        ("Jim is dry", False),
        ("a knot", False),
    ],
)
@pytest.mark.parametrize("inverted", [True, False])
def test_an_inverted_negation_is_warned_of(tmp_path: Path, text: str, warned: bool, inverted: bool) -> None:
    folder = write(tmp_path, jim={"propositions": [{"id": "a", "claim": text, "inverted": inverted}]})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_propositions(folder, "adherence", "jim")
    assert [issubclass(found.category, PropositionWarning) for found in caught] == [True] * (
        warned and inverted
    )
    assert all("adherence/jim.yaml:" in str(found.message) for found in caught)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("{{agent_nam}}", "agent_name"), ("{{ Agent_Name }}", "agent_name"), ("{{agent-name}}", "agent_name"),
     ("{{recipient}}", "recipient_name"), ("{{mood}}", None), ("{{}}", None)],
)  # fmt: skip
@pytest.mark.parametrize("key", ["claim", "recommendations_for_improvement"])
def test_an_unknown_variable_is_a_mistake_with_its_line(
    tmp_path: Path, written: str, meant: str | None, key: str
) -> None:
    entry = {"id": "a", "claim": "{{agent_name}} is calm", key: f"{written} is so"}
    folder = write(tmp_path, jim={"propositions": [{"id": "b", "claim": "c"}, entry]})
    with pytest.raises(PackError) as caught:
        load_propositions(folder, "adherence", "jim")
    [mistake] = caught.value.mistakes
    assert mistake.path == f"propositions[1].{key}"
    lines = (folder / "adherence" / "jim.yaml").read_text().splitlines()
    assert written in lines[mistake.line - 1]
    assert "expected one of {{agent_name}}, {{channel_name}}" in mistake.message
    assert mistake.message.endswith(f"Did you mean {meant!r}?") == (meant is not None)


def test_a_variable_of_the_users_own_is_declared_where_the_file_is_loaded(tmp_path: Path) -> None:
    folder = write(tmp_path, jim={"propositions": [{"id": "a", "claim": "{{ mood }} is so"}]})
    for declared in (["mood"], "mood", {"mood": "sad"}):
        found = load_propositions(folder, "adherence", "jim", variables=declared)
        assert found[0].claim == "{{ mood }} is so"


def test_a_set_is_checked_in_code_too() -> None:
    with pytest.raises(ConfigurationError, match="given twice"):
        PropositionSet("x", [Proposition("a", "b"), Proposition("a", "c")])
    with pytest.raises(ConfigurationError, match="sum to 0"):
        PropositionSet("x", [Proposition("a", "b", weight=0)])
    for weight in (2, -0.1, float("nan")):
        with pytest.raises(ConfigurationError, match="from 0 to 1"):
            Proposition("a", "b", weight=weight)
    found = PropositionSet("x", [Proposition("a", "b")]).changed(double_check=True)
    assert found.by_id("a").double_check
    with pytest.raises(KeyError):
        found.by_id("z")


# Shipped propositions -----------------------------------------------------------------------------


def test_the_weights_that_ship() -> None:
    weights = {d: [(p.weight, p.inverted) for p in load_propositions(None, d)] for d in JUDGED}
    assert weights == {
        "adherence": [(1.0, False), (0.9, False), (0.8, True), (0.7, False)],
        "consistency": [(1.0, False), (0.9, False), (0.8, False)],
        "fluency": [(1.0, False), (0.9, False), (0.8, False), (0.7, True)],
        "convergence": [(1.0, False), (0.8, True), (0.9, False)],
    }


def test_only_adherence_is_shown_personas_and_only_convergence_is_about_everybody() -> None:
    for dimension in JUDGED:
        for proposition in load_propositions(None, dimension):
            assert proposition.include_personas == (dimension == "adherence")
            assert (proposition.target_type == "environment") == (dimension == "convergence")
            assert proposition.recommendations_for_improvement


@pytest.mark.parametrize("agent", ["ilka", "tomasz"])
def test_two_characters_ship(agent: str) -> None:
    persona = Persona.of(f"arbiter:{agent}")
    assert persona.id == agent
    assert len(load_propositions(None, "adherence", agent)) == 7


@pytest.mark.lengthy
@pytest.mark.parametrize("place", PERSONAS)
def test_the_schemas_that_ship_are_those_of_the_models(place: str, tmp_path: Path) -> None:
    """`arbiter schema .` writes them again, and each file fits its own and names it."""
    assert (ROOT / place).read_text(encoding="utf-8") == persona_schema_text(place)
    schema = json.loads(persona_schema_text(place))
    jsonschema.Draft202012Validator.check_schema(schema)
    name = Path(place).name
    files = [ROOT / place, *(ROOT / place).parent.rglob("*.yaml")]
    assert len(files) > 2
    for file in files[1:]:
        text = file.read_text(encoding="utf-8")
        above = "../" * (len(file.relative_to((ROOT / place).parent).parts) - 1)
        assert text.startswith(f"# yaml-language-server: $schema={above}{name}\n")
        jsonschema.validate(yaml.safe_load(text), schema)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("old")


def test_every_file_that_ships_loads() -> None:
    for dimension in JUDGED:
        for file in pack_files(SHIPPED.joinpath(dimension)):
            load_propositions(None, dimension, file.name.removesuffix(".yaml"))


def test_schemas_are_written_where_a_project_has_such_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbiter.cli._schema.schema_text", lambda: "{}")
    (tmp_path / "evaluators" / "propositions").mkdir(parents=True)
    written = {path.relative_to(tmp_path).as_posix() for path in write_schemas(tmp_path)}
    assert "evaluators/propositions/propositions.schema.json" in written
    assert "evaluators/personas/persona.schema.json" not in written


# Personas -----------------------------------------------------------------------------------------


def test_a_persona_comes_from_a_mapping_a_file_or_the_shipped_ones(tmp_path: Path) -> None:
    data = {"name": "Jim", "description": "Calm.", "id": "jim", "fields": {"age": 30, "likes": ["tea"]}}
    (tmp_path / "jim.yaml").write_text(yaml.safe_dump(data))
    persona = Persona("Jim", "Calm.", "jim", {"age": 30, "likes": ["tea"]})
    assert Persona.of(data) == Persona.of(tmp_path / "jim.yaml") == Persona.of(persona) == persona
    assert persona.text == 'Calm.\nage: 30\nlikes: ["tea"]'


def test_an_invalid_persona_is_reported_with_its_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected one of arbiter:ilka, arbiter:tomasz"):
        Persona.of("arbiter:nobody")
    with pytest.raises(ConfigurationError, match="description: expected a value"):
        Persona.of({"name": "Jim"})
    (tmp_path / "jim.yaml").write_text("name: Jim\ndescription: ''\nage: 3\n")
    with pytest.raises(PackError, match=r"jim\.yaml:2: description: expected a text that is not empty"):
        Persona.of(tmp_path / "jim.yaml")
    with pytest.raises(PackError, match="a file that can be read"):
        Persona.of(str(tmp_path / "nobody.yaml"))
