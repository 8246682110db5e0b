"""One export: a run, a form, and the files that are written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from arbiter._values.files import write_whole, writing
from arbiter.errors import ArbiterWarning, ConfigurationError, callers, nearest
from arbiter.harness.exports.evidence import Evidence
from arbiter.harness.exports.files import ending, write_rows
from arbiter.harness.exports.forms import FORMS, ExportOptions, File, part_of
from arbiter.harness.exports.rewarding import Rewards
from arbiter.harness.files import suite_files
from arbiter.harness.journal import FOLDER, reading, run_folder

FORMATS = tuple(FORMS)
"""The names of the forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The files of an export, each with the number of its rows; None for one that is no table."""

    folder: Path
    files: Mapping[str, int | None]


def export_run(
    run: str,
    to: str,
    *,
    out: str | Path | None = None,
    options: ExportOptions | None = None,
    folder: str | Path = FOLDER,
) -> Export:
    """Write what a run judged as a trainer reads it.

    `run` is the id of a run, the path of its folder, or "last"; `to` is one of `FORMATS`. `out` is the folder of
    the files, by default exports/<suite>-<form>. Files are Parquet if `pyarrow` is installed (the extra
    `export`), else JSON lines. Raises `ConfigurationError`, before a file is written.
    """
    if to not in FORMS:
        raise ConfigurationError(f"to is {to!r}; expected one of {', '.join(FORMS)}.{nearest(to, FORMS)}")
    form, given = FORMS[to], options or ExportOptions()
    given.check(to)
    tables: dict[str, tuple[File, list[dict[str, Any]]]] = {}
    with reading(place := run_folder(run, Path(folder))):
        evidence = Evidence.read(place)
        evidence.check_rows(given.rows)
        for file in form.files:
            tables |= _tables(file, evidence, given, ending(lines=form.lines))
    place = _default_place(evidence.suite, to) if out is None else Path(out)
    texts = {"reward.py": _reward_text(evidence, given, place)} if form.has_reward else {}
    if there := sorted(name for name in (*tables, *texts) if (place / name).exists()):
        raise ConfigurationError(f"{place / there[0]} is there already. Delete it, or choose another folder.")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{place} cannot be made: {error.strerror or error}.") from None
    for name, (file, rows) in tables.items():
        write_rows(place / name, file.columns, rows)
    for name, text in texts.items():
        with writing(place / name):
            write_whole(place / name, text)
    counts = {name: len(rows) for name, (_, rows) in tables.items()}
    return Export(folder=place, files={**counts, **dict.fromkeys(texts)})


def _default_place(suite: str, to: str) -> Path:
    if Path(suite).name != suite or not suite.isprintable():
        raise ConfigurationError(
            f"the suite has the name {suite!r:.80}, which cannot be that of a folder. Name the folder of the "
            "export: out=..., or --out FOLDER."
        )
    return Path("exports") / f"{suite}-{to}"


def _tables(
    file: File, evidence: Evidence, options: ExportOptions, end: str
) -> dict[str, tuple[File, list[dict[str, Any]]]]:
    """The files of a form by name, with their rows."""
    parts: dict[str, list[dict[str, Any]]] = {"train": []}
    if options.split is not None:
        parts["test"] = []
    try:
        for case, row in file.rows(evidence, options):
            parts[part_of(case, options.split)].append(row)
    except ConfigurationError as error:
        if not file.optional:
            raise
        warnings.warn(f"{file.name}{end} is left out: {error}", ArbiterWarning, stacklevel=callers())
        return {}
    for part, rows in parts.items():
        if not rows:
            warnings.warn(
                f"{part}{end} is left out: no case falls into it.", ArbiterWarning, stacklevel=callers()
            )
    prefix = f"{file.name}-" if file.name else ""
    return {f"{prefix}{part}{end}": (file, rows) for part, rows in parts.items() if rows}


# Rewards ------------------------------------------------------------------------------------------

_REWARD = '''\
"""Rewards of completions by a suite: `GRPOTrainer(reward_funcs=[reward], ...)`."""

from pathlib import Path

from arbiter.harness.exports import Rewards

_rewards = Rewards(
    {file!r},
    project=Path(__file__).resolve().parent / {project!r},
    allow={allow!r},
    rows={rows!r},
    is_json={is_json!r},
)


def reward(completions, case_id, **columns):
    """The reward of each completion, 0.0 to 1.0; None if it could not be judged."""
    return _rewards(completions, case_id)
'''


def _reward_text(evidence: Evidence, options: ExportOptions, place: Path) -> str:
    """The module that rewards completions. Loads the suite, so that it fails here and not in the trainer."""
    file = options.suite or _suite_file(evidence.suite)
    Rewards(file, allow=tuple(options.allow), rows=options.rows)
    return _REWARD.format(
        file=Path(file).as_posix(),
        project=Path(os.path.relpath(Path.cwd(), place.resolve())).as_posix(),
        allow=tuple(options.allow),
        rows=tuple(options.rows),
        is_json=any(not isinstance(run.result.output, str | None) for run in evidence.runs),
    )


def _suite_file(name: str) -> Path:
    """The file in suites/ with the suite of that name."""
    found = [file for file in suite_files() if _name_in(file) == name]
    if len(found) == 1:
        return found[0]
    raise ConfigurationError(
        f"{len(found)} files in suites/ have the suite {name!r}, whose scorers make the rewards. Name it: suite=FILE, "
        "or --suite FILE."
    )


def _name_in(file: Path) -> object:
    try:
        data: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        return data["suite"]
    except (OSError, yaml.YAMLError, TypeError, KeyError, UnicodeDecodeError):
        return None
