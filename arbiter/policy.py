"""What may happen: the two policy contracts, `PolicyChecker` before a node and `PolicyRouter` after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from langchain_core.callbacks import BaseCallbackHandler

from arbiter.contracts import Contract
from arbiter.errors import ConfigurationError, ParameterError
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import TermsError, Verdict, terms_of

Answer = Verdict | bool | tuple[bool, str]
OnCaught = Literal["answered", "deny", "continue"]
OnDeny = Literal["raise", "end", "audit"] | str
"""Besides these, "redirect:<node>"."""
OnReject = Literal["raise", "end"] | str
"""Besides these, "redirect:<node>"."""
Route = str | Verdict | None
R = TypeVar("R")
OnCap = Literal["continue", "end", "best_attempt"]


class PolicyChecker(Contract):
    """Decides before a node runs whether it may.

    `on_deny` says what a denial does: `"raise"` raises `PolicyViolationError` and leaves the checkpoint as it
    was; `"redirect:<node>"` runs that node instead of the normal successors; `"end"` takes no edge; `"audit"`
    records the denial and lets the node run. A checker that raises, hangs past its `deadline` (seconds) or
    answers nonsense has denied.

    A node with a LangGraph cache policy that this checker applies to runs, and is checked, also if its result is in
    the cache for the same input: the answer may depend on the past, the clock or anything else. `reads_history = False`
    says that it depends on the node's input alone (`check_after`: on input and output). Then a cache may serve what was
    allowed, until the checker has asked or denied once.

    A checker that needs to know how things went defines `observe`, one that has to look into the body while it
    runs defines `handlers`, and one that judges the output defines `check_after`.
    """

    kind = "checker"
    method = "check_before"
    on_deny: OnDeny = "raise"
    reads_history: bool = True
    needs: tuple[str, ...] = ()
    on_caught: OnCaught | None = None
    """What follows where a handler of this checker has stopped a call in a body, and the body has caught the exception
    and returned an output. With "deny" `on_deny` follows, and the output is not committed; with "continue" the run
    goes on. "answered": it goes on if the output has a `ToolMessage` that answers the call, so that the model
    sees the refusal, and is denied otherwise. None: "continue" where `on_deny` is "raise", since that is what was
    raised and handled, else "answered". The item tells of the stop in any case."""
    spends: bool = False
    """Whether what `observe` counts is used up, as money is: then it also counts when the node was in a subgraph of
    which nothing is committed, because the node around it failed or was denied."""
    recovers: bool = False
    """Whether it reads `CausalHistory.recovered`, which costs a look at the checkpointer when a run is resumed."""
    counts_stops: bool = False
    """Whether its tallies count calls in a body that it stopped, or under audit and in a shadow would have."""

    def __init__(
        self,
        name: str,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, deadline)
        self.on_deny = on_deny

    def check_before(self, history: History) -> Answer | Awaitable[Answer]:
        """May the node of `history.entries[-1][-1]` run? A `Verdict`, a bool, or `(bool, reason)`."""
        raise NotImplementedError

    def check_after(self, output: Mapping[str, Any], history: History) -> Answer | Awaitable[Answer]:
        """May this output of the node be committed? Called after the body, if defined, with the keys that it writes.

        A denial does what `on_deny` says, and nothing that the node wrote is committed; neither evaluators nor
        routers see the output. There is nobody to ask about an output: an ask denies.
        """
        raise NotImplementedError

    def observes(self, node: str, instruction: Instruction | None) -> bool:
        """Whether `observe` is called for that node; by default where it is checked."""
        return self.applies_to(node, instruction)

    def needs_of(self, node: str, instruction: Instruction | None) -> Sequence[str]:
        """Which of `needs` are read of that node's run, where it is observed; by default all."""
        return self.needs

    def observe(self, history: History) -> Mapping[str, float] | None:
        """Called when a node run that this checker `observes` has ended, whatever its `status`.

        What it returns is added to the checker's tallies, a number for each key, and committed with what the node
        wrote, or not at all: `history.tally(name, key)` reads it back, also after a crash in another process. With
        minus infinity a tally begins again: what the node run could see of it is taken away, what siblings of the
        same superstep add stays. Of each checker the 256 keys are kept that changed last. Must be quick; what it
        raises is recorded and nothing is added. The results of the evaluators in `needs` can be read in it.
        """
        raise NotImplementedError

    def handlers(self, history: History) -> Sequence[BaseCallbackHandler]:
        """LangChain callback handlers for the node's body, asked for once the node is allowed to run.

        They see its model and tool calls. One with `raise_error = True` stops a call by raising in
        `on_tool_start` or `on_llm_start`; `on_caught` says what follows where the body catches that.
        """
        raise NotImplementedError

    @property
    def is_cacheable(self) -> bool:
        """Whether a cache may answer for it: it says that its answer depends on the input alone, and the methods that
        answer are not those of a subclass that has not said so."""
        if self.reads_history:
            return False
        if "reads_history" in vars(self):
            return True
        said = next(cls for cls in type(self).__mro__ if "reads_history" in vars(cls))
        answers = (_defining(type(self), name) for name in ("check_before", "check_after"))
        return all(issubclass(said, cls) for cls in answers)

    @property
    def enforced(self) -> bool:
        return self.mode == "enforce" and self.on_deny != "audit"

    @property
    def redirect_targets(self) -> tuple[str, ...]:
        _, found, node = self.on_deny.partition("redirect:")
        return (node,) if found else ()

    def ensure_valid(self) -> None:
        super().ensure_valid()
        caught: Any = self.on_caught
        if caught is not None and caught not in get_args(OnCaught):
            raise ConfigurationError(
                f"checker {self.name!r}: on_caught is {caught!r}; expected 'answered', 'deny' or 'continue'."
            )
        if self.on_deny != "audit" and not stops(self.on_deny):
            raise ConfigurationError(
                f"checker {self.name!r}: on_deny is {self.on_deny!r}; "
                "expected 'raise', 'redirect:<node>', 'end' or 'audit'."
            )


