"""Observe: report the end of a node run to the checkers that ask for it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from arbiter._contracts import Contract
from arbiter._lifecycle.evaluations import Evaluations
from arbiter._lifecycle.requests import Raised, Resolve, Spend, Steps
from arbiter._lifecycle.runs import SHADOW, NodeRun, call_isolated
from arbiter._threads.deadlines import is_from_outside
from arbiter._values.copies import unboxed
from arbiter.errors import describe
from arbiter.history._causal import CausalHistory
from arbiter.history._items import HistoryItem
from arbiter.history._past import Past
from arbiter.policy import PolicyChecker


def observe(run: NodeRun, observers: Sequence[PolicyChecker], view: CausalHistory, prefix: str = "") -> Steps:
    """Report the end of the node run to the checkers that ask for it."""
    record = run.record
    evaluations = record.evaluations
    if isinstance(evaluations, Evaluations) and run.reads is not None:
        # Before the first report: the results that a checker sees must not depend on the order of the
        # checkers.
        for checker in observers:
            for name in checker.needs_of(record.node, record.instruction):
                if (queue := evaluations.queue(name)) is not None:
                    yield Resolve(evaluations, queue)
                    if checker.enforced:
                        run.reads.get(name)
                    if (problem := evaluations.misnamed(name)) is not None:
                        record.failed(f"checker {checker.name}", problem)
    tell(run, observers, view, prefix)


def tell(run: NodeRun, observers: Sequence[PolicyChecker], view: CausalHistory, prefix: str = "") -> None:
    """As `observe`, if none of the checkers needs an evaluation."""
    record, reads, item = run.record, run.reads, view.item
    tallies: dict[str, Mapping[str, float | None]] = {}
    if observers and (inner := run.inner()) is not None:
        view.inside = Past(inner)
    for checker in observers:
        try:
            if reads is not None:
                show_results(run, checker, item)
            if found := call_isolated(run, checker, checker.observe, view):
                tallies[prefix + checker.name] = counted(found)
        except BaseException as exc:  # also SystemExit: the body has run, and what it did is recorded
            if is_from_outside(exc):
                raise
            record.failed(f"checker {checker.name}", f"observe: {describe(exc)}; nothing was counted")
        finally:
            if reads is not None:
                item.give_results(None)
    if tallies:
        record.tallies = {**record.tallies, **tallies} if record.tallies else tallies


def note_spent(run: NodeRun) -> Steps:
    """Save the amounts that a node run has used up if it commits nothing now.

    The attempt that commits adds them, also in another process.
    """
    record, plan = run.record, run.plan
    if (
        not record.tallies
        or not plan.reads_unfinished
        or record.status == "completed"
        or record.redirected_to is not None
    ):
        return
    # Each constitution by itself: a shadow counts as it would if it were in force.
    names: set[str] = set()
    if any(checker.reads_unfinished for checker in plan.observers):
        names.update(plan.counts_consumption)
    if (shadow := plan.shadow) is not None and shadow.reads_unfinished:
        names.update(SHADOW + name for name in shadow.counts_consumption)
    spent = {policy: amounts for policy, amounts in record.tallies.items() if policy in names and amounts}
    if not spent:
        return
    op = Spend(uuid.uuid4().hex, spent)
    record.spent = {**record.spent, op.id: spent}
    noted = yield op
    if type(noted) is Raised:
        record.failed("budget", f"what was used could not be saved: {describe(noted.error)}")


def show_results(run: NodeRun, policy: Contract, item: HistoryItem) -> None:
    """Let a policy see the evaluations in the node's own item.

    Results that a policy reads are committed, and later policies find them. So a policy without effect reads
    without a trace, and only such a policy sees evaluators in audit mode.
    """
    if (reads := run.reads) is not None:
        item.give_results(reads if policy.enforced else reads.untracked())


def counted(found: Mapping[str, object]) -> dict[str, float | None]:
    amounts: dict[str, float | None] = {}
    for key, amount in found.items():
        if type(amount) not in _NUMBERS:
            amount = unboxed(amount)
        if isinstance(amount, bool) or not isinstance(amount, _NUMBERS) or amount != amount:
            raise TypeError(f"expected a number, got {amount!r}")
        amounts[str(key)] = None if amount == _ALL else amount
    return amounts


_ALL = float("-inf")
_NUMBERS = (int, float)
