"""Plans: the course of an experiment and the way in which it will be judged, before anything runs.

A plan has the numbers of a dry run, which cost nothing to know, and the decisions that a test must not be able
to influence: environments, seed, arms, metrics, primary test, level of significance. Its hash is in the report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from arbiter._values.files import write_whole, writing
from arbiter._values.kinds import is_mapping
from arbiter.errors import ConfigurationError
from arbiter.experiments.arms import Corrections
from arbiter.experiments.scenarios import is_of_agents
from arbiter.harness.canonical import digest

PRIMARY = "sign_flip"
"""The test that decides: the exact two-sided sign-flip test over pairs of environments."""
ALPHA = 0.05
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """The course of an experiment, as decided beforehand. `arms` maps each arm to the version of its settings.

    Each pair of arms is compared in their order; `pairs` is the number of environments of each arm.
    """

    scenario: str
    profile: str
    mode: str
    pairs: int
    group_size: int
    steps: int
    distinct: int
    runs: int
    seed: int
    order: str
    arms: Mapping[str, str]
    metrics: Sequence[str]
    ideas: str
    primary: str = PRIMARY
    alpha: float = ALPHA

    @property
    def hash(self) -> str:
        """The first 16 hex digits of the SHA-256 of the plan."""
        return digest(self.to_dict())[:16]

    @property
    def agents(self) -> int:
        """N_a: the agent-sessions of an arm."""
        return self.pairs * self.group_size

    @property
    def drafts(self) -> int:
        """The drafts of an arm in which each is the first and last of its message."""
        return self.agents * self.steps

    @property
    def scoring_calls(self) -> int:
        """The questions to the judge, and those to rapporteurs."""
        if self.mode == "template":
            return 0
        count = sum(self.agents if is_of_agents(metric) else self.pairs for metric in self.metrics)
        if "ideas_quantity" in self.metrics and self.ideas == "rapporteur":
            count += self.pairs
        return len(self.arms) * count

    def row(self, corrections: Mapping[str, Corrections]) -> tuple[str, ...]:
        """The cells of the table of a dry run: those of `COLUMNS`."""
        most = max(each.drafts for each in corrections.values())
        gated = any(each.gate is not None for each in corrections.values())
        nudging = max(each.evaluations(self.group_size) for each in corrections.values())
        up_to = _range(self.drafts, self.drafts * most)
        return (
            self.scenario,
            f"{self.pairs}",
            f"{self.agents:,} ({self.distinct})",
            f"{self.drafts:,}",
            up_to,
            up_to if gated else "0",
            f"≤ {self.pairs * self.steps * nudging:,}" if nudging else "0",
            f"{self.scoring_calls:,}",
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-able data."""
        return {"format": _FORMAT, **asdict(self), "arms": dict(self.arms), "metrics": list(self.metrics)}

    def write(self, path: str | Path) -> Path:
        """Write the plan. Raises `ConfigurationError` if the file is there already: a plan is written once."""
        file = Path(path)
        text = json.dumps({**self.to_dict(), "hash": self.hash}, indent=2, ensure_ascii=False) + "\n"
        with writing(path):
            if file.exists():
                raise ConfigurationError(
                    f"{file} is there already. A plan is not changed; write another file."
                )
            write_whole(file, text)
        return file

    @classmethod
    def read(cls, path: str | Path) -> ExperimentPlan:
        """The plan in a file. Raises `ConfigurationError` for a file that is none, or was edited."""
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path}: cannot be read as a plan: {error}.") from None
        names = {"format", "hash", *(field.name for field in fields(cls))}
        if not is_mapping(found) or found.get("format") != _FORMAT or {*found} != names:
            raise ConfigurationError(
                f"{path} is not a plan of an experiment. Write one: arbiter experiment plan SCENARIO --out {path}."
            )
        plan = cls.from_dict(found)
        try:
            content = plan.hash
        except (TypeError, ValueError, RecursionError) as error:  # metrics that are no list, NaN
            content = f"has none: {error}"
        if content != found["hash"]:
            raise ConfigurationError(
                f"{path}: the hash is {found['hash']}, but that of its content {content}. It was edited; "
                "write another."
            )
        return plan

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExperimentPlan:
        """The plan from the result of `to_dict`."""
        return cls(**{field.name: data[field.name] for field in fields(cls)})

    def check(self, planned: ExperimentPlan) -> None:
        """Raise `ConfigurationError` that names each difference from what was planned."""
        ours, theirs = self.to_dict(), planned.to_dict()
        differences = [
            f"{name} is {ours[name]!r}, planned is {theirs[name]!r}"
            for name in ours
            if ours[name] != theirs[name]
        ]
        if differences:
            raise ConfigurationError(f"the experiment is not the planned one: {'; '.join(differences)}.")


COLUMNS = (
    "scenario",
    "pairs",
    "N_a (distinct)",
    "drafts, control",
    "drafts, treatment",
    "gate checks",
    "intervention evaluations",
    "scoring calls",
)


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"
