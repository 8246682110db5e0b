"""Providers: put memories into a node's call as one block of text, never into the state.

See docs/memory.md.
"""

from arbiter.memory.providers._composing import ComposedContext, ProviderResult, Section, compose_sections
from arbiter.memory.providers._facts import FactsProvider
from arbiter.memory.providers._provider import Provider, ProviderContext, ProviderError, acompose_context
from arbiter.memory.providers._singles import (
    GoalsProvider,
    ProfileProvider,
    ReflectionProvider,
    RelationshipsProvider,
    TimeProvider,
    TrustProvider,
)

__all__ = [
    "ComposedContext",
    "FactsProvider",
    "GoalsProvider",
    "ProfileProvider",
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
