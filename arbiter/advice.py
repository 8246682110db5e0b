"""What a node is told for one call: the `Advisor` contract, and the `CorrectionGate` on its drafts."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from arbiter.contracts import Contract
from arbiter.errors import RegistrationError
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import Correction

Advice = str | BaseMessage | Sequence[BaseMessage] | Mapping[str, Any] | None


class Advisor(Contract):
    """Adds context to one call of a node. What it adds never becomes part of the state.

    An advisor that fails is skipped, and the item says so; a `ConfigurationError` is nobody's failure but a mistake in
    the set-up, and the node raises it. One that also has a method `aadvise` is asked by that in an async run.
    `messages_key` is where a chat node has its messages.
    """

    kind = "advisor"
    method = "advise"
    block: str = ""
    """Advisors of one block speak with one voice: what they answer goes to the `compose` of the first of them."""
    messages_key: str = "messages"

    def advise(self, history: History, state: Mapping[str, Any]) -> Advice | Awaitable[Advice]:
        """Context for this call: a text or messages for a node that reads messages, else a mapping of
        state keys to values (a text goes to the key `advice`); `None` for nothing."""
        raise NotImplementedError

    def compose(self, parts: Sequence[Any]) -> Advice:
        """The advice that the answers of all advisors of this one's block make together, in the order in which they
        were added, without those that were None or failed."""
        raise NotImplementedError


class CorrectionGate(Contract):
    """Judges each draft of a node's output before anything of it is committed.

    A draft that is sent back is called for again with the feedback as transient input, at most
    `max_attempts` calls in all; the last draft is then taken (`on_exhausted="commit"`) or the node fails
    (`"raise"`). Rejected drafts appear in no state, stream or checkpoint. What the body does beside its output happens
    with every draft: it writes to a store or calls a service, and the result of a `@task` is saved and streamed.

    A gate that fails itself lets the draft pass, and the item says so; a `ConfigurationError` is a mistake in the
    set-up, and the node raises it. A node has at most one gate. One that also has a method `areview` is asked by that
    in an async run. `messages_key` is where a chat node has its messages, with which it is handed the feedback;
    another node has it as `feedback`.
    """

    kind = "gate"
    method = "review"
    messages_key: str = "messages"
    max_attempts: int = 3
    on_exhausted: str = "commit"

    def __init__(
        self,
        name: str,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        max_attempts: int = 3,
        on_exhausted: str = "commit",
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, deadline)
        self.max_attempts = max_attempts
        self.on_exhausted = on_exhausted

    def review(
        self, history: History, draft: Mapping[str, Any], attempt: int
    ) -> Correction | Awaitable[Correction]:
        """Commit, retry or give up this draft. `attempt` counts from 1; in the view,
        `history.entries[-1][-1].output_state` is the draft too."""
        raise NotImplementedError

    def judges_input(self, history: History) -> bool:
        """Whether what the node is given is a draft, too, which has to be judged before the body runs: of a tool that
        sends it, say. Then `review` is asked with it as draft, and 0 as attempt: it takes it, takes other values of its
        fields in its place, or gives up. The body cannot be asked to write it again."""
        return False

    def resume(self, history: History, kept: Sequence[Any]) -> str:
        """The feedback to go on with when the run paused or crashed after drafts had been sent back, and the feedback
        that they were sent back with is gone with its process.

        `kept` is what was to be kept of each of them (`Correction.retry(..., keep=...)`), oldest first.
        """
        return f"{len(kept)} of your drafts were sent back already."

    def ensure_valid(self) -> None:
        super().ensure_valid()
        attempts: Any = self.max_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise RegistrationError(
                f"gate {self.name!r}: max_attempts is {attempts!r}; expected a whole number from 1."
            )
        if self.on_exhausted not in ("commit", "raise"):
            raise RegistrationError(
                f"gate {self.name!r}: on_exhausted is {self.on_exhausted!r}; expected 'commit' or 'raise'."
            )
