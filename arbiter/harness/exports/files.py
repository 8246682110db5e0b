"""Files of exports: Parquet if `pyarrow` is installed, else JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from arbiter._values.files import write_whole, writing
from arbiter._values.kinds import is_list, is_mapping
from arbiter.harness.exports.forms import MESSAGES

_MESSAGE = {"role": "string", "content": "string"}
_CALLS = [{"id": "string", "type": "string", "function": {"name": "string", "arguments": "string"}}]


def ending(*, lines: bool) -> str:
    """The ending of the files: ".jsonl" if `lines`, or if pyarrow is not installed, else ".parquet"."""
    return ".jsonl" if lines or find_spec("pyarrow") is None else ".parquet"


def write_rows(path: Path, columns: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows to a file, whole or not at all. The ending of the path names the form."""
    with writing(path):
        if path.suffix == ".jsonl":
            text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
            write_whole(path, text)
        else:
            _write_parquet(path, columns, rows)


def _write_parquet(path: Path, columns: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    # Both come without types.
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    extra = {key for row in rows for message in _messages(row) for key in message}
    message = _MESSAGE | ({"tool_calls": _CALLS, "tool_call_id": "string"} if extra - {*_MESSAGE} else {})
    schema = arrow.schema([(name, _arrow(arrow, kind, message)) for name, kind in columns.items()])
    table = arrow.Table.from_pylist([dict(row) for row in rows], schema=schema)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        parquet.write_table(table, beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _messages(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for value in row.values():
        if is_list(value):
            yield from (each for each in value if is_mapping(each) and "role" in each)


def _arrow(arrow: Any, kind: Any, message: Mapping[str, Any]) -> Any:
    if kind == MESSAGES:
        return _arrow(arrow, [message], message)
    if is_list(kind):
        return arrow.list_(_arrow(arrow, kind[0], message))
    if is_mapping(kind):
        return arrow.struct([(name, _arrow(arrow, each, message)) for name, each in kind.items()])
    types = {"string": "string", "double": "float64", "int64": "int64", "bool": "bool_"}
    return getattr(arrow, types[kind])()
