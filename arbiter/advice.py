"""Advice for one call of a node: the `Advisor` contract, and the `CorrectionGate` on the node's drafts."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, Any

from langchain_core.messages import BaseMessage

from arbiter._contracts import Contract, Deadline, TargetInstructions, TargetNodes
from arbiter._values.parameters import Param, check_parameters
from arbiter.history._items import History
from arbiter.verdicts import Correction

MaxAttempts = Annotated[int, Param("how often the node is called at most for one output", ge=1)]
OnExhausted = Annotated[
    str,
    Param(
        "what follows the last attempt: its draft is committed, or the node fails", forms=("commit", "raise")
    ),
]
Advice = str | BaseMessage | Sequence[BaseMessage] | Mapping[str, Any] | None


class Advisor(Contract):
    """Adds context to one call of a node. The context never becomes part of the state.

    If an advisor fails, it is skipped and the failure is recorded in the item; but a `ConfigurationError`,
    which is a mistake in the set-up, is raised by the node. If it also has a method `aadvise`, async runs
    call that one. `messages_key` is the state key of a chat node's messages.
    """

    kind = "advisor"
    method = "advise"
    block: str = ""
    """Advisors with the same block are combined: the first of them gets all their answers in `compose`."""
    messages_key: str = "messages"
    needs: tuple[str, ...] = ()
    """The evaluators whose committed results it reads. The log says so if there is no such evaluator."""

    def advise(self, history: History, state: Mapping[str, Any]) -> Advice | Awaitable[Advice]:
        """Return context for this call, or `None` for nothing.

        For a node that reads messages the context is a text or messages, otherwise a mapping of state keys to
        values (a text goes to the key `advice`).
        """
        raise NotImplementedError

    def compose(self, parts: Sequence[Any]) -> Advice:
        """Combine the answers of all advisors of this block, in the order in which they were added, into one
        advice.

        Answers that were None, and failed advisors, are left out.
        """
        raise NotImplementedError


class CorrectionGate(Contract):
    """Judges each draft of a node's output before any part of it is committed.

    If a draft is sent back, the node is called again with the feedback as transient input, at most
    `max_attempts` times in all. After that the last draft is committed (`on_exhausted="commit"`) or the node
    fails (`"raise"`). Rejected drafts appear in no state, stream or checkpoint. Side effects of the body
    happen with every draft: it writes to a store or calls a service, and the result of a `@task` is saved and
    streamed.

    If the gate itself fails, the draft is committed and the failure is recorded in the item; but a
    `ConfigurationError`, which is a mistake in the set-up, is raised by the node. A node has at most one
    gate. If the gate also has a method `areview`, async runs call that one. `messages_key` is the state key
    of a chat node's messages, to which the feedback is added; other nodes get it as `feedback`.
    """

    kind = "gate"
    method = "review"
    messages_key: str = "messages"
    max_attempts: int = 3
    on_exhausted: str = "commit"

    @check_parameters
    def __init__(
        self,
        name: str,
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        max_attempts: MaxAttempts = 3,
        on_exhausted: OnExhausted = "commit",
        deadline: Deadline = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, deadline)
        self.max_attempts = max_attempts
        self.on_exhausted = on_exhausted

    def review(
        self, history: History, draft: Mapping[str, Any], attempt: int
    ) -> Correction | Awaitable[Correction]:
        """Commit this draft, send it back, or give up. `attempt` counts from 1.

        In the view, `history.item.output_state` is the draft too.
        """
        raise NotImplementedError

    def judges_input(self, history: History) -> bool:
        """True if the node's input is a draft too, for example that of a tool that sends it, and must be
        judged before the body.

        Then `review` is called with the input as draft and 0 as attempt. It can accept it, replace values of
        its fields, or give up; it cannot have the input written again.
        """
        return False

    def resume(self, history: History, kept: Sequence[Any]) -> str:
        """The feedback for a run that paused or crashed after drafts were sent back, since their own feedback
        is lost.

        `kept` is the data kept for each of these drafts (`Correction.retry(..., keep=...)`), oldest first.
        """
        return f"{len(kept)} of your drafts were already sent back."
