"""A picture of an experiment: a forest plot of the differences over pairs of environments, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from arbiter.experiments.comparing import MetricComparison
from arbiter.experiments.table1 import interval_text, signed
from arbiter.models import visible
from arbiter.statistics import p_text

_WIDTH, _ROW, _TOP, _LEFT, _RIGHT = 760, 34, 56, 190, 190
_INK, _PALE, _MARK = "#222222", "#b8b8b8", "#1f5fa8"


def forest(comparisons: Sequence[MetricComparison], *, note: str = "") -> str:
    """One line for each metric: the difference of the arms with its 95 % interval, in units of the metric's sd.

    The unit is the standard deviation of the differences between pairs of environments, so that metrics on
    different scales share one axis. A metric without a paired test has its reason in place of a mark. `note` stands in
    a corner.
    """
    # An interval that would flatten all others is cut at the edge.
    ends = [abs(end) for row in comparisons for end in _standardised(row)[1:] if math.isfinite(end)]
    reach = min(max(ends, default=1.0), 4.0) * 1.05 or 1.0
    height = _TOP + _ROW * len(comparisons) + 46
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" font-family="sans-serif" font-size="13" fill="{_INK}">',
        "<title>Effects of the treatment, with 95 % intervals</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" fill="#666666">{escape(note)}</text>',
        *_axis(reach, height),
    ]
    for number, row in enumerate(comparisons):
        lines += _line(
            row, _TOP + _ROW * number + _ROW // 2, reach, several=len({r.arms for r in comparisons}) > 1
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _standardised(row: MetricComparison) -> tuple[float, float, float]:
    """Difference and interval in standard deviations of the differences; NaN without a test, or if all are equal."""
    test = row.paired
    if test is None or not test.sd:
        return math.nan, math.nan, math.nan
    return test.mean / test.sd, test.interval.low / test.sd, test.interval.high / test.sd


def _x(value: float, reach: float) -> float:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return middle + max(-1.0, min(1.0, value / reach)) * (_WIDTH - _RIGHT - _LEFT) / 2


def _axis(reach: float, height: int) -> Iterator[str]:
    bottom = height - 40
    yield f'<text x="{_LEFT}" y="20" fill="{_INK}">control is higher</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="20" text-anchor="end">treatment is higher</text>'
    step = next(step for step in (0.25, 0.5, 1.0, 2.0) if reach / step <= 5)
    for number in range(-int(reach / step), int(reach / step) + 1):
        x, dashes = _x(number * step, reach), ' stroke-dasharray="2 4"' if number else ""
        yield f'<line x1="{x:.1f}" y1="32" x2="{x:.1f}" y2="{bottom}" stroke="{_PALE}"{dashes}/>'
        label = f"{number * step:g}".replace("-", "−")
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" font-size="11">{label}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield (
        f'<text x="{middle:.1f}" y="{bottom + 32}" text-anchor="middle" font-size="11">difference between paired '
        "environments, in standard deviations</text>"
    )


def _line(row: MetricComparison, y: int, reach: float, *, several: bool) -> Iterator[str]:
    name = visible(f"{row.label} ({' − '.join(row.arms)})") if several else row.label
    yield f'<text x="12" y="{y + 4}">{escape(name)}</text>'
    mean, low, high = _standardised(row)
    test = row.paired
    if test is None or row.p is None or math.isnan(mean):
        why = (
            "all differences are equal"
            if test is not None
            else (row.untested or "no pairs").partition(":")[0]
        )
        yield f'<text x="{_WIDTH - _RIGHT + 14}" y="{y + 4}" fill="#666666">{escape(why)}</text>'
        return
    first, last = _x(low, reach), _x(high, reach)
    yield f'<line x1="{first:.1f}" y1="{y}" x2="{last:.1f}" y2="{y}" stroke="{_MARK}" stroke-width="2"/>'
    yield f'<circle cx="{_x(mean, reach):.1f}" cy="{y}" r="5" fill="{_MARK}"/>'
    text = f"{signed(test.mean)} {interval_text(test.interval)}  p {p_text(row.p)}"
    yield f'<text x="{_WIDTH - _RIGHT + 14}" y="{y + 4}" font-size="12">{escape(text)}</text>'
