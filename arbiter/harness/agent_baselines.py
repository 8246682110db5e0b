"""Baselines of agents: a file for each agent and each channel of a suite, in one folder.

    baselines/ilka.json, baselines/tomasz.json, baselines/env:quay.json

Each has the rows of its agent, and the part of the agent in `completed`. A file that has only `dimensions` is compared
by `max_drop` alone, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from arbiter.harness.agents import CHANNEL, is_agent
from arbiter.harness.baselines import Baseline, BaselineError
from arbiter.harness.cases import Case
from arbiter.harness.results import CaseResult
from arbiter.harness.rows import Row


def baseline_files(path: str | Path, cases: Iterable[Case]) -> dict[str, Path]:
    """The files of a baseline that may be there: `path`, or for agents with a folder as `path` one for each of them, by
    agent."""
    of_agents = agents_in(cases)
    folder = Path(path)
    return {id: folder / f"{id}.json" for id in of_agents} if of_agents and folder.is_dir() else {"": folder}


def agents_in(cases: Iterable[Case]) -> list[str]:
    """The agents and channels among the cases."""
    return [case.id for case in cases if is_agent(case) or case.id.startswith(CHANNEL)]


def _owner(row: str, ids: Iterable[str]) -> str:
    """The agent, or channel, of a row; "" for one that all share."""
    return max((id for id in ids if row.endswith(f".{id}")), key=len, default="")


def baseline_if_measured(path: str | Path, cases: Iterable[Case]) -> Baseline | None:
    """As `read_baseline`; None if there is no file yet."""
    cases = tuple(cases)
    is_there = any(file.exists() for file in baseline_files(path, cases).values())
    return read_baseline(path, cases) if is_there else None


def read_baseline(path: str | Path, cases: Iterable[Case]) -> Baseline:
    """The baseline in a file; or those of agents in a folder, as one. Raises `BaselineError`.

    Of agents it has those of the cases: `--agents` leaves the others out.
    """
    cases = tuple(cases)
    files = baseline_files(path, cases)
    if "" in files:
        return _of(agents_in(cases), Baseline.read(path))
    parts = {id: Baseline.read(file) for id, file in files.items() if file.exists()}
    if not parts:
        raise BaselineError(
            path, f"has no file for {', '.join(files)}. Measure them: arbiter eval baseline SUITE."
        )
    whole = {id: part.identity for id, part in parts.items() if not part.is_means_only}
    first, *others = whole or {id: part.identity for id, part in parts.items()}
    for id in others if whole else ():
        for name in ("suite", "mode"):
            then, now = getattr(whole[first], name), getattr(whole[id], name)
            if then != now:
                said = (
                    f"{name}: is {now!r}, but that of {files[first].name} is {then!r}. Measure them together."
                )
                raise BaselineError(files[id], said)
    return Baseline(
        identity=replace(
            parts[first].identity,
            cases={case: digest for each in whole.values() for case, digest in each.cases.items()},
            rows={
                f"{name}.{id}": version for id, each in whole.items() for name, version in each.rows.items()
            },
            judges={
                f"{name}.{id}": judge for id, each in whole.items() for name, judge in each.judges.items()
            },
        ),
        captured_at=max(part.captured_at for part in parts.values()),
        rows=_together(part.rows for part in parts.values()),
        dimensions={
            f"{name}.{id}": mean
            for id, part in parts.items()
            if part.is_means_only
            for name, mean in part.dimensions.items()
        },
    )


def _of(agents: Sequence[str], baseline: Baseline) -> Baseline:
    """The part of a baseline that is about these agents; all of it if there are none, as in other suites."""
    known = baseline.identity.cases
    others = {id for id in known if id not in agents} if agents else set[str]()
    return replace(
        baseline,
        identity=replace(baseline.identity, cases={id: of for id, of in known.items() if id not in others}),
        rows={
            name: _of_cases(row, {*row.cases, *row.missing} - others)
            for name, row in baseline.rows.items()
            if _owner(name, {*agents, *others}) not in others
        },
    )


def _of_cases(row: Row, cases: Collection[str]) -> Row:
    """The part of a row that is about these cases."""
    return replace(
        row,
        cases={case: values for case, values in row.cases.items() if case in cases},
        missing={case: outcomes for case, outcomes in row.missing.items() if case in cases},
    )


def _together(parts: Iterable[Mapping[str, Row]]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for rows in parts:
        for name, row in rows.items():
            known = found.get(name, row)
            cases, missing = {**known.cases, **row.cases}, {**known.missing, **row.missing}
            found[name] = replace(known, cases=cases, missing=missing)
    return found


def write_baseline(
    baseline: Baseline,
    path: str | Path,
    cases: Iterable[Case],
    results: Sequence[CaseResult],
    *,
    update: bool = False,
) -> tuple[str, ...]:
    """Write the file of a baseline, or for agents with a folder as `path` one for each of them. Returns one line for
    each row that moved. Raises `BaselineError` before it writes anything."""
    files = baseline_files(path, cases)
    if "" in files:
        return baseline.write(path, update=update)
    owners = {name: _owner(name, files) for name in baseline.rows}
    parts = {
        id: _part(baseline, id, owners, [result for result in results if result.case_id == id])
        for id in files
        if id in owners.values()
    }
    for id, part in parts.items():
        part.replaced(files[id], update=update)
    return tuple(line for id, part in parts.items() for line in part.write(files[id], update=update))


def _part(baseline: Baseline, id: str, owners: Mapping[str, str], results: Iterable[CaseResult]) -> Baseline:
    own = {name: row for name, row in baseline.rows.items() if owners[name] == id}
    shared = {
        name: _of_cases(row, {id})
        for name, row in baseline.rows.items()
        if not owners[name] and id in {*row.cases, *row.missing}
    }
    said: dict[str, list[float]] = {}
    for result in results:
        for score in result.scores:
            for proposition, value in (score.propositions or {}).items():
                said.setdefault(proposition, []).append(value)
    return replace(
        baseline,
        agent_id=id,
        rows={**own, **shared},
        dimensions={
            name.removesuffix(f".{id}"): round(row.mean, 4)
            for name, row in own.items()
            if row.mean is not None
        },
        proposition_scores={proposition: round(fmean(values), 4) for proposition, values in said.items()},
        usage={},
    )
