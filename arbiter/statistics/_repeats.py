"""Repeats and votes: where the noise of scores comes from, and whether an agent that can also does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arbiter.errors import ParameterError
from arbiter.statistics._numbers import count, floats, listed, moments


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceSplit:
    """Variances of scores: of the judge asked again, the agent answering again, and the cases."""

    judge: float
    agent: float
    case: float

    def change(self, *, votes: int = 1, repeats: int = 1) -> float:
        """The standard deviation of a case's change between two runs in which nothing changed.

            √(2·(judge/votes + agent)/repeats)

        Votes do nothing against the agent's own noise. The variance of the cases is no part of it, because
        each case is compared with itself. With a judge's sd of 0.9 and whole scores (1/12 more): 1.34 for
        one vote, 0.77 for three; with an agent's sd of 0.7 beside it 1.66 and 1.26.
        """
        votes = count("change", "votes", votes, least=1)
        repeats = count("change", "repeats", repeats, least=1)
        return math.sqrt(2 * (self.judge / votes + self.agent) / repeats)


def variance_split(scores: Sequence[Sequence[Sequence[float]]]) -> VarianceSplit:
    """The variances in `scores[case][repeat][vote]`: at least two cases, as many repeats of each, as many
    votes.

        judge = MS_vote;  agent = max(0, (MS_repeat - MS_vote)/votes)
        case = max(0, (MS_case - MS_repeat)/(votes·repeats))

    The mean squares are those of a balanced nested analysis of variance. `[[[7, 8], [5, 6]], [[4, 4], [6,
    5]], [[8, 9], [9, 9]]]` gives judge 0.3333, agent 0.9167, case 3.4792. (Searle, Casella and McCulloch
    1992, Variance Components, 3.7.)
    """
    cases = [
        [
            moments(floats("variance_split", f"scores[{i}][{j}]", votes, least=2))
            for j, votes in enumerate(_list(f"scores[{i}]", repeats))
        ]
        for i, repeats in enumerate(_list("scores", scores))
    ]
    sizes = {len(repeats) for repeats in cases}, {votes.n for repeats in cases for votes in repeats}
    if any(len(found) > 1 for found in sizes):
        problem = (
            "expected as many repeats of each case, and as many votes of each repeat, got "
            f"{_span(sizes[0])} repeats and {_span(sizes[1])} votes."
        )
        raise ParameterError("variance_split", "scores", problem)
    repeats, votes = sizes[0].pop(), sizes[1].pop()
    means = [moments(tuple(votes.mean for votes in case)) for case in cases]
    ms_vote = math.fsum(votes.variance for case in cases for votes in case) / (len(cases) * repeats)
    ms_repeat = votes * math.fsum(case.variance for case in means) / len(cases)
    ms_case = votes * repeats * moments(tuple(case.mean for case in means)).variance
    return VarianceSplit(
        judge=ms_vote,
        agent=max(0.0, (ms_repeat - ms_vote) / votes),
        case=max(0.0, (ms_case - ms_repeat) / (votes * repeats)),
    )


def pass_at(k: int, n: int, c: int) -> float:
    """The chance that at least one of `k` attempts passes, estimated from `n` attempts of which `c` passed.

        1 - C(n - c, k)/C(n, k)

    `pass_at(2, 5, 3)` is 0.9. (Chen et al. 2021, arXiv:2107.03374.)
    """
    k, n, c = _attempts("pass_at", k, n, c)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat(k: int, n: int, c: int) -> float:
    """The chance that all of `k` attempts pass, estimated from `n` attempts of which `c` passed.

        C(c, k)/C(n, k)

    `pass_hat(2, 5, 3)` is 0.3. (Yao et al. 2024, arXiv:2406.12045.)
    """
    k, n, c = _attempts("pass_hat", k, n, c)
    return math.comb(c, k) / math.comb(n, k)


def _attempts(function: str, k: int, n: int, c: int) -> tuple[int, int, int]:
    n = count(function, "n", n, least=1)
    return count(function, "k", k, least=1, most=n), n, count(function, "c", c, most=n)


def _list(parameter: str, parts: Any) -> tuple[Any, ...]:
    found = listed("variance_split", parameter, parts, "lists")
    if len(found) < 2:
        raise ParameterError("variance_split", parameter, f"expected at least 2 lists, got {len(found)}.")
    return found


def _span(sizes: set[int]) -> str:
    return f"{min(sizes)}" if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"
