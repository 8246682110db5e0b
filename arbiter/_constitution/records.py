"""The records of packs that extend one another, put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from arbiter._constitution.pack_file import RecordsEntry
from arbiter._constitution.tightening import is_tighter
from arbiter._values.records import RANKS, Records


def changed(records: Records, entry: RecordsEntry, source: str) -> Records:
    """The records after a pack that extends theirs. Names of fields and patterns are added; with `override`,
    those that are given replace the earlier ones.
    """
    redact = entry.redact
    replaced = redact.model_fields_set if entry.override else set[str]()
    return replace(
        records,
        states=entry.states or records.states,
        keys=tuple(dict.fromkeys([*(() if "keys" in replaced else records.keys), *redact.keys])),
        patterns={**({} if "patterns" in replaced else records.patterns), **redact.patterns},
        detect=records.detect if redact.detect is None else tuple(dict.fromkeys(redact.detect)),
        keep_days=records.keep_days if entry.keep_days is None else entry.keep_days,
        source=source,
    )


def looser_parts(records: Records, entry: RecordsEntry) -> Iterator[tuple[tuple[str, ...], str]]:
    """The parts of an extending pack that keep more: the place of each, and what was expected."""
    if entry.states is not None and RANKS[entry.states] > RANKS[records.states or "full"]:
        allowed = [states for states in RANKS if RANKS[states] <= RANKS[records.states or "full"]]
        yield ("states",), f"expected {' or '.join(map(repr, allowed))}, got {entry.states!r}"
    if entry.keep_days is not None and not is_tighter("lower", records.keep_days, entry.keep_days):
        yield ("keep_days",), f"expected at most {records.keep_days:g}, got {entry.keep_days:g}"
    detect, before = entry.redact.detect, records.detectors
    if detect is not None and not is_tighter("more", [*before], detect):
        yield ("redact", "detect"), f"expected all of {', '.join(before)}, got {', '.join(detect) or 'none'}"
    for name, pattern in entry.redact.patterns.items():
        if (known := records.patterns.get(name, pattern)) != pattern:
            yield (
                ("redact", "patterns", name),
                f"expected {known!r}, got {pattern!r}. Give another pattern another name",
            )
