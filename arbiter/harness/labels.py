"""Labels: what people say about outputs, in a CSV file, to compare a judge with.

The columns are `id`, `input`, `output`, `label` and `labeller`; `input` and `labeller` may be left out. A file
with the judge's `score`, too, is not blind: people who see it agree with the judge more than they would. A
label is a whole score from 0 to 9, or "pass" or "fail", and one file has one kind. An id may have several
labellers.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from arbiter._values.files import write_whole, writing
from arbiter._values.states import is_whole
from arbiter.errors import ConfigurationError, PackError, PackMistake, nearest

COLUMNS = ("id", "input", "output", "label", "labeller")
SCORE = "score"
_NEEDED = ("id", "output", "label")
_PASS = {"pass": 1, "fail": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One output and its labels by labeller: scores from 0 to 9, or 1 for a pass and 0 for a failure.

    `line` is that of its first label in a file.
    """

    id: str
    input: str
    output: str
    labels: Mapping[str, int]
    line: int = 0

    @property
    def label(self) -> float:
        """The median of the labels."""
        return median(self.labels.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """All labelled outputs of a file, in its order. `are_scores` is False for passes and failures.

    `blind` is False if people saw the judge's scores.
    """

    outputs: tuple[Labelled, ...]
    are_scores: bool
    blind: bool = True


def read_labels(path: str | Path) -> Labels:
    """The labels in a CSV file. Raises `PackError` with all mistakes and their lines."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {error}.") from None
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # an output may be long
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    mistakes: list[PackMistake] = []
    found: dict[str, Labelled] = {}
    kinds: dict[bool, int] = {}

    def mistake(message: str, line: int | None = None) -> None:
        mistakes.append(PackMistake(str(file), line or reader.line_num, "", message))

    try:
        for message in _wrong_columns(reader.fieldnames or ()):
            mistake(message, 1)
        rows: Iterable[Mapping[Any, Any]] = [] if mistakes else reader
        for row in rows:
            label, message = _label(row)
            if label is None:
                mistake(message)
                continue
            kinds.setdefault(row["label"].strip().lower() not in _PASS, reader.line_num)
            id, output, labeller = row["id"], row["output"], (row.get("labeller") or "").strip()
            new = Labelled(
                id=id, input=row.get("input") or "", output=output, labels={}, line=reader.line_num
            )
            known = found.get(id, new)
            if labeller in known.labels:
                who = f"the labeller {labeller!r}" if labeller else "a labeller without a name"
                mistake(f"{who} labelled the id {id!r} twice.")
            elif known.output != output:
                mistake(f"the id {id!r} has a different output than before.")
            else:
                found[id] = replace(known, labels={**known.labels, labeller: label})
    except csv.Error as error:
        mistake(f"is not CSV: {error}.")
    if len(kinds) > 1:
        mistake("has scores and passes; expected one kind of label in a file.", max(kinds.values()))
    if not mistakes and not found:
        mistake("has no labels.", 1)
    if mistakes:
        raise PackError(mistakes)
    blind = SCORE not in (reader.fieldnames or ())
    return Labels(outputs=tuple(found.values()), are_scores=next(iter(kinds)), blind=blind)


def write_for_labelling(
    path: str | Path, outputs: Sequence[Labelled], *, scores: Mapping[str, float] | None = None
) -> None:
    """Write a CSV file for people to label: outputs with empty labels, and with the judge's `scores` if given."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS if scores is None else (*COLUMNS, SCORE))
    for each in outputs:
        seen = () if scores is None else (scores[each.id],)
        writer.writerow((each.id, each.input, each.output, "", "", *seen))
    with writing(path):
        write_whole(Path(path), text.getvalue())


def chosen_for_labelling(scores: Mapping[str, float], count: int, *, seed: int = 42) -> tuple[str, ...]:
    """Some of the ids of judged outputs, taken in turn from the scores 0 to 2, 3 to 5, and 6 to 9.

    Judges give most outputs a good score, so a plain sample would have few failures. The order is random, so
    that it shows nothing of the scores.
    """
    if not is_whole(count, least=1):
        raise ConfigurationError(f"count is {count!r:.80}; expected a whole number from 1.")
    rng = random.Random(seed)
    bands: list[list[str]] = [[], [], []]
    for id in sorted(scores):
        bands[min(2, int(scores[id] // 3))].append(id)
    for band in bands:
        rng.shuffle(band)
    chosen: list[str] = []
    while len(chosen) < min(count, len(scores)):
        chosen += [band.pop() for band in bands if band and len(chosen) < count]
    chosen = chosen[:count]
    rng.shuffle(chosen)
    return tuple(chosen)


def _wrong_columns(names: Sequence[str]) -> Iterator[str]:
    for name in _NEEDED:
        if name not in names:
            yield f"the column {name!r} is missing. Columns: {', '.join(names) or 'none'}.{nearest(name, names)}"
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"the column {name!r} stands there twice."
        if name not in (*COLUMNS, SCORE):
            yield f"labels have no column {name!r}. Columns: {', '.join(COLUMNS)}.{nearest(name, COLUMNS)}"


def _label(row: Mapping[Any, Any]) -> tuple[int | None, str]:
    if None in row or None in row.values():
        return None, f"has {'more' if None in row else 'fewer'} cells than the first line has columns."
    if not (row["id"] or "").strip():
        return None, "has no id."
    text = (row["label"] or "").strip().lower()
    if text in _PASS:
        return _PASS[text], ""
    if text.isdecimal() and len(text) < 10 and int(text) <= 9:
        return int(text), ""
    return None, f"the label is {row['label']!r:.40}; expected a whole number from 0 to 9, or pass or fail."
