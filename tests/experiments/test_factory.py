"""The agent factory: which people a population has, with and without a model."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from arbiter.errors import ArbiterWarning, ConfigurationError
from arbiter.experiments import (
    PROFILES,
    AgentFactory,
    Dimension,
    Directive,
    FactoryError,
    Profile,
    Sample,
    flatten,
)
from arbiter.experiments.profiles import apportion
from tests.scripted import Scripted

AREAS = ("personality", "politics", "economics", "finances", "tastes", "culture")


def written(samples: tuple[Sample, ...]) -> str:
    return json.dumps([sample.to_dict() for sample in samples])


def template_agents(profile: str = "averageCustomer", n: int = 24, seed: int = 42) -> str:
    agents = AgentFactory(profile, seed=seed, template_only=True).agents(n)
    return json.dumps([[agent.name, agent.id, agent.text] for agent in agents])


# Samples


def test_proportions_become_counts_by_largest_remainder() -> None:
    """0.48, 0.48 and 0.04 of 96 are 46, 46 and 4; equal remainders go to the earlier value."""
    assert apportion((0.48, 0.48, 0.04), 96) == (46, 46, 4)
    assert apportion((0.5, 0.5), 3) == (2, 1)
    assert apportion((0.29, 0.71), 100) == (29, 71)
    genders = Counter(
        sample.values["gender"] for sample in AgentFactory("averageCustomer", template_only=True).samples(96)
    )
    assert genders == {"male": 46, "female": 46, "nonbinary": 4}


def test_each_quadrant_occurs_in_every_four_consecutive_people() -> None:
    """The political compass has people of the left and right, for liberty and for authority."""
    samples = AgentFactory("politicalCompass", template_only=True).samples(24)
    quadrants = [
        tuple(float(sample.values[axis]) > 0 for axis in ("economic", "authority")) for sample in samples
    ]
    assert all(len(set(quadrants[at : at + 4])) == 4 for at in range(21))
    assert all(0.2 <= abs(float(s.values[axis])) <= 1 for s in samples for axis in ("economic", "authority"))


QUANTITIES = (
    Directive(population="many", values={"job": ["cook", "baker"]}, quantity=8),
    Directive(population="one", values={"job": "judge"}, quantity=1),
    Directive(population="unsaid"),
)
JOBS = (Dimension(name="job", values=("cook", "baker", "judge")), Dimension(name="age", range=(20, 30)))


def test_directives_become_as_many_samples_as_their_quantities() -> None:
    """Quantities 8 and 1 and a directive without one give 10 samples, and the seed fixes their order."""
    samples = flatten(QUANTITIES, 10, dimensions=JOBS, seed=42)
    assert Counter(sample.population for sample in samples) == {"many": 8, "one": 1, "unsaid": 1}
    assert written(samples) == written(flatten(QUANTITIES, 10, dimensions=JOBS, seed=42))
    other = flatten(QUANTITIES, 10, dimensions=JOBS, seed=43)
    assert [s.population for s in samples] != [s.population for s in other]
    for sample in samples:
        assert sample.values["job"] in {"many": {"cook", "baker"}, "one": {"judge"}}.get(
            sample.population, {"cook", "baker", "judge"}
        )
        assert 20 <= int(sample.values["age"]) <= 30


@pytest.mark.parametrize(("n", "what"), [(9, "the others are left out"), (13, "repeated in turn")])
def test_a_plan_of_another_size_is_reported_and_made_to_fit(n: int, what: str) -> None:
    with pytest.warns(ArbiterWarning, match=rf"for 10 people where {n} are wanted; .*{what}"):
        samples = flatten(QUANTITIES, n, dimensions=JOBS)
    assert len(samples) == n
    if n == 13:
        assert [sample.population for sample in samples[10:]] == ["many", "one", "unsaid"]


def test_values_without_a_dimension_are_those_of_their_directive() -> None:
    samples = flatten(QUANTITIES, 10)
    assert samples == flatten(QUANTITIES, 10)
    found = {
        population: {s.values.get("job") for s in samples if s.population == population}
        for population in ("many", "one", "unsaid")
    }
    assert found == {"many": {"cook", "baker"}, "one": {"judge"}, "unsaid": {None}}
    with pytest.raises(
        ConfigurationError, match=r"directive 'x': 'job': expected a value, or a list of values"
    ):
        flatten([Directive(population="x", values={"job": []})], 1)


def test_a_range_of_a_directive_bounds_its_people() -> None:
    """Two numbers of a dimension with a range are its ends, of one with values a choice."""
    directives = [Directive(population="old", values={"age": [70, 80], "cars": [0, 2]}, quantity=50)]
    dimensions = (Dimension(name="age", range=(20, 90)), Dimension(name="cars", values=(0, 1, 2)))
    samples = flatten(directives, 50, dimensions=dimensions)
    assert {sample.values["cars"] for sample in samples} == {0, 2}
    ages = {int(sample.values["age"]) for sample in samples}
    assert min(ages) >= 70
    assert max(ages) <= 80
    assert len(ages) > 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"values": ("a", "b"), "shares": (0.5, 0.4)}, "shares that sum to 1, got a sum of 0.9"),
        ({"values": ("a", "b"), "shares": (1.5, -0.5)}, "shares of 0 to 1"),
        ({"values": ("a", "b"), "shares": (1.0,)}, "expected 2 shares, got 1"),
        ({"values": ("a", "a")}, "given twice"),
        ({"range": (3, 1)}, r"range \[low, high\], got \[3, 1\]"),
        ({"range": (0, float("nan"))}, "range"),
        ({"values": ("a",), "range": (0, 1)}, "either values or a range"),
        ({}, "either values or a range"),
    ],
)
def test_a_dimension_that_cannot_be_drawn_from_is_an_error(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Dimension(name="x", **wrong)


def test_shares_that_miss_one_by_rounding_are_scaled() -> None:
    dimension = Dimension(name="x", values=("a", "b", "c"), shares=(1 / 3, 1 / 3, 1 / 3 + 5e-7))
    assert dimension.shares is not None
    assert sum(dimension.shares) == pytest.approx(1, abs=1e-15)


# Templates


@pytest.mark.lengthy
def test_templates_are_the_same_bytes_in_another_process() -> None:
    """Neither the process nor its hash seed changes a person."""
    code = (
        "from tests.experiments.test_factory import template_agents as t; print(t(), t('politicalCompass'))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.strip() == f"{template_agents()} {template_agents('politicalCompass')}"
    assert template_agents(seed=43) != template_agents()


@pytest.mark.parametrize("profile", PROFILES)
def test_two_hundred_templates_have_two_hundred_names(profile: str) -> None:
    agents = AgentFactory(profile, template_only=True).agents(200)
    assert len({agent.name for agent in agents}) == len({agent.id for agent in agents}) == 200
    kind = PROFILES[profile]
    assert all(kind.age[0] <= agent.fields["age"] <= kind.age[1] for agent in agents)
    assert len({agent.fields["system_prompt"] for agent in agents}) == 200


@pytest.mark.lengthy
def test_names_never_run_out() -> None:
    """When the combinations of names are used up, names get a number."""
    everyone = Profile(id="x", population="x", age=(30, 30), gender={"nonbinary": 1.0})
    agents = AgentFactory(everyone, template_only=True).agents(2000)
    assert len({agent.name for agent in agents}) == 2000


def test_a_difficult_customer_is_difficult() -> None:
    """The bias of the profile holds for each person, and the manner stands in the system prompt."""
    for agent in AgentFactory("difficultCustomer", template_only=True).agents(12):
        big_five = agent.fields["personality"]["big_five"]
        assert (big_five["agreeableness"], big_five["neuroticism"]) == ("low", "high")
        assert "You never offer ideas of your own." in agent.fields["system_prompt"]


def test_convictions_follow_the_axes() -> None:
    factory = AgentFactory("politicalCompass", template_only=True)
    for sample, agent in zip(factory.samples(8), factory.agents(8), strict=True):
        economic = agent.fields["convictions"][0]
        assert ("the economic left" in economic) is (float(sample.values["economic"]) < 0)
        assert f"Conviction: {economic}." in agent.fields["system_prompt"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([60, 30], r"expected a range \[low, high\], got \[60, 30\]"),
        ([0.5, float("inf")], r"expected a range \[low, high\], got \[0.5, inf\]"),
        ([], r"expected a value, or a list of values to choose from, got \[\]"),
        (None, "expected a value, or a list of values to choose from, got None"),
    ],
)
def test_a_directive_from_which_nothing_can_be_drawn_is_refused(given: Any, said: str) -> None:
    plan = [Directive(population="elders", values={"age": given})]
    with pytest.raises(ConfigurationError, match=f"directive 'elders': 'age': {said}"):
        flatten(plan, 1, dimensions=(Dimension(name="age", range=(18, 90)),))


@pytest.mark.parametrize("kind", [Fraction, np.float32, np.int64])
def test_numbers_of_any_type_make_a_dimension(kind: Any) -> None:
    age = Dimension(name="age", range=(kind(18), kind(90)))
    assert (
        Dimension(name="half", values=("a", "b"), shares=(kind(1), kind(0))).draw(4, Random(1)) == ["a"] * 4
    )
    plan = [
        Directive(population="some", values={"age": given}) for given in (range(20, 30), [kind(20), kind(29)])
    ]
    assert all(20 <= float(sample.values["age"]) <= 29 for sample in flatten(plan, 2, dimensions=(age,)))


# With a model


def dimensions_answer(**more: Any) -> str:
    dimensions: list[Mapping[str, Any]] = [
        {"name": f"about {area}", "area": area, "values": ["much", "little"]} for area in AREAS
    ]
    return json.dumps({"dimensions": [*dimensions, *([more] if more else [])]})


PLAN = {
    "directives": [
        {
            "subpopulation_description": "spenders",
            "sampled_values": {"about finances": "much"},
            "quantity": 4,
        },
        {
            "subpopulation_description": "savers",
            "sampled_values": {"about tastes": ["much", "little"]},
            "quantity": 2,
        },
    ]
}


def person_answer(name: str) -> str:
    work = {"title": "clerk", "organization": "a bank", "description": "Counts."}
    person = {
        "name": name,
        "nationality": "American",
        "residence": "Ohio",
        "education": "school",
        "occupation": work,
        "style": "dry",
        "description": f"{name} counts.",
    }
    lists = {each: ["one"] for each in ("traits", "long_term_goals", "interests", "likes", "dislikes")}
    return json.dumps(person | lists)


def model_with(person: Callable[[str], object], *, pause: float = 0.0) -> Scripted:
    """A model that plans a population of six, and answers for each person by that function of the prompt."""

    def answer(prompt: str) -> object:
        if "describe populations" in prompt:
            return dimensions_answer()
        return json.dumps(PLAN) if "plan samples" in prompt else person(prompt)

    return Scripted(answers=[answer], pause=pause)


def numbered() -> Callable[[str], str]:
    names = iter(f"Person {chr(65 + number)}" for number in range(26))
    return lambda prompt: person_answer(next(names))


@pytest.mark.lengthy
def test_a_model_is_asked_once_for_each_stage(tmp_path: Path) -> None:
    """The dimensions, the plan and each person are asked for once, also by another factory on the cache."""
    cache = tmp_path / "cache.sqlite"
    model = model_with(numbered())
    factory = AgentFactory("averageCustomer", model, cache=cache, concurrency=1)
    agents = factory.agents(6)
    assert factory.agents(6) is agents
    assert (model.calls, factory.calls) == (8, 8)
    again = AgentFactory("averageCustomer", model, cache=cache)
    assert again.agents(6) == agents
    assert (model.calls, again.calls) == (8, 0)
    assert Counter(sample.population for sample in factory.samples(6)) == {"spenders": 4, "savers": 2}
    AgentFactory("difficultCustomer", model, cache=cache, concurrency=1).dimensions()
    assert model.calls == 9


def test_without_a_cache_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    AgentFactory("averageCustomer", model_with(numbered()), cache=None).agents(6)
    AgentFactory("averageCustomer", template_only=True).agents(6)
    assert not [*tmp_path.rglob("*")]


def test_people_stand_in_the_order_of_their_samples(tmp_path: Path) -> None:
    """Whichever answer comes first; age and gender are the sample's."""

    def person(prompt: str) -> str:
        age = next(line for line in prompt.splitlines() if line.startswith("age: "))
        return person_answer(f"Aged {age.removeprefix('age: ')} {abs(hash(prompt))}")

    factory = AgentFactory("averageCustomer", model_with(person, pause=0.01), cache=None, concurrency=4)
    for sample, agent in zip(factory.samples(6), factory.agents(6), strict=True):
        assert agent.name.startswith(f"Aged {sample.values['age']} ")
        assert agent.fields["gender"] == sample.values["gender"]
        assert "about finances" in agent.fields["characteristics"]


