"""A checker that stops when a budget of calls, tokens, money or time is used up.

What a node run may use is reserved before it, under a lock, and settled after it by what it really used. So the limit
holds also where a hundred branches ask at once. The account in memory is the truth as long as the process
lives; what is committed with the nodes (`observe`) is where another process goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from arbiter.checkers.accounts import Accounts, account_of, causal, no_account, non_empty, one_of, positive
from arbiter.errors import ParameterError, PolicyViolationError
from arbiter.history import CausalHistory, History
from arbiter.instructions import Instruction
from arbiter.policy import OnDeny, PolicyChecker
from arbiter.prices import Price, dollars, need_price_list, prices_of
from arbiter.verdicts import Verdict

_PER = ("run", "thread", "user", "process")
_KEPT = ("run", "thread")
"""Accounts that another process goes on with: what is committed and noted with the thread is all they have used."""
_METRICS = ("calls", "tokens", "cost", "seconds", "unreported")
_PICO = 10**12
_KEEP_ITEMS = 4096
"""How many node runs that have ended an account remembers, and how many subgraphs."""

_Amounts = dict[str, float]
"""By metric. `cost` is in millionths of a millionth of a US dollar, a whole number: sums of those are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an account has used. None: not counted, because no limit needs it. `cost` is in US dollars, `seconds` is
    the time that node runs took. `unreported` counts model calls that did not say what they used, or whose price is
    unknown: with any of those, `tokens` or `cost` is too low."""

    calls: int
    tokens: int | None
    cost: float | None
    seconds: float
    unreported: int


@dataclass(slots=True, eq=False)
class _Item:
    """One node run on an account, over all its attempts."""

    running: bool = False
    """It was admitted and has not ended: what it reserves is held for it."""
    began: bool = False
    """The body of the current attempt was allowed to begin."""
    counted: bool = False
    """Its call is among those used."""
    reserved: _Amounts = field(default_factory=dict[str, float])
    meter: _Meter | None = None


class _Account:
    """What was used, what is reserved, and which node runs that was. Guarded by the checker's lock."""

    __slots__ = ("items", "noted", "places", "reserved", "running", "unsaved", "used")

    def __init__(self) -> None:
        self.used: _Amounts = dict.fromkeys(_METRICS, 0)
        self.reserved: _Amounts = dict.fromkeys(_METRICS, 0)
        self.unsaved: _Amounts = dict.fromkeys(_METRICS, 0)
        """What is used and not yet committed with any node."""
        self.noted: dict[tuple[str, str], tuple[str, _Amounts]] = {}
        """Of node runs that have failed or paused, in which graph that was, and what is noted beside the checkpoint."""
        self.items: dict[tuple[str, str], _Item] = {}
        self.places: dict[str, None] = {}
        """Subgraphs, by namespace, whose committed past is part of `used`."""
        self.running = 0

    def use(self, item: _Item | None, metric: str, amount: float) -> None:
        """Count what was used; it comes out of what was reserved for it, as far as that goes."""
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
        """Let go of what is still reserved."""
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
        if len(self.places) > _KEEP_ITEMS:
            del self.places[next(iter(self.places))]

    def take_in(self, past: Mapping[str, float]) -> None:
        for metric, amount in past.items():
            self.used[metric] += amount

    def at_least(self, past: Mapping[str, float]) -> None:
        """What is saved was used, also where this process has not seen it; and so was what is not saved."""
        for metric, amount in past.items():
            known = amount + self.unsaved[metric]
            # What was unreported may have been reported since.
            if known > self.used[metric] and metric != "unreported":
                self.used[metric] = known

    def note(self, key: tuple[str, str], place: str) -> dict[str, float]:
        """What is not saved, to be noted in the name of a node run that commits nothing now."""
        unsaved = self.unsaved_amounts()
        _, before = self.noted.pop(key, ("", {}))
        amounts = {metric: before.get(metric, 0) + unsaved.get(metric, 0) for metric in {*before, *unsaved}}
        if amounts:
            self.noted[key] = place, amounts
            if len(self.noted) > _KEEP_ITEMS:
                del self.noted[next(iter(self.noted))]
        return unsaved

    def commit(self, key: tuple[str, str], history: CausalHistory) -> dict[str, float]:
        """What is not saved, to be committed with a node run. Its own notes are committed with it. So is what was noted
        inside it, and what was noted in a run that was left and in which nobody has committed it."""
        run, own = key
        self.noted.pop(key, None)
        unsaved = self.unsaved_amounts()
        left = [at for at, (place, _) in self.noted.items() if at[0] != run or own in place]
        if left:
            done = {fact["id"] for fact in history.past.facts()}
            for at in left:
                _, amounts = self.noted.pop(at)
                for metric, amount in amounts.items() if at[1] not in done else ():
                    unsaved[metric] = unsaved.get(metric, 0) + amount
        return unsaved

    def left_behind(self, history: CausalHistory) -> _Amounts:
        """What was noted in runs that were left, and is not committed."""
        amounts: _Amounts = {}
        run = history.run_id
        if any(at[0] != run for at in self.noted):
            done = {fact["id"] for fact in history.past.facts()}
            for at, (_, noted) in self.noted.items():
                for metric, amount in noted.items() if at[0] != run and at[1] not in done else ():
                    amounts[metric] = amounts.get(metric, 0) + _counted(metric, amount)
        return amounts

    def unsaved_amounts(self) -> dict[str, float]:
        amounts = {m: _shown(m, amount) for m, amount in self.unsaved.items() if amount}
        self.unsaved = dict.fromkeys(_METRICS, 0)
        return amounts


