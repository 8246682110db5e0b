"""`Claim`: a statement found in a conversation. `Ingested`: the result of storing claims."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement that a model found in a conversation, not yet checked; the fields are those of the
    extraction schema.

    `type` is "fact", "status" or "opinion"; `kind` of a status is "home", "job", "mood" or the like. `known_id`
    is the id of the known fact that the claim repeats, `corrects` the ids of earlier messages of the same
    speaker with a slip that it puts right, `derived_from` the ids of the known facts that it was inferred from.
    """

    claim: str
    type: str
    in_bio: bool = False
    already_known: bool = False
    subject: str | None = None
    slot: str | None = None
    value: str | None = None
    kind: str | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    source_message_ids: tuple[str, ...] = ()
    sensitivity: str | None = None
    known_id: str | None = None
    corrects: tuple[str, ...] = ()
    derived_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """The result of storing claims, as counts and ids for the metadata of an evaluation.

    `conflicts` are pairs of fact ids, the older fact first. `fact_ids` are all facts that the claims created
    or changed.
    """

    inserted: int = 0
    reinforced: int = 0
    superseded: int = 0
    refined: int = 0
    conflicts: tuple[tuple[str, str], ...] = ()
    dropped_private: int = 0
    dropped_invalid: int = 0
    fact_ids: tuple[str, ...] = ()