def test_a_name_in_use_is_asked_for_again_and_then_numbered() -> None:
    """The second question says which name is in use."""
    model = model_with(lambda prompt: person_answer("Bo Li" if "in use already" not in prompt else "Al Xu"))
    agents = AgentFactory("averageCustomer", model, cache=None).agents(6)
    assert [agent.name for agent in agents] == ["Bo Li", "Al Xu", *(f"Al Xu {n}" for n in (2, 3, 4, 5))]
    assert sum("'Bo Li' is in use" in model.prompt(call) for call in range(model.calls)) == 5


def test_a_person_that_cannot_be_made_is_a_template_with_a_warning() -> None:
    """A model gets one retry for each person; the reason stands in the warning."""

    def person(prompt: str) -> object:
        if "Subpopulation: savers" in prompt:
            return RuntimeError("overloaded")
        return person_answer(f"Spender {abs(hash(prompt))}")

    model = model_with(person)
    factory = AgentFactory("averageCustomer", model, cache=None)
    with pytest.warns(ArbiterWarning, match=r"could not make 2 of 6 people.*RuntimeError: overloaded"):
        agents = factory.agents(6)
    assert model.calls == 2 + 4 + 2 * 2
    assert len({agent.name for agent in agents}) == 6
    made = [agent.name.startswith("Spender") for agent in agents]
    assert made == [sample.population == "spenders" for sample in factory.samples(6)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            json.dumps({"dimensions": [{"name": "x", "area": "culture", "values": ["a"]}]}),
            "no dimension is about",
        ),
        (dimensions_answer(name="Age", area="other", range=[1, 2]), "'Age' is given already"),
        (
            dimensions_answer(name="x", area="other", values={"a": 0.5, "b": 0.1}),
            "sum to 1, got a sum of 0.6",
        ),
        (dimensions_answer(name="x", area="other"), "either values or a range"),
    ],
)
def test_dimensions_that_do_not_fit_are_sent_back_and_then_refused(answer: str, said: str) -> None:
    model = Scripted(answers=[answer, answer])
    with pytest.raises(FactoryError, match=said) as raised:
        AgentFactory("averageCustomer", model, cache=None).dimensions()
    assert raised.value.stage == "dimensions"
    assert model.calls == 2
    assert said in model.prompt()


