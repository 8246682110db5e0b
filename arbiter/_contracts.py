"""The common base of all contracts: a name, targets, a deadline, and a method that may be `def` or `async
def`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict, get_args
from weakref import WeakKeyDictionary

from arbiter._threads.forks import new_lock, new_rlock
from arbiter._values.parameters import Param, parameters, problem, words
from arbiter._values.versions import Version, hash_of, parameters_of
from arbiter.errors import ParameterError, RegistrationError
from arbiter.instructions import Instruction, instruction_at

Mode = Literal["enforce", "audit", "off"]
ADDERS = {
    "checker": "add_policy_checker",
    "router": "add_policy_router",
    "evaluator": "add_evaluator",
    "advisor": "add_advisor",
    "gate": "add_correction_gate",
}
"""The methods of an `ArbiterOS` that register contracts, by kind."""
TargetInstructions = Annotated[
    Iterable[Instruction | str] | Instruction | str | None,
    Param(
        "the instructions of the nodes that the rule applies to; all by default",
        expected="an instruction or a list of them",
        tighter="wider",
    ),
]
TargetNodes = Annotated[
    Iterable[str] | str | None,
    Param(
        "the names of the nodes that the rule applies to; all by default",
        expected="the name of a node or a list of them",
        tighter="wider",
    ),
]


Deadline = Annotated[
    float | None, Param("the seconds that each call may take", gt=0, expected="seconds above 0")
]


class Targets(TypedDict, total=False):
    """Which nodes a rule applies to."""

    target_instructions: TargetInstructions
    target_nodes: TargetNodes


class Contract:
    """Base of checkers, routers, evaluators, advisors and correction gates.

    `target_instructions` and `target_nodes` select the nodes to which it applies. If neither is given, it
    applies to all nodes; if both are, to nodes that match one of the instructions *and* one of the names.

    `blocking` says where an async run calls a sync method: `True` on a worker thread, `False` on the event
    loop, `None` (default) on a worker thread until the method has proved to be quick.

    With `mode="enforce"` its decisions take effect. With `"audit"` they are recorded, and the graph behaves
    as if the contract were not there. With `"off"` it is not called.
    """

    kind: ClassVar[str]
    method: ClassVar[str]
    _versioned_as: ClassVar[type | None] = None
    """The class whose parameters count in `version`, if not its own."""
    mode_changes: ClassVar[int] = 0
    """How often the mode of any registered contract has changed. Nodes that were planned before are planned anew."""
    _is_registered: bool = False

    name: str = ""
    target_instructions: tuple[Instruction, ...] | None = None
    target_nodes: tuple[str, ...] | None = None
    deadline: float | None = None
    blocking: bool | None = None
    mode: Mode = "enforce"
    when_idle: tuple[str, str] | None = None
    """Why it applies to no node, and the remedy: for a contract that selects its nodes in a way of its own, or
    whose settings switch it off.
    """
    awaited_steps: tuple[tuple[Instruction | str, ...], ...] = ()
    """The steps without which it does nothing, or denies for good: of each tuple one of the instructions and
    names of nodes. The log says so if no node is such a step."""
    asks: bool = False
    """True if it may ask a human. Its graphs are then checked for a checkpointer."""
    description: str = ""
    source: str = ""
    """The place of its declaration, such as "policies/payments.yaml:14"; empty if code registered it."""
    version: Any = Version()
    """A text of 16 hex digits that changes with the code of a user's class, with each parameter that is kept
    under its name, and with each text that is sent to a model. Set your own to replace it."""

    def __init__(
        self,
        name: str,
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        deadline: Deadline = None,
    ) -> None:
        self.name = name
        self._target(target_instructions, target_nodes)
        if deadline is not None:
            self.deadline = deadline

    def _target(self, instructions: TargetInstructions, nodes: TargetNodes) -> None:
        if isinstance(instructions, str) or not isinstance(instructions, Iterable | None):
            instructions = (instructions,)
        if isinstance(nodes, str):
            nodes = (nodes,)
        where = f"{self.kind} {self.name!r}: target_instructions"
        self.target_instructions = (
            None if instructions is None else tuple(instruction_at(where, each) for each in instructions)
        )
        self.target_nodes = None if nodes is None else tuple(nodes)
        for parameter in Targets.__annotations__:
            targets: tuple[Any, ...] | None = getattr(self, parameter)
            if targets is not None and not all((targets, *targets)):
                raise ParameterError(
                    f"{self.kind} {self.name!r}",
                    parameter,
                    f"expected at least one, got {list(targets)}. Leave it out to mean all.",
                )

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        nodes, instructions = self.target_nodes, self.target_instructions
        return (nodes is None or node in nodes) and (instructions is None or instruction in instructions)

    def governs(self, nodes: Collection[str]) -> None:
        """Called for each governed graph with the names of the nodes to which the contract applies."""

    def version_parts(self) -> Mapping[str, str]:
        """Hashes of what its answers depend on, by name: its class, its parameters and `texts`.

        Chat models are no part of it, and neither are its name and its deadline.
        """
        targets: Sequence[tuple[Any, ...] | None] = (self.target_instructions, self.target_nodes)
        given = parameters_of(self, self._versioned_as)
        known = {name: value for name, value in given.items() if name not in _NOT_ASKED}
        return {
            "class": hash_of(type(self)),
            "targets": hash_of([None if each is None else frozenset(each) for each in targets]),
            **{name: hash_of(value) for name, value in {**known, **self.texts()}.items()},
        }

    def texts(self) -> Mapping[str, Any]:
        """Other things that its answers depend on, by name, such as the prompts that it sends to a model."""
        return {}

    @property
    def enforced(self) -> bool:
        """False in audit mode: decisions are recorded but have no effect."""
        return self.mode == "enforce"

    @property
    def keeps_deadline(self) -> bool:
        """True if its method itself ends by the deadline, so that it needs no thread of its own."""
        return False

    @property
    def redirect_targets(self) -> tuple[str, ...]:
        """The nodes to which this contract may send a run, as far as they are known beforehand."""
        return ()

    def ensure_valid(self) -> None:
        """Raise a `ConfigurationError` if this contract cannot be registered."""
        found: Any = self.name
        if not isinstance(found, str) or not found:
            raise RegistrationError(
                f"a {type(self).__name__} has the name {found!r}; expected a non-empty text. "
                "Call super().__init__(name=...) in its __init__."
            )
        base = next(
            cls
            for cls in type(self).__mro__
            if cls.__module__.startswith("arbiter.") and "method" in vars(cls)
        )
        if getattr(type(self), self.method, None) is getattr(base, self.method):
            raise RegistrationError(
                f"{self.kind} {found!r} ({type(self).__name__}) has no method {self.method!r}. "
                f"Define def {self.method}{_signature(getattr(base, self.method))}."
            )
        self._ensure_callable(getattr(self, self.method), getattr(base, self.method))
        # A subclass may set parameters as attributes after `__init__`, so they are checked again here.
        self._target(self.target_instructions, self.target_nodes)
        for several, names, example in _SEVERAL:
            if several == "targets" and self.kind != "router":  # an attribute of the user's own
                continue
            given: Any = getattr(self, several, ())
            if given is None or isinstance(given, str):
                given = () if given is None else (given,)
                setattr(self, several, given)
            is_several = isinstance(given, Collection)
            if not is_several or not all(isinstance(each, str) for each in given):
                what = f"{several} is {given!r:.80}; expected {names}, such as {several} = ({example!r},)"
                raise RegistrationError(f"{self.kind} {found!r}: {what}.")
        self._ensure_mode(self.mode)
        for name, hint, param in _declared(base):
            value = getattr(self, name, None)
            if problem(param, hint, value) is not None:
                raise RegistrationError(
                    f"{self.kind} {found!r}: {name} is {value!r:.80}; expected {words(param, hint)}."
                )

    def _ensure_callable(self, method: Any, declared: Any) -> None:
        """Raise a `RegistrationError` if no call of the method could give an answer."""
        owner = f"{self.kind} {self.name!r}"
        if not callable(method):
            raise RegistrationError(f"{owner}: {self.method!r} is not callable.")
        if is_generator(method):
            raise RegistrationError(f"{owner}: {self.method!r} has a yield. Return the answer instead.")
        given = list(inspect.signature(declared).parameters)[1:]
        forms = (given, given[:1]) if self.kind == "router" else (given,)
        if not any(map(partial(_takes, method), forms)):
            raise RegistrationError(
                f"{owner}: {self.method!r} cannot be called with {', '.join(given)}. "
                f"Define def {self.method}{_signature(declared)}."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "mode":
            super().__setattr__(name, value)
            return
        self._ensure_mode(value)  # a rule in an unknown mode would have no effect
        before = getattr(self, "mode", None)  # a subclass's property may have no value yet
        super().__setattr__(name, value)
        # Counted only now, so that a plan made in between is not kept.
        if self._is_registered and value != before:
            Contract.mode_changes += 1

    def _ensure_mode(self, mode: object) -> None:
        if mode not in get_args(Mode):
            raise RegistrationError(
                f"{self.kind} {self.name!r}: mode is {mode!r}; expected 'enforce', 'audit' or 'off'."
            )

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(getattr(self, self.method))

    def __copy__(self) -> Self:
        new = type(self).__new__(type(self))
        vars(new).update(vars(self))
        return new

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickles and deep copies, which make locks of their own."""
        return {
            name: _Fresh(type(part)) if type(part) in _FRESH else part for name, part in vars(self).items()
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, part in state.items():
            setattr(self, name, part.made() if type(part) is _Fresh else part)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


_SEVERAL = (("targets", "names of nodes", "review"), ("needs", "names of evaluators", "quality"))
"""Attributes of a class that are names, with an example of each."""
_NOT_ASKED = frozenset({"name", "durable", "deadline", "target_instructions", "target_nodes"})
"""Parameters that change no answer, or have a part of their own."""

_FRESH: Mapping[Any, Callable[[], Any]] = {
    type(threading.Lock()): new_lock,
    type(threading.RLock()): new_rlock,
    WeakKeyDictionary: WeakKeyDictionary,
}


class _Fresh:
    """Replaces, in a copy, an object that every process and copy makes anew."""

    def __init__(self, kind: Any) -> None:
        self.kind = list(_FRESH).index(kind)

    def made(self) -> Any:
        return list(_FRESH.values())[self.kind]()


@cache
def _declared(base: type[Contract]) -> tuple[tuple[str, Any, Param], ...]:
    """The declared parameters that every contract of that kind keeps under their names."""
    return tuple(
        (each.parameter.name, each.hint, each.param)
        for each in parameters(base.__init__)
        if each.param is not None and each.parameter.name not in Targets.__annotations__
    )


def is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _takes(method: Any, given: Sequence[str]) -> bool:
    try:
        with suppress(ValueError):  # it has no signature that can be read
            # That of a decorator's own function, which may add arguments for the one that it wraps.
            inspect.signature(method, follow_wrapped=False).bind(*given)
    except TypeError:
        return False
    return True


def title_of(contract: Contract) -> str:
    """Its kind and name, as in "checker 'limit'", after the place of its declaration if it has one."""
    where = f"{contract.source}: " if contract.source else ""
    return f"{where}{contract.kind} {contract.name!r}"


def _signature(method: Any) -> str:
    return "(" + ", ".join(inspect.signature(method).parameters) + ")"