def _is_idle(account: _Account) -> bool:
    return account.running == 0


class BudgetChecker(PolicyChecker):
    """Denies a node run when its run, thread, user or process has used up `calls`, `tokens`, `cost` (US dollars) or
    `seconds` (the time node runs took).

    `reserve_tokens` and `reserve_cost` are held for each node run from its admission until its end, so that used and
    reserved together never pass the limit when one is admitted. Without them branches that start together
    all start as long as the budget is not used up.

    Tokens are those that the models report (`usage_metadata`). Prices come from `prices`, by model name, else from
    the `genai-prices` package. A model call that reports no usage, or has no known price, cannot be counted: with
    `unreported="deny"` everything after it is denied, with `"ignore"` it counts nothing.

    A model call in a body whose budget is used up by then is stopped with a `PolicyViolationError`, whatever
    `on_deny` says, unless that is "audit".
    """

    blocking = False
    reads_history = False  # what a cache serves uses nothing
    recovers = True
    spends = True

    def __init__(
        self,
        name: str,
        *,
        calls: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        seconds: float | None = None,
        per: Literal["run", "thread", "user", "process"] = "run",
        user_key: str = "user_id",
        reserve_tokens: int | None = None,
        reserve_cost: float | None = None,
        prices: Mapping[str, Price] | None = None,
        unreported: Literal["deny", "ignore"] = "deny",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, on_deny)
        owner = f"checker {name!r}"
        given = {"calls": calls, "tokens": tokens, "cost": cost, "seconds": seconds}
        for metric, limit in given.items():
            if limit is not None:
                positive(owner, metric, limit, whole=metric in ("calls", "tokens"))
        self.limits = {metric: limit for metric, limit in given.items() if limit is not None}
        if not self.limits:
            raise ParameterError(
                owner, "calls", "expected a limit, got none. Set calls, tokens, cost or seconds."
            )
        one_of(owner, "per", per, _PER)
        one_of(owner, "unreported", unreported, ("deny", "ignore"))
        for parameter, reserve, limit in (
            ("reserve_tokens", reserve_tokens, tokens),
            ("reserve_cost", reserve_cost, cost),
        ):
            if reserve is not None:
                positive(owner, parameter, reserve, whole=parameter == "reserve_tokens")
                if limit is None or reserve > limit:
                    metric = parameter.removeprefix("reserve_")
                    raise ParameterError(
                        owner, parameter, f"expected at most the limit {metric}={limit!r}, got {reserve!r}."
                    )
        non_empty(owner, "user_key", user_key)
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
        self._lock = threading.Lock()
        self._accounts: Accounts[_Account] = Accounts(_is_idle)
        self._checked: dict[tuple[str, str], tuple[_Account, _Item]] = {}
        """Of each node run that was checked and has not ended."""
        self._meters: dict[UUID, _Meter] = {}
        """Of each model call under way, the innermost that sees it: it counts it."""

    # Before

    def check_before(self, history: History) -> Verdict:
        own = causal(history)
        name = account_of(own, self.per, self.user_key)
        if name is None:
            return Verdict.deny(no_account(self.per, self.user_key))
        key = (own.run_id, own.own.id)
        with self._lock:
            account = self._opened(name, own)
            item = account.remember(key)
            self._checked[key] = (account, item)
            item.counted = item.counted or own.spent(self.name, "calls") > 0
            if item.began:
                self._settle(account, item)  # an attempt that was dropped, and nobody told how it went
            if item.running:
                return Verdict.allow()  # asked again in the same attempt
            wanted = {m: a for m, a in self._reserves.items() if m != "calls" or not item.counted}
            if (reason := self._refusal(account, wanted)) is not None:
                return Verdict.deny(reason)
            account.begin(item, wanted)
        return Verdict.allow()

    def _opened(self, name: str, history: CausalHistory) -> _Account:
        """The account, with what is committed of it."""
        place = history.own.namespace
        account = self._accounts.get(name)
        keeps = self.per in _KEPT
        if account is None:
            account = self._accounts.add(name, _Account())
            if keeps:
                account.take_in(self._committed(history))
                account.take_in(self._of(history.recovered, history))
                while place:  # the past of the graphs around this one is part of that
                    account.see(place)
                    place = place.rpartition("|")[0]
            return account
        if keeps:
            if place and place not in account.places:
                # A subgraph that may go on where another process left it.
                account.take_in(self._of(history.own_part, history))
                account.see(place)
            past = self._committed(history)
            for more in (self._of(history.recovered, history), account.left_behind(history)):
                for metric, amount in more.items():
                    past[metric] = past.get(metric, 0) + amount
            account.at_least(past)
        return account

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
        """Why a node run that wants to reserve so much is not admitted."""
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
                f"{missing:.0f} model call(s) {self._whose} did not report what they used, or have no known price, "
                "so what is left of the budget is not known"
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
            account, item = self._checked.get((own.run_id, own.own.id), (None, None))
            if account is None or item is None:
                return ()  # it has no account, and only recorded that
            item.began = True
            if not self._metered:
                return ()
            item.meter = _Meter(self, account, item, own)
            return (item.meter,)

    def starts(self, meter: _Meter, call: UUID) -> None:
        """A model is about to be called: raises `PolicyViolationError` when the budget is used up."""
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
        """A model call is over. None: it failed before it gave anything, and so has used nothing."""
        try:
            used = {} if result is None else self._usage(result)
        except Exception:  # a model may put anything there
            used = {"unreported": 1}
        if failed and result is not None:
            used["unreported"] = 1  # what came says nothing of what would have come
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
            return {}  # LangChain's mark of an answer from its cache
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
        node_run = own.own
        key = (own.run_id, node_run.id)
        with self._lock:
            account, item = self._checked.pop(key, (None, None))
            if account is None or item is None:
                return None  # it has no account, and was denied for that
            if item.began:
                account.use(item, "seconds", node_run.duration)
            self._settle(account, item)
            if not item.counted:
                account.items.pop(key, None)
            commits = node_run.status == "completed" or node_run.redirected_to is not None
            if self.per not in _KEPT:
                return account.unsaved_amounts()
            return account.commit(key, own) if commits else account.note(key, node_run.namespace)

    def _settle(self, account: _Account, item: _Item) -> None:
        """An attempt is over: what it used stays, the rest of what it reserved is let go."""
        if item.began and not item.counted:
            item.counted = True
            account.use(item, "calls", 1)
        if (meter := item.meter) is not None and meter.waiting:
            # Nobody waited for those: what they use is not known, until they answer.
            account.use(item, "unreported", len(meter.waiting))
            for call in meter.waiting:
                self._meters.pop(call, None)
            meter.late |= meter.waiting
            meter.waiting.clear()
        item.began, item.meter = False, None
        account.end(item)

    # To look at

    def used(self, account: str | None = None) -> Usage | None:
        """What an account has used: a run id, a thread id or a user, as `per` says. Without one, the account that was
        used last. None: this process knows no such account."""
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
    """Sees the model calls of one node run."""

    raise_error = True
    run_inline = True  # in order, so that the innermost of several comes last

    def __init__(
        self, checker: BudgetChecker, account: _Account, item: _Item, history: CausalHistory
    ) -> None:
        self.checker = checker
        self.account = account
        self.item = item
        self.waiting: set[UUID] = set()
        """Calls that this meter counts and that have not answered."""
        self.late: set[UUID] = set()
        """Those that had not when the node run was over."""
        self.node = history.own.node
        self.instruction = history.own.instruction

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
    """The answer of a chat model. Several to one prompt each say what all of them used."""
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
