"""An evaluator that compares an output with earlier ones of the same kind of step."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice

from arbiter.errors import EvaluationError
from arbiter.evaluation import NodeEvaluator
from arbiter.evaluators.outputs import checked_number, own_item, text_at, text_in
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import EvaluationResult

_WORD = re.compile(r"\w+")


def similarity(one: str, other: str, n: int = 1) -> float:
    """The Jaccard overlap of the word n-grams of two texts, 0.0 to 1.0.

    Words are runs of letters, digits and underscores after Unicode NFKC and case folding. A text with fewer than `n`
    words is one n-gram. Texts without any word are as similar as they are equal: 1.0 or 0.0.
    """
    first, second = _ngrams(one, n), _ngrams(other, n)
    if not first and not second:
        return float(one.strip() == other.strip())
    return len(first & second) / len(first | second)


def _ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    if not words:
        return set()
    return {tuple(words[at : at + n]) for at in range(max(1, len(words) - n + 1))}


class TextSimilarityEvaluator(NodeEvaluator):
    """Passes when the text at `key` is similar enough to what earlier runs of the same instruction wrote there.

    The score is the mean `similarity` to the `compare` newest earlier outputs that have a text at `key`; "earlier" is
    the committed past, and for a node without an instruction its own runs. Of what ran in another process the
    history knows that it ran, not what it wrote. With nothing to compare with there is no score: that is an
    evaluator error.
    """

    def __init__(
        self,
        name: str,
        key: str,
        *,
        at_least: float = 0.5,
        compare: int = 5,
        ngram: int = 1,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        owner = f"evaluator {name!r}"
        self.key = key
        self.at_least = checked_number(owner, "at_least", at_least, low=0, high=1)
        self.compare = checked_number(owner, "compare", compare, low=1, whole=True)
        self.ngram = checked_number(owner, "ngram", ngram, low=1, whole=True)

    def evaluate(self, history: History) -> EvaluationResult:
        text = text_at(history, self.key, self.name)
        earlier = list(islice(self._earlier(history), self.compare))
        if not earlier:
            own = own_item(history)
            of = f"of {own.instruction}" if own.instruction else f"of node {own.node!r}"
            raise EvaluationError(
                f"nothing to compare with: no earlier output {of} with a text at {self.key!r} is at hand",
                evaluator=self.name,
                node=own.node,
            )
        alike = [similarity(text, other, self.ngram) for other in earlier]
        score = math.fsum(alike) / len(alike)
        passed = score >= self.at_least
        return EvaluationResult(
            score,
            passed,
            f"{score:.2f} like the last {len(alike)} ({'✓' if passed else '✗'} at_least={self.at_least:g})",
            {"similarities": alike},
        )

    def _earlier(self, history: History) -> Iterator[str]:
        """The texts of earlier outputs, newest first."""
        own = own_item(history)
        for superstep in reversed(history.entries[:-1]):
            for item in reversed(superstep):
                same = (
                    item.node == own.node if own.instruction is None else item.instruction == own.instruction
                )
                if same and item.status == "completed":
                    text = text_in(item.output_state.get(self.key))
                    if text is not None:
                        yield text


ConsistencyEvaluator = TextSimilarityEvaluator
"""Its former name. Whether an agent is consistent is judged by `arbiter.personas.SelfConsistencyEvaluator`."""
