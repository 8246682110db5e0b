"""Sampling: from directives about subpopulations to one set of values for each person. Pure code.

    directives ─▶ one copy a person ─▶ shuffle ─▶ cut or fill to n ─▶ one value a dimension

All randomness comes from `Random(f"{seed}:{stage}")`, so equal input gives equal samples in every process.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

from arbiter.errors import ArbiterWarning, ConfigurationError, callers
from arbiter.experiments.profiles import Dimension, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """A subpopulation of `quantity` people.

    `values` has, by dimension, one value, a list to choose from, or [low, high] of a dimension with a range.
    Dimensions that it does not name are open.
    """

    population: str
    values: Mapping[str, Scalar | Sequence[Scalar]] = field(
        default_factory=dict[str, Scalar | Sequence[Scalar]]
    )
    quantity: int = 1

    def __post_init__(self) -> None:
        if type(self.quantity) is not int or self.quantity < 1:
            raise ConfigurationError(
                f"directive {self.population!r:.80}: quantity: expected a whole number above 0, "
                f"got {self.quantity!r:.80}."
            )

    def to_dict(self) -> dict[str, Any]:
        return {"population": self.population, "values": dict(self.values), "quantity": self.quantity}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The values of one person: one of each dimension, and the subpopulation in words."""

    population: str
    values: Mapping[str, Scalar]

    def to_dict(self) -> dict[str, Any]:
        return {"population": self.population, "values": dict(self.values)}


def flatten(
    directives: Sequence[Directive],
    n: int,
    *,
    dimensions: Sequence[Dimension] = (),
    axes: Sequence[str] = (),
    seed: int = 42,
) -> tuple[Sample, ...]:
    """`n` samples in random order.

    Directives that ask for more than `n` people are cut after the shuffle, those that ask for fewer are repeated
    in turn; both raise an `ArbiterWarning`. A dimension that is open for several people has exact proportions
    among them. `axes` name dimensions of -1 to 1: each combination of their signs occurs once in every
    2 ** len(axes) consecutive samples. A value of a directive whose name is no dimension is one of its people
    alone; of a list, each gets a member.
    """
    if not directives:
        raise ConfigurationError("a plan has no directives. Expected at least one.")
    by_name = {dimension.name: dimension for dimension in dimensions}
    given = dict.fromkeys(name for of in directives for name in of.values)
    # Only the people whose directive gives it have what is no dimension.
    others = [Dimension(name=name, values=("",)) for name in given if name not in (*by_name, *axes)]
    by_name |= {other.name: other for other in others}
    for directive in directives:
        for name, value in directive.values.items():
            if name in by_name and (fault := by_name[name].fault_of(value)):
                raise ConfigurationError(f"directive {directive.population!r:.80}: {name!r:.80}: {fault}.")
    people = [directive for directive in directives for _ in range(directive.quantity)]
    Random(f"{seed}:order").shuffle(people)
    if len(people) != n:
        what = "the others are left out" if len(people) > n else "the directives are repeated in turn"
        warnings.warn(
            f"a sampling plan is for {len(people)} people where {n} are wanted; {what}.",
            ArbiterWarning,
            stacklevel=callers(),
        )
    people = people[:n] + [directives[at % len(directives)] for at in range(n - len(people))]
    columns = {
        dimension.name: _column(dimension, people, Random(f"{seed}:values:{dimension.name}"))
        for dimension in dimensions
        if dimension.name not in axes
    }
    columns |= _axes(axes, n, Random(f"{seed}:axes"))
    drawn = {other: Random(f"{seed}:values:{other.name}") for other in others}
    return tuple(
        Sample(
            population=of.population,
            values={name: column[at] for name, column in columns.items()}
            | {
                other.name: other.settle(of.values[other.name], drawn[other])
                for other in others
                if other.name in of.values
            },
        )
        for at, of in enumerate(people)
    )


def _column(dimension: Dimension, people: Sequence[Directive], random: Random) -> list[Scalar]:
    """The value of a dimension for each person."""
    is_open = [dimension.name not in of.values for of in people]
    drawn = iter(dimension.draw(sum(is_open), random))
    return [
        next(drawn) if free else dimension.settle(of.values[dimension.name], random)
        for free, of in zip(is_open, people, strict=True)
    ]


def _axes(axes: Sequence[str], n: int, random: Random) -> dict[str, list[Scalar]]:
    if not axes:
        return {}
    quadrants = [*product((-1, 1), repeat=len(axes))]
    random.shuffle(quadrants)
    columns: dict[str, list[Scalar]] = {axis: [] for axis in axes}
    for at in range(n):
        for axis, sign in zip(axes, quadrants[at % len(quadrants)], strict=True):
            # Values near the middle are left out: their sign would mean nothing.
            columns[axis].append(round(sign * random.uniform(0.2, 1.0), 2))
    return columns
