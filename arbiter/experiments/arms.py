"""Arms: what an experiment registers on the graph of a conversation, and which of it took effect.

    Corrections (the settings of an arm) ─▶ Treatment (in one environment) ─▶ governed graph, Exposure

The control is `Corrections()`: nothing is registered, and the graph itself runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields
from functools import cache
from typing import Any, Protocol, cast, runtime_checkable

from arbiter._constitution.documents import pack_folder
from arbiter._values.versions import hash_of
from arbiter.advice import Advisor
from arbiter.arbiter_os import ArbiterOS
from arbiter.errors import ConfigurationError
from arbiter.history._items import History, HistoryItem
from arbiter.models import ChatModel, Judge
from arbiter.personas import (
    CorrectionRepository,
    GateConfig,
    InterventionBatch,
    InterventionRepository,
    Persona,
    PersonaGate,
    PropositionSet,
    RepetitionSuppressor,
    load_propositions,
)
from arbiter.personas._config import DIMENSIONS

HEAD, ACT = "interventions", "act"
"""The nodes of a world at the head of a step, and in which an agent acts."""
Maker = Callable[[Sequence[Persona], Judge | ChatModel | str], InterventionBatch]
"""Makes the interventions of one environment from its agents and the judge that corrects."""


@runtime_checkable
class Repository(CorrectionRepository, InterventionRepository, Protocol):
    """Keeps what went through gates, and the evaluations of interventions, such as `SqlRepository` does."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """The corrections of an arm; without any it is a control.

    `gate` judges each draft. `interventions` are functions such as `variety`, `anti_convergence` or
    `partial(variety, stale_after=10)`: each is called with the agents of an environment and the judge that
    corrects, and returns an `InterventionBatch`. `repetition` lists phrases to avoid for agents that repeat
    themselves.
    """

    gate: GateConfig | None = None
    interventions: Sequence[Maker] = ()
    repetition: bool = False
    _: KW_ONLY

    def __post_init__(self) -> None:
        given: Any = self.gate
        if given is not None and not isinstance(given, GateConfig):
            raise ConfigurationError(f"gate is {given!r:.80}; expected a GateConfig or None.")
        if self.gate is not None and not self.gate.gates:
            raise ConfigurationError(
                "gate enables no dimension and no similarity, so it would check nothing. Enable one, such as "
                "GateConfig(gate_adherence_enabled=True)."
            )
        if self.gate is not None and not self.gate.continue_on_failure:
            raise ConfigurationError(
                "gate has continue_on_failure=False: an agent without a draft that passes would end its conversation. "
                "Leave it True; the result counts such messages as forced."
            )
        makers: Any = self.interventions
        if not isinstance(makers, tuple | list) or not all(map(callable, cast("Sequence[Any]", makers))):
            raise ConfigurationError(
                f"interventions is {makers!r:.80}; expected functions such as variety, in a tuple."
            )
        object.__setattr__(self, "interventions", tuple(self.interventions))

    def __bool__(self) -> bool:
        return self.gate is not None or bool(self.interventions) or self.repetition

    @property
    def version(self) -> str:
        """A hash of the settings."""
        return hash_of([self.gate, list(self.interventions), self.repetition])[:16]

    @property
    def drafts(self) -> int:
        """The most drafts that an agent writes for one message."""
        return 1 if self.gate is None else self.gate.drafts

    def evaluations(self, agents: int) -> int:
        """The interventions that are evaluated in one step of a world with that many agents."""
        crowd = [Persona(f"agent {number}", "a person") for number in range(agents)]
        return sum(map(len, self.batches(crowd, NoJudge())))

    def batches(self, personas: Sequence[Persona], judge: Judge | ChatModel | str) -> list[InterventionBatch]:
        """The interventions of an environment with these agents. Raises `ConfigurationError` if a function makes
        something else.
        """
        batches: list[Any] = [make(personas, judge) for make in self.interventions]
        for make, batch in zip(self.interventions, batches, strict=True):
            if not isinstance(batch, InterventionBatch):
                raise ConfigurationError(
                    f"interventions: {make!r:.80} returned {batch!r:.80}; expected an InterventionBatch."
                )
        return batches

    def idle(self, agents: Sequence[Persona], steps: int) -> dict[str, int]:
        """The batches of interventions that cannot fire in a world of so many steps, with the messages of an
        agent that each waits for."""
        waits = {
            batch.name: min((one.waits_for for one in batch.interventions), default=0)
            for batch in self.batches(agents, NoJudge())
        }
        # At the head of the last step, an agent has acted in each step but that one.
        return {name: least for name, least in waits.items() if least > steps - 1}


class NoJudge:
    """A judge that is never asked, for interventions that are only counted, and for arms without corrections."""

    def judge(self, request: Any) -> Any:
        raise NotImplementedError

    async def ajudge(self, request: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The part of its treatment that an arm got. All but `drafts` are 0 in a control.

    `drafts` counts the texts that agents wrote, `checks` those of them that the gate judged, `unjudged` those
    that it let pass because its judge failed. `regenerations` are drafts after the first of a message,
    `forced` the messages that were committed although no draft passed.
    `evaluations` counts evaluated interventions, `failures` those whose judge or function failed, `nudges` the
    texts given to agents. `repetitions` counts the messages before which an agent got phrases to avoid.
    """

    drafts: int = 0
    checks: int = 0
    unjudged: int = 0
    regenerations: int = 0
    forced: int = 0
    evaluations: int = 0
    failures: int = 0
    nudges: int = 0
    repetitions: int = 0

    def __add__(self, other: Exposure) -> Exposure:
        return Exposure(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    @property
    def treated(self) -> bool:
        """True if anything but `drafts` is above 0."""
        return any(count for name, count in self.to_dict().items() if name != "drafts")

    def to_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, int]) -> Exposure:
        """The exposure from the result of `to_dict`."""
        return cls(**data)


