"""Many machines: the cases of a suite on the workers of a Ray cluster.

    driver: session, journal, budget ─▶ task: places of cases ─▶ worker: session, target, judges
       ▲                                                            │
       └───────────── desk (an actor): lines, places for calls ◀────┘

The driver alone decides which case is next, and writes journal, cache and store. A worker sends each answer,
judgement and amount to the desk when it has it, before it goes on. So a worker that dies loses what it was doing at
that moment, and no more: another worker goes on with what the desk got. A case whose worker died twice is "lost".
"""

from arbiter.harness.distributed.driving import on_ray
from arbiter.harness.distributed.working import SentRepository

__all__ = ["SentRepository", "on_ray"]
