"""What the lifecycle asks its driver for, and what it is sent back."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from arbiter.evaluations import Evaluations, Lane
from arbiter.facts import Fact
from arbiter.registry import Seat

if TYPE_CHECKING:
    from arbiter.lifecycle.runs import NodeRun


@dataclass(slots=True)
class Call:
    """Call a contract's method."""

    seat: Seat[Any]
    args: tuple[Any, ...]


@dataclass(slots=True)
class CallAll:
    """Call one method of several contracts, one after another, with the same arguments; sends the answers."""

    seats: Sequence[Seat[Any]]
    args: tuple[Any, ...]


@dataclass(slots=True)
class Body:
    """Run the node's body. `held`: what it streams is kept back until it is released."""

    input: Any
    held: bool = False


@dataclass(slots=True)
class Ask:
    """Interrupt with `payload`, unless a human has answered that: sends `Answered`, or `NO_ANSWER`. `number` counts
    the questions of this node run from 0, `key` is the digest of what the question is about, `at` is the time."""

    payload: Mapping[str, Any]
    number: int
    key: str
    at: float

    @property
    def policies(self) -> list[str]:
        """Who asks."""
        requests = self.payload.get("requests", ())
        return [self.payload["policy"], *(request["policy"] for request in requests)]

    def is_like(self, question: Question) -> bool:
        """Whether a question that was asked earlier is this one: about the same, and in the name of all who ask now."""
        return question["digest"] == self.key and {*self.policies} <= {*question["policies"]}


class Question(TypedDict):
    """What is noted of a question beside the checkpoint, when it is asked. It is known by where it is stored: no resume
    value, no interrupt of a body and no state can pass for one."""

    task: str
    ask: str
    """Its place: the number of a question about a node run; where a function in a body asked, that of its interrupt."""
    number: int
    type: str
    digest: str
    policies: list[str]
    asked_at: float
    after: int
    """How many resume values the task had when it was asked."""


class Entry(TypedDict):
    """What is noted when a body that humans have approved begins to run, or an output is committed that they have
    approved: from then on the approvals are used."""

    task: str
    entry: int
    output: bool
    since: int
    upto: int
    """The numbers of the questions whose answers it goes by: from `since` to before `upto`."""
    retries: int
    """How many further times the body may begin on the same approvals after it has failed."""
    failed: int
    """How often it had failed on them before."""
    by: str


Spent = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
"""What was used up by tasks that have no fact yet: by task, note, checker and key."""


@dataclass(slots=True)
class Answered:
    """What a human answered. `asked_at` is when the question was asked first, None if that is not known, `at` when
    the answer came, both in POSIX seconds."""

    answer: Any
    asked_at: float | None
    at: float


@dataclass(slots=True)
class Resolve:
    """Wait for one evaluator's outcome."""

    evaluations: Evaluations
    lane: Lane


@dataclass(slots=True)
class LookBack:
    """What the checkpointer holds of the superstep of `run`; sends a `Saved`."""

    run: NodeRun


@dataclass(slots=True)
class OutputOf:
    """The output of an earlier task of this node that is no longer in memory; sends `(output,)` or None."""

    task: str


@dataclass(slots=True)
class Keep:
    """Keep a note about this task beside the checkpoint, until the task is done. It is plain data."""

    note: Mapping[str, Any]


@dataclass(slots=True)
class Begin:
    """Note that a body begins to run on approvals. Only one execution of the graph can; sends whether this one did."""

    entry: Mapping[str, Any]


@dataclass(slots=True)
class Stopped:
    """The body that began has paused or failed. A pause keeps its approvals; a failure saves the answers it has had."""

    entry: Mapping[str, Any]
    paused: bool


@dataclass(slots=True)
class Spend:
    """Note what a node run has used up that ends, for now, without a fact: it has failed or paused."""

    id: str
    spent: Mapping[str, Mapping[str, float | None]]


@dataclass(slots=True)
class Saved:
    """What was saved of an unfinished superstep."""

    facts: Sequence[Fact] = ()
    """Of tasks that had finished."""
    asked: Sequence[Question] = ()
    """The questions that were asked about this task, in order."""
    shown: Sequence[Mapping[str, Any]] = ()
    """The payloads of those that are open or were just answered."""
    entry: Entry | None = None
    """When the body last began to run on approvals."""
    paused: bool = False
    """Whether it then paused, so that it goes on with them."""
    spent: Spent = field(default_factory=dict[str, Any])
    notes: Sequence[Mapping[str, Any]] = ()
    """What was noted about this task, in any order."""


@dataclass(slots=True)
class Raised:
    """An exception in place of an answer."""

    error: BaseException


class NoAnswer:
    """What there is in the place of an answer."""


NO_ANSWER = NoAnswer()
"""It was given to a question about another input."""
TAKEN = NoAnswer()
"""Another execution of the graph has it."""
Op = Call | CallAll | Body | Ask | Begin | Stopped | Spend | Resolve | LookBack | OutputOf | Keep
Steps = Generator[Op, Any, Any]
