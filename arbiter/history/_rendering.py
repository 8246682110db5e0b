"""Print a history: superstep boxes, one block per item."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from textwrap import dedent
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style

from arbiter.history._text import (
    BAD,
    CHARS,
    GOOD,
    HEADING,
    KEY,
    NARROWEST,
    NOTE,
    PASSED,
    PROSE_LINES,
    SHOWN_BY_ITS_RESULT,
    UNSURE,
    VALUE_LINES,
    Branch,
    History,
    Ink,
    Item,
    Line,
    Yaml,
    cropped,
    scores_of,
    shaped,
    type_name,
    wrap,
)
from arbiter.verdicts import OTHER_TARGETS

_SECTION_LINES = 100  # of all checks, or all evaluations, of one item


_HTML_WIDTH = 100


_HTML = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:normal;'
    "font-family:Menlo,'DejaVu Sans Mono',consolas,'Courier New',monospace\">{code}</pre>\n"
)


_STATUS = {
    "completed": GOOD,
    "denied": BAD,
    "failed": BAD,
    "interrupted": UNSURE,
    "cancelled": UNSURE,
    "running": KEY,
}


def render_history(history: History, *, max_value_lines: int = VALUE_LINES) -> RenderableType:
    """`history` for `console.print`. Waits for the evaluations when it is printed, not before."""
    return _Rendering(history, max_value_lines)


def pprint_history(history: History, console: Console | None = None) -> None:
    """Print `history` on `console`, by default the standard output."""
    (console or Console()).print(render_history(history))


def history_html(history: History) -> str:
    """`history` as one `<pre>` with inline styles, everything in it escaped, for notebooks."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=_HTML_WIDTH,
        force_jupyter=False,
        legacy_windows=False,
    )
    console.print(render_history(history))
    return console.export_html(inline_styles=True, code_format=_HTML)


def history_text(history: History, width: int = 80) -> str:
    """`history` as plain text without a final line end. A `width` below 40 columns counts as 40."""
    page = _Page(Ink("utf-8"), width, VALUE_LINES)
    return "\n".join("".join(text for text, _ in line) for line in page.lines(history))


def value_text(state: Any, *, width: int, max_lines: int) -> str:
    """A state as the lines below "Input" and "Output" of a printed history, without their margin."""
    page = _Page(Ink("utf-8"), width, max_lines)
    lines = ("".join(text for text, _ in line) for line in page.value(state))
    return dedent("\n".join(lines))


@dataclass(frozen=True, slots=True)
class _Rendering:
    history: History
    max_value_lines: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Segments and not Text: nothing that reads markup, emoji codes or control codes sees them.
        ink = Ink(options.encoding, plain=options.legacy_windows)
        page = _Page(ink, options.max_width, self.max_value_lines)
        for line in page.lines(self.history):
            for text, style in line:
                yield Segment(text, Style.parse(style))
            yield Segment.line()


