"""An evaluator that compares an output with earlier ones of the same kind of step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Unpack

from arbiter._values.normal import normalized
from arbiter._values.parameters import Param, check_parameters
from arbiter._values.words import VOWEL_SIGNS, with_pairs
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.evaluators._outputs import failure, text_at, text_in
from arbiter.history._items import History
from arbiter.verdicts import EvaluationResult

_WORD = re.compile(rf"[\w{VOWEL_SIGNS}]+")


def similarity(one: str, other: str, n: int = 1) -> float:
    """The Jaccard overlap of the word n-grams of two texts, 0.0 to 1.0.

    Words are runs of letters, vowel signs, digits and underscores after Unicode NFKC and case folding; in
    scripts without blanks between words, such as Chinese, pairs of neighbouring characters. A text with fewer
    than `n` words is one n-gram. Two texts without any word score 1.0 if they are equal, else 0.0.
    """
    first, second = _ngrams(one, n), _ngrams(other, n)
    if not first and not second:
        return float(one.strip() == other.strip())
    return len(first & second) / len(first | second)


def _ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    words = with_pairs(_WORD.findall(normalized("NFKC", text).casefold()))
    if not words:
        return set()
    return {tuple(words[at : at + n]) for at in range(max(1, len(words) - n + 1))}


class TextSimilarityEvaluator(NodeEvaluator):
    """Passes if the text at `key` is similar enough to the texts that earlier runs of the same instruction
    wrote there.

    The score is the mean `similarity` to the `compare` newest earlier outputs with a text at `key`. "Earlier"
    means the committed past; for a node without an instruction, its own runs. Outputs from other processes
    are unknown and left out. Without any earlier text there is no score: that is an evaluator error.
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        key: Annotated[str, Param("where in the output the text, message or list of messages is")],
        *,
        at_least: Annotated[
            float, Param("passes from this mean similarity on", ge=0, le=1, tighter="higher")
        ] = 0.5,
        compare: Annotated[int, Param("how many earlier outputs are compared, newest first", ge=1)] = 5,
        ngram: Annotated[int, Param("words to an n-gram; 1 ignores the order of the words", ge=1)] = 1,
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self.key = key
        self.at_least = at_least
        self.compare = compare
        self.ngram = ngram

    def evaluate(self, history: History) -> EvaluationResult:
        text = text_at(history, self.key, self.name)
        earlier = list(islice(self._earlier(history), self.compare))
        if not earlier:
            own = history.item
            of = f"of {own.instruction}" if own.instruction else f"of node {own.node!r}"
            problem = (
                f"nothing to compare with: no earlier output {of} with a text at {self.key!r} is available"
            )
            raise failure(self.name, own, problem, "not_applicable")
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
        own = history.item
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
"""Its former name. `arbiter.personas.SelfConsistencyEvaluator` judges whether an agent is consistent."""
