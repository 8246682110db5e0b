"""The form in which a checkpoint stores the facts of a graph.

LangGraph writes the whole value again at each superstep. So the facts are compressed: a fact without id,
times and step mostly equals an earlier one, so each distinct *row* is stored once, and columns of whole
numbers say which row each fact has. 256 facts of a usual loop take some 400 bytes.

    stored   {"packed": zlib, with the dictionary `_USUAL`, of {header}\n{columns}, "tallies": as in the value}
    header   JSON: {"form", "count", "at" (of the first fact, in 10 ms), "rows" [distinct rows], "results" [distinct
             evaluation results and tasks], "texts" [distinct texts], "totals"}
    totals   the other parts of the value, with
             "nodes" {node: [count, number of the last fact, its place in the facts counted from the end, number of
                     the last completed one]}, with the fact itself instead of a place if the facts no longer hold it
             "instructions" {instruction: [count, numbers of the first and the latest completed one]}
    columns  row, results, texts (see `_coded`), time since the fact before and duration in 10 ms, steps since the
             fact before; see `_column`

Evaluation results and texts are stored only for the newest facts and for each node's last one. Ids are stored
only for tasks whose output may be asked for; `Past.identify` finds the others again in the process that ran
the nodes. Tallies of single facts are not stored either, because the value has their sums. One or two facts
are stored unpacked. See docs/design/history.md.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, count
from typing import Any, NamedTuple

RunFact = dict[str, Any]
Value = dict[str, Any]

PLAIN = 10
"""If at most this many facts are kept, they are stored unpacked."""
_FEW = 2
"""At most this many facts are stored unpacked: packing would make them larger."""
MOST_RESULTS = 24
"""The number of evaluation results that are stored, newest facts first."""
MOST_TEXT = 200
"""The number of characters of reasons, remarks and feedback that are stored, newest facts first."""
_FORM = 2
_NOT_IN_A_ROW = frozenset({"id", "at", "took", "step", "tallies", "task", "why", "notes", "evals"})
_APART = frozenset({"facts", "nodes", "last", "instructions", "first", "latest", "tallies"})
"""Parts of the value that are stored in a form of their own."""
_VARIES = {"task", "why", "notes", "evals"}
_USUAL = (
    b'threshold=\\u2713\\u2717"status":"failed","status":"denied","why":{"notes":{"checks":{"":"deny":"ask"'
    b'{"evals":{":[0.0,false]},{":[1.0,true]},"in":"MemoryCore.STORE"NormativeCore.VERIFY"MetacognitiveCore.REFLECT'
    b'"ExecutionCore.TOOL_CALL"CognitiveCore.GENERATE","checks":{"":"allow","":"allow"}},{"node":"","in":"'
    b'],"results":[{"":[],"texts":[],"totals":{"seq":,"run":,"run_from":0,"redirects":{},"denied":{},"nodes":{"":'
    b'},"steps":,"instructions":{"Core."},"first":{"Core."},"latest":{"Core."},"last":{"":[]}}}\n0 0\n\n0 1\n'
    b'{"form":1,"count":256,"at":17,"rows":[{"node":"","in":"Core."'
)
"""Texts that most values contain; zlib refers to them instead of repeating them. Changing it changes the
format.
"""
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Columns(NamedTuple):
    """Encoded facts, one column for each part, kept so that the next superstep encodes only its own."""

    newest: RunFact | None = None
    rows: Sequence[str] = ()
    results: Sequence[str] = ()
    texts: Sequence[str] = ()
    result_counts: Sequence[int] = ()
    text_lengths: Sequence[int] = ()
    since: Sequence[int] = ()
    took: Sequence[int] = ()
    steps: Sequence[int] = ()


def rounded(at: float) -> int:
    """Seconds as hundredths of a second, rounded: the unit in which times are stored."""
    return round(at * 100)


def _results_of(fact: RunFact) -> RunFact:
    """Evaluation results without their feedback, and the task whose output may be asked for."""
    results: RunFact = {"task": fact["task"]} if "task" in fact else {}
    if "evals" in fact:
        results["evals"] = {
            name: [score, passed, *more] for name, (score, passed, _, *more) in fact["evals"].items()
        }
    return results


def _texts_of(fact: RunFact) -> dict[str, Mapping[str, str]]:
    """Reasons, remarks and the feedback of evaluations, by kind and name."""
    texts: dict[str, Mapping[str, str]] = {kind: fact[kind] for kind in ("why", "notes") if kind in fact}
    if told := {name: text for name, (_, _, text, *_) in fact.get("evals", _EMPTY).items() if text}:
        texts["evals"] = told
    return texts


def _length(texts: Mapping[str, Mapping[str, str]]) -> int:
    return sum(len(text) for named in texts.values() for text in named.values())


def _count(results: RunFact) -> int:
    return len(results.get("evals", ())) + ("task" in results)


_EMPTY: Mapping[str, Any] = {}


def bounded(facts: Sequence[RunFact], lasting: Iterable[RunFact]) -> Sequence[RunFact]:
    """The facts with only the results and texts that a checkpoint stores.

    So a resumed run finds the same values that the run before it saw. `lasting` are the last facts of each
    node.
    """
    if len(facts) <= _FEW:
        return facts
    always = {id(fact) for fact in lasting}
    results = _cut([_count(_results_of(fact)) for fact in facts], MOST_RESULTS)
    texts = _cut([_length(_texts_of(fact)) for fact in facts], MOST_TEXT)
    return [
        fact
        if _VARIES.isdisjoint(fact) or id(fact) in always or place >= max(results, texts)
        else _made(
            {key: part for key, part in fact.items() if key not in _VARIES},
            _results_of(fact) if place >= results else _EMPTY,
            _texts_of(fact) if place >= texts else _EMPTY,
        )
        for place, fact in enumerate(facts)
    ]


def _made(fact: RunFact, results: Mapping[str, Any], texts: Mapping[str, Mapping[str, str]]) -> RunFact:
    made: RunFact = {**fact, **texts, **results}
    if "evals" in results:
        told = texts.get("evals", _EMPTY)
        made["evals"] = {
            name: [*result[:2], told.get(name, ""), *result[2:]] for name, result in results["evals"].items()
        }
    else:
        made.pop("evals", None)
    return made


def _cut(amounts: Sequence[int], most: int) -> int:
    """The first place from which on the `amounts` sum up to at most `most`."""
    if sum(amounts) <= most:
        return 0
    for place in range(len(amounts) - 1, -1, -1):
        most -= amounts[place]
        if most < 0:
            return place + 1
    return 0


def store(value: Value, known: Columns, keep: int) -> tuple[Value, Columns]:
    """The value in the form that a checkpoint stores, and its columns, which make the next call cheaper."""
    facts: list[RunFact] = value.get("facts", [])
    if keep <= PLAIN or len(facts) <= _FEW:
        return value, Columns()
    columns = _encoded(facts, known)
    after: int = value["seq"] + 1 - len(facts)
    nodes: dict[str, list[Any]] = {}
    lasting: list[int] = []
    for node, (number, fact, done) in value["last"].items():
        place: int = number - after
        is_there = place >= 0 and facts[place]["id"] == fact["id"]
        if is_there:
            lasting.append(place)
        nodes[node] = [value["nodes"][node], number, len(facts) - place if is_there else fact, done]
    totals: Value = {key: part for key, part in value.items() if key not in _APART}
    totals["nodes"] = nodes
    if "instructions" in value:
        completed = [value.get(which, _EMPTY) for which in _COMPLETED]
        totals["instructions"] = {
            instruction: [count, *(numbers[instruction] for numbers in completed if instruction in numbers)]
            for instruction, count in value["instructions"].items()
        }
    packed = _packed(columns, facts[0], lasting, totals)
    return {"packed": packed, **({"tallies": value["tallies"]} if "tallies" in value else {})}, columns


_COMPLETED = ("first", "latest")


def _encoded(facts: Sequence[RunFact], known: Columns) -> Columns:
    new: list[tuple[Any, ...]] = []
    for fact, before in zip(reversed(facts), chain(reversed(facts[:-1]), facts[:1]), strict=True):
        if fact is known.newest:
            break
        new.append(_encoded_parts(fact, before))
    else:
        known = Columns()
    olds: Sequence[Sequence[Any]] = known[1:]
    added: Sequence[Sequence[Any]] = list(zip(*reversed(new), strict=True)) or [()] * len(olds)
    left = len(facts) - len(new)
    columns: list[Any] = [
        [*(old[-left:] if left else ()), *more] for old, more in zip(olds, added, strict=True)
    ]
    return Columns(facts[-1], *columns)


def _encoded_parts(fact: RunFact, before: RunFact) -> tuple[Any, ...]:
    """A fact's entry in each column; `before` is the fact before it, or for the first one itself."""
    results, texts = _results_of(fact), _texts_of(fact)
    return (
        _encode({key: part for key, part in fact.items() if key not in _NOT_IN_A_ROW}),
        _encode(results) if results else "",
        _encode(texts) if texts else "",
        _count(results),
        _length(texts),
        rounded(fact["at"]) - rounded(before["at"]),
        rounded(fact["took"]),
        fact["step"] - before["step"],
    )


