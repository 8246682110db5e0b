"""The contracts registered on an `ArbiterOS`, and the plan of contracts that apply to a node."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from arbiter._contracts import Contract
from arbiter._lifecycle.evaluations import Evaluations, EvaluatorQueue, ReadEvaluations, owner_of
from arbiter._threads.deadlines import EventLoop, InlineTiming
from arbiter._threads.forks import new_lock
from arbiter.advice import Advisor, CorrectionGate
from arbiter.errors import RegistrationError, nearest, with_article
from arbiter.evaluation import EvaluatorGroup, NodeEvaluator
from arbiter.history._items import History
from arbiter.history._record import Described
from arbiter.instructions import Instruction
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.verdicts import ALLOW, Verdict

_WITH_TWINS = (Advisor, CorrectionGate)
C = TypeVar("C", bound=Contract)
T = TypeVar("T", bound=Contract)


@dataclass(frozen=True, slots=True)
class Registration(Generic[C]):
    """A registered contract, with the timing of its method."""

    contract: C
    timing: InlineTiming
    name: str
    method: Callable[..., Any]
    deadline: float | None
    is_async: bool
    amethod: Callable[..., Any] | None
    """The twin of the method for async runs, such as `areview`, if it has one."""
    in_place: bool
    """True if it is called on the thread of the run: it has no deadline, and its decisions hold."""
    token: str = field(default_factory=secrets.token_hex)  # not uuid4, whose numbers people's tests count
    """Tells this registration from every other, also of a contract with that name in another process."""

    @staticmethod
    def of(contract: T, method: str = "") -> Registration[T]:
        """The registration of a contract with its own method, or with another method of it."""
        called = getattr(contract, method or contract.method)
        is_async = inspect.iscoroutinefunction(called)
        if isinstance(contract, PolicyRouter) and not accepts_output(contract):
            called = _without_output(called)
        # A deadline needs another thread, so a contract with one is never called in place.
        deadline = None if contract.keeps_deadline else contract.deadline
        blocking = contract.blocking if deadline is None else True
        return Registration(
            contract,
            InlineTiming(blocking),
            contract.name,
            called,
            deadline,
            is_async,
            getattr(contract, f"a{contract.method}", None) if isinstance(contract, _WITH_TWINS) else None,
            deadline is None and contract.enforced,
        )

    def in_mode(self) -> Registration[C]:
        """This registration, as the mode of the contract is now."""
        in_place = self.deadline is None and self.contract.enforced
        return self if in_place == self.in_place else replace(self, in_place=in_place)


@dataclass(frozen=True, slots=True)
class Plan:
    """The contracts that apply to one node, in the order of registration."""

    checkers: tuple[Registration[PolicyChecker], ...] = ()
    advisors: tuple[Registration[Advisor], ...] = ()
    gate: Registration[CorrectionGate] | None = None
    queues: tuple[EvaluatorQueue, ...] = ()
    group: EvaluatorGroup | None = None
    members: tuple[EvaluatorQueue, ...] = ()
    """Those of them that the group runs."""
    awaited: tuple[EvaluatorQueue, ...] = ()
    """Evaluators whose results are always committed.

    These are durable ones, those by which attempts are compared, and those of a durable group.
    """
    audited: frozenset[str] = frozenset()
    """Evaluators in audit mode: routers and checkers do not see their results."""
    known: tuple[str, ...] = ()
    """All evaluators, of this node or not."""
    unjudged: ReadEvaluations | None = None
    """The results that routers see of a node that no evaluator judges: none."""
    guards: bool = False
    """True if one of the checkers is enforced."""
    routers: tuple[Registration[PolicyRouter], ...] = ()
    error_routers: tuple[Registration[PolicyRouter], ...] = ()
    observers: tuple[PolicyChecker, ...] = ()
    """Checkers that observe the end of the node run."""
    watchers: tuple[PolicyChecker, ...] = ()
    """Checkers that look into the body."""
    waiting: tuple[Registration[PolicyChecker], ...] = ()
    """Those of `watchers` whose `handlers` may wait, so that an async run calls them on another thread."""
    output_checkers: tuple[Registration[PolicyChecker], ...] = ()
    """Checkers that check the output before it is committed."""
    counts_consumption: frozenset[str] = frozenset()
    """All checkers, of this node or not, whose counts are consumption."""
    reads_unfinished: bool = False
    keeps_output: bool = False
    """True if a router may return to an earlier output."""
    escalates: bool = False
    """True if a router may ask a human about the output."""
    all_allowed: MappingProxyType[str, Verdict] = field(default_factory=lambda: MappingProxyType({}))
    no_routes: MappingProxyType[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    """`all_allowed` in the form that a fact stores."""
    called: tuple[Registration[Any], ...] = ()
    """The registrations that are called by themselves: not the evaluators."""
    only_async: Contract | None = None
    """A contract that only an async run can call, or None."""
    shadow: Plan | None = None
    """The plan of a shadow constitution."""
    empty: bool = True
    """True if no contract applies, so that the node run is only recorded."""
    rules: Described | None = None
    """The constitution in force."""
    targets: frozenset[str] = frozenset()
    """The nodes to which a policy may redirect: those of the node's graph, and END."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self