class Treatment:
    """The corrections of one environment, and what they did.

    A `repository` stores the actions of the gate and the evaluations of interventions, a `ledger` the node runs.
    Interventions are evaluated once a step, at its head, over the conversation before that step's prompt.
    Their nudges go to the next call of the agent and never into the conversation.
    """

    def __init__(
        self,
        corrections: Corrections,
        personas: Sequence[Persona],
        corrector: Judge | ChatModel | str,
        *,
        repository: Repository | None = None,
        ledger: Any = None,
    ) -> None:
        self._treats = bool(corrections)
        self.arbiter_os = ArbiterOS(ledger=ledger if self._treats else None)
        self.gate: PersonaGate | None = None
        self.batches = corrections.batches(personas, corrector)
        for batch in self.batches:
            for one in batch.interventions:
                one.repository = one.repository or repository
        self._repetition: _Repetition | None = None
        if corrections.gate is not None:
            self.gate = PersonaGate(
                corrector,
                personas,
                corrections.gate,
                name="gate",
                agent_of=_agent_of,
                propositions=_about_drafts(),
                repository=repository,
                target_nodes=[ACT],
            )
            self.arbiter_os.add_correction_gate(self.gate)
        if self.batches:
            self.arbiter_os.add_advisor(_Interventions(self.batches))
        if corrections.repetition:
            self._repetition = _Repetition(personas, agent_of=_agent_of, target_nodes=[ACT])
            self.arbiter_os.add_advisor(self._repetition)

    def govern(self, graph: Any) -> Any:
        """The graph with the corrections, or the very graph if there are none."""
        return self.arbiter_os.govern(graph) if self._treats else graph

    def exposure(self, drafts: int) -> Exposure:
        """The effects of the corrections, in an environment with that many drafts."""
        actions = [] if self.gate is None else list(self.gate.actions)
        attempts = [attempt for action in actions for attempt in action.attempts]
        log = [found for batch in self.batches for found in batch.log]
        return Exposure(
            drafts=drafts,
            checks=sum(attempt.judged for attempt in attempts),
            unjudged=sum(attempt.unjudged for attempt in attempts),
            regenerations=sum(attempt.stage == "draft" and attempt.number > 1 for attempt in attempts),
            forced=sum(action.outcome == "forced_through" for action in actions),
            evaluations=len(log),
            failures=sum(found.failed for found in log),
            nudges=sum(len(found.nudges) for found in log),
            repetitions=0 if self._repetition is None else self._repetition.given,
        )


@cache
def _about_drafts() -> Mapping[str, PropositionSet]:
    """The shipped propositions for everybody, read once: each environment has a gate of its own."""
    folder = pack_folder("evaluators").joinpath("actions")
    return {dimension: load_propositions(folder, dimension) for dimension in DIMENSIONS}


def _agent_of(item: HistoryItem) -> str | None:
    return item.input_state.get("agent") if item.node == ACT else None


class _Interventions(Advisor):
    """Evaluates the batches at the head of a step, and gives each agent its nudges when it acts."""

    def __init__(self, batches: Sequence[InterventionBatch]) -> None:
        super().__init__("interventions", target_nodes=[HEAD, ACT])
        self._batches = batches
        self._nudges: dict[str, list[str]] = {}
        self._said: list[Any] = []
        """The conversation so far: reading a message copies it, and each is read once."""

    async def advise(self, history: History, state: Mapping[str, Any]) -> str | None:
        if history.item.node == ACT:
            return "\n\n".join(self._nudges.get(state["agent"], ())) or None
        self._nudges = {}
        self._said += state["messages"][len(self._said) :]
        for batch in self._batches:
            found = await batch.aevaluate(self._said, step=state["step"])
            for agent, text in found.items():
                self._nudges.setdefault(agent, []).append(text)
        return None


class _Repetition(RepetitionSuppressor):
    """Counts how often it gave phrases to avoid."""

    given = 0

    def advise(self, history: History, state: Mapping[str, Any]) -> str | None:
        text = super().advise(history, state)
        self.given += text is not None
        return text
