"""How long a status is believed after its last mention: by its kind, which the model names, or by its slot."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from arbiter.memory._records import Fact
from arbiter.memory.facts._rules import FactRules
from arbiter.memory.stores._words import words_of

UNKNOWN = timedelta(days=365)
"""A status of an unknown kind. Rather long: what is forgotten must be told again, and what has changed is
superseded anyway."""
_MOMENT = timedelta(days=2)
_PLAN = timedelta(days=14)
_WORD = re.compile(r"[^\W_]+")
_LASTING = words_of("""
    home residence address city country job work employer occupation profession role career company education school
    study studies university partner spouse wife husband marriage relationship family child children pet pets health
    condition diet allergy medication language hobby hobbies interest interests preference preferences membership
    subscription project goal name age religion phone email car
""")
_LIFETIMES: dict[str, timedelta | None] = {
    **dict.fromkeys(_LASTING),
    **dict.fromkeys(words_of("mood feeling feelings emotion today tonight now weather activity"), _MOMENT),
    **dict.fromkeys(words_of("plan plans trip travel appointment errand visit week weekend"), _PLAN),
}
"""By words of a kind or slot; None lasts until it is changed."""


def expiry(fact: Fact, rules: FactRules) -> datetime | None:
    """When a status ends without a further mention; None if it lasts until it is changed. A status that
    begins later lives from then on."""
    lifetime = _lifetime(fact, rules)
    if lifetime is None:
        return None
    return max(fact.last_seen_at, fact.valid_from or fact.last_seen_at) + lifetime


def _lifetime(fact: Fact, rules: FactRules) -> timedelta | None:
    if fact.type != "status":
        return None
    if rules.status_ttl is not None:
        return rules.status_ttl
    for named in (fact.kind, fact.slot):
        for word in _WORD.findall((named or "").casefold()):
            if word in _LIFETIMES:
                return _LIFETIMES[word]
    return UNKNOWN
