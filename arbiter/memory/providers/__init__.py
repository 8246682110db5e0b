"""Providers: what is remembered, put into a call of a node as one block of text, never into the state.

See docs/memory.md.
"""

from arbiter.memory.providers.composing import ComposedContext, ProviderResult, Section, compose_sections
from arbiter.memory.providers.facts import FactsProvider
from arbiter.memory.providers.goals import GoalsProvider
from arbiter.memory.providers.provider import (
    Provider,
    ProviderContext,
    ProviderError,
    acompose_context,
)
from arbiter.memory.providers.relationships import RelationshipsProvider
from arbiter.memory.providers.thoughts import ReflectionProvider
from arbiter.memory.providers.time import TimeProvider
from arbiter.memory.providers.trust import TrustProvider

__all__ = [
    "ComposedContext",
    "FactsProvider",
    "GoalsProvider",
    "Provider",
    "ProviderContext",
    "ProviderError",
    "ProviderResult",
    "ReflectionProvider",
    "RelationshipsProvider",
    "Section",
    "TimeProvider",
    "TrustProvider",
    "acompose_context",
    "compose_sections",
]