class Registry:
    """Contracts in the order in which they were added."""

    def __init__(self) -> None:
        self.changes = 0
        """How often it has changed. While it is 0, there is nothing that node runs would leave facts for."""
        self._lock = new_lock()
        self._loop = EventLoop()
        """The event loop of this `ArbiterOS`'s async evaluators. An evaluator that blocks it delays no other
        `ArbiterOS`.
        """
        self.checkers: list[Registration[PolicyChecker]] = []
        self.output_checkers: list[Registration[PolicyChecker]] = []
        self.routers: list[Registration[PolicyRouter]] = []
        self.evaluators: list[EvaluatorQueue] = []
        self.advisors: list[Registration[Advisor]] = []
        self.gates: list[Registration[CorrectionGate]] = []
        self.shadow: Registry | None = None
        self.rules: Described | None = None
        """The constitution in force."""
        self.group: EvaluatorGroup | None = None
        self._group_was_added = False

    @property
    def version(self) -> int:
        """Grows with each change, also of the mode of a contract."""
        return self.changes + Contract.mode_changes

    def watch(self, shadow: Registry | None) -> None:
        """Let the contracts of `shadow` decide next to these, without effect."""
        with self._lock:
            self.shadow = shadow
            self.changes += 1

    def keep_facts(self) -> None:
        """From now on commit the facts of node runs even if there are no contracts."""
        with self._lock:
            self.changes += 1

    def with_replaced(self, old: Collection[Contract], new: Sequence[Contract]) -> Registry:
        """A copy of this registry with `new`, in front, instead of `old`. Raises `RegistrationError` if a
        name is taken.
        """
        draft = Registry()
        with self._lock:
            draft.group = self.group
            for contract in (*new, *(c for c in self._contracts() if c not in old)):
                draft._add(contract)
            draft.advisors, draft.gates = list(self.advisors), list(self.gates)
        return draft

    def adopt(self, draft: Registry, rules: Described) -> None:
        """Take over the contracts of `draft` and its constitution. Evaluators that stay keep their queues."""
        with self._lock:
            self.rules = rules
            kept = {id(queue.evaluator): queue for queue in self.evaluators}
            self.evaluators = [kept.get(id(queue.evaluator), queue) for queue in draft.evaluators]
            self.checkers = _keeping(self.checkers, draft.checkers)
            self.routers = _keeping(self.routers, draft.routers)
            self.output_checkers = _keeping(self.output_checkers, draft.output_checkers)
            self.group = draft.group
            self.changes += 1

    def _contracts(self) -> list[Contract]:
        registrations: list[Registration[Any]] = [*self.checkers, *self.routers]
        return [
            *(queue.evaluator for queue in self.evaluators),
            *(registration.contract for registration in registrations),
        ]

    def contracts(self) -> list[Contract]:
        """All contracts, those of a shadow included."""
        with self._lock:
            return [*self._all(), *([] if self.shadow is None else self.shadow.contracts())]

    def _all(self) -> list[Contract]:
        registrations: list[Registration[Any]] = [*self.advisors, *self.gates]
        return [*self._contracts(), *(registration.contract for registration in registrations)]

    def add(self, contract: Contract) -> None:
        with self._lock:
            self._add(contract)

    def add_group(self, group: EvaluatorGroup) -> None:
        """Set the group, which runs the evaluators that it takes."""
        with self._lock:
            if self._group_was_added and group is not self.group:
                raise RegistrationError(
                    f"a group of evaluators is registered already ({type(self.group).__name__}); "
                    "there is one at most."
                )
            self._check_group(group)
            self.group, self._group_was_added = group, True
            self.changes += 1

    def _check_group(self, group: EvaluatorGroup, *new: NodeEvaluator) -> None:
        evaluators = (*(queue.evaluator for queue in self.evaluators), *new)
        group.check([evaluator for evaluator in evaluators if group.takes(evaluator)])

    def registered(self, kind: type[T]) -> tuple[T, ...]:
        """The contracts of that kind, in the order of registration."""
        with self._lock:
            return tuple(contract for contract in self._all() if isinstance(contract, kind))

    def named(self, name: str, kind: type[Contract] = Contract) -> Contract:
        """The only contract of that kind and name."""
        known = self.registered(kind)
        found = [contract for contract in known if contract.name == name]
        if len(found) > 1:
            kinds = " and ".join(with_article(contract.kind) for contract in found)
            raise RegistrationError(f"{name!r} is {kinds}. Pass the object to remove instead of the name.")
        if not found:
            what = "rule" if kind is Contract else kind.kind
            names = [contract.name for contract in known]
            raise RegistrationError(
                f"there is no {what} {name!r} to remove. {what.capitalize()}s: {', '.join(names) or 'none'}."
                f"{nearest(name, names)}"
            )
        return found[0]

    def remove(self, contract: Contract) -> None:
        """Forget that contract. Raises where another reads what it finds."""
        with self._lock:
            if not any(contract is each for each in self._all()):
                raise RegistrationError(
                    f"{contract!r:.80} is not registered, so it cannot be removed. "
                    "A rule made of a function is removed by its name."
                )
            if isinstance(contract, NodeEvaluator):
                self._refuse_needed(contract)
            self.evaluators = [queue for queue in self.evaluators if queue.evaluator is not contract]
            self.checkers = _without(self.checkers, contract)
            self.output_checkers = _without(self.output_checkers, contract)
            self.routers = _without(self.routers, contract)
            self.advisors = _without(self.advisors, contract)
            self.gates = _without(self.gates, contract)
            if self.group is not None:
                self._check_group(self.group)
            self.changes += 1

    def _refuse_needed(self, evaluator: NodeEvaluator) -> None:
        names = [queue.name for queue in self.evaluators]
        for other in self._all():
            if isinstance(other, Advisor):  # which gives nothing then, and decides nothing
                continue
            read = [*getattr(other, "needs", ()), getattr(other, "best_by", None)]
            if evaluator.name in (owner_of(name, names) for name in read if name is not None):
                raise RegistrationError(
                    f"{other.kind} {other.name!r} reads the results of {evaluator.name!r}. Remove it first."
                )

    def _add(self, contract: Contract) -> None:
        if any(queue.evaluator is contract for queue in self.evaluators):
            return
        self._refuse_duplicate(contract)
        vars(contract)["_is_registered"] = True  # before a plan may have it
        match contract:
            case PolicyChecker():
                self.checkers.append(Registration.of(contract))
                if _defines(contract, "check_after"):
                    self.output_checkers.append(Registration.of(contract, "check_after"))
            case PolicyRouter():
                self.routers.append(Registration.of(contract))
            case NodeEvaluator():
                group = self.group
                if group is None and contract.group_type is not None:
                    group = contract.group_type()
                if group is not None:
                    self._check_group(group, contract)
                self.group = group
                self.evaluators.append(EvaluatorQueue(contract, self._loop))
            case Advisor():
                self.advisors.append(Registration.of(contract))
            case CorrectionGate():
                self.gates.append(Registration.of(contract))
            case _:
                raise RegistrationError(f"{contract!r} is not a registered contract.")
        self.changes += 1

    def _refuse_duplicate(self, contract: Contract) -> None:
        # Checkers and routers are both policies, so a name must identify the one that denied or redirected.
        # By the classes and not by `kind`, which a class of the user's may have given another word.
        bases = (PolicyChecker, PolicyRouter), NodeEvaluator, Advisor, CorrectionGate
        taken = next((base for base in bases if isinstance(contract, base)), ())
        for other in self._all():
            if other.name == contract.name and isinstance(other, taken):
                what = f"{type(other).__name__}{other.source and f' of {other.source}'}"
                raise RegistrationError(
                    f"{with_article(other.kind)} named {contract.name!r} is registered already ({what}). "
                    f"Give this {contract.kind} another name, or call arbiter_os.remove({contract.name!r}) before."
                )

    def plan(self, node: str, instruction: Instruction | None, reachable: frozenset[str]) -> Plan:
        """The contracts that apply to that node.

        `reachable` are the nodes of its graph: a policy that redirects to another node belongs to another
        graph.
        """
        with self._lock:
            checkers = _applying(self.checkers, node, instruction, reachable)
            output_checkers = _applying(self.output_checkers, node, instruction, reachable)
            routers = _applying(self.routers, node, instruction, reachable)
            advisors = _applying(self.advisors, node, instruction, reachable)
            gates = _applying(self.gates, node, instruction, reachable)
            queues = tuple(
                queue
                for queue in self.evaluators
                if queue.evaluator.mode != "off" and queue.evaluator.applies_to(node, instruction)
            )
            group = self.group
            members = () if group is None else tuple(q for q in queues if group.takes(q.evaluator))
            waited = members if group is not None and group.durable else ()
            deciding = [each.contract for each in routers if each.contract.enforced]
            compared = {router.best_by for router in deciding if router.on_cap == "best_attempt"}
            names = [queue.name for queue in queues]
            owners = {owner_of(name, names) for name in compared if name is not None}
            known = tuple(queue.name for queue in self.evaluators)
            called: tuple[Registration[Any], ...] = (
                *checkers,
                *advisors,
                *gates,
                *output_checkers,
                *routers,
            )
            registered = [each.contract for each in self.checkers]
            observers = tuple(
                checker
                for checker in registered
                if checker.mode != "off"
                and _defines(checker, "observe")
                and checker.observes(node, instruction)
            )
            watchers = tuple(each.contract for each in checkers if _defines(each.contract, "handlers"))
            plain = tuple(each for each in routers if not each.contract.on_error)
            only_async = (each.contract for each in called if each.is_async and each.contract.enforced)
            shadow = None if self.shadow is None else self.shadow.plan(node, instruction, reachable)
            if shadow is not None and shadow.empty:
                shadow = None
            return Plan(
                checkers=checkers,
                guards=any(each.contract.enforced for each in checkers),
                advisors=advisors,
                gate=gates[0] if gates else None,
                queues=queues,
                awaited=tuple(
                    queue
                    for queue in queues
                    if queue.evaluator.enforced
                    and (queue.evaluator.durable or queue.name in owners or queue in waited)
                ),
                group=group,
                members=members,
                known=known,
                unjudged=None if queues else ReadEvaluations(Evaluations((), None), known=known),
                audited=frozenset(queue.name for queue in queues if not queue.evaluator.enforced),
                routers=plain,
                error_routers=tuple(each for each in routers if each.contract.on_error),
                all_allowed=MappingProxyType({each.name: ALLOW for each in checkers}),
                no_routes=MappingProxyType({each.name: None for each in plain}),
                kinds={each.name: "allow" for each in checkers},
                observers=observers,
                watchers=watchers,
                waiting=tuple(Registration.of(each, "handlers") for each in watchers if each.blocking),
                output_checkers=output_checkers,
                counts_consumption=frozenset(each.name for each in registered if each.counts_consumption),
                reads_unfinished=any(
                    each.reads_unfinished for each in (*observers, *(shadow.observers if shadow else ()))
                ),
                keeps_output=bool(compared),
                escalates=any(router.escalates for router in deciding),
                called=called,
                only_async=next(only_async, None),
                shadow=shadow,
                empty=not called and not queues and not observers and shadow is None,
                rules=self.rules,
                targets=reachable,
            )


