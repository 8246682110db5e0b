"""Cases in files: JSONL, JSON, YAML and CSV. All mistakes of a file are reported at once, each with its line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from arbiter._constitution.documents import (
    Bounds,
    Document,
    PackModel,
    Place,
    explain,
    path_of,
    read_document,
)
from arbiter._values.kinds import is_list, is_mapping
from arbiter.errors import ConfigurationError, PackError, PackMistake, nearest
from arbiter.harness.cases import MAX_DEPTH, Case, Expect, same_cases
from arbiter.harness.expectations import Expectations

BOUNDS = Bounds(bytes=64 * 2**20, depth=MAX_DEPTH + 5, values=20_000_000)
"""The size of a file with cases: an input may be `MAX_DEPTH` deep."""


class CaseEntry(PackModel):
    """One case."""

    id: str = Field(
        "", description="a name by which a baseline finds the case again", pattern=r"^[\w.:-]{0,200}$"
    )
    input: Any = Field(description="what the target gets")
    expected: Any = Field(None, description="what scorers compare the output with")
    expect: Expect | None = Field(None, description="assertions about the run")
    tags: list[str] = Field(default_factory=list[str], description="words by which cases are selected")
    cluster: str | None = Field(None, description="the conversation or user that the gate counts as one")
    must_pass: bool = Field(False, description="whether the run fails if this case does")
    repeats: int | None = Field(None, ge=1, description="how often it runs, in place of the suite's number")
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any], description="values for scorers")


def load_cases(path: str | Path) -> list[Case]:
    """The cases in a .jsonl, .json, .yaml or .csv file. Raises `PackError` with all mistakes in it."""
    file = Path(path)
    reader = _READERS.get(file.suffix)
    if reader is None:
        raise PackError.at(
            str(path), 1, f"expected a file that ends with {', '.join(_READERS)}, got {file.name!r}"
        )
    cases: list[Case] = []
    mistakes: list[PackMistake] = []
    count = 0
    try:
        for line, data in reader(file, str(path), mistakes):
            count += 1
            try:
                cases.append(_checked(data, PackMistake(str(path), line, "", "")))
            except PackError as error:
                mistakes += error.mistakes
    except PackError as error:  # the rest of the file cannot be read
        mistakes += error.mistakes
    if not count and not mistakes:
        mistakes.append(PackMistake(str(path), 1, "", "the file has no cases"))
    if mistakes:
        # In a file without other mistakes, the suite finds these.
        for case, said in (*same_cases(cases), *Expectations().mistakes(cases)):
            mistakes.append(PackMistake(str(path), int(case.source.rpartition(":")[2]), "", said))
        raise PackError(sorted(mistakes, key=lambda mistake: mistake.line))
    return cases


def _checked(data: Any, at: PackMistake) -> Case:
    try:
        entry = CaseEntry.model_validate(data)
    except ValidationError as error:
        raise PackError(
            [PackMistake(at.file, at.line, path_of(place), said) for place, said in mistakes_in(data, error)]
        ) from None
    return case_of(entry, at)


def mistakes_in(data: Any, error: ValidationError) -> Iterator[tuple[Place, str]]:
    """The mistakes in the data of a case, by place, also those in expectations that can be read."""
    found = list(explain(CaseEntry, data, error))
    yield from found
    wrong = {place[:2] for place, _ in found}
    expect: Any = data.get("expect") if is_mapping(data) else None
    if is_mapping(expect) and ("expect",) not in wrong:
        sound = {key: value for key, value in expect.items() if ("expect", key) not in wrong}
        for key, said in Expectations().broken(Expect.model_validate(sound).given):
            yield ("expect", key), said


def case_of(entry: CaseEntry, at: PackMistake) -> Case:
    try:
        return Case(**dict(entry), source=f"{at.file}:{at.line}")
    except ConfigurationError as error:
        said = str(error).removeprefix(f"{at.file}:{at.line}: ")
        given: Mapping[str, Any] = entry.expect.given if entry.expect else {}
        more = [f"expect.{key}: {why}" for key, why in Expectations().broken(given)]
        raise PackError([PackMistake(at.file, at.line, at.path, each) for each in (said, *more)]) from None


_Read = Iterator[tuple[int, Any]]
"""The data of each case, with its line."""


def _text(file: Path, name: str) -> str:
    with file.open("rb") as stream:
        raw = stream.read(BOUNDS.bytes + 1)
    if len(raw) > BOUNDS.bytes:
        raise PackError.at(name, 1, f"expected at most {BOUNDS.bytes:,} bytes, got more")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PackError.at(name, raw.count(b"\n", 0, error.start) + 1, "expected UTF-8 text") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has the key {key!r} twice")
        found[key] = value
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _read_lines(file: Path, name: str, mistakes: list[PackMistake]) -> _Read:
    for number, line in enumerate(_text(file, name).split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, _json(line)
        except ValueError as error:
            mistakes.append(
                PackMistake(name, number, "", f"expected one JSON object, got {line.strip()!r:.40}: {error}")
            )


def _read_json(file: Path, name: str, mistakes: list[PackMistake]) -> _Read:
    text = _text(file, name)
    if not text.strip():
        return
    try:
        whole = _json(text)
    except json.JSONDecodeError as error:
        raise PackError.at(name, error.lineno, f"expected JSON: {error.msg}") from None
    except ValueError as error:
        raise PackError.at(name, 1, f"expected JSON: {error}") from None
    if not is_list(whole):
        raise PackError.at(name, 1, f"expected a list of cases, got {type(whole).__name__}")
    lines = _lines_of_elements(text)
    for number, data in enumerate(whole):
        yield lines[number], data


def _lines_of_elements(text: str) -> list[int]:
    """The line on which each element of a JSON list begins."""
    decoder, at, lines = json.JSONDecoder(), text.index("[") + 1, list[int]()
    line, counted = 1, 0
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return lines
        line, counted = line + text.count("\n", counted, at), at
        lines.append(line)
        _, at = decoder.raw_decode(text, at)


def _read_yaml(file: Path, name: str, mistakes: list[PackMistake]) -> _Read:
    if not _text(file, name).strip():
        return
    document = read_document(file, name, BOUNDS)
    mistakes += [*document.mistakes, *unquoted(document, 1)]
    if not is_list(document.data):
        raise PackError.at(name, 1, f"expected a list of cases, got {type(document.data).__name__}")
    for number, data in enumerate(document.data):
        yield document.line((number,)), data


def unquoted(document: Document, depth: int) -> Iterator[PackMistake]:
    """The expected answers that YAML reads as true or false although they are other words. `depth` is that of the keys
    of a case."""
    for place, word in document.words.items():
        if place[depth : depth + 1] == ("expected",) or place[depth : depth + 2] == ("expect", "equals"):
            said = f"expected true, false or a text in quotes, got {word}, which YAML does not read as a text"
            yield document.mistake(place, f"{said}. Write {json.dumps(word)}.")


_COLUMNS = ("id", "input", "expected", "tags", "cluster", "must_pass", "repeats", "expect")


def _read_csv(file: Path, name: str, mistakes: list[PackMistake]) -> _Read:
    csv.field_size_limit(max(csv.field_size_limit(), BOUNDS.bytes))  # the bounds of a case are ours
    reader = csv.reader(io.StringIO(_text(file, name), newline=""), strict=True)
    head: list[str] | None = None
    wrong: list[PackMistake] = []
    try:
        while True:
            line = reader.line_num + 1
            cells = next(reader, None)
            if cells is None:
                return
            if not any(cells):
                continue
            if head is None:
                head, wrong = cells, _wrong_columns(cells, name)
                mistakes += wrong
            elif len(cells) != len(head):
                said = f"expected {len(head)} columns, got {len(cells)}"
                mistakes.append(PackMistake(name, line, "", said))
            else:
                data, faults = _row(head, cells)
                mistakes += [PackMistake(name, line, "", fault) for fault in faults]
                if "input" in data or not wrong:  # it may be in the column that is not known
                    yield line, data
    except csv.Error as error:
        raise PackError.at(name, reader.line_num, f"expected CSV: {error}") from None


def _column_for(cell: str) -> str:
    """Advice for a column that a case does not have."""
    own = f" Write input.{cell} for a key of the input, or metadata.{cell}." if cell.isidentifier() else ""
    return nearest(cell, _COLUMNS) or own


def _wrong_columns(cells: Sequence[str], name: str) -> list[PackMistake]:
    """The mistakes in the first row of a CSV file, which names the columns."""
    other = re.search(r"[;\t|]", cells[0]) if len(cells) == 1 else None
    if other is not None:  # as spreadsheets write it in countries with decimal commas
        said = f"expected commas between the columns, got {other[0]!r} in {cells[0]!r:.80}"
        raise PackError.at(name, 1, said)
    wrong = [
        PackMistake(name, 1, "", f"expected a column of a case, got {cell!r}.{_column_for(cell)}")
        for cell in cells
        if cell not in _COLUMNS and not re.match(r"(input|metadata)\..", cell)
    ]
    if len(set(cells)) < len(cells):
        wrong.append(PackMistake(name, 1, "", "expected each column once"))
    wrong += [
        PackMistake(name, 1, "", f"expected {key!r} or {cell!r}, got both")
        for cell in cells
        for key in [cell.partition(".")[0]]
        if key != cell and key in cells
    ]
    return wrong


def _row(head: Sequence[str], cells: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """A row of a CSV file as the data of a case, and the cells that cannot be read. An empty cell gives nothing."""
    data: dict[str, Any] = {}
    faults: list[str] = []
    for column, cell in zip(head, cells, strict=True):
        key, _, inner = column.partition(".")
        if cell == "" or not (column in _COLUMNS or (inner and key in ("input", "metadata"))):
            continue
        try:
            value = _cell(column, cell)
        except ValueError as error:
            faults.append(str(error))
            if key != "input":
                continue
            value = cell  # so that it is not reported as missing, too
        parts: Any = data.setdefault(key, {} if inner else value)
        if inner and isinstance(parts, dict):
            parts[inner] = value
    return data, faults


def _cell(column: str, cell: str) -> Any:
    if cell[0] in '{["':
        try:
            return _json(cell)
        except ValueError as error:
            raise ValueError(
                f"{column}: expected JSON, because it begins with {cell[0]!r}: {error}"
            ) from None
    if column == "tags":
        return [tag.strip() for tag in re.split("[;,]", cell) if tag.strip()]
    if column == "must_pass":
        return {"true": True, "false": False}.get(cell.lower(), cell)
    if column == "repeats":
        return int(cell) if cell.isdecimal() else cell
    return cell


_READERS = {
    ".jsonl": _read_lines,
    ".json": _read_json,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".csv": _read_csv,
}


def load_outputs(file: Path) -> dict[str, Any]:
    """The outputs of a JSONL file with `id` and `output` on each line."""
    found: dict[str, Any] = {}
    mistakes: list[PackMistake] = []
    for line, data in _read_lines(file, str(file), mistakes):
        if not is_mapping(data) or set(data) != {"id", "output"} or not isinstance(data["id"], str):
            said = f"expected an object with id and output, got {data!r:.60}"
            mistakes.append(PackMistake(str(file), line, "", said))
        elif data["id"] in found:
            mistakes.append(
                PackMistake(str(file), line, "", f"expected each id once, got {data['id']!r} again")
            )
        else:
            found[data["id"]] = data["output"]
    if mistakes:
        raise PackError(mistakes)
    return found