def _defining(cls: type, method: str) -> type:
    return next(base for base in cls.__mro__ if method in vars(base))


def stops(consequence: object) -> bool:
    """Whether that is something that can follow on a denial: "raise", "end" or "redirect:<node>"."""
    if consequence in ("raise", "end"):
        return True
    return isinstance(consequence, str) and consequence.startswith("redirect:") and consequence != "redirect:"


def question(
    owner: str,
    reason: str,
    approvers: Sequence[str] | None = None,
    expires_after: float | None = None,
    retries: int | None = None,
) -> Verdict:
    """The question that a rule with these parameters asks. Raises `ParameterError` in the name of `owner`."""
    given: Any = reason
    if not isinstance(given, str) or not given:
        raise ParameterError(owner, "reason", f"expected a text, got {given!r}. Say what is to be approved.")
    terms = {"approvers": approvers, "expires_after": expires_after, "retries": retries}
    verdict = Verdict.ask(reason, **{key: value for key, value in terms.items() if value is not None})
    try:
        terms_of(verdict)
    except TermsError as exc:
        raise ParameterError(owner, exc.parameter, exc.problem) from None
    return verdict


def _with_or_without_output(method: Callable[[Any, History, Any], R]) -> Callable[..., R]:
    """For type checkers: either form of the method is an override of it."""
    return method


class PolicyRouter(Contract):
    """Decides after a node ran whether the run goes somewhere else than the edges say.

    `max_redirects` caps how often this router redirects in one run of a thread; then the normal edges are
    taken and the item says so. With `on_error=True` the router is asked when the node has failed for good,
    after LangGraph's own retries (`history.entries[-1][-1].error` says how), and not otherwise.
    `on_cap` says what happens where it would redirect once more: `"continue"` takes the normal edges, `"end"` ends
    the run, and `"best_attempt"` takes the normal edges with the output of that attempt of the node in this run
    which `best_by` (an evaluator) scored best.
    With `escalates = True` it may also answer `Verdict.ask(reason)`: a human sees the output, and approves, edits or
    rejects it. The body does not run again for that. `on_reject` is as `on_deny` of a checker. `max_redirects` then
    also caps how often it asks in a run.
    `targets` names the nodes that it may answer, as far as known, so that they are checked early;
    `needs` names the evaluators whose results it reads.
    """

    kind = "router"
    method = "route_after"
    max_redirects: int = 3
    on_error: bool = False
    on_cap: OnCap = "continue"
    best_by: str | None = None
    escalates: bool = False
    on_reject: OnReject = "raise"
    targets: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        max_redirects: int = 3,
        on_error: bool = False,
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, deadline)
        self.max_redirects = max_redirects
        self.on_error = on_error

    @_with_or_without_output
    def route_after(self, history: History, current_output: Any) -> Route | Awaitable[Route]:
        """The name of the node to run next instead of the normal successors, or `None`.

        A subclass may leave out `current_output`.
        """
        raise NotImplementedError

    @property
    def redirect_targets(self) -> tuple[str, ...]:
        _, found, node = self.on_reject.partition("redirect:")
        return (*self.targets, node) if found else tuple(self.targets)

    def ensure_valid(self) -> None:
        super().ensure_valid()
        cap: Any = self.max_redirects
        if isinstance(cap, bool) or not isinstance(cap, int) or cap < 0:
            raise ConfigurationError(
                f"router {self.name!r}: max_redirects is {cap!r}; expected a whole number from 0."
            )
        at_cap: Any = self.on_cap
        if at_cap not in get_args(OnCap):
            raise ConfigurationError(
                f"router {self.name!r}: on_cap is {at_cap!r}; expected 'continue', 'end' or 'best_attempt'."
            )
        if not stops(self.on_reject):
            raise ConfigurationError(
                f"router {self.name!r}: on_reject is {self.on_reject!r}; "
                "expected 'raise', 'redirect:<node>' or 'end'."
            )
        if at_cap == "best_attempt" and not self.best_by:
            raise ConfigurationError(
                f"router {self.name!r}: on_cap='best_attempt' compares by an evaluation. Set best_by to its name."
            )
