"""The rules that apply to each node of a governed graph, and reports of rules that lack theirs.

If a target is a misspelt node, governing the graph is an error. Functions are governed one by one, so there
the first call of one raises the error. Any other unknown target may be a node of a graph that is governed
later. So it is reported at the first run of a governed graph, in one warning for each source of rules. If no
node has an instruction, that is reported when the graph is governed.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig

from arbiter._conditions import Condition
from arbiter._contracts import Contract, title_of
from arbiter._lifecycle.evaluations import owner_of
from arbiter._lifecycle.registry import Plan, Registry
from arbiter._threads.forks import new_lock
from arbiter._values.exceptions import ExceptionNames
from arbiter._values.spelling import misspelt
from arbiter._weaving.asking import saver_of
from arbiter._weaving.channel import Origin, conf_of, facts_channel_in
from arbiter._weaving.govern import SAVE_QUESTIONS, unsaved
from arbiter._weaving.tools import tools_in
from arbiter.advice import Advisor
from arbiter.errors import ArbiterWarning, UnknownNodeError, callers, nearest
from arbiter.instructions import Instruction
from arbiter.policy import PolicyChecker, PolicyRouter

if TYPE_CHECKING:
    from arbiter._constitution.bindings import BindingPack
    from arbiter._constitution.loading import Constitution

Node = tuple[str, Instruction | None]
"""Name and instruction. A node of a subgraph is named `parent:child`."""
SHIPPED = "arbiter:"
_MOST = 10
_log = logging.getLogger("arbiter")
_NO_INSTRUCTION = "no node has an instruction"
_INIT = "Run `arbiter init app.py:graph`, or name the instructions in govern(graph, instructions={...})."
_Claim = tuple[str, Sequence[str], Sequence[str], bool]
"""The start of an error message about nodes, their names, other nodes that are named beside them, and True if the
names have those of their parents in front."""
_Form = tuple[str, str, tuple[str, str]]
_RULES: _Form = ("", "rules", ("applies to no node", "apply to no node"))
_STEPS: _Form = ("", "rules", ("waits for a step that never comes", "wait for steps that never come"))
_EVALUATORS: _Form = (
    "",
    "advisors",
    ("reads an evaluator that is not registered", "read evaluators that are not registered"),
)
_RESULTS: _Form = (
    "",
    "routers",
    ("reads an evaluator that judges none of its nodes", "read evaluators that judge none of their nodes"),
)
_CONDITIONS: _Form = ("", "rules", ("names a node that does not exist", "name nodes that do not exist"))
_EXCEPTIONS: _Form = (
    "",
    "routers",
    ("names an exception that does not exist", "name exceptions that do not exist"),
)
_BINDINGS: _Form = ("the binding of ", "bindings", ("fits no node", "fit no node"))
_SHADOWED: _Form = ("the binding of ", "bindings", ("has no effect", "have no effect"))


@dataclass(frozen=True, slots=True)
class _Idle:
    """A rule that applies to no node or waits for none, or a binding that matches none. `source` is its file and line,
    or ""."""

    what: str
    why: str
    remedy: str
    source: str
    form: _Form = _RULES

    @property
    def line(self) -> int:
        line = self.source.rpartition(":")[2]
        return int(line) if line.isdigit() else 0


class Coverage:
    """Compares the nodes that one `ArbiterOS` governs with the rules registered for them."""

    def __init__(self, registry: Registry) -> None:
        self.bindings: Sequence[BindingPack] = ()
        self._registry = registry
        self._lock = new_lock()
        self._nodes: set[Node] = set()
        self._reported: dict[object, object] = {}
        """The rules and binding packs that were reported, by `_key`."""
        self._checked = 0
        self._unsaved: WeakSet[Origin] = WeakSet()
        """The graphs without a checkpointer whose first node has run."""
        self._searched: WeakSet[Origin] = WeakSet()
        """The graphs whose tools were compared with the names of tools in rules."""
        self._spelt = (0, 0)
        """The number of rules and nodes at the last check of names in a call of a governed function."""

    def add(self, nodes: Iterable[Node]) -> None:
        """Add the nodes of a governed graph, or a function that is governed or labelled."""
        with self._lock:
            self._nodes.update(nodes)

    def names(self) -> Collection[str]:
        """The names of all governed nodes, without their parents' names."""
        with self._lock:
            return {_own_name(name) for name, _ in self._nodes}

    def check_names(
        self,
        contracts: Iterable[Contract],
        bindings: Iterable[BindingPack] = (),
        *,
        among: Iterable[str] | None = None,
    ) -> None:
        """Raise `UnknownNodeError` for a target that is nearly the name of a node `among` these, by default
        of all nodes.

        A target that is exactly the name of any governed node is never an error.
        """
        with self._lock:
            governed = [name for name, _ in self._nodes]
        nodes = governed if among is None else list(among)
        for claim, wanted, others, whole in (*chain.from_iterable(map(_named, contracts)), *_bound(bindings)):
            names, known = (set(each if whole else map(_own_name, each)) for each in (nodes, governed))
            for name in wanted:
                meant = None if name in known or name in names else misspelt(name, names)
                # A rule that names both nodes intends both.
                if meant is not None and meant not in (*wanted, *others):
                    raise UnknownNodeError(
                        claim,
                        node=name,
                        names=names,
                        nearest=meant,
                        remedy=(not whole and own_names(name))
                        or "If it is a node of another graph, govern that graph first.",
                    )

    def report_missing_instructions(self) -> None:
        """Report, once, the rules that apply to no node because no node has an instruction."""
        if all(instruction is None for _, instruction in self._nodes):
            self._report(only=_NO_INSTRUCTION)

    def check_functions(self, plan: Plan, config: RunnableConfig | None) -> None:
        """As `report`, for a call of a governed function. Raises `UnknownNodeError` while a target is
        misspelt.
        """
        current = (self._registry.version, len(self._nodes))
        if self._spelt != current:
            self.check_names(self._registry.contracts(), self.bindings)
            self._spelt = current
        self.report(plan, config)

    def report(self, plan: Plan, config: RunnableConfig | None) -> None:
        """Report, once, the rules that apply to no node, and those that cannot ask. Called by a running node
        after it has looked up its rules.
        """
        if self._checked != self._registry.version:
            self._checked = self._registry.version
            self._report()
        if config is not None:
            origin = facts_channel_in(conf_of(config)).origin
            if saver_of(config) is None or origin.graph.checkpointer is False:
                self._report_unsaved(plan, origin)
            if not origin.path and origin not in self._searched:
                self._report_misspelt_tools(origin)

    def _report_unsaved(self, plan: Plan, origin: Origin) -> None:
        """Report, once for each graph, that its rules cannot ask a human without a checkpointer.

        `govern` cannot report it, because LangGraph's server, or the graph around a subgraph, may bring one. If
        the first node asks, its denial says so at once.
        """
        with self._lock:
            is_known = origin in self._unsaved
            self._unsaved.add(origin)
        if is_known or any(each.contract.asks and each.contract.enforced for each in plan.called):
            return
        contracts = [rule for rule in self._registry.contracts() if rule.asks]
        found = unsaved(origin.graph, origin.rules, contracts, origin.path) if contracts else ()
        if not found:
            return
        asking = ", ".join(f"{rule.kind} {rule.name!r} (node {node!r})" for rule, node in found)
        warnings.warn(
            f"this graph has no checkpointer to keep a question until it is answered, so these rules deny where "
            f"they ask a human: {asking}. {SAVE_QUESTIONS}",
            ArbiterWarning,
            stacklevel=callers(),
        )

    def _report_misspelt_tools(self, origin: Origin) -> None:
        """Report, once for each graph, the tools of rules that it does not have, but one of nearly that name.

        Other names may be those of tools that exist only during a run.
        """
        self._searched.add(origin)
        for rule, message in misspelt_tools(origin.graph, self._registry.contracts()):
            where = f"{rule.source}: " if rule.source else ""
            warnings.warn(where + message, ArbiterWarning, stacklevel=callers())

    def _report(self, only: str | None = None) -> None:
        contracts = self._registry.contracts()
        rules = [rule for rule in contracts if rule.mode != "off"]
        judges = {rule.name: rule for rule in contracts if rule.kind == "evaluator"}
        with self._lock:
            found: list[tuple[object, _Idle | None]] = [
                (
                    rule,
                    _idle_rule(rule, self._nodes)
                    or _without_evaluator(rule, judges)
                    or _without_result(rule, judges, self._nodes)
                    or _without_node(rule, self._nodes)
                    or _without_exception(rule),
                )
                for rule in rules
            ]
            found += [(idle.source, idle) for idle in _idle_bindings(self.bindings, self._nodes)]
            idle = [
                (owner, each)
                for owner, each in found
                if each is not None and only in (None, each.why) and self._reported.get(_key(owner)) is None
            ]
            still = {_key(owner) for owner, each in found if each is not None}
            self._reported = {key: owner for key, owner in self._reported.items() if key in still}
            self._reported.update((_key(owner), owner) for owner, _ in idle)
        declared = Counter(_origin(rule.source) for rule in rules)
        bound = Counter({pack.file: len(pack.bindings) for pack in self.bindings})
        ordered = sorted((each for _, each in idle), key=lambda each: (*_group(each), each.line))
        for (form, origin), each in groupby(ordered, key=_group):
            sentence = _sentence(list(each), (bound if form in (_BINDINGS, _SHADOWED) else declared)[origin])
            # A guard may be meant for a graph that never gets there.
            if form in (_STEPS, _EVALUATORS, _CONDITIONS):
                _log.warning("%s", sentence)
            else:
                warnings.warn(sentence, ArbiterWarning, stacklevel=callers())


