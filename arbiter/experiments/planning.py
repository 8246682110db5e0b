"""The questions to a model about a population: its dimensions, and a plan of its subpopulations."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Annotated, Literal, get_args

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from pydantic import BaseModel, Field, model_validator

from arbiter.errors import ConfigurationError
from arbiter.experiments.profiles import Dimension, Profile, Scalar
from arbiter.experiments.sampling import Directive

Area = Literal["personality", "politics", "economics", "finances", "tastes", "culture", "other"]
AREAS: tuple[Area, ...] = get_args(Area)[:-1]
_Name = Annotated[str, Field(min_length=1, max_length=80)]


class DescribedDimension(BaseModel):
    """A dimension: either `values`, a list or a mapping of value to share, or `range`, its two ends."""

    name: _Name
    area: Area = Field(description="what it is about")
    values: list[Scalar] | dict[str, float] | None = None
    range: tuple[float, float] | None = None

    def dimension(self) -> Dimension:
        """Raises `ConfigurationError`."""
        values = self.values or ()
        shares = tuple(values.values()) if isinstance(values, dict) else None
        return Dimension(name=self.name, values=tuple(values), shares=shares, range=self.range)


class Described(BaseModel):
    """The dimensions in which the people of a population differ."""

    dimensions: Annotated[list[DescribedDimension], Field(min_length=1, max_length=60)]

    def found(self) -> tuple[Dimension, ...]:
        return tuple(each.dimension() for each in self.dimensions)


class PlannedDirective(BaseModel):
    """A subpopulation. Values by dimension: one, a list to choose from, or the two ends of a range."""

    subpopulation_description: Annotated[str, Field(min_length=1, max_length=2_000)]
    sampled_values: dict[str, Scalar | Annotated[list[Scalar], Field(min_length=1)]] = Field(
        default_factory=dict[str, Scalar | list[Scalar]]
    )
    quantity: Annotated[int, Field(ge=1, le=100_000)] = 1


class Planned(BaseModel):
    """A plan of subpopulations, whose quantities sum to the number of people."""

    directives: Annotated[list[PlannedDirective], Field(min_length=1, max_length=1_000)]

    def found(self) -> tuple[Directive, ...]:
        return tuple(
            Directive(
                population=each.subpopulation_description, values=each.sampled_values, quantity=each.quantity
            )
            for each in self.directives
        )


def dimensions_schema(taken: Collection[str], *, areas: Sequence[str]) -> type[Described]:
    """The answer about dimensions: none of the names in `taken`, none twice, and at least one for each area."""
    names = {name.casefold() for name in taken}

    class Dimensions(Described):
        """The dimensions in which the people of a population differ."""

        @model_validator(mode="after")
        def fitting(self) -> Dimensions:
            known = set(names)
            for each in self.dimensions:
                if each.name.casefold() in known:
                    raise ValueError(f"the dimension {each.name!r} is given already")
                known.add(each.name.casefold())
                try:
                    each.dimension()
                except ConfigurationError as error:
                    raise ValueError(str(error)) from None
            found = {each.area for each in self.dimensions}
            if missing := [area for area in areas if area not in found]:
                raise ValueError(f"no dimension is about {', '.join(missing)}")
            return self

    return Dimensions


def plan_schema(dimensions: Sequence[Dimension]) -> type[Planned]:
    """The answer about subpopulations, with values of these dimensions only."""
    by_name = {dimension.name: dimension for dimension in dimensions}

    class Plan(Planned):
        """A plan of subpopulations, whose quantities sum to the number of people."""

        @model_validator(mode="after")
        def known(self) -> Plan:
            for each in self.directives:
                for name, given in each.sampled_values.items():
                    if name not in by_name:
                        raise ValueError(f"{name!r} is not a dimension; expected one of {', '.join(by_name)}")
                    if fault := by_name[name].fault_of(given):
                        raise ValueError(f"{name!r}: {fault}")
            return self

    return Plan


def dimensions_prompt(
    profile: Profile, decided: Sequence[Dimension], areas: Sequence[str]
) -> list[BaseMessage]:
    """The question about the dimensions of a profile's population."""
    names = ", ".join(each.name for each in decided)
    return [
        SystemMessage(
            "You describe populations for simulations. List the dimensions in which the people of the population "
            "differ. A dimension has a name, the area that it is about, and either values (a list, or a mapping of "
            "value to proportion whose proportions sum to 1) or a range of two numbers. Use values that are "
            f"concrete and telling. Cover at least these areas: {', '.join(areas)}."
        ),
        HumanMessage(
            f"Population: {profile.population}\n\nThese dimensions are decided already, so leave them out: {names}."
        ),
    ]


def plan_prompt(profile: Profile, dimensions: Sequence[Dimension], n: int) -> list[BaseMessage]:
    """The question about the subpopulations of `n` people."""
    return [
        SystemMessage(
            "You plan samples of a population. Divide it into subpopulations that together represent it. Each has a "
            "description, a quantity, and for some of the dimensions the values that its people have: one value, a "
            "list to choose from, or the two ends of a range. Leave a dimension out where the people of the "
            "subpopulation may have any value. The quantities must sum to the number of people."
        ),
        HumanMessage(
            f"Population: {profile.population}\nNumber of people: {n}\nDimensions:\n"
            + "\n".join(json.dumps(each.to_dict(), ensure_ascii=False) for each in dimensions)
        ),
    ]
