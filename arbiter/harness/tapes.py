"""Tapes: the answers of a target that were recorded or cached, and are replayed without running it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arbiter.errors import ArbiterWarning, callers
from arbiter.harness.cache import Answers
from arbiter.harness.cases import Case
from arbiter.harness.journal import EVALUATIONS, Kept, lasting_score, score_from
from arbiter.harness.recordings import Details, Place, Recording, answer_key
from arbiter.harness.scores import Score

_OF_A_RUN = ("seconds", "thread_id", "exact")
"""Parts of an answer that differ from run to run."""


class Tape(Protocol):
    """Answers of a graph that need not run again. `parts` are hashes of all that they depend on: the target, and the
    node evaluators, whose scores are kept with the answers, because they judge node runs that a replay has not.
    """

    def check(self, cases: Iterable[tuple[Case, int]]) -> None:
        """Raise `RecordingError` with all answers that are missing and cannot be asked for."""
        ...

    def answer(self, case: Case, repeat: int) -> Kept | None:
        """The known answer to a case; None if there is none and the target is to be called."""
        ...

    def keeps(self, answer: Mapping[str, Any]) -> bool:
        """True for an answer that a later run gets from here, in its JSON form."""
        ...

    def keep(self, case: Case, repeat: int, answer: Mapping[str, Any]) -> None:
        """Keep the answer to a case, if it `keeps` such an answer."""
        ...


def judged(answer: dict[str, Any], scores: Sequence[Score]) -> None:
    """Add the scores of the node evaluators to an answer that a tape will keep."""
    answer["evaluations"] = [*map(lasting_score, scores)]


def _kept(found: Mapping[str, Any]) -> Kept:
    line = dict(found)
    scores: Any = line.pop("evaluations", None)
    kept = Kept(line)
    if scores is not None:
        kept.scores[EVALUATIONS] = tuple(map(score_from, scores))
    return kept


def _lasting(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in _OF_A_RUN}


@dataclass(frozen=True, slots=True)
class RecordedTape:
    """The answers in recordings that are committed."""

    recordings: Recording
    parts: Mapping[str, str]
    details: Details

    def check(self, cases: Iterable[tuple[Case, int]]) -> None:
        if self.recordings.mode == "replay":
            inputs = {Place(case.id, repeat): case.input for case, repeat in cases}
            self.recordings.check_answers(inputs, self.parts, self.details)

    def answer(self, case: Case, repeat: int) -> Kept | None:
        may_fail = "raises" in case.assertions or case.assertions.get("completes") is False
        found = self.recordings.answer(
            Place(case.id, repeat),
            input=case.input,
            target=self.parts,
            details=self.details,
            may_fail=may_fail,
        )
        return None if found is None else _kept(found)

    def keeps(self, answer: Mapping[str, Any]) -> bool:
        """Timeouts are not recorded."""
        return self.recordings.mode == "record" and answer["status"] not in ("timeout", "lost")

    def keep(self, case: Case, repeat: int, answer: Mapping[str, Any]) -> None:
        if not self.keeps(answer):
            return
        if answer.get("exact") is False:
            warnings.warn(
                f"the output of case {case.id!r} is not JSON, so judges, and the scorers of a replay, get it in its "
                "JSON form. Name an output that is JSON: target.output.",
                ArbiterWarning,
                stacklevel=callers(),
            )
        place = Place(case.id, repeat)
        self.recordings.keep_answer(
            place, input=case.input, target=self.parts, details=self.details, answer=_lasting(answer)
        )


@dataclass(frozen=True, slots=True)
class CachedTape:
    """The answers of earlier live runs: completed ones whose output is JSON."""

    cache: Answers
    parts: Mapping[str, str]

    def check(self, cases: Iterable[tuple[Case, int]]) -> None:
        pass

    def answer(self, case: Case, repeat: int) -> Kept | None:
        found = self.cache.get(answer_key(case.input, self.parts, repeat))
        return None if found is None else _kept({**found, "case": case.id, "repeat": repeat})

    def keeps(self, answer: Mapping[str, Any]) -> bool:
        return answer["status"] == "completed" and answer.get("exact") is not False

    def keep(self, case: Case, repeat: int, answer: Mapping[str, Any]) -> None:
        if self.keeps(answer):
            self.cache.put(answer_key(case.input, self.parts, repeat), _lasting(answer))
