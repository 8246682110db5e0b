"""`arbiter verify`: what is stored is compared with the chain, and the chain with anchors of elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from arbiter._objects import load_graph
from arbiter.arbiter_os import ArbiterOS
from arbiter.cli._options import Screen, key_of_environment, number_of, opened
from arbiter.cli._streams import counting, reader_may_leave
from arbiter.history._rendering import moment_text

if TYPE_CHECKING:
    from arbiter.ledger import Ledger, Verification

_MOST_FINDINGS = 50


def verify_ledger(
    where: str, thread: str | None, *, anchors: str | None, against: str | None, format: str
) -> int:
    """Print what fits and what does not. Returns 1 if something does not.

    With `against`, the entries that only the checkpoints of that graph know are added first.
    """
    from arbiter._databases import shown

    screen = Screen(format)
    key = key_of_environment()
    with opened(where) as ledger:
        if against is not None:
            _recover(ledger, against, thread, screen)
        keys = () if key is None else (key,)
        with counting("entries verified") as show:
            found = ledger.verify(thread, anchors=anchors, keys=keys, progress=show)
    name = shown(where) if thread is None else f"{shown(where)}, thread {thread}"
    with reader_may_leave():
        if screen.format != "table":
            screen.data({"intact": bool(found), "after_anchor": found.after_anchor, **asdict(found)})
        elif found.entries or found.findings:
            for line in _lines(found, name, is_signature_checked=key is not None):
                screen.say(line)
        else:
            screen.say("nothing is recorded yet")
    return 0 if found else 1


def _recover(ledger: Ledger, where: str, thread: str | None, screen: Screen) -> None:
    graph = load_graph(where)
    if not hasattr(graph, "_arbiter_checkpointed"):  # it is not governed, or without a ledger
        graph = ArbiterOS(ledger=ledger).govern(graph)
    count = ledger.recover(graph, thread_id=thread)
    nothing = f"the checkpoints of {where} have nothing that the ledger lacks."
    found = f"recovered: {number_of(count, 'node run')} from the checkpoints of {where}, without contents."
    screen.say(found if count else nothing)


def _lines(found: Verification, name: str, *, is_signature_checked: bool) -> list[str]:
    if not found:
        broken = len({finding.thread for finding in found.findings if finding.thread is not None})
        places = f" in {number_of(broken, 'thread')}" if broken else ""
        more = len(found.findings) - _MOST_FINDINGS
        return [
            f"{name}: {number_of(found.threads, 'thread')}, {number_of(found.entries, 'entry', 'entries')}",
            *(f"  {finding}" for finding in found.findings[:_MOST_FINDINGS]),
            *([f"  {more:,} more: --format json"] if more > 0 else ()),
            f"BROKEN: {number_of(len(found.findings), 'finding')}{places}. {found.intact_entries:,} entries in "
            "the other threads and before these places are intact.",
        ]
    days = (
        ""
        if found.since is None or found.until is None
        else f", {found.since:%Y-%m-%d} to {found.until:%Y-%m-%d}"
    )
    rows = [
        ("chained", found.entries, "each entry follows the one before it, and its columns and contents fit"),
        ("anchored", found.anchored, _anchor(found, is_signature_checked=is_signature_checked)),
    ]
    if found.after_anchor:
        rows.append(("after it", found.after_anchor, "chained only: cutting these could not be noticed"))
    if found.erased:
        threads = number_of(found.erased_threads, "thread")
        rows.append(("erased", found.erased, f"contents of {threads}, each with its erasure entry"))
    if found.pruned:
        rows.append(
            ("pruned", found.pruned, "entries that are gone, or their contents, each by a pruned entry")
        )
    if found.gaps:
        rows.append(("gaps", found.gaps, _gaps(found)))
    return [
        f"{name}: {number_of(found.threads, 'thread')}, {number_of(found.entries, 'entry', 'entries')}{days}",
        *(f"  {label:<9}{count:>11,}  {words}" for label, count, words in rows),
        "intact",
    ]


def _anchor(found: Verification, *, is_signature_checked: bool) -> str:
    if found.anchor is None:
        return "no anchor yet: arbiter anchor writes one"
    at = moment_text(datetime.fromtimestamp(found.anchor["at"] / 1_000_000, UTC))
    key = found.anchor.get("key")
    if key is None:
        signed = "not signed"
    elif is_signature_checked:
        signed = f"signed by {key}"
    else:
        signed = f"names the key {key}, not checked: set ARBITER_LEDGER_KEY_FILE"
    return f"up to anchor {found.anchor['n']} of {at}, {signed}"


def _gaps(found: Verification) -> str:
    first, last = min(gap.since for gap in found.missed), max(gap.until for gap in found.missed)
    days = f"{first:%Y-%m-%d}" if first.date() == last.date() else f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
    reasons = "; ".join(dict.fromkeys(gap.reason for gap in found.missed if gap.reason))
    without = sum(gap.without_contents for gap in found.missed)
    parts = [f"{number_of(found.not_recorded, 'item')} of {days} were not recorded"]
    if without:
        parts.append(f"{without:,} without contents")
    return ", ".join(parts) + (f": {reasons}" if reasons else "")
