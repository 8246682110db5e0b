"""`Claim`: what was found in a conversation. `Ingested`: what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a model found in a conversation, before anybody has judged it; the fields are the extraction schema's.

    `type` is "fact", "status" or "opinion". `known_id` is the id of the known fact that it repeats, `derived_from`
    are those of the known facts that it was inferred from.
    """

    claim: str
    type: str
    in_bio: bool = False
    already_known: bool = False
    subject: str | None = None
    slot: str | None = None
    value: str | None = None
    valid_from: datetime | None = None
    source_message_ids: tuple[str, ...] = ()
    sensitivity: str | None = None
    known_id: str | None = None
    derived_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What became of claims: counts and ids, as the metadata of a result.

    `conflicts` are pairs of ids, what was known first. `fact_ids` are all records that claims ended up in.
    """

    inserted: int = 0
    reinforced: int = 0
    superseded: int = 0
    refined: int = 0
    conflicts: tuple[tuple[str, str], ...] = ()
    dropped_private: int = 0
    dropped_invalid: int = 0
    fact_ids: tuple[str, ...] = ()