def _packed(columns: Columns, first: RunFact, lasting: Sequence[int], totals: Value) -> bytes:
    distinct_rows, of_row = _coded(columns.rows)
    results = _kept(columns.results, _cut(columns.result_counts, MOST_RESULTS), lasting)
    distinct_results, of_results = _coded(results)
    texts = _kept(columns.texts, _cut(columns.text_lengths, MOST_TEXT), lasting)
    distinct_texts, of_text = _coded(texts)
    numbers = ([0, *columns.since[1:]], columns.took, [first["step"], *columns.steps[1:]])
    body = (of_row, of_results, of_text, *map(_column, numbers))
    header = (
        f'{{"form":{_FORM},"count":{len(columns.rows)},"at":{rounded(first["at"])},"rows":[{distinct_rows}],'
        f'"results":[{distinct_results}],"texts":[{distinct_texts}],"totals":{_encode(totals)}}}'
    )
    packer = zlib.compressobj(_LEVEL, zdict=_USUAL)
    return packer.compress(b"\n".join([header.encode(), *body])) + packer.flush()


_LEVEL = 3
"""Of zlib. The usual 6 takes twice as long and saves one byte in twenty."""


def _kept(texts: Sequence[str], cut: int, lasting: Iterable[int]) -> Sequence[str]:
    """The texts from the place `cut` on and in the places `lasting`, and "" in the others."""
    if not cut:
        return texts
    kept = [""] * cut + [*texts[cut:]]
    for place in lasting:
        kept[place] = texts[place]
    return kept


