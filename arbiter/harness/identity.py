"""Identity: what a number belongs to. Numbers of different identities are not compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from arbiter.errors import ConfigurationError
from arbiter.harness.rows import Row

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeIdentity:
    """The model that judges a row, and whether it was calibrated against people's labels.

    `returned` are the models that answered, as their provider names them: one name may stand for another model
    next month. They are kept and reported, and make no row incomparable.
    """

    model: str = ""
    temperature: float | None = None
    calibrated: bool = False
    returned: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The judge in its JSON form, with `returned` once a model answered."""
        found: dict[str, object] = asdict(self)
        if not found.pop("returned"):
            return found
        return {**found, "returned": list(self.returned)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> JudgeIdentity:
        """The judge that `to_dict` gave."""
        found: dict[str, Any] = {**data, "returned": tuple(data.get("returned", ()))}
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a run: its numbers belong to these cases, judges and versions.

    `cases` has a hash of the input and the expected answer of each case, `target` that of what was measured,
    `rows` the versions of the evaluators and scorers by row, `judges` their judges by row. `arbiter` and
    `python` are versions; they are kept, and never compared.
    """

    suite: str
    mode: str = "live"
    cases: Mapping[str, str] = field(default_factory=dict[str, str])
    target: str = ""
    rows: Mapping[str, str] = field(default_factory=dict[str, str])
    judges: Mapping[str, JudgeIdentity] = field(default_factory=dict[str, JudgeIdentity])
    repeats: int = 1
    votes: int = 1
    seed: int = 42
    arbiter: str = ""
    python: str = ""

    def to_dict(self) -> dict[str, object]:
        """The identity in its JSON form."""
        found: dict[str, object] = {each.name: getattr(self, each.name) for each in fields(self)}
        found["cases"], found["rows"] = dict(self.cases), dict(self.rows)
        found["judges"] = {row: judge.to_dict() for row, judge in self.judges.items()}
        return found

    def changes(self, other: Identity) -> list[str]:
        """All differences from `other`, an older run, in words; empty if this run may go on with it."""
        found: list[str] = []
        for name in ("suite", "mode", "target", "repeats", "votes", "seed"):
            now, then = getattr(self, name), getattr(other, name)
            if now != then:
                shown = "" if name == "target" else f" from {then!r} to {now!r}"
                found.append(f"{name} changed{shown}")
        for what, nows, thens in (
            ("case", self.cases, other.cases),
            ("row", self.rows, other.rows),
            ("judge of", self.judges, other.judges),
        ):
            found += [f"{what} {name} {how}" for name, how in changes_between(thens, nows).items()]
        return found

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Identity:
        """The identity that `to_dict` gave."""
        found: dict[str, Any] = dict(data)
        found["judges"] = {name: JudgeIdentity.of(judge) for name, judge in data["judges"].items()}
        return cls(**found)

    def difference(self, other: Identity, row: str) -> str:
        """Why the row of that name is not comparable with the same row of `other`, an older run; "" if it
        is."""
        if self.mode != other.mode:
            return f"the baseline was measured in mode {other.mode!r}, this run in mode {self.mode!r}"
        now, then = (of_row(each.rows, row) or "none" for each in (self, other))
        if now != then:
            return f"{row} changed: version {then} then, {now} now"
        judges = self.judge_of(row), other.judge_of(row)
        now, then = ("none" if judge is None else judge.model for judge in judges)
        if now != then:
            return f"the judge of {row} changed: {then} then, {now} now"
        return ""

    def answered_by(self, models: Iterable[tuple[str, str]]) -> Identity:
        """The identity with the models that answered: pairs of a row and a model."""
        found: dict[str, set[str]] = {}
        for row, model in models:
            if (judged := _named(self.judges, row)) is not None:
                found.setdefault(judged, set()).add(model)
        answered = {row: replace(self.judges[row], returned=tuple(sorted(its))) for row, its in found.items()}
        return replace(self, judges={**self.judges, **answered}) if answered else self

    def version_of(self, row: str) -> str | None:
        """The version of a row; None if it has none, such as `completed`."""
        return of_row(self.rows, row)

    def judge_of(self, row: str) -> JudgeIdentity | None:
        """The judge of a row; None if no judge is asked."""
        return of_row(self.judges, row)


def of_row(found: Mapping[str, T], row: str) -> T | None:
    """The entry of a row, or of the scorer that returned it among others."""
    name = _named(found, row)
    return None if name is None else found[name]


def _named(found: Mapping[str, object], row: str) -> str | None:
    """The name under which `found` has a row: its own, or that of its scorer, "style" of "style.tone"."""
    while row not in found and "." in row:
        row = row.rpartition(".")[0]
    return row if row in found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run as the gate sees it: its rows, and the identity that they belong to.

    `failing` has the cases marked `must_pass` of which a repeat failed, with the reason. `unfinished` is the
    reason why the run cannot be decided as a whole (interrupted, budget used up), or "".
    """

    identity: Identity
    rows: Mapping[str, Row]
    failing: Mapping[str, str] = field(default_factory=dict[str, str])
    unfinished: str = ""
    usage: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])


def file_hashes(folder: str | Path, patterns: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each file below `folder` that a pattern such as "prompts/**" matches, by its path.

    Raises `ConfigurationError` for a pattern that matches no file, or is not relative to the folder.
    """
    root = Path(folder)
    found: dict[str, str] = {}
    for pattern in patterns:
        # `**` alone matches folders only.
        globs = [pattern, f"{pattern}/*"] if pattern.endswith("**") else [pattern]
        try:
            files = {file for each in globs for file in root.glob(each) if file.is_file()}
        except (ValueError, NotImplementedError) as error:  # empty, or absolute
            raise ConfigurationError(
                f"watch: {pattern!r} is no pattern of files in {str(root)!r}, such as prompts/**: {error}."
            ) from None
        if not files:
            raise ConfigurationError(f"watch: {pattern!r} matches no file in {str(root)!r}.")
        found |= {file.relative_to(root).as_posix(): file_hash(file) for file in files}
    return dict(sorted(found.items()))


def file_hash(file: Path) -> str:
    """The SHA-256 of a file. Line ends count as one kind, so that a checkout on another system has the same hash."""
    return hashlib.sha256(file.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def changes_between(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """The names whose values differ, each with "changed", "is new" or "is gone"."""
    return {
        name: "is new" if name not in then else "is gone" if name not in now else "changed"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    }