class _Page:
    """A history as lines of `width` columns."""

    __slots__ = ("_ink", "_value_lines", "_width", "_yaml")

    def __init__(self, ink: Ink, width: int, value_lines: int) -> None:
        self._ink = ink
        self._width = max(width, NARROWEST)
        self._value_lines = max(value_lines, 1)
        self._yaml = Yaml(ink, self._width)

    def lines(self, history: History) -> Iterator[Line]:
        return (cropped(line, self._width) for line in self._lines(history))

    def _lines(self, history: History) -> Iterator[Line]:
        empty = True
        for step, superstep in enumerate(history.entries, 1):
            if not empty:
                yield ()
            yield ((self._ink.box(f"SuperStep {step}"), HEADING),)
            for place, item in enumerate(superstep, 1):
                if place > 1:
                    yield ()
                yield from self._item(item, f"[{step}.{place}]")
            empty = False
        if empty:
            yield (("The history is empty: no node has run.", NOTE),)

    def _item(self, item: Item, number: str) -> Iterator[Line]:
        kind = "(no instruction)" if item.instruction is None else str(item.instruction)
        dot = f" {self._ink.dot} "
        facts = [self._name(item.node), self._name(item.status)]
        if 0 < item.duration < math.inf:
            facts.append(duration_text(item.duration))
        if item.attempt > 1:
            facts.append(f"attempt {item.attempt}")
        if item.namespace:
            facts.append(f"in {self._ink.line(item.namespace, 120)}")
        lead = f"  {number} {self._ink.line(kind, min(40, self._width - 24))}"
        style = _STATUS.get(item.status, "")
        yield from self._prose(lead + dot, dot.join(facts), "", (HEADING, style), hang=8)
        for heading, lines in self._sections(item):
            first = next(lines, None)
            if first is not None:
                yield ((f"    {heading}:", HEADING),)
                yield first
                yield from lines
        if item.error:
            yield from self._prose("    Error: ", "", item.error, (HEADING, BAD), hang=10)

    def _sections(self, item: Item) -> Iterator[tuple[str, Iterator[Line]]]:
        yield "Input", self.value(item.input_state)
        yield "Output", self.value(item.output_state)
        yield "Checks", self._capped(self._checks(item), _SECTION_LINES)
        yield "Corrections", self._capped(self._corrections(item), _SECTION_LINES)
        yield "Routes", self._capped(self._routes(item), _SECTION_LINES)
        yield "Evaluations", self._capped(self._evaluations(item), _SECTION_LINES)
        yield "Contract errors", self._capped(self._failures(item.errors), _SECTION_LINES)
        yield "Notes", self._capped(self._notes(item), _SECTION_LINES)

    def value(self, state: Any) -> Iterator[Line]:
        """The fields of `state`. If there is no room for all, the longest ones are cut, not the last ones."""
        limit = self._value_lines
        fields = [list(islice(lines, limit + 1)) for lines in self._yaml.fields(state, 6)]
        most = _share([len(lines) for lines in fields], limit)
        shown = (self._capped(iter(lines), most) for lines in fields)
        return self._capped(chain.from_iterable(shown), limit)

    def _capped(self, lines: Iterator[Line], limit: int) -> Iterator[Line]:
        """At most `limit` lines, plus a note if there were more."""
        yield from islice(lines, limit)
        if next(lines, None) is not None:
            yield self._yaml.note(f"cut after {limit:,} lines", 6)

    def _checks(self, item: Item) -> Iterator[Line]:
        marks = {"allow": (self._ink.tick, GOOD), "deny": (self._ink.cross, BAD)}
        for name, verdict in self._pairs(item.check_policy_results):
            mark, style = marks.get(verdict.kind, ("?", UNSURE))
            reason = "" if verdict.kind == "allow" else _plain_text(verdict.reason)
            yield from self._entry(mark, f"{name}: " if reason else name, reason, style)

    def _corrections(self, item: Item) -> Iterator[Line]:
        yield from self._gating(getattr(item, "gating", {}))  # a row of another history may have none
        for correction in item.corrections:
            yield from self._entry("-", "", _plain_text(correction), UNSURE)

    def _gating(self, gating: Mapping[str, Any]) -> Iterator[Line]:
        """The gate's account of the accepted draft: its outcome and its scores."""
        outcome = gating.get("outcome")
        if not isinstance(outcome, str):
            return
        mark, style = (self._ink.tick, GOOD) if outcome in PASSED else (self._ink.cross, BAD)
        text = _plain_text(", ".join(scores_of(gating)))
        head = f"gate: {self._name(outcome)}" + (" - " if text else "")
        yield from self._entry(mark, head, text, style)

    def _routes(self, item: Item) -> Iterator[Line]:
        taken = item.redirected_to
        answers = [pair for pair in self._pairs(item.route_policy_results) if pair[1] is not None]
        for name, target in answers:
            fate = " (not taken)" if taken is None else ""
            if (name, target) != answers[0]:
                fate = " (overruled)"
            text = f"{name}: {self._name(_plain_text(target))}{fate}"
            yield from self._entry(self._ink.route, text, "", NOTE if fate else KEY)
        if taken is not None:
            text = f"redirected to {self._name(taken)}"
            yield from self._entry(self._ink.route, text, "", KEY)

    def _evaluations(self, item: Item) -> Iterator[Line]:
        for name, result in self._pairs(item.evaluation_results):
            mark, style = (self._ink.tick, GOOD) if result.passed else (self._ink.cross, BAD)
            if result.passed is None:  # a score without a judgement
                mark, style = "-", KEY
            feedback = _plain_text(result.feedback)
            head = f"{name}: score={_score(result.score)}" + (" - " if feedback else "")
            yield from self._entry(mark, head, feedback, style)
        # After the results: the errors are complete only when all evaluators are done.
        yield from self._failures(item.evaluation_errors)
        for part in item.evaluator_trace:
            if part.status not in SHOWN_BY_ITS_RESULT and part.detail != OTHER_TARGETS:
                text = f"{self._name(part.name)}: {part.status}" + (
                    f" ({part.detail})" if part.detail else ""
                )
                yield from self._entry("-", "", _plain_text(text), NOTE)

    def _notes(self, item: Item) -> Iterator[Line]:
        for name, remark in self._pairs(item.notes):
            yield from self._entry("-", f"{name}: ", _plain_text(remark), UNSURE)

    def _failures(self, errors: Mapping[str, str]) -> Iterator[Line]:
        for name, error in self._pairs(errors):
            yield from self._entry("!", f"{name}: ", _plain_text(error), BAD)

    def _pairs(self, results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, result in results.items():
            yield self._name(name), result

    def _name(self, name: str) -> str:
        return self._ink.line(name, 60)

    def _entry(self, mark: str, head: str, text: str, style: str) -> Iterator[Line]:
        return self._prose(f"      {mark} ", head, text, (style, ""), hang=10)

    def _prose(
        self, lead: str, head: str, text: str, styles: tuple[str, str], *, hang: int
    ) -> Iterator[Line]:
        """`lead` and, in another style, `head` and `text`. Further lines start at `hang`."""
        if (dropped := len(text) - CHARS) > 0:
            text = f"{text[:CHARS]}{self._ink.ellipsis} (+{dropped:,} chars)"
        text = head + text
        lead_style, style = styles
        first, room = self._width - cell_len(lead), self._width - hang
        lines: list[str] = []
        for line in text.rstrip().split("\n"):
            lines += wrap(self._ink.atoms(line), room if lines else first, room)
        yield ((lead, lead_style), (lines[0].rstrip(), style))
        for line in lines[1:PROSE_LINES]:
            yield ((" " * hang, ""), (line.rstrip(), style))
        if len(lines) > PROSE_LINES:
            yield self._yaml.note(f"+{len(lines) - PROSE_LINES:,} lines", hang)


def _plain_text(value: Any) -> str:
    """A string unchanged; any other value that a contract left in its place, as short text."""
    if type(value) is str:
        return value
    shape = shaped(value)
    return f"<{type_name(value)}>" if isinstance(shape, Branch) else shape.text


def _score(score: float) -> str:
    try:
        return f"{score:.2f}" if abs(score) < 1e6 else f"{score:.3g}"
    except Exception:
        return _plain_text(score)


def duration_text(seconds: float) -> str:
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,} min {rest:02d} s"


def moment_text(when: datetime) -> str:
    """A time in UTC to the second, with its zone."""
    return when.strftime("%Y-%m-%d %H:%M:%SZ")


def _share(sizes: Sequence[int], total: int) -> int:
    """The number of lines that each may take at most, so that all together take about `total`."""
    left = len(sizes)
    for size in sorted(sizes):
        fair = total // left
        if size > fair:
            return max(1, fair - 1)  # one more says that it was cut
        total, left = total - size, left - 1
    return max(sizes, default=0)
