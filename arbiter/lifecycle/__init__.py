"""One governed node run, as a generator without I/O. See docs/design/lifecycle.md.

requests   what the generator asks its driver for       runs       what it reads and decides
flow       the whole of it, in order; the stages are in the modules named after them
"""

from arbiter.lifecycle.asking import read_answer
from arbiter.lifecycle.checking import is_yes
from arbiter.lifecycle.flow import conclude, judge, lifecycle, observed, routed
from arbiter.lifecycle.observing import tell
from arbiter.lifecycle.outcomes import note_output
from arbiter.lifecycle.requests import (
    NO_ANSWER,
    Answered,
    Ask,
    Body,
    Call,
    CallAll,
    Keep,
    LookBack,
    Op,
    OutputOf,
    Raised,
    Resolve,
    Saved,
    Steps,
)
from arbiter.lifecycle.routing import with_update
from arbiter.lifecycle.runs import NodeRun, Schemas, Settings, opened

__all__ = [
    "NO_ANSWER",
    "Answered",
    "Ask",
    "Body",
    "Call",
    "CallAll",
    "Keep",
    "LookBack",
    "NodeRun",
    "Op",
    "OutputOf",
    "Raised",
    "Resolve",
    "Saved",
    "Schemas",
    "Settings",
    "Steps",
    "conclude",
    "is_yes",
    "judge",
    "lifecycle",
    "note_output",
    "observed",
    "opened",
    "read_answer",
    "routed",
    "tell",
    "with_update",
]
