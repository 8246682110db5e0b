"""The two policy contracts: `PolicyChecker` before a node and `PolicyRouter` after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args

from langchain_core.callbacks import BaseCallbackHandler

from arbiter._contracts import Contract, TargetInstructions, TargetNodes, Targets
from arbiter._values.parameters import Param, check_parameters
from arbiter.errors import ConfigurationError, ParameterError, RegistrationError
from arbiter.history._items import History
from arbiter.instructions import Instruction
from arbiter.verdicts import Verdict

Answer = Verdict | bool | tuple[bool, str]
OnCaught = Literal["answered", "deny", "continue"]
OnDeny = Literal["raise", "end", "audit"] | str
"""Also "redirect:<node>"."""
OnReject = Literal["raise", "end"] | str
"""Also "redirect:<node>"."""
Route = str | Verdict | None
R = TypeVar("R")
OnCap = Literal["continue", "end", "best_attempt"]
_Denial = Annotated[
    OnDeny,
    Param(
        "what a denial does: raise an exception, run another node instead of the successors, end the run, or only "
        "be recorded",
        forms=("raise", "redirect:<node>", "end", "audit"),
        tighter="denial",
    ),
]
# A checker that is too late has denied, so no deadline of one lets anything pass.
_CheckDeadline = Annotated[
    float | None,
    Param(
        "the seconds that each check may take; a later answer is a denial",
        gt=0,
        expected="seconds above 0",
        tighter="any",
    ),
]
_MaxDenials = Annotated[
    int,
    Param(
        "in how many supersteps of one run denials may redirect; the next one raises. Rejections by humans do not "
        "count",
        ge=0,
        tighter="lower",
    ),
]
_MaxRedirects = Annotated[int, Param("how often the router may redirect in one run of a thread", ge=0)]
_OnCap = Annotated[
    OnCap | None,
    Param(
        "what follows if the router would decide once more: the normal edges, the end of the run, or the normal "
        "edges with the best attempt"
    ),
]
_BestBy = Annotated[
    str | None,
    Param(
        "the evaluator by which attempts are compared, for `best_attempt`; by default the one that the router reads",
        min_length=1,
        expected="the name of an evaluator",
    ),
]
_RouteDeadline = Annotated[
    float | None,
    Param(
        "the seconds that the router may take; a later answer redirects nowhere",
        gt=0,
        expected="seconds above 0",
    ),
]
Reason = Annotated[str, Param("the text that is shown with the question", min_length=1, tighter="any")]
Approvers = Annotated[
    Sequence[str] | None,
    Param(
        "the names that count: an approval or edit by anybody else is a rejection; by default all names count",
        min_length=1,
        expected="a list of names",
        tighter="fewer",
    ),
]
ExpiresAfter = Annotated[
    float | None,
    Param(
        "the seconds after which an approval or edit does not count, and the question is asked anew; never by default",
        gt=0,
        expected="seconds above 0",
        tighter="lower",
    ),
]
Rejection = Annotated[
    OnReject,
    Param(
        "what a rejection by a human does: raise an exception, run another node instead of the successors, or end "
        "the run; the output is dropped",
        forms=("raise", "redirect:<node>", "end"),
        tighter="denial",
    ),
]


class CheckerOptions(Targets, total=False):
    """The parameters that all checkers have."""

    on_deny: _Denial
    deadline: _CheckDeadline
    max_redirects: _MaxDenials


class RedirectOptions(TypedDict, total=False):
    """The parameters that all routers have, besides their targets."""

    max_redirects: _MaxRedirects
    on_cap: _OnCap
    best_by: _BestBy
    deadline: _RouteDeadline


class RouterOptions(Targets, RedirectOptions, total=False):
    """The parameters that all routers have."""


class PolicyChecker(Contract):
    """Decides before a node runs whether it may run.

    `on_deny` is the consequence of a denial: `"raise"` raises `PolicyViolationError` and leaves the
    checkpoint as it was; `"redirect:<node>"` runs that node instead of the normal successors; `"end"` takes
    no edge; `"audit"` records the denial and lets the node run. A checker that raises, exceeds its `deadline`
    (seconds) or returns an invalid value counts as a denial. If its denials have redirected in
    `max_redirects` supersteps of a run, the next one raises: a loop of denials would never end.

    If a node has a LangGraph cache policy, a checker that applies to it makes the node run, and be checked,
    even for a cached input: its answer may depend on the past or the clock. `reads_history = False` declares
    that the answer depends only on the node's input (`check_after`: on input and output). Then a cached
    output may be used after an allowed check, until the checker has asked or denied once.

    To learn how node runs ended, define `observe`; to look into the body while it runs, define `handlers`; to
    check the output, define `check_after`.
    """

    kind = "checker"
    method = "check_before"
    on_deny: OnDeny = "raise"
    max_redirects: int = 10
    reads_history: bool = True
    needs: tuple[str, ...] = ()
    on_caught: OnCaught | None = None
    """The consequence if a handler of this checker stopped a call, and the body caught the exception and
    returned an output.

    With "deny", `on_deny` follows and the output is not committed; with "continue", the run continues. With
    "answered" it continues if the output has a `ToolMessage` that answers the call, so that the model sees
    the refusal, and is denied otherwise. None means "continue" if `on_deny` is "raise", since the body has
    handled that exception, and "answered" otherwise. The item records the stop in any case.
    """
    counts_consumption: bool = False
    """True if `observe` counts consumption, such as money.

    Then it counts even if the node was in a subgraph of which nothing is committed, because the node around
    it failed or was denied.
    """
    reads_unfinished: bool = False
    """True if it reads `CausalHistory.recovered`, which reads the checkpointer when a run is resumed."""
    counts_stops: bool = False
    """True if its tallies count the calls that it stopped in a body, or would have stopped in audit mode or
    in a shadow.
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        on_deny: _Denial = "raise",
        deadline: _CheckDeadline = None,
        max_redirects: _MaxDenials = 10,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, deadline)
        self.on_deny = on_deny
        self.max_redirects = max_redirects

    def check_before(self, history: History) -> Answer | Awaitable[Answer]:
        """Decide whether the node of `history.item` may run: a `Verdict`, a bool, or `(bool, reason)`."""
        raise NotImplementedError

    def check_after(self, output: Mapping[str, Any], history: History) -> Answer | Awaitable[Answer]:
        """Decide whether this output of the node may be committed. If defined, it is called after the body;
        `output` has the keys that the node writes.

        After a denial `on_deny` follows and no write of the node is committed; neither evaluators nor routers
        see the output. No human can be asked about an output here: an ask counts as a denial.
        """
        raise NotImplementedError

    def observes(self, node: str, instruction: Instruction | None) -> bool:
        """True if `observe` is called for that node; by default for each node that it checks."""
        return self.applies_to(node, instruction)

    def needs_of(self, node: str, instruction: Instruction | None) -> Sequence[str]:
        """The evaluators of `needs` whose results are read when that node is observed; by default all."""
        return self.needs

    def observe(self, history: History) -> Mapping[str, float] | None:
        """Called when a node run that this checker `observes` has ended, whatever its `status`.

        Returns a number for each key, to be added to the checker's tallies. They are committed together with
        the node's writes or not at all: `history.tally(name, key)` reads them, also after a crash in another
        process. Minus infinity restarts a tally: the amount that the node run could see is subtracted, and
        counts of siblings in the same superstep stay. Each checker keeps the 256 keys that changed last. Must
        be quick; an exception is recorded and nothing is added. The results of the evaluators in `needs` can
        be read here.
        """
        raise NotImplementedError

    def handlers(self, history: History) -> Sequence[BaseCallbackHandler]:
        """LangChain callback handlers for the node's body, requested once the node is allowed to run.

        They see its model and tool calls. A handler with `raise_error = True` stops a call by raising in
        `on_tool_start` or `on_llm_start`; `on_caught` is the consequence if the body catches that exception.
        If this method raises, the node is denied. With `blocking = True` an async run calls it on another
        thread, after those of the other checkers, so it may wait.
        """
        raise NotImplementedError

    @property
    def is_cacheable(self) -> bool:
        """True if a cached output may replace the check.

        The class must declare that its answer depends only on the input, and a subclass that overrides the
        methods that answer must declare it again.
        """
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

    def tools_not_in(self, held: Collection[str]) -> Sequence[str]:
        """The tools that it allows or denies by name and that are not among those of a graph. Arbiter warns of
        such a name if it is nearly that of a tool.
        """
        return ()

    def ensure_valid(self) -> None:
        super().ensure_valid()
        if iscoroutinefunction(self.observe):
            raise RegistrationError(
                f"checker {self.name!r}: observe is async; it is called in place, so write it with def."
            )
        if iscoroutinefunction(self.handlers) and not self.blocking:
            raise RegistrationError(
                f"checker {self.name!r}: handlers is async; it is called in place, so write it with def, "
                "or declare blocking = True."
            )
        caught: Any = self.on_caught
        if caught is not None and caught not in get_args(OnCaught):
            raise ConfigurationError(
                f"checker {self.name!r}: on_caught is {caught!r}; expected 'answered', 'deny' or 'continue'."
            )


