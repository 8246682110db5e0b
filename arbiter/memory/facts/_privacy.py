"""Privacy rules in code, independent of any model: secrets are never stored, sensitive claims only on
request.

Secrets are keys, passwords, card numbers and national ids. Sensitive claims concern a person's health,
religion, politics, sexuality, exact address, children or criminal record; they are recognised in English.
"""

from __future__ import annotations

import re

from arbiter.memory._secrets import DETECT
from arbiter.memory.facts._rules import FactRules
from arbiter.redaction import found_in
from arbiter.redaction._texts import bare

_SECRET_SLOT = re.compile(
    r"(?:^|[._\s-])(?:pass\s?-?(?:word|code|phrase)s?|passwd|pwd?|pin(?:[ _-]?(?:code|number))?|cvv2?|cvc|security code"
    r"|(?:api|access|secret|private|auth|encryption|license|recovery|seed)[ _-]?(?:keys?|tokens?|codes?|phrase)"
    r"|client[ _]secret|tokens?|credentials?|mother'?s maiden name|ssn|social[._ -]security(?:[._ -]number)?"
    r"|(?:credit[._ -]?|debit[._ -]?)?card[._ -]number|iban)(?:$|[._\s-])",
    re.IGNORECASE,
)
"""The key of a slot whose value is always a secret."""


MOST_TEXT = 20_000
"""Characters of a text that is looked at."""
UNFIT = f"a secret, or a text of more than {MOST_TEXT:,} characters, and is never stored"


def has_secret(
    claim: str, *, subject: str | None = None, slot: str | None = None, value: str | None = None
) -> bool:
    """True if a field of a claim is a secret, or its fields together are, or if one is too long to be looked at."""
    if slot and value and _SECRET_SLOT.search(slot[:200]):
        return True
    parts = [part for part in (claim, slot, value) if part]
    if any(len(part) > MOST_TEXT for part in parts):
        return True
    # A value alone may look harmless: "hunter2" is a secret only together with "password".
    joined = [f"{part}: {value}" for part in (claim.rstrip(" ."), slot) if part and value]
    texts = [bare(part) for part in (*parts, *joined)]
    if any(len(text) > 2 * MOST_TEXT for text in texts):  # NFKC makes 18 characters of one in the worst case
        return True
    who = bare((subject or "")[:MOST_TEXT])[:MOST_TEXT]
    return any(found_in(text, DETECT) for text in (*texts, who) if text)


def may_keep(text: str, rules: FactRules | None) -> bool:
    """True if a model's own words may be stored: no secret, and nothing sensitive unless the rules allow it."""
    allowed = rules is not None and rules.allow_sensitive
    return not has_secret(text) and (allowed or category(text) is None)


# Sensitive categories, in English -----------------------------------------------------------------


def _one_of(phrases: str) -> str:
    """A pattern that matches any line of `phrases`. Each line is a pattern; surrounding blanks are
    ignored."""
    lines = (line.strip() for line in phrases.splitlines())
    return "(?:" + "|".join(filter(None, lines)) + ")"


_CHILD = r"(?:son|daughter|child|children|kid|baby|toddler|grandson|granddaughter|nephew|niece|boy|girl)s?"
_YOUNG = r"(?:\d|1[0-7]|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven)teen)"
_FAITH = _one_of(r"""
    christian(?:ity)?|catholic(?:ism)?|protestant\w*|baptist|evangelical|mormon\w*|muslim|islam|sunni|shia
    jew(?:ish)?|judaism|hindu(?:ism)?|buddhis[tm]|sikh(?:ism)?|atheis[tm]|agnostic|religious|pagan
""")
_STREET = "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Place|Square|Terrace|Way|Alley|Close"