def _key(owner: object) -> object:
    """A key for a rule or binding. Identity, because a user's rule may define its own equality."""
    return owner if isinstance(owner, str) else id(owner)


def _group(idle: _Idle) -> tuple[_Form, str]:
    return idle.form, _origin(idle.source)


def _origin(source: str) -> str:
    """The source of a rule in the user's words: a file, a pack that ships with Arbiter, or "" for code."""
    file = source.rpartition(":")[0]
    return SHIPPED + PurePath(file).stem if file.startswith(SHIPPED) else file


def _own_name(node: str) -> str:
    """The node's name without its parents' names."""
    return node.rpartition(":")[2]


def own_names(node: str) -> str:
    """Advice for a node of a rule that has its parents in front, as in the history; "" for any other."""
    return "A rule names a node of a subgraph without its parents." if ":" in node else ""


def _named(contract: Contract) -> Iterator[_Claim]:
    """The nodes that a rule is for, and those that it waits for. Their names have no parents in front."""
    if contract.mode == "off":
        return
    targets = contract.target_nodes or ()
    awaited = [step for steps in contract.awaited_steps for step in steps if isinstance(step, str)]
    if not _finds_itself(contract):
        yield f"{title_of(contract)} is for", targets, awaited, False
    yield f"{title_of(contract)} waits for", awaited, targets, False