def _defining(cls: type, method: str) -> type:
    return next(base for base in cls.__mro__ if method in vars(base))


def stops(consequence: object) -> bool:
    """True for a valid consequence of a denial that stops the node: "raise", "end" or "redirect:<node>"."""
    if consequence in ("raise", "end"):
        return True
    return isinstance(consequence, str) and consequence.startswith("redirect:") and consequence != "redirect:"


def question(
    reason: str,
    approvers: Sequence[str] | None = None,
    expires_after: float | None = None,
    retries: int | None = None,
) -> Verdict:
    """The question that a rule with these parameters asks."""
    names = None if approvers is None else list(approvers)
    terms = {"approvers": names, "expires_after": expires_after, "retries": retries}
    return Verdict.ask(reason, **{key: value for key, value in terms.items() if value is not None})


def _with_or_without_output(method: Callable[[Any, History, Any], R]) -> Callable[..., R]:
    """For type checkers: an override may have either form of the method."""
    return method


class PolicyRouter(Contract):
    """Decides after a node ran whether the run leaves its normal edges.

    `max_redirects` caps the redirects of this router in one run of a thread; after that the normal edges are
    taken and the item records it. With `on_error=True` the router is called only if the node has failed for
    good, after LangGraph's own retries (`history.item.error` has the error). `on_cap` is the behaviour at the
    cap: `"continue"` takes the normal edges, `"end"` ends the run, and `"best_attempt"` takes the normal
    edges with the output of the node's attempt in this run that the evaluator `best_by` scored best. With
    `escalates = True` it may also answer `Verdict.ask(reason)`: a human sees the output, and approves, edits
    or rejects it. The body does not run again for that. `on_reject` is like `on_deny` of a checker.
    `max_redirects` then also caps the questions in a run. `needs` names the evaluators whose results it
    reads. `targets` names the nodes that it may return: they are checked when a graph is governed, and another
    answer is an error of the router, in the item, after which the normal edges are taken. Without `targets` it
    may return every node.
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

    @check_parameters
    def __init__(
        self,
        name: str,
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        max_redirects: _MaxRedirects = 3,
        on_error: Annotated[
            bool, Param("ask the router when the node has failed, and not otherwise")
        ] = False,
        deadline: _RouteDeadline = None,
        on_cap: _OnCap = None,
        best_by: _BestBy = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, deadline)
        self.max_redirects = max_redirects
        self.on_error = on_error
        self.on_cap = on_cap or self.on_cap
        if self.on_cap == "best_attempt":
            self.best_by = best_by or self.best_by
            if on_cap is not None and self.best_by is None:
                raise ParameterError(
                    f"router {name!r}",
                    "best_by",
                    "expected the name of an evaluator, got None. on_cap='best_attempt' compares by it.",
                )

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
        if not stops(self.on_reject):
            raise ConfigurationError(
                f"router {self.name!r}: on_reject is {self.on_reject!r}; "
                "expected 'raise', 'redirect:<node>' or 'end'."
            )
        if self.on_cap == "best_attempt" and not self.best_by:
            raise ConfigurationError(
                f"router {self.name!r}: on_cap='best_attempt' compares by an evaluation. Set best_by to its name."
            )
