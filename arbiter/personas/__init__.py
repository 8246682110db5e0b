"""Personas: measure how well an agent keeps its character while it runs.

    texts ─▶ trajectories ─▶ propositions ─▶ engine (judges) ─▶ scorers ─▶ evaluators
                                                └─▶ gate, interventions, repetition

A `Proposition` is a claim about behaviour. The `PropositionEngine` lets a `Judge` score it from 0 to 9; five
scorers combine the scores of a dimension; and each dimension is also a `NodeEvaluator` for a governed graph.
See docs/personas.md.
"""

from arbiter.models import (
    ChatJudge,
    Judge,
    JudgeReply,
    JudgeRequest,
    MockJudge,
    RecordingError,
    RecordingJudge,
)
from arbiter.personas._answers import round_half_up
from arbiter.personas._characters import Persona
from arbiter.personas._config import GateConfig
from arbiter.personas._conversation import Cast
from arbiter.personas._engine import Judgements, JudgeResult, PropositionEngine
from arbiter.personas._evaluators import (
    AdherenceEvaluator,
    ConvergenceEvaluator,
    FluencyEvaluator,
    IdeasQuantityEvaluator,
    SelfConsistencyEvaluator,
)
from arbiter.personas._gate import PersonaGate
from arbiter.personas._gated import Attempt, DimensionCheck, DimensionStatistics, GatedAction, GateStatistics
from arbiter.personas._intervened import Intervened
from arbiter.personas._interventions import Intervention, InterventionBatch
from arbiter.personas._nudges import anti_convergence, variety
from arbiter.personas._propositions import (
    Proposition,
    PropositionSet,
    PropositionWarning,
    fill,
    load_propositions,
    requires_action_type,
)
from arbiter.personas._repetition import RepetitionSuppressor, repeated_phrases
from arbiter.personas._repositories import CorrectionRepository, InterventionRepository
from arbiter.personas._scorers import (
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
from arbiter.personas._targets import Target
from arbiter.personas._texts import (
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
from arbiter.personas._trajectories import Event, Trajectory, window

__all__ = [
    "AdherenceEvaluator",
    "AdherenceScorer",
    "Attempt",
    "Cast",
    "ChatJudge",
    "ConsistencyScorer",
    "ConvergenceEvaluator",
    "ConvergenceScorer",
    "CorrectionRepository",
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
    "InterventionRepository",
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