def _bound(packs: Iterable[BindingPack]) -> Iterator[_Claim]:
    """As `_named`, for bindings of the project's own graphs that name a node."""
    for pack in packs:
        for line, (name, _) in zip(pack.lines, pack.bindings, strict=False):
            if not pack.match and not {"*", "?"}.intersection(name):
                yield f"{pack.file}:{line}: an instruction is bound to", (name,), (), ":" in name


def _finds_itself(contract: Contract) -> bool:
    """True if `applies_to` alone says to which nodes it applies, as that of a user's class."""
    if contract.when_idle is not None:
        return True
    owner = next(cls for cls in type(contract).__mro__ if "applies_to" in vars(cls))
    return not owner.__module__.startswith("arbiter.")


# Rules and bindings that apply to no node ---------------------------------------------------------


def _idle_rule(rule: Contract, nodes: set[Node]) -> _Idle | None:
    """The reason why the rule applies to none of the nodes, or None if it applies to one."""
    if _finds_itself(rule):
        applies = any(rule.applies_to(_own_name(name), instruction) for name, instruction in nodes)
    else:  # an Arbiter rule may also follow nodes that are not targets, or be switched off
        applies = any(Contract.applies_to(rule, _own_name(name), instruction) for name, instruction in nodes)
    names = {_own_name(name) for name, _ in nodes}
    held = {instruction for _, instruction in nodes if instruction is not None}
    if applies:
        return _without_step(rule, names, held)
    if held and rule.source.startswith(SHIPPED):
        return None  # a general rule that this graph has no use for
    wanted, targets = rule.target_instructions or (), rule.target_nodes or ()
    missing = [name for name in targets if name not in names]
    if rule.when_idle is not None:
        why, remedy = rule.when_idle
    elif missing and len(missing) == len(targets):
        why = f"there is no node {_one_of(map(repr, missing))}"
        remedy = f"Nodes: {_some(sorted(names))}.{nearest(missing[0], names)} Correct target_nodes, or remove the rule."
    elif wanted and not held:
        why, remedy = _NO_INSTRUCTION, _INIT
    elif wanted:
        among = f" {_one_of(map(repr, targets))}" if targets else ""
        why = f"no node{among} has the instruction {_one_of(map(str, wanted))}"
        remedy = (
            f"Instructions of the nodes: {_some(sorted(map(str, held)))}. "
            "Name it in govern(graph, instructions={...}), or remove the rule."
        )
    elif rule.target_nodes is not None or rule.target_instructions is not None:
        why, remedy = "its list of targets is empty", "Leave out the list to apply it to every node."
    else:
        why, remedy = "its applies_to accepts none", f"Nodes: {_some(sorted(names))}."
    return _idle(rule, why, remedy)


