"""A checker that denies once a budget of calls, tokens, money or time is used up.

Before a node run, the amount that it may use is reserved under a lock; afterwards the amount that it really
used is settled. So the limit holds even if a hundred branches ask at once. The account in memory is
authoritative while the process lives; another process continues from the amounts that are committed with the
nodes (`observe`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Unpack
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from arbiter._threads.forks import new_lock
from arbiter._values.parameters import Param, check_parameters
from arbiter._values.recent import Recent
from arbiter.checkers._accounts import (
    KEEP_ACCOUNTS,
    Accounts,
    UserKey,
    account_of,
    causal,
    ensure_user,
    no_account,
)
from arbiter.errors import ParameterError, PolicyViolationError
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, HistoryItem
from arbiter.models import Prices, dollars, need_price_list, prices_of
from arbiter.policy import CheckerOptions, PolicyChecker
from arbiter.verdicts import Verdict

_log = logging.getLogger("arbiter")
_KEPT = ("run", "thread")
"""Accounts that another process can continue: the data committed and noted with the thread are their whole
use.
"""
_METRICS = ("calls", "tokens", "cost", "seconds", "unreported")
_PICO = 10**12
_KEEP_ITEMS = 4096
"""The number of ended node runs, and of subgraphs, that an account remembers."""

_Amounts = dict[str, float]
"""Amounts by metric. `cost` is in millionths of a millionth of a US dollar, a whole number, so that sums are
exact.
"""
_Place = tuple[str, int, str]
"""Node, step and namespace of a node run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The use of an account. None means not counted, because no limit needs it.

    `cost` is in US dollars, `seconds` is the time that node runs took. `unreported` counts model calls
    without reported usage or without a known price: if there are any, `tokens` or `cost` is too low.
    """

    calls: int
    tokens: int | None
    cost: float | None
    seconds: float
    unreported: int


@dataclass(slots=True, eq=False)
class _Item:
    """One node run on an account, over all its attempts."""

    running: bool = False
    """True if it was admitted and has not ended, so that its reservation stands."""
    began: bool = False
    """True if the body of the current attempt was allowed to begin."""
    counted: bool = False
    """True if its call is counted as used."""
    reserved: _Amounts = field(default_factory=dict[str, float])
    committed: _Amounts = field(default_factory=dict[str, float])
    """The amounts that were committed with it."""
    meter: _Meter | None = None


class _Account:
    """The used and reserved amounts, and the node runs behind them. Guarded by the checker's lock."""

    __slots__ = ("in_memory", "items", "noted", "places", "reserved", "running", "unsaved", "used")

    def __init__(self, in_memory: bool) -> None:
        self.in_memory = in_memory
        """True if no checkpoint continues it."""
        self.used: _Amounts = dict.fromkeys(_METRICS, 0)
        self.reserved: _Amounts = dict.fromkeys(_METRICS, 0)
        self.unsaved: _Amounts = dict.fromkeys(_METRICS, 0)
        """Amounts that are used and not yet committed with any node."""
        self.noted = Recent[tuple[str, str], tuple[_Place, _Amounts]](_KEEP_ITEMS)
        """For node runs that failed or paused: their place, and the amounts noted next to the checkpoint."""
        self.items: dict[tuple[str, str], _Item] = {}
        self.places = Recent[str, None](_KEEP_ITEMS)
        """Subgraphs, by namespace, whose committed past is part of `used`."""
        self.running = 0

    def use(self, item: _Item | None, metric: str, amount: float) -> None:
        """Count a used amount. It is taken from the reservation as far as that suffices."""
        self.used[metric] += amount
        self.unsaved[metric] += amount
        if item is not None and (reserved := item.reserved.get(metric, 0)) > 0:
            self._reserve(item, metric, max(reserved - amount, 0))

    def _reserve(self, item: _Item, metric: str, amount: float) -> None:
        self.reserved[metric] += amount - item.reserved.get(metric, 0)
        item.reserved[metric] = amount

    def begin(self, item: _Item, wanted: Mapping[str, float]) -> None:
        if not item.running:
            item.running = True
            self.running += 1
        for metric, amount in wanted.items():
            self._reserve(item, metric, amount)

    def end(self, item: _Item) -> None:
        """Release the rest of the reservation."""
        for metric in item.reserved:
            self._reserve(item, metric, 0)
        if item.running:
            item.running = False
            self.running -= 1

    def remember(self, key: tuple[str, str]) -> _Item:
        item = self.items.pop(key, None) or _Item()
        self.items[key] = item
        if len(self.items) > _KEEP_ITEMS:
            old = next((old for old, ended in self.items.items() if not ended.running), None)
            if old is not None:
                del self.items[old]
        return item

    def see(self, place: str) -> None:
        self.places[place] = None

    def take_in(self, past: Mapping[str, float]) -> None:
        for metric, amount in past.items():
            self.used[metric] += amount

    def at_least(self, past: Mapping[str, float]) -> None:
        """Raise the used amounts to the saved ones, which other processes may have added to, plus the unsaved
        ones.
        """
        for metric, amount in past.items():
            known = amount + self.unsaved[metric]
            # Unreported calls may have reported their usage since.
            if known > self.used[metric] and metric != "unreported":
                self.used[metric] = known

    def note(self, key: tuple[str, str], node_run: HistoryItem) -> dict[str, float]:
        """The unsaved amounts, to be noted for a node run that commits nothing now."""
        unsaved = self.unsaved_amounts()
        place = node_run.node, node_run.step, node_run.namespace
        _, before = self.noted.pop(key, (place, {}))
        amounts = {metric: before.get(metric, 0) + unsaved.get(metric, 0) for metric in {*before, *unsaved}}
        if amounts:
            self.noted[key] = place, amounts
        return unsaved

    def begin_again(self, item: _Item) -> None:
        """Take back what was to be committed with a node run: it runs again only if its writes were lost."""
        for metric, amount in item.committed.items():
            self.unsaved[metric] += _counted(metric, amount)
        item.committed = {}

    def commit(self, key: tuple[str, str], history: CausalHistory) -> dict[str, float]:
        """The unsaved amounts, to be committed with a node run.

        They include its own notes and those of node runs inside it, and notes of an abandoned run that no
        node has committed.
        """
        run, own = key
        self.noted.pop(key, None)
        unsaved = self.unsaved_amounts()
        left = [at for at, (place, _) in self.noted.items() if at[0] != run or own in place[2]]
        if left:
            done = _done_in(history)
            for at in left:
                place, amounts = self.noted.pop(at)
                for metric, amount in amounts.items() if done.isdisjoint((at[1], place)) else ():
                    unsaved[metric] = unsaved.get(metric, 0) + amount
        return unsaved

    def left_behind(self, history: CausalHistory) -> _Amounts:
        """The amounts noted in abandoned runs that are not committed."""
        amounts: _Amounts = {}
        run = history.run_id
        if any(at[0] != run for at in self.noted):
            done = _done_in(history)
            for at, (place, noted) in self.noted.items():
                for metric, amount in (
                    noted.items() if at[0] != run and done.isdisjoint((at[1], place)) else ()
                ):
                    amounts[metric] = amounts.get(metric, 0) + _counted(metric, amount)
        return amounts

    def unsaved_amounts(self) -> dict[str, float]:
        amounts = {m: _shown(m, amount) for m, amount in self.unsaved.items() if amount}
        self.unsaved = dict.fromkeys(_METRICS, 0)
        return amounts


