"""The values that the files of a run have, and the mistakes in files that somebody has edited.

Nothing is checked while a run is read: scores may be of types that only their scorer knows. When a report cannot be
made from the files, the values that are of no known type explain why.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from arbiter._constitution.documents import PackModel, explain, path_of
from arbiter.errors import ArbiterError, PackError, PackMistake, nearest
from arbiter.harness.canonical import is_mapping
from arbiter.harness.journal import OTHER_FORM, OtherFormError, head_of
from arbiter.harness.results import Status
from arbiter.verdicts import Outcome


class _Values(PackModel):
    model_config = ConfigDict(extra="ignore")


class _Identity(_Values):
    cases: dict[str, str]
    rows: dict[str, str]
    judges: dict[str, dict[str, Any]]


class _Measure(_Values):
    name: str
    scale: Annotated[list[float | None], Field(min_length=2, max_length=2)]
    version: str


class _Case(_Values):
    id: str
    input: Any


class _Gate(_Values):
    baseline: str | None = None


class _Head(_Values):
    """The values of run.json."""

    run_id: str
    suite: str
    target: str
    mode: str
    identity: _Identity
    measures: list[_Measure]
    cases: list[_Case]
    gate: _Gate
    options: dict[str, Any] | None = None
    baseline: str | None = None
    left_out: int = 0


class _Line(_Values):
    at: float


class _End(_Line):
    stopped: str | None
    left_behind: int
    done: int = 0
    reached: str = ""
    outdated: list[str] | None = None
    unused: list[str] | None = None
    recorded: list[str] | None = None


class _Visit(_Values):
    node: str


class _Answer(_Line):
    status: Status
    error: str | None = None
    trajectory: list[list[_Visit]] | None = None
    seconds: float = 0.0
    thread_id: str = ""


class _Score(_Values):
    name: str
    value: float | None = None
    passed: bool | None = None
    label: str | None = None
    outcome: Outcome = "scored"
    reason: str = ""
    node: str | None = None
    model: str = ""


class _Scores(_Line):
    by: str
    scores: list[_Score]


class _Done(_Line):
    as_expected: bool
    usage: dict[str, dict[str, dict[str, Any]]] | None = None


_KINDS: Mapping[str, type[_Line]] = {"end": _End, "answer": _Answer, "score": _Scores, "case": _Done}


@contextmanager
def explained(*runs: Path) -> Generator[None]:
    """Inside, the files of some runs are shown or compared. If that fails because values in them were changed, raises a
    `PackError` with all of these values."""
    try:
        yield
    except OTHER_FORM as error:
        if isinstance(error, ArbiterError) and not isinstance(error, OtherFormError):
            raise
        if mistakes := [mistake for run in runs for mistake in mistakes_in(run)]:
            raise PackError(mistakes) from error
        raise


def mistakes_in(run: Path) -> Iterator[PackMistake]:
    """The values in the files of a run that are not of the types that a run writes."""
    path, known = run / "run.json", set[str]()
    head = head_of(run)
    for place, said in _mistakes(_Head, head):
        yield PackMistake(str(path), 1, place, said)
    for case in head["cases"] if isinstance(head.get("cases"), list) else ():
        if is_mapping(case) and isinstance(case.get("id"), str):
            known.add(case["id"])
    path = run / "journal.jsonl"
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            try:
                line = json.loads(raw)
                model, case = _KINDS.get(str(line["kind"]), _Line), line.get("case")
                is_known = case is None or case in known
            except OTHER_FORM:  # torn, or no line of a journal
                continue
            for place, said in _mistakes(model, line):
                yield PackMistake(str(path), number, place, said)
            if not is_known:
                said = f"expected the id of a case in run.json, got {case!r:.80}.{nearest(str(case), known)}"
                yield PackMistake(str(path), number, "case", said)


def _mistakes(model: type[_Values], data: Any) -> Iterator[tuple[str, str]]:
    try:
        model.model_validate(data)
    except ValidationError as error:
        for place, said in explain(model, data, error):
            yield path_of(place), said
