"""Recognises secrets by their form and by their context: keys, passwords, numbers of cards, accounts and
identity papers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from arbiter.memory.facts._patterns import one_of

# Secrets by their form ----------------------------------------------------------------------------

_KEYS = re.compile(
    r"""-----BEGIN [A-Z0-9 ]*PRIVATE\ KEY(?:\ BLOCK)?-----(?:.*?-----END [A-Z0-9 ]*PRIVATE\ KEY(?:\ BLOCK)?-----|.*)
    | \b(?:sk|pk|rk|whsec)[-_](?:live|test|proj|ant|or|svcacct|admin)[-_][\w-]{3,}
    | \bsk-[\w-]{8,}
    | \b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}
    | \b(?:gh[oprsu]_|github_pat_|glpat-|hf_|npm_|pypi-|dop_v1_|shpat_|xox[abeoprs]-|ya29\.|SG\.|AIza|EAAC)[\w.-]{8,}
    | \beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?
    | \b(?:bearer|basic)\s+(?=\S*\d)[\w.~+/-]{12,}=*
    | \b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{1,200}:[^\s/@]{1,200}@
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_NAMED = one_of(r"""
    pass\s?-?(?:word|code|phrase)s?|passwd|pwd?|p\.?i\.?n\.?(?:[ -]?(?:code|number))?|cvv2?|cvc|security code
    (?:api|access|secret|private|auth|encryption|license|recovery|seed)[ _-]?(?:keys?|tokens?|codes?|phrase)
    client[ _]secret|secret(?=\w*["']?\s*[:=])|tokens?|credentials?|mother'?s maiden name
""")
# Words that describe a password without revealing it.
_HARMLESS = one_of(r"""
    not|no|now|very|too|so|still|always|never|only|also|a|an|the|one|in|on|for|at|by|with|being|something|based|used
    weak|strong|secure|insecure|safe|unsafe|short|long|old|new|wrong|correct|valid|invalid|hard|easy|difficult|important
    required|needed|mandatory|optional|expired|expiring|changed|reset|lost|forgotten|stolen|compromised|leaked|broken
    stored|saved|kept|managed|protected|hashed|encrypted|shared|hidden|private|secret|confidential|unknown|missing|empty
    set|updated|switched|rotated|generated|different|same|similar|identical|unchanged|unique|simple|complex|complicated
    working|blank|longer|shorter|stronger|weaker|safer|better|worse|good|bad|fine|ok|okay|gone|due|again|else|another
    to|from|of|and|or|but|than|more|less|protect|avoid|prevent|improve|comply|be|been
""")
_HARMLESS_WORD = rf"""\(?{_HARMLESS}[.,;:!?)"'`]*(?:\s|$)"""
_ADVERB = "(?:now|still|always|again|actually|currently|really|only|also|just|today|already|probably|simply)"
_PASSWORD = r"(?:pass\s?-?(?:word|code|phrase)|passwd|pwd?|pin(?: code)?)"
# A word may also begin after an underscore or at a capital letter, as in the names of variables.
_START = r"(?:(?<![^\W_])|(?-i:(?<=[a-z])(?=[A-Z])))"
_MIXED = r"(?=\S*\d)(?=\S*[^\W\d_])"
_BE = r"(?:is|was|are|were|ha(?:s|ve|d) been|will be|being|got|gets|remains?|stays?|became|becomes|equals|reads)"
_IS = (
    rf"(?:(?:\b{_BE}\s+(?:{_ADVERB}\s+){{0,2}})?\b(?:set|reset|changed|updated|switched)\s+(?:back\s+)?to\b"
    rf"""|\b{_BE}\b|[:=]+>?|[-=]>|→|'?\bs\s(?=\s*{_MIXED})|\bto\b(?=\s*["'`]|\s+\S*\d))"""
)
_TOLD = re.compile(
    rf"""{_START}{_NAMED}(?:_\w{{1,40}})?(?![^\W_])[\s"'`)]*"""
    r"""(?:(?:for|to|of|on|at)(?:\s[^\s:=]{1,100}){1,4}?\s+|,[^,.]{1,40},\s*)?"""
    rf"""(?:=(?P<assigned>[^\s"'`]\S*)|{_IS}\s*:?\s*(?:{_ADVERB}\s+){{0,3}}"""
    r"""(?:"(?P<double>[^"\n]{1,200})"|'(?P<single>[^'\n]{1,200})'(?!\w)|`(?P<back>[^`\n]{1,200})`"""
    r"""|(?:(?:very|so|too|the|an?)\s+(?=\S*[^\W\d_]\d))?"""
    rf"""(?!{_HARMLESS_WORD})["'`]?(?P<secret>[^\s"'`]\S*)))"""
    r"""|(?<!\S)(?!(?:such|well|just|same)\s)(?P<before>\S{1,200})\s+"""
    r"""(?:(?:is|as)\s+(?:my|his|her|their|our|its|the|a|an|(?:the\s)?\w+'s)|as)\s+"""
    rf"""(?:\w+\s+)?(?:{_PASSWORD}|(?:api|access|secret)[ _-]?key)\b"""
    rf"""|\b{_PASSWORD}\s+["'`]?(?P<next>(?=[^\s"'`]*\d)[^\s"'`]{{4,}})"""
    r"""|\b(?:cvv2?|cvc)\W{1,3}(?P<digits>\d{3,4})\b"""
    rf"""|\b(?:pass|secret)(?:\s+(?:is|was)|\s*[:=])\s+(?:{_ADVERB}\s+)?(?P<mixed>{_MIXED}\S{{4,}})""",
    re.IGNORECASE,
)
_TOLD_AS = tuple(_TOLD.groupindex)
_PHRASE = re.compile(
    rf"""\b(?:pass|seed|recovery)[ _-]?phrase\b[\s"']*{_IS}\s*:?\s*(?!{_HARMLESS_WORD})(?P<secret>[^.!?\n]{{1,300}})""",
    re.IGNORECASE,
)
SECRET_SLOT = re.compile(
    rf"(?:^|[._\s-])(?:{_NAMED}|ssn|social[._ -]security(?:[._ -]number)?"
    r"|(?:credit[._ -]?|debit[._ -]?)?card[._ -]number|iban)(?:$|[._\s-])",
    re.IGNORECASE,
)
"""The key of a slot whose value is always a secret."""

