"""A repository in SQLite or PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import NAMESPACE_OID, UUID, uuid5

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from arbiter._databases import file_identity, file_of, shown, writing
from arbiter._threads.forks import new_rlock, renew_in_child
from arbiter.errors import nearest
from arbiter.models import total_usage
from arbiter.personas import GateConfig, GatedAction, Intervened, Persona, ScorerResult, overall_score
from arbiter.store._contract import EvaluationRepository
from arbiter.store._corrections import (
    action_of,
    action_row,
    agent_row,
    attempt_rows,
    intervention_rows,
    run_uuid,
)
from arbiter.store._opening import DEFAULT, StoreError, open_store
from arbiter.store._records import (
    AgentMessage,
    CalibrationRecord,
    EvaluationRecord,
    ScoreRecord,
    Status,
    Window,
)
from arbiter.store._schema import (
    DIMENSIONS,
    Agent,
    AgentConfig,
    CalibrationRow,
    CorrectionAttempt,
    CorrectionLog,
    EvaluationRun,
    EvaluationScore,
    InterventionLog,
    Message,
    Run,
)

if TYPE_CHECKING:
    from types import TracebackType


T = TypeVar("T")
SETTINGS = tuple(field.name for field in fields(GateConfig))
IDEAS = "ideas_quantity"
_AT_ONCE = 10_000
"""Ids in a statement: SQLite takes 32,766 values, PostgreSQL 65,535."""


def _now() -> datetime:
    return datetime.now(UTC)


class SqlRepository(EvaluationRepository):
    """An `EvaluationRepository` in SQLite or PostgreSQL.

    `where` is the path of a SQLite file, or a `sqlite:///` or `postgresql://` URL. A new file and an empty
    database get their tables. `now` is the clock; it returns aware times. Threads can share a repository, and
    so can forked processes.

    Raises `StoreUnavailable` if the database cannot be opened, or has an older or a newer schema (`arbiter
    store upgrade` changes an older one), and `StoreError` for what cannot be stored.
    """

    def __init__(
        self, where: str | os.PathLike[str] = DEFAULT, *, now: Callable[[], datetime] = _now
    ) -> None:
        self._where = os.fspath(where)
        self._now = now
        self._engine = open_store(where)
        self._path = file_of(self._engine)
        self._file = file_identity(self._path)
        # A database in memory has a single connection, on which one transaction runs at a time.
        self._in_memory = isinstance(self._engine.pool, StaticPool)
        self._lock: AbstractContextManager[Any] = new_rlock() if self._in_memory else nullcontext()
        renew_in_child(self)

    def renew(self) -> None:
        """Forget the connections of the parent process, in a forked child."""
        if not self._in_memory:
            self._engine.dispose(close=False)

    def close(self) -> None:
        """Close all connections. The repository opens new ones if it is used again."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The place and the clock: a copy in another process opens the database again."""
        if self._in_memory:
            raise TypeError("a repository in memory stays in its process; SqlRepository(path) can be sent")
        return {"where": self._where, "now": self._now}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # a repository that is unpickled is opened as any other

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self._where)!r}>"

    @contextmanager
    def _reading(self) -> Generator[Connection]:
        with self._lock, self._problems(), self._engine.connect() as connection:
            yield connection

    def _all(self, query: Any, make: Callable[..., T]) -> list[T]:
        """An object of each row of a query."""
        with self._reading() as connection:
            return [make(**row) for row in connection.execute(query).mappings()]

    @contextmanager
    def _writing(self) -> Generator[Connection]:
        with self._lock, self._problems(), writing(self._engine) as connection:
            yield connection

    @contextmanager
    def _problems(self) -> Generator[None]:
        # SQLite goes on writing to a file that was removed, for nothing.
        if file_identity(self._path) != self._file:
            raise StoreError(
                f"{shown(self._where)!r} was removed, or is another file now; put it back, or open a new store."
            )
        try:
            yield
        except (OverflowError, SQLAlchemyError) as error:
            # SQLite's driver refuses a number above 64 bits by itself.
            cause = getattr(error, "orig", None) or error
            problem = " ".join(shown(str(cause)).split())[:300].rstrip(".")
            raise StoreError(f"{shown(self._where)!r}: {problem}.") from error

    # Agents

    def add_agent(
        self, id: str, display_name: str = "", *, system_prompt: str | None = None, kind: str = "agent"
    ) -> None:
        if not id:
            raise StoreError(f"add_agent: expected an id, got {id!r}.")
        if kind not in ("agent", "environment"):
            raise StoreError(f"agent {id!r}: kind: expected 'agent' or 'environment', got {kind!r}.")
        values = {"display_name": display_name or id, "system_prompt": system_prompt, "kind": kind}
        with self._writing() as connection:
            self._upsert(connection, Agent, {"id": id, **values}, changes=values)

    def _upsert(
        self,
        connection: Connection,
        table: Any,
        rows: dict[str, Any] | list[dict[str, Any]],
        *,
        changes: dict[str, Any] | None = None,
    ) -> None:
        """Insert rows. One whose key is there is changed, or left as it is without `changes`."""
        dialect: Any = sqlite if connection.dialect.name == "sqlite" else postgresql
        statement = dialect.insert(table)
        key = [table.agent_id] if table is AgentConfig else [table.id]
        if changes is None:
            statement = statement.on_conflict_do_nothing(index_elements=key)
        else:
            statement = statement.on_conflict_do_update(index_elements=key, set_=changes)
        connection.execute(statement, rows)

    def _known_agent(self, connection: Connection, id: str) -> None:
        """Raise `StoreError` if there is no such agent."""
        if connection.execute(select(Agent.id).where(Agent.id == id)).first() is None:
            others = list(connection.execute(select(Agent.id).order_by(Agent.id).limit(1_000)).scalars())
            listed = f" Agents: {', '.join(others[:10])}." if others else ""
            raise StoreError(
                f"{shown(self._where)!r} has no agent {id!r}; add it with add_agent() first."
                f"{listed}{nearest(id, others)}"
            )

    def _alone(self, connection: Connection, id: str) -> None:
        """Wait until no other transaction changes settings or baselines of an agent. SQLite has one writer anyway."""
        connection.execute(select(Agent.id).where(Agent.id == id).with_for_update(key_share=True))

    # Evaluations

    def start_run(
        self,
        agent_id: str,
        dimensions: Sequence[str],
        *,
        window: Window | None = None,
        suite: str = "",
        started: datetime | None = None,
    ) -> UUID:
        named = [*dimensions]
        unknown = [name for name in named if name not in DIMENSIONS]
        if unknown or not named:
            found = f"got {unknown[0]!r}" if unknown else "got none"
            raise StoreError(f"dimensions: expected some of {', '.join(DIMENSIONS)}; {found}.")
        if started is not None and not suite:
            raise StoreError("started: it needs the name of the suite, whose other evaluations it ends.")
        first, last = window or (None, None)
        now = self._now()
        with self._writing() as connection:
            self._known_agent(connection, agent_id)
            if started is not None:
                connection.execute(
                    update(EvaluationRun)
                    .where(
                        EvaluationRun.status == "running",
                        EvaluationRun.suite == suite,
                        EvaluationRun.created_at < started,
                    )
                    .values(
                        status="failed",
                        completed_at=now,
                        overall_score=None,
                        problem="its process ended before the evaluation did",
                    )
                )
            made = connection.execute(
                insert(EvaluationRun)
                .values(
                    agent_id=agent_id,
                    status="running",
                    dimensions=named,
                    window_start=first,
                    window_end=last,
                    sample_size=0,
                    suite=suite,
                    created_at=now,
                )
                .returning(EvaluationRun.id)
            )
            return made.scalar_one()

    def finish_run(self, run_id: UUID, results: Iterable[ScorerResult] = (), *, problem: str = "") -> None:
        found = list(results)
        with self._writing() as connection:
            if self._known_run(connection, run_id, alone=True).status == "completed":
                raise StoreError(f"evaluation {run_id} is completed already.")
            self._add_scores(connection, run_id, found)
            usage = total_usage(result.token_usage for result in found)
            connection.execute(
                update(EvaluationRun)
                .where(EvaluationRun.id == run_id)
                .values(
                    status="failed" if problem else "completed",
                    completed_at=self._now(),
                    overall_score=None if problem else _overall(found),
                    sample_size=sum(result.sample_size for result in found),
                    token_usage=None if usage is None else dict(usage),
                    problem=problem,
                )
            )

    def add_scores(self, run_id: UUID, results: Iterable[ScorerResult]) -> None:
        with self._writing() as connection:
            self._add_scores(connection, run_id, results)

    def _add_scores(self, connection: Connection, run_id: UUID, results: Iterable[ScorerResult]) -> None:
        dimensions = self._known_run(connection, run_id).dimensions
        rows: list[dict[str, Any]] = []
        for result in results:
            if result.dimension not in dimensions:
                raise StoreError(
                    f"evaluation {run_id} is about {', '.join(dimensions)}; got scores of {result.dimension!r}."
                )
            rows += _score_rows(run_id, result, self._now())
        if rows:
            connection.execute(insert(EvaluationScore), rows)

    def _known_run(self, connection: Connection, run_id: UUID, *, alone: bool = False) -> Any:
        """The row of an evaluation, which no other transaction changes if `alone`. Raises `StoreError` if there is
        none."""
        query = select(EvaluationRun.__table__).where(EvaluationRun.id == run_id)
        found = connection.execute(query.with_for_update() if alone else query).one_or_none()
        if found is None:
            raise StoreError(f"{shown(self._where)!r} has no evaluation {run_id}.")
        return found

    def runs(
        self,
        agent_id: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        status: Status | None = None,
        suite: str | None = None,
    ) -> list[EvaluationRecord]:
        query = select(EvaluationRun.__table__).order_by(EvaluationRun.created_at, EvaluationRun.id)
        query = _within(query, EvaluationRun, EvaluationRun.created_at, agent_id, since, until)
        if status is not None:
            query = query.where(EvaluationRun.status == status)
        if suite is not None:
            query = query.where(EvaluationRun.suite == suite)
        return self._all(query, _run_of)

    def scores(self, run_id: UUID) -> list[ScoreRecord]:
        columns = [getattr(EvaluationScore, field.name) for field in fields(ScoreRecord)]
        query = (
            select(*columns)
            .where(EvaluationScore.evaluation_run_id == run_id)
            .order_by(EvaluationScore.dimension, EvaluationScore.proposition_id)
        )
        return self._all(query, ScoreRecord)

    def mark_baseline(self, run_id: UUID, is_baseline: bool = True) -> None:
        with self._writing() as connection:
            run = self._known_run(connection, run_id)
            if is_baseline and run.status != "completed":
                raise StoreError(
                    f"evaluation {run_id} is {run.status}; only a completed one can be a baseline."
                )
            if is_baseline:
                self._alone(connection, run.agent_id)
                marked = select(EvaluationRun.id, EvaluationRun.dimensions).where(
                    EvaluationRun.agent_id == run.agent_id, EvaluationRun.is_baseline
                )
                older = [id for id, its in connection.execute(marked) if set(its) <= set(run.dimensions)]
                connection.execute(
                    update(EvaluationRun).where(EvaluationRun.id.in_(older)).values(is_baseline=False)
                )
            connection.execute(
                update(EvaluationRun).where(EvaluationRun.id == run_id).values(is_baseline=is_baseline)
            )

    # Corrections

    def log_correction(self, action: GatedAction, persona: Persona | None = None) -> UUID:
        """Store an action of a gate with its attempts, in one transaction. Returns the id of its row.

        Its agent and its run are added if they are not there. An action of an unknown agent belongs to the
        environment `env:` and its node.
        """
        agent = agent_row(action.agent, action.agent_id, persona, action.node)
        row = action_row(action)
        with self._writing() as connection:
            self._upsert(connection, Agent, agent)
            if row["run_id"] is not None:
                thread = {} if action.thread_id is None else {"thread_id": action.thread_id}
                run = {"id": row["run_id"], "created_at": self._now(), **thread}
                self._upsert(connection, Run, run, changes=thread or None)
            connection.execute(insert(CorrectionLog).values(agent_id=agent["id"], **row))
            if attempts := attempt_rows(row["id"], action.attempts):
                connection.execute(insert(CorrectionAttempt), attempts)
        return UUID(str(row["id"]))

    def corrections(
        self, agent_id: str | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[GatedAction]:
        query = (
            select(CorrectionLog.__table__, Agent.display_name, Agent.kind, Run.thread_id)
            .join(Agent, Agent.id == CorrectionLog.agent_id)
            .join(Run, Run.id == CorrectionLog.run_id, isouter=True)
            .order_by(CorrectionLog.created_at, CorrectionLog.id)
        )
        query = _within(query, CorrectionLog, CorrectionLog.created_at, agent_id, since, until)
        tried = (
            select(CorrectionAttempt.__table__)
            .join(CorrectionLog, CorrectionLog.id == CorrectionAttempt.correction_log_id)
            .order_by(CorrectionAttempt.attempt_number)
        )
        tried = _within(tried, CorrectionLog, CorrectionLog.created_at, agent_id, since, until)
        with self._reading() as connection:
            rows = connection.execute(query).mappings().all()
            attempts: dict[UUID, list[Any]] = {}
            for attempt in connection.execute(tried).mappings():
                attempts.setdefault(attempt["correction_log_id"], []).append(attempt)
        return [action_of({**row}, attempts.get(row["id"], ())) for row in rows]

    def log_intervention(self, evaluated: Intervened, personas: Sequence[Persona] = ()) -> None:
        """Store the evaluation of an intervention: a row for each nudged agent, else one for its target.

        Without a single target, that is the environment `env:` and the channel.
        """
        rows = intervention_rows(evaluated, personas)
        with self._writing() as connection:
            # In one order, as in `add_messages`.
            self._upsert(connection, Agent, sorted((agent for agent, _ in rows), key=itemgetter("id")))
            for agent, row in rows:
                connection.execute(insert(InterventionLog).values(agent_id=agent["id"], **row))

    # Settings

    def config(self, agent_id: str) -> GateConfig:
        with self._reading() as connection:
            return self._config(connection, agent_id)

    def _config(self, connection: Connection, agent_id: str) -> GateConfig:
        self._known_agent(connection, agent_id)
        columns = [getattr(AgentConfig, name) for name in SETTINGS]
        found = (
            connection.execute(select(*columns).where(AgentConfig.agent_id == agent_id)).mappings().first()
        )
        return GateConfig() if found is None else GateConfig(**found)

    def set_config(self, agent_id: str, config: GateConfig | None = None, **changes: Any) -> GateConfig:
        for name in changes:
            if name not in SETTINGS:
                raise StoreError(
                    f"set_config: {name!r} is not a setting of GateConfig.{nearest(name, SETTINGS)}"
                )
        with self._writing() as connection:
            self._alone(connection, agent_id)
            base = self._config(connection, agent_id)
            new = replace(config or base, **changes)
            values = {name: getattr(new, name) for name in SETTINGS} | {"updated_at": self._now()}
            self._upsert(connection, AgentConfig, {"agent_id": agent_id, **values}, changes=values)
        return new

    # Messages

    def add_messages(self, messages: Iterable[AgentMessage]) -> int:
        with self._problems():
            rows = {row["id"]: row for row in map(_message_row, messages)}
        with self._writing() as connection:
            for agent_id in dict.fromkeys(row["agent_id"] for row in rows.values()):
                self._known_agent(connection, agent_id)
            ids = list(rows)
            for some in (ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE)):
                for known in connection.execute(select(Message.id).where(Message.id.in_(some))).scalars():
                    del rows[known]
            # In one order: two that store the same would else wait for each other.
            new = sorted(rows.values(), key=itemgetter("id"))
            runs = sorted({row["run_id"] for row in new if row["run_id"] is not None})
            if runs:
                self._upsert(connection, Run, [{"id": run, "created_at": self._now()} for run in runs])
            if new:
                self._upsert(connection, Message, new)
        return len(new)

    def messages(
        self, agent_id: str | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[AgentMessage]:
        columns = [getattr(Message, field.name) for field in fields(AgentMessage)]
        query = select(*columns).order_by(Message.at, Message.id)
        query = _within(query, Message, Message.at, agent_id, since, until)
        return self._all(query, AgentMessage)

    # Calibrations

    def add_calibration(self, row: str, *, version: str, judge: str, n: int, data: Mapping[str, Any]) -> UUID:
        values = {"row": row, "version": version, "judge": judge, "n": n, "data": dict(data)}
        with self._writing() as connection:
            made = connection.execute(
                insert(CalibrationRow).values(created_at=self._now(), **values).returning(CalibrationRow.id)
            )
            return made.scalar_one()

    def calibrations(self, row: str | None = None) -> list[CalibrationRecord]:
        columns = [getattr(CalibrationRow, field.name) for field in fields(CalibrationRecord)]
        query = select(*columns).order_by(CalibrationRow.created_at, CalibrationRow.id)
        if row is not None:
            query = query.where(CalibrationRow.row == row)
        return self._all(query, CalibrationRecord)


class MemoryRepository(SqlRepository):
    """A repository in memory: the same tables and constraints, gone when it is closed."""

    def __init__(self, *, now: Callable[[], datetime] = _now) -> None:
        super().__init__("sqlite:///:memory:", now=now)


def _within(
    query: Any, table: Any, time: Any, agent_id: str | None, since: datetime | None, until: datetime | None
) -> Any:
    if agent_id is not None:
        query = query.where(table.agent_id == agent_id)
    if since is not None:
        query = query.where(time >= since)
    return query if until is None else query.where(time < until)


def _overall(results: Sequence[ScorerResult]) -> float | None:
    if all(result.dimension == IDEAS for result in results):
        return next((result.overall for result in results if result.overall is not None), None)
    return overall_score(results)


def _score_rows(run_id: UUID, result: ScorerResult, now: datetime) -> list[dict[str, Any]]:
    known = {"evaluation_run_id": run_id, "dimension": result.dimension, "created_at": now}
    if result.dimension == IDEAS:
        if result.overall is None:
            return []
        row = {"proposition_id": result.method, "score": result.overall, "reasoning": result.reason}
        return [{**known, **row, "context_snippet": None}]
    return [
        {
            **known,
            "proposition_id": found.proposition_id,
            "score": found.score,
            "reasoning": found.reasoning,
            "context_snippet": found.snippet,
        }
        for found in result.propositions
        if found.score is not None
    ]


def _run_of(window_start: Any, window_end: Any, dimensions: Sequence[str], **row: Any) -> EvaluationRecord:
    window = None if window_start is None or window_end is None else (window_start, window_end)
    return EvaluationRecord(**row, dimensions=tuple(dimensions), window=window)


def _message_row(message: AgentMessage) -> dict[str, Any]:
    at: Any = message.at
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise StoreError(f"message of {message.agent_id!r}: at: expected a time with a zone, got {at!r:.80}.")
    parts = (
        message.agent_id,
        message.channel,
        message.kind,
        message.at.astimezone(UTC).isoformat(),
        message.text,
    )
    return {
        "id": uuid5(NAMESPACE_OID, "\n".join(map(repr, parts))),
        "agent_id": message.agent_id,
        "run_id": run_uuid(message.run_id),
        "channel": message.channel,
        "kind": message.kind,
        "text": message.text,
        "at": message.at,
    }