def test_a_plan_with_an_unknown_dimension_is_refused() -> None:
    wrong = json.dumps({"directives": [{"subpopulation_description": "x", "sampled_values": {"shoes": 1}}]})
    model = Scripted(answers=[dimensions_answer(), wrong])
    with pytest.raises(FactoryError, match="'shoes' is not a dimension; expected one of about personality"):
        AgentFactory("averageCustomer", model, cache=None).plan(3)


def test_a_plan_whose_values_cannot_be_drawn_is_sent_back(tmp_path: Path) -> None:
    """The ends of a range in the wrong order; also if a cache has such a plan of an earlier version."""

    def planned(*ends: int) -> str:
        directive = {"subpopulation_description": "x", "sampled_values": {"income": list(ends)}}
        return json.dumps({"directives": [{**directive, "quantity": 2}]})

    described = dimensions_answer(name="income", area="finances", range=[0, 100])
    model = Scripted(answers=[described, planned(50, 20), planned(20, 50), planned(30, 40)])
    cache = tmp_path / "cache.sqlite"
    factory = AgentFactory("averageCustomer", model, cache=cache)
    assert all(20 <= float(sample.values["income"]) <= 50 for sample in factory.samples(2))
    assert "expected a range [low, high], got [50, 20]" in model.prompt(2)
    with closing(sqlite3.connect(cache)) as kept, kept:
        kept.execute("UPDATE answers SET value = replace(value, '[20, 50]', '[50, 20]')")
    samples = AgentFactory("averageCustomer", model, cache=cache).samples(2)
    assert all(30 <= float(sample.values["income"]) <= 40 for sample in samples)
    assert model.calls == 4


