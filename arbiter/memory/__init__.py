"""Memory: cognitive evaluators that learn from conversations, and providers that put it back into prompts.

See docs/memory.md, and docs/design/memory.md for the shape.
"""

from arbiter.memory.characters import Character
from arbiter.memory.context import EvalContext
from arbiter.memory.cycle import EvaluationCycle
from arbiter.memory.evaluators import (
    CognitiveEvaluator,
    EvaluationExample,
    ExampleMessage,
    HandlerOutcome,
    evaluator,
)
from arbiter.memory.records import Fact, Goal, Objective, Relationship
from arbiter.memory.stores import MemoryStore

__all__ = [
    "Character",
    "CognitiveEvaluator",
    "EvalContext",
    "EvaluationCycle",
    "EvaluationExample",
    "ExampleMessage",
    "Fact",
    "Goal",
    "HandlerOutcome",
    "MemoryStore",
    "Objective",
    "Relationship",
    "evaluator",
]
