"""Profiles: the kinds of people that a population has, and the dimensions in which they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias, cast

from arbiter.errors import ConfigurationError, nearest
from arbiter.statistics._numbers import is_finite

Scalar: TypeAlias = str | int | float
Level = Literal["low", "average", "high"]
BIG_FIVE = ("openness", "conscientiousness", "extraversion", "agreeableness", "neuroticism")
_LEVELS: Mapping[Level, float] = {"low": 0.25, "average": 0.5, "high": 0.25}
_TOLERANCE = 1e-6


def apportion(shares: Sequence[float], n: int) -> tuple[int, ...]:
    """Whole numbers that sum to `n`, in proportion to `shares`, by largest remainder; ties go to the earlier one.

    `shares` sum to 1.
    """
    exact = [round(share * n, 9) for share in shares]
    counts = [math.floor(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda at: (counts[at] - exact[at], at))
    for at in by_remainder[: n - sum(counts)]:
        counts[at] += 1
    return tuple(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One respect in which people differ: one of `values`, or a number of `range`, both ends included.

    `shares` are the proportions of `values`; None makes them equal. Shares that miss the sum 1 by at most 1e-6
    are scaled to it; others raise `ConfigurationError`. A range with whole ends has whole numbers, others have
    two decimals.
    """

    name: str
    values: tuple[Scalar, ...] = ()
    shares: tuple[float, ...] | None = None
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if fault := self._fault():
            raise ConfigurationError(f"dimension {self.name!r:.80}: {fault}.")
        if self.shares is not None:
            total = math.fsum(self.shares)
            object.__setattr__(self, "shares", tuple(share / total for share in self.shares))

    def _fault(self) -> str:
        name: Any = self.name
        if not isinstance(name, str) or not name.strip():
            return "expected a name"
        if bool(self.values) == (self.range is not None):
            return "expected either values or a range"
        if self.range is not None:
            if self.shares is not None:
                return "shares belong to values, not to a range"
            return _fault_of_range(self.range)
        if len(set(self.values)) < len(self.values):
            return "a value is given twice"
        if self.shares is None:
            return ""
        if len(self.shares) != len(self.values):
            return f"expected {len(self.values)} shares, got {len(self.shares)}"
        if not all(_is_real(share) and 0 <= share <= 1 for share in self.shares):
            return f"expected shares of 0 to 1, got {list(self.shares)}"
        total = math.fsum(self.shares)
        return (
            "" if abs(total - 1) <= _TOLERANCE else f"expected shares that sum to 1, got a sum of {total:g}"
        )

    def draw(self, n: int, random: Random) -> list[Scalar]:
        """`n` values in random order. The number of each follows the shares exactly, by largest remainder."""
        if self.range is not None:
            return [_number(self.range, random) for _ in range(n)]
        shares = self.shares or (1 / len(self.values),) * len(self.values)
        counts = apportion(shares, n)
        drawn = [value for value, count in zip(self.values, counts, strict=True) for _ in range(count)]
        random.shuffle(drawn)
        return drawn

    def fault_of(self, given: Any) -> str:
        """The reason why `settle` finds no value in what a directive gives; "" if it does."""
        if isinstance(given, str | int | float):
            return ""
        values = cast("Sequence[Scalar]", given if isinstance(given, Sequence) else ())
        if not values:
            return f"expected a value, or a list of values to choose from, got {given!r:.80}"
        return _fault_of_range(ends) if (ends := self._ends(values)) else ""

    def settle(self, given: Scalar | Sequence[Scalar], random: Random) -> Scalar:
        """One value of those that a directive gives: itself, one of a list, or a number between two ends."""
        if isinstance(given, str | int | float):
            return given
        ends = self._ends(given)
        return random.choice(given) if ends is None else _number(ends, random)

    def _ends(self, given: Sequence[Scalar]) -> tuple[float, float] | None:
        """The two ends between which a directive wants a number of the range; None if it lists values."""
        if self.range is None or len(given) != 2:
            return None
        low, high = given
        return None if isinstance(low, str) or isinstance(high, str) else (low, high)

    def to_dict(self) -> dict[str, object]:
        """The dimension as a model reads and writes it: a name, and `values` or a `range`.

        Values with shares are a mapping of value to share.
        """
        if self.range is not None:
            return {"name": self.name, "range": list(self.range)}
        if self.shares is None:
            return {"name": self.name, "values": list(self.values)}
        return {"name": self.name, "values": dict(zip(map(str, self.values), self.shares, strict=True))}


def _fault_of_range(ends: Any) -> str:
    if isinstance(ends, str) or not hasattr(ends, "__iter__"):
        return f"expected a range [low, high], got {ends!r:.80}"
    found: list[Any] = [*ends]
    fits = len(found) == 2 and all(map(_is_real, found)) and found[0] <= found[1]
    return "" if fits else f"expected a range [low, high], got {found!r:.80}"