def test_a_person_whose_name_is_blank_is_a_template_with_a_warning() -> None:
    model = model_with(lambda prompt: person_answer("   "))
    with pytest.warns(ArbiterWarning, match=r"could not make 6 of 6 people"):
        agents = AgentFactory("averageCustomer", model, cache=None).agents(6)
    assert all(agent.name.strip() for agent in agents)


@pytest.mark.lengthy
def test_a_compass_has_its_axes_in_place_of_political_dimensions() -> None:
    """The model is not asked for what the axes decide, and the question of a person has them in words."""
    model = model_with(numbered())
    factory = AgentFactory("politicalCompass", model, cache=None)
    agents = factory.agents(6)
    asked = model.prompt(0)
    assert "at least these areas: personality, finances, tastes, culture." in asked
    assert "leave them out: age, gender" in asked
    assert "economic, authority." in asked
    assert all(len(agent.fields["convictions"]) == 2 for agent in agents)
    assert "conviction: " in model.prompt()


# Mistakes


def own(**known: Any) -> Profile:
    settings: dict[str, Any] = {"id": "x", "population": "x", "age": (1, 2), "gender": {"a": 1.0}}
    return Profile(**{**settings, **known})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: AgentFactory("averageCustomers", template_only=True), "Did you mean 'averageCustomer'"),
        (lambda: AgentFactory("averageCustomer"), "a model or template_only=True, got neither"),
        (lambda: AgentFactory("averageCustomer", Scripted(answers=[]), template_only=True), "got both"),
        (lambda: AgentFactory("averageCustomer", template_only=True, concurrency=0), "concurrency"),
        (lambda: AgentFactory("averageCustomer", seed="x", template_only=True), "seed"),  # type: ignore[arg-type]
        (lambda: AgentFactory("averageCustomer", template_only=True).agents(0), "n: expected a whole"),
        (lambda: AgentFactory("averageCustomer", template_only=True).samples(2.5), "n: expected a whole"),  # type: ignore[arg-type]
        (lambda: Directive(population="x", quantity=0), "quantity: expected a whole number above 0"),
        (
            lambda: Profile(id="x", population="x", age=(1, 2), gender={"a": 1.0}, axes=("econmic",)),
            "Did you mean 'economic'",
        ),
        (lambda: Profile(id="x", population="x", age=(1, 2), gender={"a": 0.4}), "sum to 1"),
        (lambda: own(age="20-30"), r"dimension 'age': expected a range \[low, high\], got '20-30'"),
        (lambda: own(age=(20,)), r"dimension 'age': expected a range \[low, high\], got \[20\]"),
        (lambda: own(gender=["a"]), r"profile 'x': gender: expected a mapping, got \['a'\]"),
        (lambda: own(gender={"a": "1"}), r"dimension 'gender': expected shares of 0 to 1, got \['1'\]"),
        (lambda: own(big_five=["openness"]), "profile 'x': big_five: expected a mapping"),
        (lambda: own(big_five={"openness": ["low"]}), r"expected low, average or high, got \['low'\]"),
        (lambda: Dimension(name=json.loads("5"), values=("a",)), "dimension 5: expected a name"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()
