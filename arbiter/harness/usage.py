"""The usage of a run: calls, tokens and dollars, by purse and model.

The purses are `target` (the model calls of what is measured), `judge`, `correction` (the judges of a correction
gate) and `intervention`. A call whose model reports no tokens is an unknown call, so a sum with one is a lower
bound. A model without a price makes the dollars unknown, never 0. Replayed and cached answers cost nothing and
are counted apart.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tracers.context import register_configure_hook

from arbiter.models import JudgeReply, Price, counted_apart, dollars, prices_of, usage_meter

Purse = Literal["target", "judge", "correction", "intervention"]
PURSES: tuple[Purse, ...] = get_args(Purse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """An amount of usage. `usd` is None if an answer has no price, or its model did not report its tokens.

    `replayed_calls` and `replayed_tokens` are those of recorded and cached answers, which no other number has.
    Calls that failed, and those whose answers a killed process never got, are unknown calls that leave `usd` as it is.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    unknown_calls: int = 0
    replayed_calls: int = 0
    replayed_tokens: int = 0
    usd: float | None = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Spent) -> Spent:
        # Rounded, because the last digits of a sum depend on the order of the calls, which differs from run to run.
        known = None if self.usd is None or other.usd is None else round(self.usd + other.usd, 12)
        counts = {
            name: getattr(self, name) + getattr(other, name) for name in self.__slots__ if name != "usd"
        }
        return Spent(**counts, usd=known)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spent:
        """The amount that `to_dict` wrote."""
        return cls(**{name: data[name] for name in cls.__slots__ if name in data})

    @classmethod
    def unanswered(cls, calls: int) -> Spent:
        """Calls that failed, or were running when their process ended."""
        return cls(calls=calls, unknown_calls=calls)


def plain_purses(purses: Mapping[str, Mapping[str, Spent]]) -> dict[str, dict[str, Any]]:
    """Amounts by purse and model as JSON-able data."""
    return {
        purse: {model: spent.to_dict() for model, spent in models.items()} for purse, models in purses.items()
    }


def cost_text(spent: Spent) -> str:
    """The dollars of an amount as people read them; with calls of unknown cost, a lower bound."""
    if spent.usd is None:
        return "unknown"
    if spent.unknown_calls:
        return f"≥ ${spent.usd:.2f}"
    return "<$0.01" if 0 < spent.usd < 0.005 else f"${spent.usd:.2f}"


NOTHING = Spent()
Purses = dict[Purse, dict[str, Spent]]
"""Amounts by purse and model."""
NO_PURSES: Mapping[str, Mapping[str, Spent]] = MappingProxyType({})
Keep = Callable[[str, Purse, str, Spent, int], None]
"""Called with the thread, the purse, the model, the amount, and the number of calls that are still running."""


