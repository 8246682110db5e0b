"""What is registered on an `ArbiterOS`, and which of it applies to a node."""

from __future__ import annotations

import inspect
import secrets
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from arbiter.advice import Advisor, CorrectionGate
from arbiter.calls import EventLoop, Pace, new_lock
from arbiter.contracts import Contract
from arbiter.errors import RegistrationError
from arbiter.evaluation import EvaluatorCycle, NodeEvaluator, spoken
from arbiter.evaluations import Lane
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.verdicts import ALLOW, Verdict

_WITH_TWINS = (Advisor, CorrectionGate)
C = TypeVar("C", bound=Contract)
T = TypeVar("T", bound=Contract)


@dataclass(frozen=True, slots=True)
class Seat(Generic[C]):
    """A registered contract, with how quick it has been."""

    contract: C
    pace: Pace
    name: str
    method: Callable[..., Any]
    deadline: float | None
    is_async: bool
    amethod: Callable[..., Any] | None
    """The twin of the method for async runs, such as `areview`, if it has one."""
    mark: str = field(default_factory=secrets.token_hex)  # not uuid4, whose numbers people's tests count
    """Tells this registration from every other, also of a contract with that name in another process."""

    @property
    def timed(self) -> Callable[..., Any]:
        """The method, so that it is remembered how long it took."""
        return partial(self.pace.timed, self.method)

    @staticmethod
    def of(contract: T, method: str = "") -> Seat[T]:
        """The contract with its method, or with that other method of it."""
        called = getattr(contract, method or contract.method)
        is_async = inspect.iscoroutinefunction(called)
        if isinstance(contract, PolicyRouter) and not accepts_output(contract):
            called = _without_output(called)
        # A deadline can be kept on another thread only, so a contract that has one is never called in place.
        blocking = contract.blocking if contract.deadline is None else True
        return Seat(
            contract,
            Pace(blocking),
            contract.name,
            called,
            contract.deadline,
            is_async,
            getattr(contract, f"a{contract.method}", None) if isinstance(contract, _WITH_TWINS) else None,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What applies to one node, in the order of registration."""

    checkers: tuple[Seat[PolicyChecker], ...] = ()
    advisors: tuple[Seat[Advisor], ...] = ()
    gate: Seat[CorrectionGate] | None = None
    lanes: tuple[Lane, ...] = ()
    cycle: EvaluatorCycle | None = None
    members: tuple[Lane, ...] = ()
    """Of the evaluators, those that the cycle runs together."""
    elsewhere: tuple[str, ...] = ()
    """Evaluators of the cycle that do not apply to the node."""
    awaited: tuple[Lane, ...] = ()
    """Evaluators whose results are always committed: durable ones, those by which attempts are compared, and those
    of a cycle that runs inline."""
    unseen: frozenset[str] = frozenset()
    """Evaluators whose results nobody may act by."""
    guards: bool = False
    """Whether decisions of one of the checkers hold."""
    checks: tuple[Callable[..., Any], ...] = ()
    timed_checks: tuple[Callable[..., Any], ...] = ()
    """The methods of the checkers: as they are, and so that it is remembered how long they took."""
    routers: tuple[Seat[PolicyRouter], ...] = ()
    routes: tuple[Callable[..., Any], ...] = ()
    timed_routes: tuple[Callable[..., Any], ...] = ()
    """As for checkers."""
    error_routers: tuple[Seat[PolicyRouter], ...] = ()
    observers: tuple[PolicyChecker, ...] = ()
    """Checkers that want to know how the node run ended."""
    watchers: tuple[PolicyChecker, ...] = ()
    """Checkers that look into the body."""
    output_checkers: tuple[Seat[PolicyChecker], ...] = ()
    """Checkers that look at the output before it is committed."""
    spends: frozenset[str] = frozenset()
    """All checkers, of this node or not, that count what is used up."""
    recovers: bool = False
    keeps_output: bool = False
    """Whether a router may come back to an earlier output."""
    escalates: bool = False
    """Whether a router may ask a human about the output."""
    all_allowed: MappingProxyType[str, Verdict] = field(default_factory=lambda: MappingProxyType({}))
    no_routes: MappingProxyType[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    """`all_allowed` as a fact holds it."""
    only_async: Contract | None = None
    """A contract that only an async run can call, if there is one."""
    shadow: Plan | None = None
    """What a shadow constitution would apply."""
    plain: bool = True
    """Nothing applies but checkers, routers and evaluators that are called and answer: no other stage has to be gone
    through unless one of them objects."""
    paces: tuple[Pace, ...] = ()
    """In an async run, those of the contracts that then have to be quick."""
    empty: bool = True
    """Nothing applies: there is nothing to decide, only to record."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self


class Registry:
    """Contracts in the order in which they were added. `version` grows with each."""

    def __init__(self) -> None:
        self.version = 0
        self._lock = new_lock()
        self._loop = EventLoop()
        """Of the async evaluators registered here: one that blocks holds up those of no other `ArbiterOS`."""
        weakref.finalize(self, self._loop.end).atexit = False
        self.checkers: list[Seat[PolicyChecker]] = []
        self.output_checkers: list[Seat[PolicyChecker]] = []
        self.routers: list[Seat[PolicyRouter]] = []
        self.evaluators: list[Lane] = []
        self.advisors: list[Seat[Advisor]] = []
        self.gates: list[Seat[CorrectionGate]] = []
        self.shadow: Registry | None = None
        self.cycle: EvaluatorCycle | None = None
        self._cycle_was_added = False

    @property
    def empty(self) -> bool:
        return self.version == 0

    def watch(self, shadow: Registry | None) -> None:
        """Let what is in `shadow` decide beside these, without effect."""
        with self._lock:
            self.shadow = shadow
            self.version += 1

    def with_replaced(self, old: Collection[Contract], new: Sequence[Contract]) -> Registry:
        """What this would be with `new`, in front, in the place of `old`. Raises where a name is taken."""
        draft = Registry()
        with self._lock:
            draft.cycle = self.cycle
            for contract in (*new, *(c for c in self._contracts() if c not in old)):
                draft._add(contract)
            draft.advisors, draft.gates = list(self.advisors), list(self.gates)
        return draft

    def adopt(self, draft: Registry) -> None:
        """Be what `draft` is, and go on with the evaluators that stay."""
        with self._lock:
            kept = {id(lane.evaluator): lane for lane in self.evaluators}
            self.evaluators = [kept.get(id(lane.evaluator), lane) for lane in draft.evaluators]
            self.checkers = _keeping(self.checkers, draft.checkers)
            self.routers = _keeping(self.routers, draft.routers)
            self.output_checkers = _keeping(self.output_checkers, draft.output_checkers)
            self.cycle = draft.cycle
            self.version += 1

    def _contracts(self) -> list[Contract]:
        seats: list[Seat[Any]] = [*self.checkers, *self.routers]
        return [*(lane.evaluator for lane in self.evaluators), *(seat.contract for seat in seats)]

    def contracts(self) -> list[Contract]:
        """All of them, those of a shadow too."""
        with self._lock:
            seats: list[Seat[Any]] = [*self.advisors, *self.gates]
            shadow = [] if self.shadow is None else self.shadow.contracts()
            return [*self._contracts(), *(seat.contract for seat in seats), *shadow]

    def add(self, contract: Contract) -> None:
        with self._lock:
            self._add(contract)

    def add_cycle(self, cycle: EvaluatorCycle) -> None:
        """Run with it the evaluators that it takes."""
        with self._lock:
            if self._cycle_was_added and cycle is not self.cycle:
                raise RegistrationError(
                    f"an evaluation cycle is registered already ({type(self.cycle).__name__}); "
                    "there is one at most."
                )
            self._check_members(cycle, [lane.evaluator for lane in self.evaluators])
            self.cycle, self._cycle_was_added = cycle, True
            self.version += 1

    def _check_members(self, cycle: EvaluatorCycle, evaluators: Sequence[NodeEvaluator]) -> None:
        cycle.check([evaluator for evaluator in evaluators if cycle.takes(evaluator)])

    def remove_evaluator(self, name: str) -> None:
        """Judge with it no more."""
        with self._lock:
            if (found := next((lane for lane in self.evaluators if lane.name == name), None)) is None:
                raise RegistrationError(
                    f"there is no evaluator {name!r} to remove. "
                    f"Evaluators: {', '.join(lane.name for lane in self.evaluators) or 'none'}."
                )
            self.evaluators.remove(found)
            self.version += 1

    def _add(self, contract: Contract) -> None:
        if isinstance(contract, NodeEvaluator) and self._has(contract):
            return
        self._refuse_duplicate(contract)
        match contract:
            case PolicyChecker():
                self.checkers.append(Seat.of(contract))
                if _defines(contract, "check_after"):
                    self.output_checkers.append(Seat.of(contract, "check_after"))
            case PolicyRouter():
                self.routers.append(Seat.of(contract))
            case NodeEvaluator():
                cycle = self.cycle or contract.default_cycle()
                if cycle is not None:
                    self._check_members(cycle, [*(lane.evaluator for lane in self.evaluators), contract])
                self.cycle = cycle
                self.evaluators.append(Lane(contract, self._loop))
            case Advisor():
                self.advisors.append(Seat.of(contract))
            case CorrectionGate():
                self.gates.append(Seat.of(contract))
            case _:
                raise RegistrationError(f"{contract!r} is none of the contracts.")
        self.version += 1

    def _has(self, evaluator: NodeEvaluator) -> bool:
        return any(lane.evaluator is evaluator for lane in self.evaluators)

    def _refuse_alias(self, evaluator: NodeEvaluator) -> None:
        for lane in self.evaluators:
            other = lane.evaluator
            theirs = {spoken(name) for name in (other.name, *other.similes)}
            clash = [name for name in evaluator.similes if spoken(name) in theirs]
            if spoken(evaluator.name) in {spoken(name) for name in other.similes}:
                clash.append(evaluator.name)
            if clash:
                raise RegistrationError(
                    f"evaluator {evaluator.name!r} cannot go by {clash[0]!r}: evaluator {other.name!r} does. "
                    "Names and similes must differ in more than case, blanks, '-' and '_'."
                )

    def _refuse_duplicate(self, contract: Contract) -> None:
        # Checkers and routers are both policies: one name must say which policy denied or redirected.
        taken: Sequence[Contract]
        if isinstance(contract, PolicyChecker | PolicyRouter):
            taken = [*(s.contract for s in self.checkers), *(s.contract for s in self.routers)]
        elif isinstance(contract, NodeEvaluator):
            taken = [lane.evaluator for lane in self.evaluators]
            self._refuse_alias(contract)
        elif isinstance(contract, Advisor):
            taken = [s.contract for s in self.advisors]
        else:
            taken = [s.contract for s in self.gates]
        for other in taken:
            if other.name == contract.name:
                raise RegistrationError(
                    f"a {other.kind} named {contract.name!r} is registered already "
                    f"({type(other).__name__}). Give this {type(contract).__name__} another name."
                )

    def plan(self, node: str, instruction: Instruction | None, reachable: frozenset[str]) -> Plan:
        """What applies to that node. `reachable` are the nodes of its graph: a policy that redirects
        elsewhere belongs to another graph."""
        with self._lock:
            checkers = tuple(_applying(self.checkers, node, instruction, reachable))
            output_checkers = tuple(_applying(self.output_checkers, node, instruction, reachable))
            routers = tuple(_applying(self.routers, node, instruction, reachable))
            gates = tuple(_applying(self.gates, node, instruction, reachable))
            plain = tuple(seat for seat in routers if not seat.contract.on_error)
            advisors = tuple(_applying(self.advisors, node, instruction, reachable))
            lanes = tuple(
                lane
                for lane in self.evaluators
                if lane.evaluator.mode != "off" and lane.evaluator.applies_to(node, instruction)
            )
            cycle = self.cycle
            members = () if cycle is None else tuple(lane for lane in lanes if cycle.takes(lane.evaluator))
            inline = cycle is not None and cycle.mode == "inline"
            compared = {
                seat.contract.best_by
                for seat in routers
                if seat.contract.on_cap == "best_attempt" and seat.contract.enforced
            }
            called: list[Seat[Any]] = [*checkers, *advisors, *gates, *output_checkers, *routers]
            observers = tuple(
                seat.contract
                for seat in self.checkers
                if seat.contract.mode != "off"
                and _defines(seat.contract, "observe")
                and seat.contract.observes(node, instruction)
            )
            shadow = None if self.shadow is None else self.shadow.plan(node, instruction, reachable)
            if shadow is not None and shadow.empty:
                shadow = None
            return Plan(
                checkers=checkers,
                guards=any(seat.contract.enforced for seat in checkers),
                checks=tuple(seat.method for seat in checkers),
                timed_checks=tuple(seat.timed for seat in checkers),
                advisors=advisors,
                gate=gates[0] if gates else None,
                lanes=lanes,
                awaited=tuple(
                    lane
                    for lane in lanes
                    if lane.evaluator.enforced
                    and (lane.evaluator.durable or lane.name in compared or (inline and lane in members))
                ),
                cycle=cycle,
                members=members,
                elsewhere=tuple(
                    lane.name
                    for lane in self.evaluators
                    if cycle is not None
                    and lane not in lanes
                    and lane.evaluator.mode != "off"
                    and cycle.takes(lane.evaluator)
                ),
                unseen=frozenset(lane.name for lane in lanes if not lane.evaluator.enforced),
                routers=plain,
                routes=tuple(seat.method for seat in plain),
                timed_routes=tuple(seat.timed for seat in plain),
                error_routers=tuple(seat for seat in routers if seat.contract.on_error),
                all_allowed=MappingProxyType({seat.name: ALLOW for seat in checkers}),
                no_routes=MappingProxyType({seat.name: None for seat in plain}),
                kinds={seat.name: "allow" for seat in checkers},
                observers=observers,
                watchers=tuple(s.contract for s in checkers if _defines(s.contract, "handlers")),
                output_checkers=output_checkers,
                spends=frozenset(seat.name for seat in self.checkers if seat.contract.spends),
                recovers=any(c.recovers for c in (*observers, *(shadow.observers if shadow else ()))),
                keeps_output=bool(compared),
                escalates=any(s.contract.escalates and s.contract.enforced for s in routers),
                only_async=next(
                    (seat.contract for seat in called if seat.is_async and seat.contract.enforced), None
                ),
                shadow=shadow,
                plain=not (advisors or gates or output_checkers or members or compared)
                and shadow is None
                and not any(c.recovers or c.needs_of(node, instruction) for c in observers)
                and all(_is_plain(seat) for seat in checkers)
                and all(_is_plain(seat) for seat in routers)
                and not any(lane.evaluator.durable for lane in lanes),
                paces=tuple(
                    [seat.pace for seat in checkers]
                    + [seat.pace for seat in routers]
                    + [
                        Pace(True) if lane.is_async else lane.pace
                        for lane in lanes
                        if any(lane.name in seat.contract.needs for seat in routers)
                    ]
                ),
                empty=not called and not lanes and not observers and shadow is None,
            )


def _is_plain(seat: Seat[Any]) -> bool:
    """Whether that contract is called and answers, and that is all."""
    contract = seat.contract
    return (
        contract.enforced
        and seat.deadline is None
        and not seat.is_async
        and not (isinstance(contract, PolicyChecker) and _defines(contract, "handlers"))
        and not (isinstance(contract, PolicyRouter) and contract.escalates)
    )


def _applying(
    seats: Sequence[Seat[C]], node: str, instruction: Instruction | None, reachable: frozenset[str]
) -> list[Seat[C]]:
    return [
        seat
        for seat in seats
        if seat.contract.mode != "off"
        and seat.contract.applies_to(node, instruction)
        # A router to a node of another graph belongs there. A checker always applies: where its
        # redirect leads nowhere, its denial raises.
        and (seat.contract.kind == "checker" or reachable.issuperset(seat.contract.redirect_targets))
    ]


def _keeping(before: Sequence[Seat[C]], new: Sequence[Seat[C]]) -> list[Seat[C]]:
    """`new`, with the very seats of `before` of contracts that are still the same."""
    kept = {id(seat.contract): seat for seat in before}
    return [kept.get(id(seat.contract), seat) for seat in new]


def _defines(checker: PolicyChecker, method: str) -> bool:
    return getattr(type(checker), method) is not getattr(PolicyChecker, method) or method in vars(checker)


def _without_output(route: Callable[[History], Any]) -> Callable[[History, Any], Any]:
    return lambda history, output: route(history)


def accepts_output(router: PolicyRouter) -> bool:
    """Whether `route_after` takes the output too, or is of the older form with the history alone."""
    try:
        parameters = inspect.signature(router.route_after).parameters.values()
    except (TypeError, ValueError):
        return True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 or any(p.kind == p.VAR_POSITIONAL for p in parameters)
