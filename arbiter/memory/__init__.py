"""Memory: cognitive evaluators that learn from conversations, and providers that put it back into prompts.

    turn ─▶ EvaluationCycle ─▶ FactEvaluator, ReflectionEvaluator, GoalEvaluator, TrustEvaluator, your own
                                                   │
       FactsProvider, GoalsProvider, ... ◀─ MemoryStore (any LangGraph BaseStore) ◀─┘

See docs/memory.md, and docs/design/memory.md for the shape.
"""

from arbiter.memory._characters import Character
from arbiter.memory._context import BudgetSpentError, EvalContext, NotAvailableError
from arbiter.memory._cycle import EvaluationCycle
from arbiter.memory._editing import FactChanges
from arbiter.memory._embeddings import LocalEmbeddings
from arbiter.memory._entities import Entity
from arbiter.memory._evaluators import (
    CognitiveEvaluator,
    CognitiveOptions,
    EvaluationExample,
    ExampleMessage,
    HandlerOutcome,
    evaluator,
)
from arbiter.memory._quiet import Processed
from arbiter.memory._recollection import Memory
from arbiter.memory._records import Fact, Goal, Objective, Relationship, Thought
from arbiter.memory._tools import memory_tools
from arbiter.memory.answers import StructuredOutcome
from arbiter.memory.facts import Claim, FactEvaluator, FactRules
from arbiter.memory.goals import GoalEvaluator
from arbiter.memory.providers import (
    FactsProvider,
    GoalsProvider,
    ProfileProvider,
    Provider,
    ProviderContext,
    ProviderResult,
    ReflectionProvider,
    RelationshipsProvider,
    TimeProvider,
    TrustProvider,
)
from arbiter.memory.reflection import ReflectionEvaluator
from arbiter.memory.stores import MemoryStore
from arbiter.memory.stores._opening import open_store
from arbiter.memory.stores._shared_locks import postgres_locks
from arbiter.memory.trust import TrustEvaluator

__all__ = [
    "BudgetSpentError",
    "Character",
    "Claim",
    "CognitiveEvaluator",
    "CognitiveOptions",
    "Entity",
    "EvalContext",
    "EvaluationCycle",
    "EvaluationExample",
    "ExampleMessage",
    "Fact",
    "FactChanges",
    "FactEvaluator",
    "FactRules",
    "FactsProvider",
    "Goal",
    "GoalEvaluator",
    "GoalsProvider",
    "HandlerOutcome",
    "LocalEmbeddings",
    "Memory",
    "MemoryStore",
    "NotAvailableError",
    "Objective",
    "Processed",
    "ProfileProvider",
    "Provider",
    "ProviderContext",
    "ProviderResult",
    "ReflectionEvaluator",
    "ReflectionProvider",
    "Relationship",
    "RelationshipsProvider",
    "StructuredOutcome",
    "Thought",
    "TimeProvider",
    "TrustEvaluator",
    "TrustProvider",
    "evaluator",
    "memory_tools",
    "open_store",
    "postgres_locks",
]