def _done_in(history: CausalHistory) -> set[str | _Place]:
    """The committed node runs, and those inside this one: their ids, and their places, since another process gives
    them other ids."""
    done: set[str | _Place] = set()
    for past in filter(None, (history.past, history.inside)):
        for fact in past.facts():
            done |= {fact["id"], (fact["node"], fact["step"], fact.get("ns", ""))}
    return done


class BudgetChecker(PolicyChecker):
    """Denies a node run if its run, thread, user or process has used up `calls`, `tokens`, `cost` (US
    dollars) or `seconds` (the time that node runs took).

    `reserve_tokens` and `reserve_cost` are reserved for each node run from its admission until its end, so
    that used and reserved amounts together never exceed the limit at an admission. Without them, branches
    that start together all start as long as the budget is not used up.

    Tokens are those that the models report (`usage_metadata`). Prices come from `prices`, by model name, else
    from the `genai-prices` package. A model call without reported usage, or without a known price, cannot be
    counted: with `unreported="deny"` every later node run is denied, with `"ignore"` the call counts nothing.

    If the budget is used up during a body, its next model call is stopped with a `PolicyViolationError`,
    whatever `on_deny` says, unless that is "audit".
    """

    blocking = False
    reads_history = False  # a cached output uses nothing
    reads_unfinished = True
    counts_consumption = True

    @check_parameters
    def __init__(
        self,
        name: str,
        *,
        calls: Annotated[
            int | None,
            Param(
                "the most node runs; one with its retries and resumes is one call. One of the four limits is needed",
                gt=0,
                tighter="lower",
            ),
        ] = None,
        tokens: Annotated[
            int | None,
            Param(
                "the most tokens, input and output, as the models report them in `usage_metadata`",
                gt=0,
                tighter="lower",
            ),
        ] = None,
        cost: Annotated[float | None, Param("the most US dollars", gt=0, tighter="lower")] = None,
        seconds: Annotated[
            float | None,
            Param(
                "the most time that node runs took together; checked before a node run, and stops none",
                gt=0,
                tighter="lower",
            ),
        ] = None,
        per: Annotated[
            Literal["run", "thread", "user", "process"], Param("whose account a node run counts on")
        ] = "run",
        user_key: UserKey = "user_id",
        reserve_tokens: Annotated[
            int | None, Param("the tokens held for each node run until it ends", gt=0, tighter="higher")
        ] = None,
        reserve_cost: Annotated[
            float | None, Param("the US dollars held for each node run until it ends", gt=0, tighter="higher")
        ] = None,
        prices: Prices = None,
        unreported: Annotated[
            Literal["deny", "ignore"],
            Param(
                "after a model call that did not say what it used, or whose price is not known: deny everything, or "
                "count it as nothing"
            ),
        ] = "deny",
        keep_accounts: Annotated[
            int,
            Param(
                "the accounts that are kept in memory, those used last; a user whose account was dropped begins "
                "again at nothing",
                gt=0,
                tighter="higher",
            ),
        ] = KEEP_ACCOUNTS,
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        owner = f"checker {name!r}"
        given = {"calls": calls, "tokens": tokens, "cost": cost, "seconds": seconds}
        self.limits = {metric: limit for metric, limit in given.items() if limit is not None}
        if not self.limits:
            raise ParameterError(
                owner, "calls", "expected a limit, got none. Set calls, tokens, cost or seconds."
            )
        for parameter, reserve, limit in (
            ("reserve_tokens", reserve_tokens, tokens),
            ("reserve_cost", reserve_cost, cost),
        ):
            if reserve is not None and limit is not None and reserve > limit:
                metric = parameter.removeprefix("reserve_")
                raise ParameterError(
                    owner, parameter, f"expected at most the limit {metric}={limit!r}, got {reserve!r}."
                )
        for parameter, given_for_nothing, of in (
            ("reserve_tokens", reserve_tokens is not None and tokens is None, "tokens"),
            ("reserve_cost", reserve_cost is not None and cost is None, "cost"),
            ("prices", prices is not None and cost is None, "cost"),
            ("unreported", unreported != "deny" and tokens is None and cost is None, "tokens or cost"),
        ):
            if given_for_nothing:
                raise ParameterError(owner, parameter, f"expected a limit of {of} with it, got none.")
        ensure_user(owner, per, user_key)
        self.per = per
        self.user_key = user_key
        self.unreported = unreported
        self.prices = {} if prices is None else prices_of(owner, prices)
        if cost is not None and not self.prices:
            need_price_list(owner, "cost")
        self._limits = {metric: _counted(metric, limit) for metric, limit in self.limits.items()}
        self._reserves: _Amounts = {"calls": 1}
        if reserve_tokens is not None:
            self._reserves["tokens"] = reserve_tokens
        if reserve_cost is not None:
            self._reserves["cost"] = _counted("cost", reserve_cost)
        self._metered = tokens is not None or cost is not None
        self._lock = new_lock()
        self.keep_accounts = keep_accounts
        self._accounts: Accounts[_Account] = Accounts(
            lambda account: account.running == 0, keep=keep_accounts, dropped=self._dropped
        )
        self._has_warned = False
        self._checked: dict[tuple[str, str], tuple[_Account, _Item]] = {}
        """The node runs that were checked and have not ended."""
        self._meters: dict[UUID, _Meter] = {}
        """For each model call under way, the innermost meter that sees it and counts it."""

    # Before

    def check_before(self, history: History) -> Verdict:
        own = causal(history)
        name = account_of(own, self.per, self.user_key)
        if name is None:
            return Verdict.deny(no_account(self.per, self.user_key))
        key = (own.run_id, own.item.id)
        with self._lock:
            account = self._opened(name, own)
            item = account.remember(key)
            self._checked[key] = (account, item)
            account.begin_again(item)
            item.counted = item.counted or own.spent(self.name, "calls") > 0
            if item.began:
                self._settle(account, item)  # a dropped attempt whose end was never reported
            if item.running:
                return Verdict.allow()  # a second check of the same attempt
            wanted = {m: a for m, a in self._reserves.items() if m != "calls" or not item.counted}
            if (reason := self._refusal(account, wanted)) is not None:
                return Verdict.deny(reason)
            account.begin(item, wanted)
        return Verdict.allow()

    def _opened(self, name: str, history: CausalHistory) -> _Account:
        """The account, updated by the committed amounts."""
        place = history.item.namespace
        account = self._accounts.get(name)
        keeps = self.per in _KEPT
        if account is None:
            account = self._accounts.add(name, _Account(not (keeps and history.is_saved)))
            if keeps:
                account.take_in(self._committed(history))
                account.take_in(self._of(history.recovered, history))
                while place:  # the past of outer graphs is part of it
                    account.see(place)
                    place = place.rpartition("|")[0]
            return account
        if keeps:
            if place and place not in account.places:
                # Another process may have begun this subgraph.
                account.take_in(self._of(history.own_part, history))
                account.see(place)
            past = self._committed(history)
            for more in (self._of(history.recovered, history), account.left_behind(history)):
                for metric, amount in more.items():
                    past[metric] = past.get(metric, 0) + amount
            account.at_least(past)
        return account

    def _dropped(self, account: _Account) -> None:
        """Warn, once, that the use of a user, or of a thread without checkpoints, is forgotten. A run without
        checkpoints has ended."""
        if self.per == "run" or not account.in_memory or self._has_warned or not any(account.used.values()):
            return
        self._has_warned = True
        kept = "" if self.per == "user" else ", or compile the graph with a checkpointer"
        _log.warning(
            "checker %r has seen more than %s %ss, and has dropped the account of the %s seen longest ago: it "
            "begins again at nothing. Set keep_accounts to more than the number of %ss%s. (This is reported once.)",
            self.name,
            f"{self.keep_accounts:,}",
            *(self.per,) * 3,
            kept,
        )

    def _committed(self, history: CausalHistory) -> _Amounts:
        in_run = self.per == "run"
        amounts: _Amounts = {}
        for metric in _METRICS:
            tally = history.tally(self.name, metric)
            if amount := tally.in_run if in_run else tally.amount:
                amounts[metric] = _counted(metric, amount)
        return amounts

    def _of(self, read: Any, history: CausalHistory) -> _Amounts:
        return {metric: _counted(metric, read(self.name, metric)) for metric in _METRICS}

    def _refusal(self, account: _Account, wanted: Mapping[str, float]) -> str | None:
        """The reason why a node run with that reservation is not admitted, or None."""
        if (reason := self._used_up(account)) is not None:
            return reason
        for metric, limit in self._limits.items():
            held, want = account.reserved[metric], wanted.get(metric, 0)
            if (want or held) and account.used[metric] + held + want > limit:
                return (
                    f"{_text(metric, account.used[metric])} of {_text(metric, limit)} {metric} {self._whose} are used "
                    f"and {_text(metric, held)} reserved"
                )
        return None

    def _used_up(self, account: _Account) -> str | None:
        if self._metered and self.unreported == "deny" and (missing := account.used["unreported"]):
            return (
                f"{missing:.0f} model call(s) {self._whose} did not report their usage, or have no known price, "
                "so the rest of the budget is unknown"
            )
        for metric, limit in self._limits.items():
            if metric != "calls" and account.used[metric] >= limit:
                used = _text(metric, account.used[metric])
                return f"{used} of {_text(metric, limit)} {metric} {self._whose} are used"
        return None

    @property
    def _whose(self) -> str:
        return f"of this {self.per}"

    # Inside

    def handlers(self, history: History) -> Sequence[BaseCallbackHandler]:
        own = causal(history)
        with self._lock:
            account, item = self._checked.get((own.run_id, own.item.id), (None, None))
            if account is None or item is None:
                return ()  # without an account, which is recorded already
            item.began = True
            if not self._metered:
                return ()
            item.meter = _Meter(self, account, item, own)
            return (item.meter,)

    def starts(self, meter: _Meter, call: UUID) -> None:
        """Called before a model call. Raises `PolicyViolationError` if the budget is used up."""
        with self._lock:
            reason = self._used_up(meter.account) if self.enforced else None
            if reason is None:
                if (outer := self._meters.get(call)) is not None:
                    outer.waiting.discard(call)
                self._meters[call] = meter
                meter.waiting.add(call)
                return
        raise PolicyViolationError(
            policy=self.name, node=meter.node, instruction=meter.instruction, reason=reason
        )

    def ends(self, meter: _Meter, call: UUID, result: LLMResult | None, *, failed: bool = False) -> None:
        """Called after a model call. With None it failed before any result, so it has used nothing."""
        try:
            used = {} if result is None else self._usage(result)
        except Exception:  # a model may put anything there
            used = {"unreported": 1}
        if failed and result is not None:
            used["unreported"] = 1  # a partial result does not report its full usage
        with self._lock:
            if self._meters.get(call) is meter:
                del self._meters[call]
            if call in meter.waiting:
                meter.waiting.discard(call)
                item = meter.item
            elif call in meter.late:
                meter.late.discard(call)
                meter.account.use(None, "unreported", -1)
                item = None
            else:
                return
            for metric, amount in used.items():
                meter.account.use(item, metric, amount)

    def _usage(self, result: LLMResult) -> _Amounts:
        message = _message(result)
        usage: Mapping[str, Any] | None = None if message is None else message.usage_metadata
        if usage is not None and usage.get("total_cost") == 0:
            return {}  # LangChain marks an answer from its cache like this
        if message is None or usage is None:
            return {"unreported": 1}
        tokens: int = usage["total_tokens"]
        if "cost" not in self._limits:
            return {"tokens": tokens}
        cost = self._cost(_model(message, result), usage)
        return {"tokens": tokens, "unreported": 1} if cost is None else {"tokens": tokens, "cost": cost}

    def _cost(self, model: str | None, usage: Mapping[str, Any]) -> int | None:
        if model is None:
            return None
        cost = dollars(model, usage, self.prices)
        return None if cost is None else round(cost * _PICO)

    # After

    def observe(self, history: History) -> Mapping[str, float] | None:
        own = causal(history)
        node_run = own.item
        key = (own.run_id, node_run.id)
        with self._lock:
            account, item = self._checked.pop(key, (None, None))
            if account is None or item is None:
                return None  # without an account, so it was denied
            if item.began:
                account.use(item, "seconds", node_run.duration)
            self._settle(account, item)
            if not item.counted:
                account.items.pop(key, None)
            commits = node_run.status == "completed" or node_run.redirected_to is not None
            if self.per not in _KEPT:
                return account.unsaved_amounts()
            if not commits:
                return account.note(key, node_run)
            item.committed = account.commit(key, own)
            return item.committed

    def _settle(self, account: _Account, item: _Item) -> None:
        """End an attempt: its used amounts stay, and the rest of its reservation is released."""
        if item.began and not item.counted:
            item.counted = True
            account.use(item, "calls", 1)
        if (meter := item.meter) is not None and meter.waiting:
            # The body did not wait for these calls; their usage is unknown until they end.
            account.use(item, "unreported", len(meter.waiting))
            for call in meter.waiting:
                self._meters.pop(call, None)
            meter.late |= meter.waiting
            meter.waiting.clear()
        item.began, item.meter = False, None
        account.end(item)

    # Reading

    def used(self, account: str | None = None) -> Usage | None:
        """The use of an account: a run id, a thread id or a user, depending on `per`. By default the most
        recently used account.

        None if this process knows no such account.
        """
        with self._lock:
            found = self._accounts.newest() if account is None else self._accounts.get(account)
            if found is None:
                return None
            used = found.used
            return Usage(
                calls=int(used["calls"]),
                tokens=int(used["tokens"]) if self._metered else None,
                cost=_shown("cost", used["cost"]) if "cost" in self._limits else None,
                seconds=used["seconds"],
                unreported=int(used["unreported"]),
            )


class _Meter(BaseCallbackHandler):
    """Counts the model calls of one node run."""

    raise_error = True
    run_inline = True  # in order, so that the innermost of several comes last

    def __init__(
        self, checker: BudgetChecker, account: _Account, item: _Item, history: CausalHistory
    ) -> None:
        self.checker = checker
        self.account = account
        self.item = item
        self.waiting: set[UUID] = set()
        """Calls that this meter counts and that have not ended."""
        self.late: set[UUID] = set()
        """Calls that had not ended when the node run ended."""
        self.node = history.item.node
        self.instruction = history.item.instruction

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.checker.starts(self, run_id)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.checker.starts(self, run_id)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        self.checker.ends(self, run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        partly: LLMResult | None = kwargs.get("response")
        gave = partly is not None and any(partly.generations)
        self.checker.ends(self, run_id, partly if gave else None, failed=True)


def _message(result: LLMResult) -> AIMessage | None:
    """The answer of a chat model. If there are several to one prompt, each reports the usage of all."""
    first = result.generations[0][0] if result.generations and result.generations[0] else None
    message = first.message if isinstance(first, ChatGeneration) else None
    return message if isinstance(message, AIMessage) else None


def _model(message: AIMessage, result: LLMResult) -> str | None:
    told: Mapping[str, Any] = message.response_metadata
    name: Any = told.get("model_name") or told.get("model") or (result.llm_output or {}).get("model_name")
    return name if isinstance(name, str) else None


def _counted(metric: str, amount: float) -> float:
    return round(amount * _PICO) if metric == "cost" else amount


def _shown(metric: str, amount: float) -> float:
    return amount / _PICO if metric == "cost" else amount


def _text(metric: str, amount: float) -> str:
    return f"${_shown(metric, amount):.6g}" if metric == "cost" else f"{amount:.12g}"