class Usage:
    """The usage of a run, by the LangGraph thread of each case. Safe to use from several threads.

    `prices` are those of `arbiter.models.Price`, by model; other models have the prices of `genai-prices`, if it
    is installed.
    """

    def __init__(self, prices: Mapping[str, Price | Mapping[str, Any]] | None = None) -> None:
        self.kept: Keep | None = None
        """Called with each amount when it is known, and with an amount of nothing when a call begins."""
        self._prices = prices_of("usage", prices or {})
        self._lock = threading.Lock()
        self._running: Counter[tuple[str, Purse]] = Counter()
        self._spent: dict[str, Purses] = defaultdict(lambda: defaultdict(dict))
        self._sum = NOTHING
        self._unpriced: set[str] = set()

    def add(
        self,
        purse: Purse,
        model: str,
        tokens: Mapping[str, Any] | None,
        *,
        calls: int = 1,
        thread_id: str = "",
        replayed: bool = False,
    ) -> None:
        """Count calls of a model. `tokens` is the sum of LangChain's `usage_metadata`; None if one is missing. A report
        that cannot be read counts as none."""
        try:
            spent = self._spent_on(model, tokens, calls, replayed=replayed)
        except (ArithmeticError, TypeError, ValueError):  # such as NaN, or a negative count
            spent = self._spent_on(model, None, calls, replayed=replayed)
        self._put(purse, model, thread_id, spent)

    def _spent_on(self, model: str, tokens: Mapping[str, Any] | None, calls: int, *, replayed: bool) -> Spent:
        """The amount of calls of a model. Raises for a report of tokens that has no numbers of tokens."""
        if replayed:
            count = 0 if tokens is None else _whole(tokens, "input_tokens") + _whole(tokens, "output_tokens")
            return Spent(replayed_calls=calls, replayed_tokens=count)
        if tokens is None:
            return Spent(calls=calls, unknown_calls=calls, usd=None)
        return Spent(
            input_tokens=_whole(tokens, "input_tokens"),
            output_tokens=_whole(tokens, "output_tokens"),
            calls=calls,
            usd=dollars(model, {"input_tokens": 0, "output_tokens": 0, **tokens}, self._prices),
        )

    def add_reply(
        self, purse: Purse, model: str, reply: JudgeReply, *, thread_id: str = "", replayed: bool = False
    ) -> None:
        """Count the calls of a judge. If one of them did not report its tokens, the others count all the same."""
        told = [tokens for tokens in reply.usages if tokens is not None]
        for tokens in told:
            self.add(purse, model, tokens, thread_id=thread_id, replayed=replayed)
        others = reply.calls - len(told)  # a refused request is a call without an answer
        if others > 0 or not told:
            self.add(purse, model, reply.usage, calls=others, thread_id=thread_id, replayed=replayed)

    def add_failed(self, purse: Purse, model: str, *, thread_id: str = "") -> None:
        """Count a call that failed. It may have cost something, so the sums are lower bounds."""
        self._put(purse, model, thread_id, Spent.unanswered(1))

    def begin(self, purse: Purse, thread_id: str) -> None:
        """Note that a call begins, of which `add` will count the answer."""
        with self._lock:
            self._running[thread_id, purse] += 1
            self._keep(purse, "", thread_id, NOTHING)

    def end(self, purse: Purse, thread_id: str) -> None:
        """Note that a call has ended. It may have been given up."""
        with self._lock:
            self._running[thread_id, purse] -= 1
            if self._running[thread_id, purse] <= 0:
                del self._running[thread_id, purse]

    def take(self, thread_id: str, purse: Purse, model: str, spent: Spent, running: int) -> None:
        """Count what another process reports, in the form of `Keep`."""
        with self._lock:
            self._running[thread_id, purse] = running
        self._put(purse, model, thread_id, spent)

    def give_up(self, *thread_ids: str) -> None:
        """Count the calls of these threads, or of all, that are still running: their answers will not be known."""
        if not self._running:
            return
        with self._lock:
            left = [each for each in self._running if not thread_ids or each[0] in thread_ids]
            counts = {each: self._running.pop(each) for each in left}
        for (thread_id, purse), count in counts.items():
            if count > 0:
                self._put(purse, "", thread_id, Spent.unanswered(count))

    def restore(self, thread_id: str, purses: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        """Count the usage of a case in an earlier session of the run, from the form of `to_dict`."""
        for purse in PURSES:
            for model, spent in purses.get(purse, {}).items():
                self._put(purse, model, thread_id, Spent.from_dict(spent), is_new=False)

    def _put(self, purse: Purse, model: str, thread_id: str, spent: Spent, *, is_new: bool = True) -> None:
        with self._lock:
            if spent.usd is None and not spent.unknown_calls:  # else it may have a price
                self._unpriced.add(model)
            if spent != NOTHING:
                models = self._spent[thread_id][purse]
                models[model] = models.get(model, NOTHING) + spent
                self._sum += spent
            if is_new:
                self._keep(purse, model, thread_id, spent)

    def _keep(self, purse: Purse, model: str, thread_id: str, spent: Spent) -> None:
        if self.kept is not None and thread_id:
            self.kept(thread_id, purse, model, spent, max(self._running[thread_id, purse], 0))

    def callback(self, thread_id: str) -> UsageCallback:
        """A callback for the config of a target's call; all model calls inside it are counted."""
        return UsageCallback(self, thread_id)

    @property
    def total(self) -> Spent:
        """The sum of everything."""
        with self._lock:
            return self._sum

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models that were called and have no price."""
        with self._lock:
            return tuple(sorted(self._unpriced))

    def of(self, *thread_ids: str) -> Mapping[str, Mapping[str, Spent]]:
        """The amounts of these threads by purse and model; in the order of `PURSES`, then by name."""
        if self._spent.keys().isdisjoint(thread_ids):
            return NO_PURSES
        with self._lock:
            many = [self._spent[id] for id in thread_ids if id in self._spent]
            return {
                purse: {
                    model: sum((each[purse].get(model, NOTHING) for each in many if purse in each), NOTHING)
                    for model in names
                }
                for purse in PURSES
                if (names := sorted({model for each in many if purse in each for model in each[purse]}))
            }


def _whole(tokens: Mapping[str, Any], name: str) -> int:
    count = int(tokens.get(name) or 0)
    if count < 0:
        raise ValueError(f"{name} is {count}")
    return count


class UsageCallback(BaseCallbackHandler):
    """Counts the model calls of a target. Unlike LangChain's handler it also counts the calls that fail and those
    without a report of their tokens. Calls of judges are left out: their replies are counted (`meter`)."""

    run_inline = True

    def __init__(self, usage: Usage, thread_id: str) -> None:
        super().__init__()
        self._usage = usage
        self._thread_id = thread_id
        self._calls: dict[Any, tuple[Purse, str | None]] = {}
        """The purse of each running call, and its model; None for one that a meter counts."""

    @property
    def ignore_chain(self) -> bool:
        """True: it does not see nodes, so a governed node that calls no model costs what it costs without it."""
        return True

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any = None, **known: Any
    ) -> None:
        """Note that a call begins, and the model's name, for a call that fails."""
        apart = counted_apart.get()
        told: Mapping[str, Any] = known.get("metadata") or {}
        model = str(told.get("ls_model_name") or known.get("name") or "")
        self._calls[run_id] = ("target", model) if apart is None else (purse_of(apart), None)
        self._usage.begin(self._calls[run_id][0], self._thread_id)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: Any = None, **known: Any) -> None:
        self.on_chat_model_start(serialized, prompts, run_id=run_id, **known)

    def on_llm_end(self, response: LLMResult, *, run_id: Any = None, **known: Any) -> None:
        asked = self._ended(run_id)
        if asked is None:
            return
        for generations in response.generations:
            message = (
                generations[0].message if generations and isinstance(generations[0], ChatGeneration) else None
            )
            said: Mapping[str, Any] = {} if message is None else message.response_metadata
            tokens: Any = message.usage_metadata if isinstance(message, AIMessage) else None
            self._usage.add("target", str(said.get("model_name") or asked), tokens, thread_id=self._thread_id)

    def on_llm_error(self, error: BaseException, *, run_id: Any = None, **known: Any) -> None:
        """Count a call that failed; its cost is unknown."""
        asked = self._ended(run_id)
        if asked is not None:
            self._usage.add_failed("target", asked, thread_id=self._thread_id)

    def _ended(self, run_id: Any) -> str | None:
        """The model of a call that has ended; None if it is not to be counted here."""
        found = self._calls.pop(run_id, None)
        if found is None:
            return None
        self._usage.end(found[0], self._thread_id)
        return found[1]

    def meter(self, purse: str, reply: JudgeReply | None) -> None:
        """Count the reply of a judge inside the run: of a correction gate, an intervention, or the user's own."""
        known = purse_of(purse)
        if reply is None:
            self._usage.add_failed(known, "", thread_id=self._thread_id)
        else:
            self._usage.add_reply(known, reply.model, reply, thread_id=self._thread_id)


def purse_of(name: str) -> Purse:
    """The purse of that name; that of judges if there is none."""
    return name if name in PURSES else "judge"


_counted: ContextVar[Any] = ContextVar("arbiter_usage", default=None)
register_configure_hook(_counted, inheritable=True)


def count_here(callback: UsageCallback) -> tuple[Any, Any]:
    """From now on, all model calls in this context are counted, also those of functions that know no config. Returns
    the tokens for `count_no_more`."""
    return _counted.set(callback), usage_meter.set(callback.meter)


def count_no_more(tokens: tuple[Any, Any]) -> None:
    """End what `count_here` began."""
    counted, metered = tokens
    usage_meter.reset(metered)
    _counted.reset(counted)