_CATEGORIES = {
    "health": r"""
        diagnos\w+|cancer|tumou?rs?|leuk\w+|hiv|(?-i:AIDS)|hepatitis|diabet\w+|epilep\w+|asthma\w*|herpes
        depress(?:ion|ed|ive)|bipolar|schizo\w+|anxiety (?:disorder|attacks?)|panic attacks?|ptsd|adhd|autis\w+
        dementia|alzheimer\w*|parkinson\w*|multiple sclerosis|heart (?:attack|disease|condition)|had a stroke
        (?:suffer\w*|treated) (?:from|for)|chronic (?:illness|pain|disease)|medical condition|chemo\w*|medications?
        antidepressants?|psychiatric|(?:in|starts?|started) therapy|(?:sees?|seeing|has) an? (?:therapist|psychiatrist)
        (?:had|needs?|undergo\w*) (?:\w+ ){0,2}surgery|disabilit\w+|(?:is|was|am|became) disabled
        pregnan\w+|miscarr\w+|abortions?|infertil\w+|suicid\w+|self[ -]harm\w*|overdos\w+|rehab|alcoholi\w+
        addict(?:ed|ion) to|eating disorder|anorexi\w+|bulimi\w+
    """,
    "religion": rf"""
        (?:is|was|as|am|are|were|became|become|being|raised|grew up) (?:an? )?(?:\w+ )?{_FAITH}
        (?:converted to|practi[cs]\w+|devout|observant) {_FAITH}|religion|religious beliefs?|prays?
        (?:believes?|faith) in (?:god|jesus|allah)
        (?:goes|go|went) to (?:the )?(?:church|mosque|synagogue|temple|mass)
    """,
    "politics": r"""
        vot(?:e[sd]?|ing) (?:for|against)|republican|democrat|libertarian|socialist|communist|anarchist|fascist
        political (?:party|views?|opinions?|beliefs?|affiliation|leaning\w*)|politically|left[ -]wing|right[ -]wing
        labou?r (?:party|voter)|tory|tories|conservative (?:party|voter)
        member of (?:a|the) (?:\w+ ){0,2}(?:party|union)
    """,
    "sexuality": r"""
        gay|lesbian|bisexual|homosexual|heterosexual|asexual|pansexual|queer|transgender|trans (?:man|woman)
        non-?binary
        sexual (?:orientation|preference\w*|identity)|sexuality|sex life|came out (?:as|to)|closeted
    """,
    "address": rf"""
        (?-i:\d+\w? (?:[A-Z][\w.'-]* ){{1,4}}(?:{_STREET}))
        (?:at|on|address(?: is)?:?) \d+\w? (?:[\w.'-]+ ){{1,3}}(?:street|avenue|road|boulevard|lane)
        (?:street|avenue|road|rue|via|calle) [\w'-]+,? \d+|\w{{2,40}}(?:strasse|straße|str\.) \d+|p\.?o\.? box \d+
        (?:apt|apartment|flat|suite)\.? ?\#?\d+|home address (?:is|at)|\d{{1,3}}\.\d{{4,}},? ?-?\d{{1,3}}\.\d{{4,}}
    """,
    "minors": rf"""
        {_CHILD}\b[^.]{{0,60}}\b(?:is|are|aged?|turn(?:s|ed|ing)) {_YOUNG}(?!\w| (?:percent|cm|feet|kg))
        (?:is|am|are|turn(?:s|ed|ing)) {_YOUNG} years? old|{_YOUNG}[ -](?:year|month)s?[ -]old(?: {_CHILD}|[.,;]|$)
        {_CHILD}\b[^.]{{0,40}}\b(?:attend\w*|goes to|is in|start\w*)\b[^.]{{0,40}}\b(?:school|kindergarten|grade)
        under 18|underage
    """,
    "criminal record": r"""
        criminal (?:record|history|charges?|convictions?|past)|felon(?:y|ies)?|misdemeano\w+|convicted|arrested
        sentenced
        (?:in|to|from|out of) (?:jail|prison)|imprison\w+|incarcerat\w+|on parole|(?:on|under) probation|served time
        indicted|restraining order|shoplift\w*|(?-i:DUI)
    """,
}
_TESTS = {
    category: re.compile(rf"\b{_one_of(phrases)}(?:\b|(?<=\W))", re.IGNORECASE)
    for category, phrases in _CATEGORIES.items()
}


def category(*texts: str | None) -> str | None:
    """The sensitive category of the first text that has one; None if none has."""
    for text in texts:
        looked_at = " ".join(bare(text).split()) if text else ""
        for name, test in _TESTS.items():
            if looked_at and test.search(looked_at):
                return name
    return None
