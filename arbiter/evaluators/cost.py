"""An evaluator that holds what a node's model calls cost, in tokens or US dollars, against a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from arbiter.errors import EvaluationError, ParameterError
from arbiter.evaluation import NodeEvaluator
from arbiter.evaluators.outputs import checked_number, messages_in, own_item
from arbiter.history import History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.prices import Price, dollars, need_price_list, prices_of
from arbiter.verdicts import EvaluationResult

Currency = Literal["tokens", "usd"]


class CostEvaluator(NodeEvaluator):
    """Passes when the model answers in the node's output used at most `at_most` tokens, or US dollars.

    Counts the `usage_metadata` of the AI messages that the output has and the input has not. Dollars are by `prices`
    (name of the model, as its answers give it, to `Price`), else by the package genai-prices, which brings its
    data with it. The score is 1.0 within the limit, else `at_most / cost`. Without any usage, with an answer that
    a model gave without saying its usage, or with a model that has no price, the cost is not known: that is an
    evaluator error. What a node calls without returning the answer is not seen; a budget checker sees that.
    """

    def __init__(
        self,
        name: str,
        at_most: float,
        *,
        unit: Currency = "tokens",
        prices: Mapping[str, Price] | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        owner = f"evaluator {name!r}"
        self.at_most = checked_number(owner, "at_most", at_most, above=0)
        if unit not in ("tokens", "usd"):
            raise ParameterError(owner, "unit", f"expected 'tokens' or 'usd', got {unit!r}.")
        if prices is not None and unit == "tokens":
            raise ParameterError(owner, "prices", "expected none with unit 'tokens'. Set unit to 'usd'.")
        self.unit = unit
        self.prices = {} if prices is None else prices_of(owner, prices)
        if unit == "usd" and not self.prices:
            need_price_list(owner, "unit")

    def evaluate(self, history: History) -> EvaluationResult:
        item = own_item(history)
        answers = _new_answers(item)
        usages = [self._usage(answer, item) for answer in answers]
        if not usages:
            raise self._error(
                item, f"the output of node {item.node!r} has no message that says its token usage"
            )
        if self.unit == "tokens":
            cost: float = sum(usage["total_tokens"] for usage in usages)
            said, limit = f"{cost} tokens", f"{self.at_most:g} tokens"
        else:
            pairs = zip(answers, usages, strict=True)
            # Thousands of prices are added up; what passes must not depend on the last digit of the sum.
            cost = round(math.fsum(self._dollars(answer, usage, item) for answer, usage in pairs), 12)
            said, limit = f"${cost:.6f}", f"${self.at_most:g}"
        passed = cost <= self.at_most
        return EvaluationResult(
            1.0 if passed else self.at_most / cost,
            passed,
            f"cost {said} ({'✓' if passed else '✗'} at_most={limit})",
            {"cost": cost, "unit": self.unit, "answers": len(answers)},
        )

    def _usage(self, answer: AIMessage, item: HistoryItem) -> UsageMetadata:
        if answer.usage_metadata is None:
            raise self._error(
                item, f"an answer of {_model(answer) or 'a model'} does not say how many tokens it used"
            )
        return answer.usage_metadata

    def _dollars(self, answer: AIMessage, usage: UsageMetadata, item: HistoryItem) -> float:
        model = _model(answer)
        if model is None:
            raise self._error(item, "an answer does not say which model gave it, so it has no price")
        cost = dollars(model, usage, self.prices, answer.response_metadata.get("model_provider"))
        if cost is None:
            raise self._error(
                item, f"the model {model!r} has no price, neither in prices nor in genai-prices"
            )
        return cost

    def _error(self, item: HistoryItem, problem: str) -> EvaluationError:
        return EvaluationError(problem, evaluator=self.name, node=item.node)


def _new_answers(item: HistoryItem) -> list[AIMessage]:
    """The answers of models in the output, each once, without those that were in the input already.

    A message that says neither usage nor anything else of a model was written by hand, and cost nothing.
    """
    found: list[AIMessage] = []
    seen: set[str] = set()
    for message in messages_in(item.output_state):
        if (
            isinstance(message, AIMessage)
            and (message.usage_metadata is not None or message.response_metadata)
            and message.id not in seen
        ):
            found.append(message)
            if message.id is not None:
                seen.add(message.id)
    if not seen:
        return found
    # A node that is an agent of its own returns the whole conversation, with what was paid before.
    before = {message.id for message in messages_in(item.input_state)} - {None}
    return [message for message in found if message.id not in before]


def _model(answer: AIMessage) -> str | None:
    said: Any = answer.response_metadata.get("model_name") or answer.response_metadata.get("model")
    return said if isinstance(said, str) else None