def _idle(rule: Contract, why: str, remedy: str, form: _Form = _RULES) -> _Idle:
    return _Idle(f"{rule.kind} {rule.name!r}", why, remedy, rule.source, form)


def _without_step(rule: Contract, names: set[str], held: set[Instruction]) -> _Idle | None:
    """The reason why a step that the rule waits for never comes, or None. A rule that ships with Arbiter may lack
    one in some graphs."""
    for steps in () if rule.source.startswith(SHIPPED) else rule.awaited_steps:
        if not names.union(held).isdisjoint(steps):
            continue
        nodes = [step for step in steps if isinstance(step, str)]
        reasons = [f"there is no node {_one_of(map(repr, nodes))}"] if nodes else []
        if instructions := [str(step) for step in steps if not isinstance(step, str)]:
            reasons.append(f"no node has the instruction {_one_of(instructions)}")
        there = f"Nodes: {_some(sorted(names))}.{nearest(nodes[0], names)}" if nodes else ""
        remedy = " ".join(
            filter(None, (there, "" if held or nodes else _INIT, "Correct the step, or remove the rule."))
        )
        return _idle(rule, ", and ".join(reasons), remedy, _STEPS)
    return None


def _without_evaluator(rule: Contract, evaluators: Collection[str]) -> _Idle | None:
    """The reason why an advisor finds no results, or None. Other rules of this kind are refused."""
    needs = (rule.needs or ()) if isinstance(rule, Advisor) else ()
    missing = [name for name in needs if owner_of(name, evaluators) is None]
    if not missing:
        return None
    there = f"Evaluators: {_some(sorted(evaluators)) or 'none'}.{nearest(missing[0], evaluators)}"
    why = f"there is no {_one_of(map(repr, missing))}"
    return _idle(rule, why, f"{there} Correct the name, or register it.", _EVALUATORS)


def _without_result(rule: Contract, judges: Mapping[str, Contract], nodes: set[Node]) -> _Idle | None:
    """The reason why a built-in router never finds a result, or None. A router of the user's may read earlier steps."""
    if not isinstance(rule, PolicyRouter) or not type(rule).__module__.startswith("arbiter."):
        return None
    read = [judges[owner] for name in rule.needs if (owner := owner_of(name, judges)) is not None]
    own = [(_own_name(name), kind) for name, kind in nodes if rule.applies_to(_own_name(name), kind)]
    if not read or not own or any(judge.applies_to(*node) for judge in read for node in own):
        return None
    # An evaluator that judges no node at all is reported itself.
    if any(_idle_rule(judge, nodes) for judge in read):
        return None
    why = f"{_one_of(repr(judge.name) for judge in read)} never judges {_some(sorted({name for name, _ in own}))}"
    return _idle(rule, why, "Give both the same targets.", _RESULTS)


def _without_node(rule: Contract, nodes: set[Node]) -> _Idle | None:
    """The reason why a part of a condition of the rule has no effect, or None."""
    names = {_own_name(name) for name, _ in nodes}
    named = [name for each in vars(rule).values() if isinstance(each, Condition) for name in each.nodes]
    if not (missing := [name for name in dict.fromkeys(named) if name not in names]):
        return None
    why = f"there is no node {_one_of(map(repr, missing))}"
    remedy = f"Nodes: {_some(sorted(names))}.{nearest(missing[0], names)} Correct the name in the condition."
    return _Idle(f"the condition of {rule.kind} {rule.name!r}", why, remedy, rule.source, _CONDITIONS)


def _without_exception(rule: Contract) -> _Idle | None:
    """The reason why a router is for an exception that is never raised, or None."""
    for name, meant in wrong_exceptions(rule):
        remedy = f"Did you mean {meant!r}? Correct the name in errors."
        return _idle(rule, f"there is no {name!r}", remedy, _EXCEPTIONS)
    return None


