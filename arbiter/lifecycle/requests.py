"""What the lifecycle asks its driver for, and what it is sent back."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

    def is_about(self, digest: object, policies: object) -> bool:
        """Whether that question was about the same, and asked in the name of all who ask now."""
        return digest == self.key and isinstance(policies, list | tuple) and {*self.policies} <= {*policies}

    def is_like(self, question: Mapping[str, Any]) -> bool:
        """Whether a saved question is this one, asked earlier."""
        if "digest" not in question or question.get("question") != self.number:
            return False
        asked = Ask(question, self.number, question["digest"], 0)
        return self.is_about(asked.key, asked.policies)


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
class Saved:
    """What was saved of an unfinished superstep."""

    facts: Sequence[Fact] = ()
    """Of tasks that had finished."""
    asked: Sequence[Mapping[str, Any]] = ()
    """The questions of this task that are open or were just answered."""
    notes: Sequence[Mapping[str, Any]] = ()
    """What was noted about this task, in any order."""


@dataclass(slots=True)
class Raised:
    """An exception in place of an answer."""

    error: BaseException


class NoAnswer:
    """The answer to a question that was not asked about this input."""


NO_ANSWER = NoAnswer()
Op = Call | CallAll | Body | Ask | Resolve | LookBack | OutputOf | Keep
Steps = Generator[Op, Any, Any]
