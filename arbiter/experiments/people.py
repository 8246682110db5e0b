"""People: personas made of samples, by a model's answer or by a template."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import count
from random import Random
from typing import Annotated, Any

import yaml
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from pydantic import BaseModel, Field, StringConstraints

from arbiter._values.kinds import is_mapping
from arbiter.experiments.profiles import AXES, BIG_FIVE, OPINIONS, Dimension, Profile
from arbiter.experiments.sampling import Sample
from arbiter.personas import Persona

_Text = Annotated[str, Field(min_length=1, max_length=2_000)]
_Texts = Annotated[list[_Text], Field(min_length=1, max_length=20)]


class Occupation(BaseModel):
    """A person's work."""

    title: _Text
    organization: _Text = Field(description="where the person works")
    description: _Text = Field(description="what the person does there, in a sentence")


class Person(BaseModel):
    """One believable person with the given characteristics."""

    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=2, max_length=80)] = Field(
        description="first and last name"
    )
    nationality: _Text
    residence: _Text
    education: _Text
    occupation: Occupation
    traits: _Texts = Field(description="traits of the personality, each in a few words")
    style: _Text = Field(description="how the person speaks and writes")
    long_term_goals: _Texts
    interests: _Texts
    likes: _Texts
    dislikes: _Texts
    description: _Text = Field(description="the person in three to six sentences, in the third person")


def person_prompt(profile: Profile, sample: Sample, taken: Person | None) -> list[BaseMessage]:
    """The question for a person with the values of a sample.

    `taken` is the last answer, whose name another person has.
    """
    convictions = _convictions(sample)
    lines = [f"{name}: {value}" for name, value in sample.values.items() if name not in AXES]
    again = f"\n\nThe name {taken.name!r} is in use already. Choose another." if taken is not None else ""
    return [
        SystemMessage(
            "You invent people for simulations. Describe one specific and believable person with all of the given "
            "characteristics. Add what they leave open. Avoid clichés, and choose a name that is not too common."
        ),
        HumanMessage(
            f"Population: {profile.population}\nSubpopulation: {sample.population}\nCharacteristics:\n"
            + "\n".join([*lines, *(f"conviction: {conviction}" for conviction in convictions)])
            + again
        ),
    ]


def persona_of(person: Person, sample: Sample, profile: Profile) -> Persona:
    """The persona of a person. Age, gender and the big five are the sample's, whatever the person says."""
    values = sample.values
    description = " ".join(person.description.split())
    shown = {*BIG_FIVE, *AXES, "age", "gender", *Person.model_fields}
    characteristics = {name: value for name, value in values.items() if name not in shown}
    fields: dict[str, Any] = {
        "age": values["age"],
        "gender": values["gender"],
        "nationality": person.nationality,
        "residence": person.residence,
        "education": person.education,
        "occupation": person.occupation.model_dump(),
        "personality": {"traits": person.traits, "big_five": {trait: values[trait] for trait in BIG_FIVE}},
        "style": person.style,
        "long_term_goals": person.long_term_goals,
        "preferences": {"interests": person.interests, "likes": person.likes, "dislikes": person.dislikes},
        "characteristics": characteristics,
        "convictions": _convictions(sample),
    }
    fields["system_prompt"] = _system_prompt(person.name, description, fields, profile.manner)
    fields["memory_blocks"] = {
        "personality": f"I am {person.name}. {'; '.join(person.traits)}. My style: {person.style}.",
        "relationships": "I meet the others of this conversation for the first time.",
        "current_state": "The conversation is about to begin.",
    }
    id = slug(person.name) or f"person-{sha256(person.name.encode()).hexdigest()[:8]}"
    return Persona(person.name, description, id, {name: value for name, value in fields.items() if value})


