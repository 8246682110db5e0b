"""The evaluation store: scores, corrections, settings and messages of agents, in SQLite or PostgreSQL.

    scorers ─▶ evaluation() ─┐
    gate, interventions ─────┼─▶ EvaluationRepository ─▶ SqlRepository ─▶ one set of tables, two databases
    settings, messages ──────┘

See docs/store.md.
"""

try:
    from arbiter.store._contract import EvaluationRepository
    from arbiter.store._evaluating import Evaluation, evaluation
    from arbiter.store._opening import StoreError, StoreUnavailable
    from arbiter.store._records import AgentMessage, CalibrationRecord, EvaluationRecord, ScoreRecord
    from arbiter.store._repository import MemoryRepository, SqlRepository
except ModuleNotFoundError as error:
    if error.name not in ("alembic", "sqlalchemy"):
        raise
    raise ImportError("a store needs sqlalchemy and alembic: pip install 'arbiteros[store]'") from error

__all__ = [
    "AgentMessage",
    "CalibrationRecord",
    "Evaluation",
    "EvaluationRecord",
    "EvaluationRepository",
    "MemoryRepository",
    "ScoreRecord",
    "SqlRepository",
    "StoreError",
    "StoreUnavailable",
    "evaluation",
]