def _coded(texts: Sequence[str]) -> tuple[str, bytes]:
    """The distinct JSON texts, joined, and the column with a code for each text.

    The codes compress well: 1 for a text that was not there before, 0 for none, and one more than its number
    for any other. Numbers count from 1.
    """
    numbers = dict.fromkeys(texts)
    numbers.pop("", None)
    if not numbers:
        return "", _ZEROS
    code_of = {"": 0, **dict(zip(numbers, count(2)))}
    codes = list(map(code_of.__getitem__, texts))
    place = -1
    for text in numbers:  # in the order in which they first appear
        place = texts.index(text, place + 1)
        codes[place] = 1
    return ",".join(numbers), _column(codes)


def _decoded(codes: Sequence[int]) -> list[int]:
    """The numbers of the texts that `_coded` encoded; 0 for none."""
    new = count(1)
    return [next(new) if code == 1 else code and code - 1 for code in codes]


_ZEROS = b"0 0\n"
"""A column of zeros."""


def _column(numbers: Sequence[int]) -> bytes:
    """Whole numbers as bytes: the lowest byte of each, then all second bytes, and so on up to the largest
    number's width.
    """
    if not any(numbers):
        return _ZEROS
    try:
        return b"0 1\n" + bytes(numbers)
    except ValueError:  # not all of them are from 0 to 255
        least = min(numbers)
    width = ((max(numbers) - least).bit_length() + 7) // 8
    column = array("Q", [number - least for number in numbers])
    if sys.byteorder == "big":
        column.byteswap()
    data = column.tobytes()
    return b"%d %d\n" % (least, width) + b"".join([data[place::8] for place in range(width)])


