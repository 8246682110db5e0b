"""Facts: extraction, privacy, deduplication, adjudication, and one `ingest` for whoever found a claim."""

from arbiter.memory.facts.boundaries import off_the_record, on_record
from arbiter.memory.facts.claims import Claim, Ingested
from arbiter.memory.facts.evaluator import FactEvaluator
from arbiter.memory.facts.extraction import ExtractedClaim
from arbiter.memory.facts.fact_store import FactStore
from arbiter.memory.facts.privacy import redacted
from arbiter.memory.facts.retention import weight
from arbiter.memory.facts.rules import FactRules

__all__ = [
    "Claim",
    "ExtractedClaim",
    "FactEvaluator",
    "FactRules",
    "FactStore",
    "Ingested",
    "off_the_record",
    "on_record",
    "redacted",
    "weight",
]
