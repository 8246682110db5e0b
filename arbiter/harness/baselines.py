"""Baselines: a measurement in a file, with which later runs are compared.

    {"format": 1, "suite": "refunds", "agentId": null, "capturedAt": "2026-11-20T09:12:00Z", "mode": "live",
     "identity": {...}, "rows": {"tone": {"scale": [0, 9], "version": "9c1f…", "mean": 6.9,
     "cases": {"late-parcel": [7.0], "other-card": [6.0]}}}, "dimensions": {}, "propositionScores": {},
     "missing": {"tone": {}}, "usage": {}}

Keys are sorted, and a case has one number for each repeat, with up to four decimals, so that two files of
one run differ in `capturedAt` alone. A file that has `dimensions` and no `rows` is read, too: its means are
compared by `max_drop` alone, because a mean without its cases has no test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from arbiter._values.files import write_whole
from arbiter.errors import ConfigurationError
from arbiter.harness.comparisons import two
from arbiter.harness.identity import Identity, Measurement
from arbiter.harness.rows import Row
from arbiter.harness.scores import plain_scale, scale_from
from arbiter.verdicts import Outcome

FORMAT = 1
MAX_LOST = 0.1
"""The share of cases that a comparison can lose, or that may be new, gone or changed."""
_MAX_BYTES = 256 * 2**20
_ROUNDING = 0.00005
"""How far a number of a file can be from what was measured."""


class BaselineError(ConfigurationError):
    """A baseline that cannot be read or written. `path` is the file, `problems` are all mistakes in it."""

    def __init__(self, path: str | Path, *problems: str) -> None:
        self.path = str(path)
        self.problems = problems
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A measurement that later runs are compared with.

    `dimensions` and `proposition_scores` are means by name, of an agent; `agent_id` is that agent. `usage`
    has the tokens of the run by purse.
    """

    identity: Identity
    captured_at: datetime
    rows: Mapping[str, Row] = field(default_factory=dict[str, Row])
    agent_id: str | None = None
    dimensions: Mapping[str, float] = field(default_factory=dict[str, float])
    proposition_scores: Mapping[str, float] = field(default_factory=dict[str, float])
    usage: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])

    @property
    def is_means_only(self) -> bool:
        """Whether it has means without cases."""
        return not self.rows

    @classmethod
    def of(
        cls,
        measurement: Measurement,
        *,
        captured_at: datetime,
        agent_id: str | None = None,
        dimensions: Mapping[str, float] | None = None,
        proposition_scores: Mapping[str, float] | None = None,
    ) -> Self:
        """The baseline of a run. Raises `ConfigurationError` for a run that is incomplete.

        That is a run that was stopped, or in which a row has no score for more than a tenth of its cases.
        """
        problems = [measurement.unfinished] if measurement.unfinished else []
        for name, row in measurement.rows.items():
            known = {*row.cases, *row.missing}
            lost = sum(row.is_lost(case) for case in known)
            if not row.n or lost > MAX_LOST * len(known) + 1e-9:
                count = lost if row.n else len(known)
                problems.append(f"{name} has no score for {count} of {len(known)} cases")
        if problems or not measurement.rows:
            raise ConfigurationError(
                f"the run cannot be a baseline: {'; '.join(problems) or 'it has no rows'}."
            )
        return cls(
            identity=measurement.identity,
            captured_at=captured_at,
            rows=measurement.rows,
            agent_id=agent_id,
            dimensions=dimensions or {},
            proposition_scores=proposition_scores or {},
            usage=measurement.usage,
        )

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The baseline in a file. Raises `BaselineError` with all mistakes of the file."""
        data = _json(Path(path))
        kind = _File if "rows" in data or "format" in data else _Means
        try:
            file = kind.model_validate(data)
        except ValidationError as error:
            raise BaselineError(path, *_problems(error)) from None
        if isinstance(file, _Means):
            return cls(
                identity=Identity(suite="", mode=file.mode),
                captured_at=file.captured_at,
                agent_id=file.agent_id,
                dimensions=file.dimensions,
                proposition_scores=file.proposition_scores,
            )
        if file.suite != file.identity.suite:
            problem = f"suite: is {file.suite!r}, but identity.suite is {file.identity.suite!r}."
            raise BaselineError(path, problem)
        if not file.rows and not file.dimensions:
            raise BaselineError(path, "rows: has no rows, so nothing could be compared. Measure it anew.")
        rows = {name: row.row(name, file.missing.get(name, {})) for name, row in file.rows.items()}
        identity = Identity.of(file.identity.model_dump())
        problems = [problem for row in file.rows.items() for problem in _edited(*row, rows[row[0]])]
        if problems := [*problems, *_foreign(rows, identity)]:
            raise BaselineError(path, *problems)
        return cls(
            identity=identity,
            captured_at=file.captured_at,
            rows=rows,
            agent_id=file.agent_id,
            dimensions=file.dimensions,
            proposition_scores=file.proposition_scores,
            usage=file.usage,
        )

    def refuse_other(self, suite: str) -> None:
        """Raise `ConfigurationError` unless it is a baseline of that suite, or has means alone."""
        if not self.is_means_only and self.identity.suite != suite:
            raise ConfigurationError(
                f"the baseline is of the suite {self.identity.suite!r}, the run of {suite!r}. "
                "Measure one: arbiter eval baseline SUITE."
            )

    def write(self, path: str | Path, *, update: bool = False) -> tuple[str, ...]:
        """Write the file, whole or not at all. Returns one line for each row that moved.

        `update` is needed to replace a file. Raises `BaselineError` without it, if the folder does not exist,
        and for a synthetic baseline in the place of another.
        """
        target, old = Path(path), self.replaced(path, update=update)
        try:
            write_whole(target, self.to_json())
        except OSError as error:
            raise BaselineError(path, f"cannot be written: {error.strerror}.") from error
        return (old,) if isinstance(old, str) else tuple(_moves(old, self)) if old else ()

    def replaced(self, path: str | Path, *, update: bool = False) -> Baseline | str | None:
        """The baseline that this one would replace there, or why it cannot be read; None if there is none.

        Raises `BaselineError` as `write` does.
        """
        target = Path(path)
        if not target.parent.is_dir():
            raise BaselineError(path, f"the folder {str(target.parent)!r} does not exist. Make it first.")
        if target.exists() and not update:
            raise BaselineError(path, "is there already. Replace it with --update (in Python: update=True).")
        try:
            old = Baseline.read(target) if target.exists() else None
        except BaselineError as error:
            return f"the earlier file could not be read: {error.problems[0]}"
        if old is not None and self.identity.mode == "synthetic" != old.identity.mode:
            problem = f"has mode {old.identity.mode!r}, which a synthetic baseline does not replace"
            raise BaselineError(path, f"{problem}. Choose another file.")
        return old

    def to_json(self) -> str:
        """The text of the file."""
        data = {
            "format": FORMAT,
            "suite": self.identity.suite,
            "agentId": self.agent_id,
            "capturedAt": f"{self.captured_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "mode": self.identity.mode,
            "identity": self.identity.to_dict(),
            "rows": {name: _row_data(row) for name, row in self.rows.items()},
            "missing": {name: dict(row.missing) for name, row in self.rows.items()},
            "dimensions": dict(self.dimensions),
            "propositionScores": dict(self.proposition_scores),
            "usage": {purse: dict(tokens) for purse, tokens in self.usage.items()},
        }
        return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _row_data(row: Row) -> dict[str, object]:
    optional = {"clusters": dict(row.clusters), "isShare": row.is_share, "isSampled": row.is_sampled}
    return {
        "scale": plain_scale(row.scale),
        "version": row.version,
        "mean": _rounded(row.mean),
        "cases": {case: [_rounded(value) for value in repeats] for case, repeats in row.cases.items()},
        **{key: value for key, value in optional.items() if value},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


Finite = Annotated[float, Field(allow_inf_nan=False)]
_Time = Annotated[AwareDatetime, Field(strict=False)]


class _Row(_Model):
    scale: Annotated[list[Finite | None], Field(min_length=2, max_length=2)]
    version: str
    mean: Finite | None
    cases: dict[str, list[Finite | None]]
    clusters: dict[str, str] = {}
    is_share: bool = False
    is_sampled: bool = False

    def row(self, name: str, missing: Mapping[str, list[Outcome]]) -> Row:
        return Row(
            name=name,
            cases={case: tuple(repeats) for case, repeats in self.cases.items()},
            scale=scale_from(self.scale),
            version=self.version,
            missing={case: tuple(outcomes) for case, outcomes in missing.items()},
            clusters=self.clusters,
            is_share=self.is_share,
            is_sampled=self.is_sampled,
        )


class _Judge(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    model: str = ""
    temperature: Finite | None = None
    calibrated: bool = False
    returned: list[str] = []


class _Identity(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    suite: str
    mode: str
    cases: dict[str, str] = {}
    target: str = ""
    rows: dict[str, str] = {}
    judges: dict[str, _Judge] = {}
    repeats: int = 1
    votes: int = 1
    seed: int = 42
    arbiter: str = ""
    python: str = ""


class _File(_Model):
    """The file of a run."""

    format: Literal[1]
    suite: str
    agent_id: str | None
    captured_at: _Time
    mode: str
    identity: _Identity
    rows: dict[str, _Row]
    missing: dict[str, dict[str, list[Outcome]]]
    dimensions: dict[str, Finite]
    proposition_scores: dict[str, Finite]
    usage: dict[str, dict[str, int]]


class _Means(_Model):
    """A file with the means of an agent's dimensions alone."""

    model_config = ConfigDict(extra="ignore")
    agent_id: str
    captured_at: _Time
    dimensions: Annotated[dict[str, Finite], Field(min_length=1)]
    proposition_scores: dict[str, Finite] = {}
    mode: str = ""


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BaselineError(path, f"has {path.stat().st_size:,} bytes; at most {_MAX_BYTES:,} are read.")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BaselineError(path, "there is no such file. Measure it: arbiter eval baseline SUITE.") from None
    except UnicodeDecodeError as error:
        raise BaselineError(path, f"is not UTF-8: {error.reason} at byte {error.start}.") from None
    except OSError as error:
        raise BaselineError(path, f"cannot be read: {error.strerror}.") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BaselineError(path, f"is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise BaselineError(path, f"expected a mapping, got {type(data).__name__}.")
    return cast("dict[str, Any]", data)


def _problems(error: ValidationError) -> Iterator[str]:
    for each in error.errors():
        where = ".".join(map(str, each["loc"]))
        found = f", got {each['input']!r:.60}" if each["type"] != "missing" else ""
        yield f"{where}: {each['msg'].removeprefix('Value error, ')}{found}."


def _edited(name: str, file: _Row, row: Row) -> Iterator[str]:
    """Mistakes that no measurement can have written: the file was edited."""
    low, high = row.scale
    for case, repeats in row.cases.items():
        if any(value is not None and not low - _ROUNDING <= value <= high + _ROUNDING for value in repeats):
            yield f"rows.{name}.cases.{case}: {list(repeats)} is not within the scale {low:g} to {high:g}."
    if (file.mean is None) != (row.mean is None) or abs((file.mean or 0) - (row.mean or 0)) > 2e-4:
        mean = "none" if row.mean is None else f"{row.mean:.4f}"
        yield (
            f"rows.{name}.mean: is {file.mean}, but the cases have the mean {mean}. "
            "A baseline is measured, not edited: arbiter eval baseline SUITE --update."
        )


def _foreign(rows: Mapping[str, Row], identity: Identity) -> Iterator[str]:
    """Rows and cases that the identity of the same file does not know: the file was edited."""
    for name, row in rows.items():
        version = identity.version_of(name)
        if version is not None and row.version != version:
            yield f"rows.{name}.version: is {row.version!r}, but identity.rows has {version!r}."
        unknown = [] if row.is_sampled or not identity.cases else sorted(set(row.cases) - set(identity.cases))
        if unknown:
            yield f"rows.{name}.cases: has {unknown[0]!r}, which is not in identity.cases."


def _moves(old: Baseline, new: Baseline) -> Iterator[str]:
    """The rows that an update changed, a line each."""
    then: dict[str, tuple[float | None, int]] = {name: (row.mean, row.n) for name, row in old.rows.items()}
    then = then or {name: (mean, 0) for name, mean in old.dimensions.items()}
    for name in sorted({*then, *new.rows}):
        if name not in new.rows:
            yield f"{name} {two(then[name][0])} → gone"
            continue
        row = new.rows[name]
        if name not in then:
            yield f"{name} new → {two(row.mean)} ({row.n} cases)"
        elif (two(row.mean), row.n) != (two(then[name][0]), then[name][1]):
            yield f"{name} {two(then[name][0])} → {two(row.mean)} ({then[name][1]} → {row.n} cases)"
