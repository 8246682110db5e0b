"""An evaluator that compares the cost of a node's model calls, in tokens or US dollars, with a limit."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Unpack

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from arbiter._values.parameters import Param, check_parameters
from arbiter.errors import ParameterError
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.evaluators._outputs import failure, messages_in
from arbiter.history._items import History, HistoryItem
from arbiter.models import Prices, dollars, need_price_list, prices_of
from arbiter.verdicts import EvaluationResult

Currency = Literal["tokens", "usd"]


class CostEvaluator(NodeEvaluator):
    """Passes if the model answers in the node's output used at most `at_most` tokens or US dollars.

    Counts the `usage_metadata` of the AI messages that are in the output but not in the input. Dollars are
    computed from `prices` (name of the model in its answers to `Price`), else from the data in the package
    genai-prices. The score is 1.0 within the limit, else `at_most / cost`. If there is no usage, or an answer
    without usage, or a model without a price, the cost is unknown: that is an evaluator error. Model calls
    whose answers the node does not return are not counted; a budget checker counts them.
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        at_most: Annotated[float, Param("the most tokens or US dollars", gt=0, tighter="lower")],
        *,
        unit: Annotated[Currency, Param("what is counted: tokens, or US dollars")] = "tokens",
        prices: Prices = None,
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        owner = f"evaluator {name!r}"
        self.at_most = at_most
        if prices is not None and unit == "tokens":
            raise ParameterError(owner, "prices", "expected none with unit 'tokens'. Set unit to 'usd'.")
        self.unit = unit
        self.prices = {} if prices is None else prices_of(owner, prices)
        if unit == "usd" and not self.prices:
            need_price_list(owner, "unit")

    def evaluate(self, history: History) -> EvaluationResult:
        item = history.item
        answers = _new_answers(item)
        usages = [self._usage(answer, item) for answer in answers]
        if not usages:
            raise failure(
                self.name, item, f"the output of node {item.node!r} has no message with token usage"
            )
        if self.unit == "tokens":
            cost: float = sum(usage["total_tokens"] for usage in usages)
            said, limit = f"{cost} tokens", f"{self.at_most:g} tokens"
        else:
            pairs = zip(answers, usages, strict=True)
            # Many prices are added up; the result must not depend on the last digit of the sum.
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
            raise failure(
                self.name,
                item,
                f"an answer of {_model(answer) or 'a model'} does not report how many tokens it used",
            )
        return answer.usage_metadata

    def _dollars(self, answer: AIMessage, usage: UsageMetadata, item: HistoryItem) -> float:
        model = _model(answer)
        if model is None:
            raise failure(self.name, item, "an answer does not name its model, so it has no price")
        cost = dollars(model, usage, self.prices, answer.response_metadata.get("model_provider"))
        if cost is None:
            raise failure(
                self.name, item, f"the model {model!r} has no price, neither in prices nor in genai-prices"
            )
        return cost


def _new_answers(item: HistoryItem) -> list[AIMessage]:
    """The model answers in the output, each once, without those that were already in the input.

    A message with neither usage nor other model data was written by hand and cost nothing.
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
    # A node that is an agent itself returns the whole conversation, with answers that were paid before.
    before = {message.id for message in messages_in(item.input_state)} - {None}
    return [message for message in found if message.id not in before]


def _model(answer: AIMessage) -> str | None:
    said: Any = answer.response_metadata.get("model_name") or answer.response_metadata.get("model")
    return said if isinstance(said, str) else None