def _is_real(value: object) -> bool:
    """True for a finite number, also a fraction or one of numpy. Booleans are rejected."""
    return not isinstance(value, bool) and is_finite(value)


def _number(ends: tuple[float, float], random: Random) -> int | float:
    low, high = ends
    if float(low).is_integer() and float(high).is_integer():
        return random.randint(int(low), int(high))
    return round(random.uniform(low, high), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A political axis of -1 to 1, with its two ends in words."""

    name: str
    low: str
    high: str

    def text(self, value: float) -> str:
        """The conviction that a value stands for, in words."""
        strength = "leans to" if abs(value) < 0.4 else "believes in" if abs(value) < 0.75 else "fights for"
        return f"{strength} {self.low if value < 0 else self.high}"


AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis(
            name="economic",
            low="the economic left: public ownership, strong unions and high taxes on wealth",
            high="the economic right: free markets, private property and low taxes",
        ),
        Axis(
            name="authority",
            low="personal liberty: few laws, strong civil rights and little police",
            high="authority: order, tradition and a strong state that enforces its laws",
        ),
    )
}
"""The axes that a profile may have, by name."""
OPINIONS = frozenset({"politics", "economics"})
"""The dimensions, and the areas of dimensions, in whose place a profile may have axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of population.

    `population` describes it in words. `age` has both ends in years, `gender` the proportions. `big_five` fixes
    the level of some traits; the others vary. Each combination of signs of `axes` occurs once in every 2 **
    len(axes) consecutive people. `manner` is how each of them behaves, for their system prompt; "" adds none.
    """

    id: str
    population: str
    age: tuple[int, int]
    gender: Mapping[str, float]
    nationality: str = "American"
    big_five: Mapping[str, Level] = field(default_factory=dict[str, Level])
    axes: tuple[str, ...] = ()
    manner: str = ""

    def __post_init__(self) -> None:
        where = f"profile {self.id!r:.80}"
        for what in ("gender", "big_five"):
            if not isinstance(given := getattr(self, what), Mapping):
                raise ConfigurationError(f"{where}: {what}: expected a mapping, got {given!r:.80}.")
        for what, given, known in (("big_five", self.big_five, BIG_FIVE), ("axes", self.axes, AXES)):
            for name in given:
                if name not in known:
                    raise ConfigurationError(
                        f"{where}: {what}: expected {', '.join(known)}, got {name!r:.80}.{nearest(name, known)}"
                    )
        for name, level in self.big_five.items():
            if level not in [*_LEVELS]:
                raise ConfigurationError(
                    f"{where}: big_five: {name}: expected low, average or high, got {level!r:.80}."
                )
        self.dimensions()

    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions that the profile itself decides: age, gender, the big five and its axes."""
        levels = tuple(_LEVELS.values())
        return (
            Dimension(name="age", range=self.age),
            Dimension(name="gender", values=tuple(self.gender), shares=tuple(self.gender.values())),
            *(
                Dimension(name=trait, values=(self.big_five[trait],))
                if trait in self.big_five
                else Dimension(name=trait, values=tuple(_LEVELS), shares=levels)
                for trait in BIG_FIVE
            ),
            *(Dimension(name=axis, range=(-1.0, 1.0)) for axis in self.axes),
        )


PROFILES: Mapping[str, Profile] = {
    profile.id: profile
    for profile in (
        Profile(
            id="averageCustomer",
            population="Ordinary people of the United States, as diverse as its population: in background, work, "
            "income, beliefs, taste and temperament.",
            age=(22, 68),
            gender={"male": 0.48, "female": 0.48, "nonbinary": 0.04},
        ),
        Profile(
            id="difficultCustomer",
            population="Difficult customers in the United States: sceptical, blunt and confrontational people from "
            "all backgrounds, hard to please and quick to find fault.",
            age=(25, 60),
            gender={"male": 0.5, "female": 0.45, "nonbinary": 0.05},
            big_five={"agreeableness": "low", "neuroticism": "high"},
            manner="You are hostile to whatever others propose and say what is wrong with it. You answer in one or "
            "two sentences. You never offer ideas of your own.",
        ),
        Profile(
            id="politicalCompass",
            population="People of the United States with firm political convictions, of all four quadrants of the "
            "political compass: left and right, libertarian and authoritarian.",
            age=(20, 70),
            gender={"male": 0.48, "female": 0.48, "nonbinary": 0.04},
            big_five={"openness": "high"},
            axes=("economic", "authority"),
            manner="You argue from your political convictions and defend them.",
        ),
    )
}
"""The profiles that ship with Arbiter, by id."""


def profile_of(given: Profile | str) -> Profile:
    """The profile itself, or the shipped one of that id. Raises `ConfigurationError`."""
    if isinstance(given, Profile):
        return given
    if given in PROFILES:
        return PROFILES[given]
    raise ConfigurationError(
        f"expected a profile, one of {', '.join(PROFILES)}, got {given!r:.80}.{nearest(str(given), PROFILES)}"
    )