def shadow_of(contracts: Iterable[Contract]) -> Registry:
    """A registry in which the enforced ones of these contracts decide without effect."""
    shadow = Registry()
    for contract in contracts:
        if contract.enforced:
            contract.mode = "audit"  # its side effects are suppressed too
            shadow.add(contract)
    return shadow


def _applying(
    registrations: Sequence[Registration[C]],
    node: str,
    instruction: Instruction | None,
    reachable: frozenset[str],
) -> tuple[Registration[C], ...]:
    return tuple(
        registration.in_mode()
        for registration in registrations
        if registration.contract.mode != "off"
        and registration.contract.applies_to(node, instruction)
        # A router to a node of another graph belongs there. A checker always applies: if its redirect has no
        # target here, its denial raises.
        and (
            registration.contract.kind == "checker"
            or reachable.issuperset(registration.contract.redirect_targets)
        )
    )


def _without(registrations: Sequence[Registration[C]], contract: Contract) -> list[Registration[C]]:
    return [registration for registration in registrations if registration.contract is not contract]


def _keeping(before: Sequence[Registration[C]], new: Sequence[Registration[C]]) -> list[Registration[C]]:
    """`new`, with the registrations of `before` for contracts that are still the same."""
    kept = {id(registration.contract): registration for registration in before}
    return [kept.get(id(registration.contract), registration) for registration in new]


def _defines(checker: PolicyChecker, method: str) -> bool:
    return getattr(type(checker), method) is not getattr(PolicyChecker, method) or method in vars(checker)


def _without_output(route: Callable[[History], Any]) -> Callable[[History, Any], Any]:
    return lambda history, output: route(history)


def accepts_output(router: PolicyRouter) -> bool:
    """True if `route_after` takes the output too; False for the older form with the history alone."""
    try:
        parameters = inspect.signature(router.route_after).parameters.values()
    except (TypeError, ValueError):
        return True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 or any(p.kind == p.VAR_POSITIONAL for p in parameters)