# Numbers that check themselves --------------------------------------------------------------------

_RUN = re.compile(r"\d(?:[\s.,/_\-\u2010-\u2015]{0,3}\d){10,40}")
_GROUP = re.compile(r"\d+")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{2,4}){3,8}\b")


def luhn(digits: str) -> bool:
    """True if the last digit is the check digit of the others."""
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def _cards(text: str) -> Iterator[tuple[int, int]]:
    """The ranges of card numbers: 13 to 19 digits in whole groups, of a card network, with the right check
    digit."""
    for run in _RUN.finditer(text):
        groups = [
            (found.start() + run.start(), found.end() + run.start()) for found in _GROUP.finditer(run[0])
        ]
        for first, (start, _) in enumerate(groups):
            lengths = accumulate(end - begin for begin, end in groups[first:])
            for (_, end), length in zip(groups[first:], lengths, strict=True):
                digits = "".join(_GROUP.findall(text[start:end]))
                if 13 <= length <= 19 and digits[0] in "23456" and luhn(digits):
                    yield start, end


def _ibans(text: str) -> Iterator[tuple[int, int]]:
    for found in _IBAN.finditer(text):
        letters = re.sub(r"[ -]", "", found[0])
        turned = letters[4:] + letters[:4]
        if 15 <= len(letters) <= 34 and int("".join(str(int(char, 36)) for char in turned)) % 97 == 1:
            yield found.span()


_NATIONAL = re.compile(
    r"""\b(?!000|666|9\d\d)\d{3}[- ](?!00)\d{2}[- ](?!0000)\d{4}\b                          # US social security
    | \b[A-Z]{2}\ ?\d{2}\ ?\d{2}\ ?\d{2}\ ?[A-D]\b                                           # UK
    | \b[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]\b                                      # Italy
    | \b[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]\b                                                # India, PAN
    | \b[2-9]\d{3}[ -]\d{4}[ -]\d{4}\b(?![ -]?\d)                                            # India, Aadhaar
    | \b[12]\ ?\d{2}\ ?(?:0[1-9]|1[0-2])\ ?(?:\d{2}|2[AB])\ ?\d{3}\ ?\d{3}\ ?\d{2}\b         # France
    | \b[XYZ]?\d{7,8}-?[TRWAGMYFPDXBNJZSQVHLCKE]\b(?<=\w{9})                                 # Spain
    """,
    re.VERBOSE,
)
_PAPER = one_of(r"""
    ssn|social (?:security|insurance)|national (?:insurance|id\w*)|nino|passport|tax(?:payer)? id\w*|aadhaar|nhs
    codice fiscale|driv(?:er'?s?|ing) licen[cs]e|identity card|id card|personal id\w*|steuer-?id\w*|dni|nie|bsn|cpf|curp
    bank account
""")
_NATIONAL_TOLD = re.compile(
    rf"""\b{_PAPER}\b[\s:#'"]*(?:number|no\.?|nr\.?|code)?[\s:#'"=]*(?:(?:is|was)\b)?[\s:#'"=]*"""
    r"""(?=[A-Z0-9 .-]{0,40}\d{3})(?P<secret>[A-Z0-9][A-Z0-9 .-]{4,40}[A-Z0-9])""",
    re.IGNORECASE,
)


def secrets(text: str) -> list[tuple[int, int]]:
    """The ranges of the secrets in a text that `bare` has normalised: half-open, in no order."""
    found = [match.span() for pattern in (_KEYS, _NATIONAL) for match in pattern.finditer(text)]
    for match in _TOLD.finditer(text):
        found.append(next(match.span(name) for name in _TOLD_AS if match[name]))
    for pattern in (_NATIONAL_TOLD, _PHRASE):
        found += [match.span("secret") for match in pattern.finditer(text)]
    return [*found, *_cards(text), *_ibans(text)]
