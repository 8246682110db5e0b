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
    TAKEN,
    Answered,
    Ask,
    Begin,
    Body,
    Call,
    CallAll,
    Entry,
    Keep,
    LookBack,
    Op,
    OutputOf,
    Question,
    Raised,
    Resolve,
    Saved,
    Spend,
    Steps,
    Stopped,
)
from arbiter.lifecycle.routing import with_update
from arbiter.lifecycle.runs import NodeRun, Schemas, Settings, opened

__all__ = [
    "NO_ANSWER",
    "TAKEN",
    "Answered",
    "Ask",
    "Begin",
    "Body",
    "Call",
    "CallAll",
    "Entry",
    "Keep",
    "LookBack",
    "NodeRun",
    "Op",
    "OutputOf",
    "Question",
    "Raised",
    "Resolve",
    "Saved",
    "Schemas",
    "Settings",
    "Spend",
    "Steps",
    "Stopped",
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
