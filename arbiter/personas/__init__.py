"""Personas: how far an agent is from its character, measured while it runs.

    texts ─▶ trajectories ─▶ propositions ─▶ engine (judges) ─▶ scorers ─▶ evaluators
                                                └─▶ gate, interventions, repetition

A `Proposition` is a claim about behaviour. The `PropositionEngine` has a `Judge` score it from 0 to 9; five scorers
put the scores of a dimension together; and each dimension is also a `NodeEvaluator` of a governed graph. See
docs/personas.md.
"""

from arbiter.personas.answers import round_half_up
from arbiter.personas.characters import Persona
from arbiter.personas.config import GateConfig
from arbiter.personas.conversation import Cast
from arbiter.personas.engine import Judgements, JudgeResult, PropositionEngine, Target
from arbiter.personas.evaluators import (
    AdherenceEvaluator,
    ConvergenceEvaluator,
    FluencyEvaluator,
    IdeasQuantityEvaluator,
    SelfConsistencyEvaluator,
)
from arbiter.personas.gate import PersonaGate
from arbiter.personas.gated import Attempt, DimensionCheck, DimensionStatistics, GatedAction, GateStatistics
from arbiter.personas.interventions import Intervened, Intervention, InterventionBatch
from arbiter.personas.judges import (
    ChatJudge,
    Judge,
    JudgeReply,
    JudgeRequest,
    MockJudge,
    RecordingError,
    RecordingJudge,
)
from arbiter.personas.nudges import anti_convergence, variety
from arbiter.personas.propositions import (
    Proposition,
    PropositionSet,
    PropositionWarning,
    fill,
    load_propositions,
    requires_action_type,
)
from arbiter.personas.repetition import RepetitionSuppressor, repeated_phrases
from arbiter.personas.scorers import (
    AdherenceScorer,
    ConsistencyScorer,
    ConvergenceScorer,
    FluencyScorer,
    IdeasScorer,
    PropositionScore,
    ScorerResult,
    overall_score,
    weighted_mean,
)
from arbiter.personas.texts import (
    average_sentence_length,
    jaccard,
    ngrams,
    punctuation_density,
    repeated_ngrams,
    repetition,
    text_statistics,
    tokens,
    unique_ratio,
    vocabulary_similarity,
)
from arbiter.personas.trajectories import Event, Trajectory, window

__all__ = [
    "AdherenceEvaluator",
    "AdherenceScorer",
    "Attempt",
    "Cast",
    "ChatJudge",
    "ConsistencyScorer",
    "ConvergenceEvaluator",
    "ConvergenceScorer",
    "DimensionCheck",
    "DimensionStatistics",
    "Event",
    "FluencyEvaluator",
    "FluencyScorer",
    "GateConfig",
    "GateStatistics",
    "GatedAction",
    "IdeasQuantityEvaluator",
    "IdeasScorer",
    "Intervened",
    "Intervention",
    "InterventionBatch",
    "Judge",
    "JudgeReply",
    "JudgeRequest",
    "JudgeResult",
    "Judgements",
    "MockJudge",
    "Persona",
    "PersonaGate",
    "Proposition",
    "PropositionEngine",
    "PropositionScore",
    "PropositionSet",
    "PropositionWarning",
    "RecordingError",
    "RecordingJudge",
    "RepetitionSuppressor",
    "ScorerResult",
    "SelfConsistencyEvaluator",
    "Target",
    "Trajectory",
    "anti_convergence",
    "average_sentence_length",
    "fill",
    "jaccard",
    "load_propositions",
    "ngrams",
    "overall_score",
    "punctuation_density",
    "repeated_ngrams",
    "repeated_phrases",
    "repetition",
    "requires_action_type",
    "round_half_up",
    "text_statistics",
    "tokens",
    "unique_ratio",
    "variety",
    "vocabulary_similarity",
    "weighted_mean",
    "window",
]
