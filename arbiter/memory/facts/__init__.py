"""Facts: extraction, privacy, deduplication, adjudication, and one `ingest` for every evaluator that finds
claims."""

from arbiter.memory._off_record import off_the_record, on_record
from arbiter.memory._records import Claim, Ingested
from arbiter.memory._secrets import redacted
from arbiter.memory.facts._evaluator import FactEvaluator
from arbiter.memory.facts._extraction import ExtractedClaim
from arbiter.memory.facts._fact_store import FactStore
from arbiter.memory.facts._forgetting import Forgotten
from arbiter.memory.facts._rules import FactRules, weight

__all__ = [
    "Claim",
    "ExtractedClaim",
    "FactEvaluator",
    "FactRules",
    "FactStore",
    "Forgotten",
    "Ingested",
    "off_the_record",
    "on_record",
    "redacted",
    "weight",
]
