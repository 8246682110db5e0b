"""One governed node run, as a generator without I/O. See docs/design/lifecycle.md.

flow ─▶ stages in order, each in the module named after it ─▶ requests ─▶ drivers (sync, async)
  └──── runs: what the stages read of one node run, and the decisions that they make ───┘
"""

from arbiter._lifecycle.asking import read_answer
from arbiter._lifecycle.flow import lifecycle
from arbiter._lifecycle.requests import (
    NO_ANSWER,
    TAKEN,
    Answered,
    Ask,
    Begin,
    Body,
    Call,
    CallAll,
    Entry,
    Op,
    OutputOf,
    Question,
    Raised,
    ReadCheckpoint,
    Resolve,
    Saved,
    SaveNote,
    Saving,
    Spend,
    Steps,
    Stopped,
)
from arbiter._lifecycle.routing import with_update
from arbiter._lifecycle.runs import NodeRun, Schemas, Settings, current_run
from arbiter._lifecycle.saving import Access, Find, Put, Read, Wait, aaccess, access

__all__ = [
    "NO_ANSWER",
    "TAKEN",
    "Access",
    "Answered",
    "Ask",
    "Begin",
    "Body",
    "Call",
    "CallAll",
    "Entry",
    "Find",
    "SaveNote",
    "Read",
    "ReadCheckpoint",
    "NodeRun",
    "Op",
    "OutputOf",
    "Put",
    "Question",
    "Raised",
    "Resolve",
    "Saved",
    "Saving",
    "Schemas",
    "Settings",
    "Spend",
    "Steps",
    "Stopped",
    "Wait",
    "aaccess",
    "access",
    "lifecycle",
    "current_run",
    "read_answer",
    "with_update",
]
