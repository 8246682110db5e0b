"""Secrets, by their form and by what is said of them: keys, passwords, numbers of cards, accounts and
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
    pass\s?-?(?:word|code|phrase)s?|passwd|pwd|p\.?i\.?n\.?(?:[ -]?(?:code|number))?|cvv2?|cvc|security code
    (?:api|access|secret|private|auth|encryption|license|recovery|seed)[ _-]?(?:keys?|tokens?|codes?|phrase)
    client secret|secret(?=\s*[:=])|tokens?|credentials?|mother'?s maiden name
""")
# What is said about a password without giving it away.
_HARMLESS = one_of(r"""
    not|no|now|very|too|so|still|always|never|only|also|a|an|the|one|in|on|for|at|by|with|being|something|based|used
    weak|strong|secure|insecure|safe|unsafe|short|long|old|new|wrong|correct|valid|invalid|hard|easy|difficult|important
    required|needed|mandatory|optional|expired|expiring|changed|reset|lost|forgotten|stolen|compromised|leaked|broken
    stored|saved|kept|managed|protected|hashed|encrypted|shared|hidden|private|secret|confidential|unknown|missing|empty
""")
_PASSWORD = r"(?:pass\s?-?(?:word|code|phrase)|passwd|pwd|pin(?: code)?)"
_QUOTE = r"""["'`]?"""
_TOLD = re.compile(
    rf"""\b{_NAMED}\b[\s"'`)]*(?:(?:for|to|of)\s\S{{1,100}}(?:\s\S{{1,100}})?\s+)?"""
    rf"""(?:\b(?:is|was|are|were|will be|equals|reads|being)\b|[:=]+|->|\bto\b(?=\s*["'`]|\s+\S*\d))\s*:?\s*"""
    rf"""(?!{_HARMLESS}\b){_QUOTE}(?P<secret>[^\s"'`]+)"""
    r"""|(?<!\S)(?P<before>\S{1,200})\s+(?:is|as)\s+(?:my|his|her|their|our|its|the|a|an|(?:the\s)?\w+'s)\s+"""
    rf"""(?:\w+\s+)?(?:{_PASSWORD}|(?:api|access|secret)[ _-]?key)\b"""
    rf"""|\b{_PASSWORD}\s+{_QUOTE}(?P<next>(?=[^\s"'`]*\d)[^\s"'`]{{4,}})""",
    re.IGNORECASE,
)
SECRET_SLOT = re.compile(
    rf"(?:^|[._\s-])(?:{_NAMED}|ssn|social[._ -]security(?:[._ -]number)?"
    r"|(?:credit[._ -]?|debit[._ -]?)?card[._ -]number|iban)(?:$|[._\s-])",
    re.IGNORECASE,
)
"""The key of a slot whose value is a secret, whatever it looks like."""

# Numbers that check themselves --------------------------------------------------------------------

_RUN = re.compile(r"\d(?:[\s.,/_\-\u2010-\u2015]{0,3}\d){10,40}")
_GROUP = re.compile(r"\d+")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{2,4}){3,8}\b")


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others."""
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def _cards(text: str) -> Iterator[tuple[int, int]]:
    """Where card numbers are: 13 to 19 digits in whole groups, of a card network, with the right check digit."""
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
    """Where the secrets are in a text that `bare` has been through, as half-open ranges in no order."""
    found = [match.span() for pattern in (_KEYS, _NATIONAL) for match in pattern.finditer(text)]
    for match in _TOLD.finditer(text):
        found.append(next(match.span(name) for name in ("secret", "before", "next") if match[name]))
    found += [match.span("secret") for match in _NATIONAL_TOLD.finditer(text)]
    return [*found, *_cards(text), *_ibans(text)]