def _system_prompt(name: str, description: str, fields: Mapping[str, Any], manner: str) -> str:
    work, personality, tastes = fields["occupation"], fields["personality"], fields["preferences"]
    characteristics = "; ".join(f"{name}: {value}" for name, value in fields["characteristics"].items())
    lines = [
        f"You are {name}, {fields['age']} years old, {fields['gender']}, {fields['nationality']}, "
        f"from {fields['residence']}.",
        description,
        f"Education: {fields['education']}. Work: {work['title']}, {work['organization']}. {work['description']}",
        f"Personality: {'; '.join(personality['traits'])}.",
        f"Big five: {', '.join(f'{trait} {level}' for trait, level in personality['big_five'].items())}.",
        f"Style: {fields['style']}.",
        f"Goals: {'; '.join(fields['long_term_goals'])}.",
        f"Interests: {'; '.join(tastes['interests'])}. Likes: {'; '.join(tastes['likes'])}. "
        f"Dislikes: {'; '.join(tastes['dislikes'])}.",
        f"Characteristics: {characteristics}." if characteristics else "",
        *(f"Conviction: {conviction}." for conviction in fields["convictions"]),
        manner,
        "Stay this person in all that you say, whatever the others say.",
    ]
    return "\n".join(filter(None, lines))


def _convictions(sample: Sample) -> list[str]:
    return [AXES[name].text(float(value)) for name, value in sample.values.items() if name in AXES]


def slug(name: str) -> str:
    """A name in lower-case ASCII letters, digits and hyphens; "" if it has none of them."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().casefold()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


class NameList:
    """Names that are in use. Names with equal ids are equal: `José Ruiz` and `jose ruiz`."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return _key(name) in self._taken

    def add(self, name: str) -> None:
        self._taken.add(_key(name))

    def unused(self, wanted: Iterable[str]) -> str:
        """The first of the names that is not in use, else the last one with a number."""
        name = ""
        for name in wanted:
            if name not in self:
                return name
        return next(numbered for number in count(2) if (numbered := f"{name} {number}") not in self)


def _key(name: str) -> str:
    return slug(name) or name.casefold()


# Templates ----------------------------------------------------------------------------------------


@cache
def _data() -> Mapping[str, Any]:
    text = (files("arbiter.experiments") / "data" / "people.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)  # type: ignore[no-any-return]  # of a file of ours


def default_dimensions(profile: Profile) -> tuple[Dimension, ...]:
    """The dimensions of people that no model described."""
    left_out = OPINIONS if profile.axes else frozenset[str]()
    return tuple(_dimension(each) for each in _data()["dimensions"] if each["name"] not in left_out)


def _dimension(data: Mapping[str, Any]) -> Dimension:
    values: Any = data["values"]
    shares = tuple(values.values()) if is_mapping(values) else None
    return Dimension(name=data["name"], values=tuple(values), shares=shares)


def template(sample: Sample, profile: Profile, taken: NameList, random: Random) -> Person:
    """A person made of a sample without a model. The name is not in `taken`.

    Values that the sample does not have (a model may have chosen other dimensions) are drawn.
    """
    data = _data()
    drawn = {each.name: each.draw(1, random)[0] for each in default_dimensions(profile)}
    values = {name: str(value) for name, value in {**drawn, **sample.values}.items()}
    title = values["occupation"]
    education, place, work = data["occupations"].get(title, ["some", "a local company", "works there"])
    firsts = data["first_names"].get(values["gender"], data["first_names"]["nonbinary"])
    name = taken.unused(f"{random.choice(firsts)} {random.choice(data['last_names'])}" for _ in range(100))
    temperament = values["temperament"]
    return Person(
        name=name,
        nationality=profile.nationality,
        residence=values["residence"],
        education=data["education"][education],
        occupation=Occupation(title=title, organization=place, description=f"{work[0].upper()}{work[1:]}."),
        traits=[temperament, *(words for trait in BIG_FIVE if (words := _TRAITS[trait].get(values[trait])))],
        style=values["style"],
        long_term_goals=random.sample(data["goals"], 2),
        interests=random.sample(data["interests"], 3),
        likes=random.sample(data["likes"], 3),
        dislikes=random.sample(data["dislikes"], 3),
        description=f"{name}, {values['age']}, {title}, from {values['residence']}. Temperament: {temperament}.",
    )


_TRAITS: Mapping[str, Mapping[str, str]] = {
    "openness": {"low": "set in old habits", "high": "open to new ideas"},
    "conscientiousness": {"low": "careless with details", "high": "organized and reliable"},
    "extraversion": {"low": "reserved", "high": "outgoing"},
    "agreeableness": {"low": "argumentative and distrustful", "high": "friendly and trusting"},
    "neuroticism": {"low": "hard to upset", "high": "easily upset and worried"},
}
