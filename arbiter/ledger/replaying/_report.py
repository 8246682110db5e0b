"""The report of a replay: which decisions differ, which are unknown, and what follows from a difference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, overload

from arbiter._lifecycle.shadow import ShadowDecision, ShadowDifference
from arbiter.history._text import Ink

if TYPE_CHECKING:
    from rich.console import Console

Outcome = Literal["same", "stricter", "looser", "elsewhere", "unknown"]
SHOWN = 20
_STRENGTH = {"allow": 0, "continue": 0, "ask": 1, "deny": 2}
_WIDE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference(ShadowDifference):
    """One recorded decision that the other constitution would have made differently.

    `run` is the uuid of the run, and `ref` the name of the thread in the ledger, which one without an id or with an
    erased one has, too. `follows` is True if it comes after another difference of the same run, which
    might then have gone another way. `why` is the reason of the other constitution's decision, or of the recorded
    one: the values that a condition on the input found, else the words of the rule.
    """

    run: str
    follows: bool
    why: str = ""
    ref: str = ""

    @property
    def outcome(self) -> Outcome:
        """`stricter`, `looser`, or `elsewhere`: the run would have gone to another node."""
        return outcome_of(self.enforced, self.shadow)


def outcome_of(recorded: ShadowDecision, next: ShadowDecision) -> Outcome:
    if recorded.same_as(next):
        return "same"
    before, after = _STRENGTH.get(recorded.kind), _STRENGTH.get(next.kind)
    if before is None or after is None or before == after:
        return "elsewhere"
    return "stricter" if after > before else "looser"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """How many decisions were compared, with which outcome. `follow` counts node runs with a decision that
    comes after a difference of their run.
    """

    threads: int
    node_runs: int
    decisions: int
    same: int
    stricter: int
    looser: int
    elsewhere: int
    unknown: int
    follow: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReplayReport(Sequence[ReplayDifference]):
    """The recorded decisions that another constitution would have made differently, in the order of the
    threads and then of time. Unknown decisions are counted and are not among them.
    """

    source: str
    rules: str
    """The digest of the constitution that decided."""
    recorded_rules: Sequence[str]
    since: float
    until: float
    """The times of the first and the last node run, in seconds since 1970, UTC."""
    summary: ReplaySummary
    differences: Sequence[ReplayDifference]
    changes: Mapping[tuple[Outcome, str, str, str], int]
    """The number of differences by outcome, recorded kind, next kind and next target."""
    unknown: Mapping[str, int]
    """The number of decisions that cannot be made from the ledger, by reason."""
    not_replayed: Mapping[str, int]
    """Checkers that look into the bodies of nodes, with the number of node runs that had one."""
    approximate: Sequence[str]
    """Rules whose accounts other threads and processes used at the same time."""
    idle: Sequence[str]
    """Rules that apply to none of the recorded node runs."""
    models: bool
    """True if models were given, which may have been called."""

    @overload
    def __getitem__(self, index: int) -> ReplayDifference: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReplayDifference]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.differences[index]

    def __iter__(self) -> Iterator[ReplayDifference]:
        return iter(self.differences)

    def __len__(self) -> int:
        return len(self.differences)

    def __bool__(self) -> bool:
        return True

    def to_dicts(self) -> list[dict[str, Any]]:
        """All differences as plain JSON-able data."""
        return [{"outcome": each.outcome, **asdict(each)} for each in self]

    def to_dict(self) -> dict[str, Any]:
        """The whole report as plain data, which fits `report.schema.json` beside this module."""
        return {
            "version": 1,
            "source": self.source,
            "rules": self.rules,
            "recorded_rules": list(self.recorded_rules),
            "since": _iso(self.since),
            "until": _iso(self.until),
            "summary": asdict(self.summary),
            "changes": [
                {"outcome": outcome, "recorded": before, "next": after, "target": target, "count": count}
                for (outcome, before, after, target), count in self.changes.items()
            ],
            "unknown": [{"reason": reason, "count": count} for reason, count in self.unknown.items()],
            "differences": self.to_dicts(),
            "not_replayed": [{"rule": rule, "node_runs": count} for rule, count in self.not_replayed.items()],
            "approximate": list(self.approximate),
            "idle": list(self.idle),
        }

    def to_json(self) -> str:
        """The whole report as JSON: the same text for the same recorded runs, wherever they are stored."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True) + "\n"

    def pprint(self, console: Console | None = None, *, all: bool = False) -> None:
        """Print the counts, and a table of the first 20 differences, or of `all`."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        out = console or Console(highlight=False)
        ink = Ink(out.encoding)

        def say(line: str) -> None:
            out.print(Text(ink.line(line, 1000)), soft_wrap=True)

        for line in self._counts():
            say(line)
        shown = self[: None if all else SHOWN]
        if shown:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
            for name in ("thread", "step", "node", "recorded", "next", "why"):
                table.add_column(name, justify="right" if name == "step" else "left", overflow="fold")
            for each in shown:
                cells = (
                    each.thread_id or each.ref[:8],
                    each.step,
                    each.node,
                    each.enforced,
                    each.shadow,
                    each.why,
                )
                table.add_row(*(Text(ink.line(str(cell), _WIDE)) for cell in cells))
            out.print(table)
        for line in self._remarks(len(self) - len(shown)):
            say(line)

    def _counts(self) -> Iterator[str]:
        found = self.summary
        days = " to ".join(dict.fromkeys(_iso(at)[:10] for at in (self.since, self.until)))
        yield (
            f"{_number(found.threads, 'thread')}, {_number(found.node_runs, 'node run')}, "
            f"{_number(found.decisions, 'decision')} of {days}"
        )
        yield f" {'the same':<18}{found.same:>9,}"
        for outcome in ("stricter", "looser", "elsewhere"):
            changed = ", ".join(
                f"{before} → {after}{f' {target}' if target else ''} {count:,}"
                for (of_outcome, before, after, target), count in self.changes.items()
                if of_outcome == outcome
            )
            yield f" {outcome:<18}{getattr(found, outcome):>9,}   {changed}".rstrip()
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in self.unknown.items())
        yield f" {'unknown':<18}{found.unknown:>9,}   {reasons}".rstrip()
        if found.follow:
            some = "some of them would not have happened"
            yield f" of these node runs {found.follow:,} come after a decision that differs; {some}"

    def _remarks(self, left: int) -> Iterator[str]:
        ends: list[str] = []
        if left > 0:
            ends.append(f"{left:,} more: --all.")
        recorded = ", ".join(f"{digest[:6]}…" for digest in self.recorded_rules) or "no constitution"
        ends.append(f"Decided by the rules of {self.source} ({self.rules[:6]}…); recorded under {recorded}.")
        ends.append("No node or tool was called." if self.models else "No node, tool or model was called.")
        yield " ".join(ends)
        for rule, count in self.not_replayed.items():
            yield f"Not replayed: {rule!r} looks into the bodies of nodes; {_number(count, 'node run')} had one."
        if self.approximate:
            names = ", ".join(map(repr, self.approximate))
            yield f"Approximate: {names}. Other threads and processes used the same accounts."
        if self.idle:
            yield f"Applies to none of these node runs: {', '.join(map(repr, self.idle))}."

    def __repr__(self) -> str:
        found = self.summary
        return f"<ReplayReport: {len(self)} of {found.decisions} decisions differ, {found.unknown} unknown>"


def changes_of(differences: Sequence[ReplayDifference]) -> dict[tuple[Outcome, str, str, str], int]:
    """The number of differences by what changed, the most frequent first."""
    counts: Counter[tuple[Outcome, str, str, str]] = Counter()
    for each in differences:
        target = each.shadow.target if each.outcome == "elsewhere" else ""
        counts[each.outcome, each.enforced.kind, each.shadow.kind, target] += 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _number(count: int, what: str) -> str:
    return f"{count:,} {what if count == 1 else what + 's'}"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
