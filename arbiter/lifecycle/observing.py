"""Observe: tell the checkers that want to know how a node run ended."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from arbiter.contracts import Contract
from arbiter.errors import describe
from arbiter.evaluations import Evaluations
from arbiter.history import CausalHistory
from arbiter.lifecycle.requests import Raised, Resolve, Spend, Steps
from arbiter.lifecycle.runs import SHADOW, NodeRun, call_apart
from arbiter.policy import PolicyChecker


def observe(run: NodeRun, observers: Sequence[PolicyChecker], view: CausalHistory, prefix: str = "") -> Steps:
    """Tell how it went to the checkers that want to know."""
    record = run.record
    evaluations = record.evaluations
    if isinstance(evaluations, Evaluations) and run.reads is not None:
        # Before the first of them is told: what one finds read must not depend on which came first.
        for checker in observers:
            for name in checker.needs_of(record.node, record.instruction):
                if (lane := evaluations.lane(name)) is not None:
                    yield Resolve(evaluations, lane)
                    if checker.enforced:
                        run.reads.get(name)
    tell(run, observers, view, prefix)


def tell(run: NodeRun, observers: Sequence[PolicyChecker], view: CausalHistory, prefix: str = "") -> None:
    """As `observe`, where none of them needs an evaluation."""
    record, reads = run.record, run.reads
    tallies: dict[str, Mapping[str, float | None]] = {}
    for checker in observers:
        try:
            if reads is not None:
                show_results(run, checker, view)
            if found := call_apart(run, checker, checker.observe, view):
                tallies[prefix + checker.name] = _counted(found)
        except Exception as exc:
            record.failed(f"checker {checker.name}", f"observe: {describe(exc)}; nothing was counted")
        finally:
            if reads is not None:
                view.give_results(None)
    if tallies:
        record.tallies = {**record.tallies, **tallies} if record.tallies else tallies


def note_spent(run: NodeRun) -> Steps:
    """Keep what a node run has used up that commits nothing now: the attempt that does commits it too, in whichever
    process that is."""
    record, plan = run.record, run.plan
    if (
        not record.tallies
        or not plan.recovers
        or record.status == "completed"
        or record.redirected_to is not None
    ):
        return
    shadow = plan.shadow
    names = {*plan.spends, *(SHADOW + name for name in (shadow.spends if shadow else ()))}
    spent = {policy: amounts for policy, amounts in record.tallies.items() if policy in names and amounts}
    if not spent:
        return
    op = Spend(uuid.uuid4().hex, spent)
    record.spent = {**record.spent, op.id: spent}
    noted = yield op
    if type(noted) is Raised:
        record.failed("budget", f"what was used could not be saved: {describe(noted.error)}")


def show_results(run: NodeRun, policy: Contract, view: CausalHistory) -> None:
    """Let a policy see the evaluations. What it reads is committed, and then later policies find it, so one whose
    decisions do not hold reads without a trace, and only for it are there evaluators whose results do not count."""
    if (reads := run.reads) is not None:
        view.give_results(reads if policy.enforced else reads.apart())


def _counted(found: Mapping[str, object]) -> dict[str, float | None]:
    counted: dict[str, float | None] = {}
    for key, amount in found.items():
        if isinstance(amount, bool) or not isinstance(amount, _NUMBERS) or amount != amount:
            raise TypeError(f"expected a number, got {amount!r}")
        counted[str(key)] = None if amount == _ALL else amount
    return counted


_ALL = float("-inf")
_NUMBERS = (int, float)