def wrong_exceptions(rule: Contract) -> Iterator[tuple[str, str]]:
    """The names of exceptions in a rule that are wrong, each with the one that was meant."""
    for names in tuple(vars(rule).values()):  # a rule may get an attribute meanwhile, as by cached_property
        if type(names) is ExceptionNames:
            yield from names.wrong()


def _idle_bindings(packs: Sequence[BindingPack], nodes: set[Node]) -> Iterator[_Idle]:
    if not packs:  # without packs there is no YAML
        return
    from arbiter._constitution.bindings import idle_bindings

    names = {name for name, _ in nodes}
    for pack, name, line, earlier in idle_bindings(packs, names):
        yield _Idle(
            what=repr(name),
            why=earlier or "there is no such node",
            remedy="The first that fits a node counts. Put it in front, or remove it."
            if earlier
            else f"Nodes: {_some(sorted(names))}. Correct the name, or remove the binding.",
            source=f"{pack.file}:{line}",
            form=_SHADOWED if earlier else _BINDINGS,
        )


def _sentence(idle: Sequence[_Idle], total: int) -> str:
    """One warning for all idle rules of one source."""
    first = idle[0]
    origin = _origin(first.source) or "the program"
    shipped = first.source.startswith(SHIPPED)
    where = "" if shipped or not first.source else f"{first.source}: "
    single, plural, misses = first.form
    reasons = dict.fromkeys(each.why for each in idle)
    why = f", because {first.why}" if first.why == _NO_INSTRUCTION else f": {first.why}"
    if len(idle) == 1 and not shipped:
        return f"{where}{single}{first.what} {misses[0]}{why}. {first.remedy}"
    head = f"{where}{len(idle)} of the {total} {plural} of {origin} {misses[1]}"
    if len(reasons) == 1 and first.form != _BINDINGS:
        return f"{head}{why}. {first.remedy}"
    listed = [
        each.what
        + (f" (line {each.line})" if each.line else "")
        + (f": {each.why}" if each.form != _BINDINGS else "")
        for each in idle
    ]
    given = dict.fromkeys(each.remedy for each in idle)
    remedies = [remedy for remedy in given if not any(remedy in other for other in given if other != remedy)]
    return f"{head}: {_some(listed, '; ')}. {' '.join(remedies)}"


def _some(texts: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return between.join(texts[:_MOST]) + more


def _one_of(texts: Iterable[str]) -> str:
    return " or ".join(texts)


# Arguments that no rule uses ----------------------------------------------------------------------


def report_unused(
    loaded: Sequence[Constitution], allow: Iterable[str], models: Mapping[str, Any] | None
) -> None:
    """Warn of models and allowed prefixes that no rule of these constitutions uses."""
    named = {name for constitution in loaded for name in constitution.models}
    used = {prefix for constitution in loaded for prefix in constitution.prefixes}
    unused = [name for name in models or () if name not in named]
    if unused:
        there = f" Rules name: {', '.join(sorted(map(repr, named)))}." if named else " No rule names a model."
        _warn_unused(
            "models has", unused, "no rule names", there + nearest(unused[0], named - set(models or ()))
        )
    if unused := [prefix for prefix in allow if prefix not in used]:
        _warn_unused("allow has", unused, "no rule names a class or function under", "")


def _warn_unused(argument: str, unused: Sequence[str], why: str, there: str) -> None:
    it = "it" if len(unused) == 1 else "them"
    warnings.warn(
        f"{argument} {', '.join(map(repr, unused))}, and {why} {it}.{there} Correct the name, or leave {it} out.",
        ArbiterWarning,
        stacklevel=callers(),
    )


# Spelling -----------------------------------------------------------------------------------------


def misspelt_tools(graph: object, contracts: Iterable[Contract]) -> Iterator[tuple[Contract, str]]:
    """The rules that name a tool which the graph does not have, but one of nearly that name, each with a
    sentence that says so.
    """
    rules = [
        rule
        for rule in contracts
        if isinstance(rule, PolicyChecker) and rule.mode != "off" and rule.tools_not_in(())
    ]
    held = list(tools_in(graph)) if rules else []
    for rule in rules:
        for tool in rule.tools_not_in(held):
            # A rule that names both tools intends both.
            if (meant := misspelt(tool, held)) is not None and meant not in rule.tools_not_in(()):
                yield (
                    rule,
                    f"{rule.kind} {rule.name!r} names the tool {tool!r}, which this graph does not have. "
                    f"Did you mean {meant!r}?",
                )
