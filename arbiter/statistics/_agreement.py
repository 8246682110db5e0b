"""Agreement: Cohen's κ of two raters, Krippendorff's α of any number of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain, product
from typing import Any, Literal

from arbiter.errors import ParameterError
from arbiter.statistics._numbers import in_units, is_finite, listed, one_of

Weights = Literal["none", "linear", "quadratic"]
"""How bad a disagreement is: all alike, by its distance, or by the square of its distance."""
Level = Literal["nominal", "ordinal", "interval"]
"""What labels mean: names, ranks, or numbers with distances."""


def kappa(
    first: Sequence[Hashable], second: Sequence[Hashable], *, weights: Weights = "none"
) -> float | None:
    """Cohen's κ of the labels that two raters gave to the same things, in the same order.

        κ = 1 - Σ w·observed / Σ w·expected by chance

    `weights` are 0 and 1, |a - b| ("linear") or (a - b)² ("quadratic", for scores from 0 to 9); labels are
    then numbers. The table 20 5 / 10 15 gives 0.4. None if both gave one and the same label throughout,
    because chance then explains everything. (Cohen 1960 and 1968.)
    """
    if len(first) != len(second) or not first:
        problem = f"expected two lists of one length, at least 1, got {len(first)} and {len(second)} labels."
        raise ParameterError("kappa", "second", problem)
    weight = _WEIGHTS[one_of("kappa", "weights", weights, Weights)]
    if weights != "none":
        labels = _numbers("kappa", dict.fromkeys([*first, *second]))
        first, second = [labels[label] for label in first], [labels[label] for label in second]
    n = len(first)
    a, b = Counter(first), Counter(second)
    observed = math.fsum(weight(x, y) * k for (x, y), k in Counter(zip(first, second, strict=True)).items())
    expected = math.fsum(weight(x, y) * a[x] * b[y] for x, y in product(a, b)) / n
    return 1 - observed / expected if expected else None


def krippendorff_alpha(
    units: Iterable[Iterable[Hashable | None]], *, level: Level = "nominal"
) -> float | None:
    """Krippendorff's α of labels by any number of raters. Each unit lists its labels; None is a missing one.

        α = 1 - D_observed/D_expected

    Each pair of labels in a unit of m labels counts 1/(m - 1). The distance δ² is 0 or 1 (nominal),
    (a - b)² (interval), or the square of the number of labels from a to b, the ends counting half (ordinal).
    Units with fewer than two labels do not count. None if no two labels can be compared, or all are equal.
    Krippendorff's example of twelve units: nominal 0.7434, ordinal 0.8154, interval 0.8491. (Krippendorff
    2011, Computing Krippendorff's Alpha-Reliability.)
    """
    one_of("krippendorff_alpha", "level", level, Level)
    given: list[tuple[Any, ...]] = []
    for place, unit in enumerate(listed("krippendorff_alpha", "units", units, "lists")):
        own: Any = unit
        if type(unit) not in (tuple, list):  # a bootstrap asks about the same units thousands of times
            own = listed("krippendorff_alpha", f"units[{place}]", unit, "labels")
        given.append(tuple([label for label in own if label is not None]))
    given = [unit for unit in given if len(unit) > 1]
    if level != "nominal":
        number_of = _numbers("krippendorff_alpha", dict.fromkeys(chain.from_iterable(given)))
        given = [tuple([number_of[label] for label in unit]) for unit in given]
    totals = Counter(chain.from_iterable(given))
    n = totals.total()
    distance = _distances(totals, level)
    # Many units have the same labels.
    observed = math.fsum(
        times * distance(a, b) * labels[a] * labels[b] / (len(unit) - 1)
        for unit, times in Counter(given).items()
        for labels in (Counter(unit),)
        for a, b in product(labels, labels)
    )
    expected = math.fsum(distance(a, b) * totals[a] * totals[b] for a, b in product(totals, totals))
    return 1 - observed * (n - 1) / expected if expected else None


_WEIGHTS: Mapping[str, Callable[[Any, Any], float]] = {
    "none": lambda a, b: float(a != b),
    "linear": lambda a, b: abs(a - b),
    "quadratic": lambda a, b: (a - b) ** 2,
}


def _distances(totals: Counter[Any], level: str) -> Callable[[Any, Any], float]:
    if level == "nominal":
        return _WEIGHTS["none"]
    if level == "interval":
        return _WEIGHTS["quadratic"]
    below, ranks = 0.0, dict[Any, float]()
    for label in sorted(totals):
        ranks[label] = below + totals[label] / 2
        below += totals[label]
    return lambda a, b: (ranks[a] - ranks[b]) ** 2


def _numbers(function: str, labels: Iterable[Any]) -> dict[Any, float]:
    """The labels in units of one number, in which no distance leaves the range of a float. Agreement depends on the
    proportions of the distances alone."""
    given = list(labels)
    for label in given:
        if not is_finite(label):
            raise ParameterError(function, "labels", f"expected finite numbers, got {label!r:.80}.")
    return dict(zip(given, in_units(list(map(float, given)))[0], strict=True))
