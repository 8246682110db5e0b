"""Curves as SVG, made on the server from numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

WIDTH, HEIGHT = 640, 160
LEFT, TOP, BOTTOM = 44, 8, 20
"""Room for the labels of the axes, in units of the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The coordinates of a curve in a picture of `WIDTH` by `HEIGHT` units.

    `line` is the attribute `points` of the means, `band` that of the area between least and most, "" without one.
    `dots` are the points one by one: a line of a single point would not be seen.
    """

    line: str
    band: str
    dots: Sequence[tuple[float, float]]
    ticks: Sequence[tuple[float, str]]
    """Heights and texts of the vertical axis."""
    first: datetime
    last: datetime


def chart_of(
    times: Sequence[datetime],
    values: Sequence[float | None],
    bounds: Sequence[tuple[float, float]] | None = None,
) -> Chart | None:
    """A curve of values over time, with the area between bounds if there are any. None without a value.

    The vertical axis is 0 to 1 if all fits there, else from the least to the most.
    """
    found = [
        (when, value, (value, value) if bounds is None else bounds[at])
        for at, (when, value) in enumerate(zip(times, values, strict=True))
        if value is not None
    ]
    if not found:
        return None
    low = min(0.0, *(each[2][0] for each in found))
    high = max(1.0, *(each[2][1] for each in found))
    begin, end = found[0][0], found[-1][0]
    span = (end - begin).total_seconds() or 1.0
    # Halves, because the difference of two floats can be infinite. So can the mean of some.
    height = high / 2 - low / 2

    def x(when: datetime) -> float:
        return round(LEFT + (WIDTH - LEFT - 8) * (when - begin).total_seconds() / span, 1)

    def y(value: float) -> float:
        inside = min(max(value, low), high)
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - (inside / 2 - low / 2) / height), 1)

    dots = [(x(when), y(value)) for when, value, _ in found]
    band = "" if bounds is None else " ".join(
        [f"{x(when)},{y(most)}" for when, _, (_, most) in found]
        + [f"{x(when)},{y(least)}" for when, _, (least, _) in reversed(found)]
    )  # fmt: skip
    return Chart(
        line=" ".join(f"{left},{top}" for left, top in dots),
        band=band,
        dots=dots,
        ticks=[(y(value), f"{value:.3g}") for value in (low, low / 2 + high / 2, high)],
        first=begin,
        last=end,
    )