def _numbers(data: bytes, count: int) -> tuple[list[int], bytes]:
    """The numbers of the first column in `data`, and the data after it."""
    head, data = data.split(b"\n", 1)
    least, width = map(int, head.split())
    numbers = _numbers_of(data, count, width)
    return [least + number for number in numbers] if least else numbers, data[width * count + 1 :]


def _numbers_of(data: bytes, count: int, width: int) -> list[int]:
    if width <= 1:
        return [*data[:count]] if width else [0] * count
    mixed = bytearray(8 * count)
    for place in range(width):
        mixed[place::8] = data[place * count : (place + 1) * count]
    column = array("Q", bytes(mixed))
    if sys.byteorder == "big":
        column.byteswap()
    return column.tolist()


def restore(stored: Value) -> tuple[Value, Columns]:
    """The stored value and its columns. Packed facts get ids of their own; see `is_packed_id`."""
    if "packed" not in stored:
        return stored, Columns()
    header_line, data = zlib.decompressobj(zdict=_USUAL).decompress(stored["packed"]).split(b"\n", 1)
    header: Mapping[str, Any] = json.loads(header_line)
    if (form := header["form"]) != _FORM:
        raise RuntimeError(
            f"another version of Arbiter has written this checkpoint (facts of form {form}, expected {_FORM}). "
            "Resume it with that version."
        )
    columns: list[list[int]] = []
    for _ in range(6):
        column, data = _numbers(data, header["count"])
        columns.append(column)
    of_row, of_results, of_text = map(_decoded, columns[:3])
    since, took, steps = columns[3:]
    times = accumulate([header["at"], *since[1:]])
    rows, results, texts = (_from_one(header[kind]) for kind in ("rows", "results", "texts"))
    totals = _apart(header["totals"])
    facts: list[RunFact] = []
    first = totals["seq"] - header["count"] + 1
    texts_of = zip(of_row, of_results, of_text, strict=True)
    numbers_of = zip(times, took, accumulate(steps), strict=True)
    for number, ((row, result, text), (at, lasted, step)) in enumerate(
        zip(texts_of, numbers_of, strict=True), first
    ):
        fact: RunFact = _made(rows[row], results[result], texts[text]) if result or text else rows[row]
        if (name := fact.get("task")) is None:
            # Graphs side by side have facts of the same number and time.
            place = f"@{fact['ns']}" if "ns" in fact else ""
            name = f"{_PACKED}{number}@{at}{place}"
        facts.append({**fact, "id": name, "step": step, "at": at / 100, "took": lasted / 100})
    last = {
        node: [number, facts[-place] if isinstance(place, int) else place, done]
        for node, (number, place, done) in totals["last"].items()
    }
    value = {**totals, "facts": facts, "last": last}
    if "tallies" in stored:
        value["tallies"] = stored["tallies"]
    known = Columns(
        facts[-1],
        _taken([_encode(row) for row in rows], of_row),
        _taken([_encode(result) if result else "" for result in results], of_results),
        _taken([_encode(text) if text else "" for text in texts], of_text),
        _taken([_count(result) for result in results], of_results),
        _taken([_length(text) for text in texts], of_text),
        since,
        took,
        steps,
    )
    return value, known


def _apart(totals: Value) -> Value:
    """The totals of each kind by themselves, as in the value."""
    nodes: Mapping[str, list[Any]] = totals["nodes"]
    apart: Value = {
        **totals,
        "nodes": {node: count for node, (count, *_) in nodes.items()},
        "last": {node: last for node, (_, *last) in nodes.items()},
    }
    if "instructions" in totals:
        of: Mapping[str, list[int]] = totals["instructions"]
        apart["instructions"] = {instruction: numbers[0] for instruction, numbers in of.items()}
        for at, which in enumerate(_COMPLETED, 1):
            found = {instruction: numbers[at] for instruction, numbers in of.items() if len(numbers) > at}
            if found:
                apart[which] = found
    return apart


def _from_one(parts: list[RunFact]) -> list[RunFact]:
    return [{}, *parts]


def _taken(parts: Sequence[Any], places: Iterable[int]) -> list[Any]:
    return list(map(parts.__getitem__, places))


_PACKED = "#"


def is_packed_id(id: str) -> bool:
    """True if `id` stands for a fact whose own id was not stored."""
    return id.startswith(_PACKED)
