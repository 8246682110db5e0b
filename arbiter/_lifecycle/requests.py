"""The requests of the lifecycle to its driver, and the driver's answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, Protocol, TypedDict

from arbiter._lifecycle.evaluations import Evaluations, EvaluatorQueue
from arbiter._lifecycle.registry import Registration
from arbiter._lifecycle.saving import Access
from arbiter.history._facts import RunFact
from arbiter.policy import PolicyChecker
from arbiter.verdicts import Verdict


@dataclass(slots=True)
class Call:
    """Call a contract's method."""

    registration: Registration[Any]
    args: tuple[Any, ...]


@dataclass(slots=True)
class CallAll:
    """Call one method of several checkers, one after another, with the same arguments.

    Sends the verdicts that do not simply allow, each with its registration, up to one that pauses the run.
    """

    registrations: Sequence[Registration[Any]]
    args: tuple[Any, ...]


@dataclass(slots=True)
class Body:
    """Run the node's body. With `buffered`, its streamed chunks are kept back until they are released."""

    buffered: bool = False


@dataclass(slots=True)
class Ask:
    """Interrupt with `payload`, unless a human has answered this question. Sends `Answered`, or `NO_ANSWER`.

    `number` counts the questions of this node run from 0, `key` is the digest of the subject of the question,
    `at` is the time.
    """

    payload: Mapping[str, Any]
    number: int
    key: str
    at: float
    use: str = ""
    """Set with the answer to a question of a function in a body: the name of the next run on the approval."""

    @property
    def policies(self) -> list[str]:
        """The policies that ask."""
        requests = self.payload.get("requests", ())
        return [self.payload["policy"], *(request["policy"] for request in requests)]

    def is_like(self, question: Question) -> bool:
        """True if an earlier question is this one: about the same subject, and for all the policies that ask
        now.
        """
        return question["digest"] == self.key and {*self.policies} <= {*question["policies"]}


class Question(TypedDict):
    """The note that is stored next to the checkpoint when a question is asked.

    It is recognised by its place, so no resume value, interrupt of a body or state can imitate it.
    """

    task: str
    ask: str
    """Its place: the number of a question about a node run, or the number of the interrupt if a body asked
    it.
    """
    number: int
    type: str
    digest: str
    policies: list[str]
    asked_at: float
    after: int
    """The number of resume values that the task had when it was asked."""
    resumed: NotRequired[bool]
    """False if the body cannot have begun before: the task was neither resumed nor retried when it was asked."""


class Entry(TypedDict):
    """The note that is stored when a body begins to run on approvals, or an approved output is committed.

    From then on the approvals are used.
    """

    task: str
    entry: int
    output: bool
    since: int
    upto: int
    """Its answers are those of the questions with numbers from `since` to before `upto`."""
    retries: int
    """The number of further times that the body may begin on the same approvals after it has failed."""
    failed: int
    """The number of times that it had failed on them before."""
    by: str


Spent = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
"""The amounts that tasks without a fact have used up: by task, note, checker and key."""


@dataclass(slots=True)
class Answered:
    """The answer of a human.

    `asked_at` is the time of the first asking, None if it is unknown; `at` is the time of the answer. Both
    are POSIX seconds. `ignored` is True if another answer came later.
    """

    answer: Any
    asked_at: float | None
    at: float
    ignored: bool = False


@dataclass(slots=True)
class Resolve:
    """Wait for one evaluator's outcome."""

    evaluations: Evaluations
    queue: EvaluatorQueue


@dataclass(slots=True)
class ReadCheckpoint:
    """Read the checkpointer's data about the superstep of `run`. Sends a `Saved`."""

    run: HasCheckpoint


@dataclass(slots=True)
class IsUsed:
    """Find out whether another execution in this process has used the approvals of this task: the body runs on them,
    or has run on them and is done. Sends True or False."""


@dataclass(slots=True)
class OutputOf:
    """Find the output of an earlier task of this node that is no longer in memory. Sends `(output,)` or None."""

    task: str


@dataclass(slots=True)
class SaveNote:
    """Keep a note about this task next to the checkpoint until the task is done. It is plain data."""

    note: Mapping[str, Any]


@dataclass(slots=True)
class Begin:
    """Note that a body begins to run on approvals. Sends True if this execution of the graph is the one that
    may run it.
    """

    entry: Mapping[str, Any]


@dataclass(slots=True)
class Stopped:
    """The body that began has paused or failed. A pause keeps its approvals; a failure saves its answers."""

    entry: Mapping[str, Any]
    paused: bool
    refused: bool = False
    """True if a human's answer did not fit the schema of its question, which can be answered again."""


@dataclass(slots=True)
class Spend:
    """Save the amounts that a node run has used up if it ends, for now, without a fact: it has failed or
    paused.
    """

    id: str
    spent: Mapping[str, Mapping[str, float | None]]


@dataclass(slots=True)
class Saved:
    """The saved data of an unfinished superstep."""

    facts: Sequence[RunFact] = ()
    """The facts of finished tasks."""
    asked: Sequence[Question] = ()
    """The questions that were asked about this task, in order."""
    shown: Sequence[Mapping[str, Any]] = ()
    """The payloads of the questions that are open or were just answered."""
    entry: Entry | None = None
    """The latest note that the body began to run on approvals."""
    paused: bool = False
    """True if the body then paused, so that it continues with them."""
    spent: Spent = field(default_factory=dict[str, Any])
    notes: Sequence[Mapping[str, Any]] = ()
    """The notes about this task, in any order."""


class HasCheckpoint(Protocol):
    """The part of a node run that `ReadCheckpoint` needs."""

    @property
    def saver(self) -> Any: ...

    def access(self, op: Saving) -> Access[Any]: ...


@dataclass(slots=True)
class Raised:
    """An exception instead of an answer."""

    error: BaseException


@dataclass(slots=True)
class Ended:
    """The node run ended before its body was called, with that answer."""

    answer: Raised | None


BODY = Body()
DRAFT = Body(buffered=True)


class NoAnswer:
    """A marker instead of an answer."""


NO_ANSWER = NoAnswer()
"""The answer belongs to a question about another input."""
TAKEN = NoAnswer()
"""Another execution of the graph uses the answer."""
Unusual = list[tuple[Registration[PolicyChecker], Verdict | Raised]]
"""The verdicts that do not simply allow, and the exceptions of checkers."""
Saving = Ask | Begin | IsUsed | Stopped | Spend | ReadCheckpoint | OutputOf | SaveNote
"""Requests that need the checkpointer."""
Op = Call | CallAll | Body | Resolve | Saving
Steps = Generator[Op, Any, Any]
