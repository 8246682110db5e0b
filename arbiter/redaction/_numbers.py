"""Numbers that check themselves, and numbers of identity papers."""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

_DIGITS = b"0123456789"


def digits_in(text: str) -> int:
    """The number of ASCII digits in a text."""
    data = text.encode("utf-8", "surrogatepass")  # in it no other character has a byte of these
    return len(data) - len(data.translate(None, _DIGITS))


# Cards --------------------------------------------------------------------------------------------

_RUN = re.compile(r"[0-9](?:[\s.,/_\-\u2010-\u2015]{0,3}[0-9]){12,}+")
_ALONE = r"(?<!\.)" + "".join(rf"(?<![0-9][\s,/_\-\u2010-\u2015]{{{n}}})" for n in (1, 2, 3))
_ENDS = r"(?![0-9.]|[\s/_\-\u2010-\u2015]{1,3}[0-9])"
_NO_CARD = re.compile(
    rf"""\b(?:
        [0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}                                       # a UUID
      | (?=[0-9]*[a-f])(?:[0-9a-f]{{24}}|[0-9a-f]{{32}}|[0-9a-f]{{40}}|[0-9a-f]{{64}})            # a digest
    )\b
    | (?<![0-9])(?=[0-9])(?:
        (?<![\w.])(?:0\.[0-9]{{13,}}+|[0-9]\.[0-9]++e[-+]?[0-9]|[0-9]{{1,9}}\.(?=[0-9]{{10}}))    # a decimal
      | 20[0-9]{{2}}(?:0[1-9]|1[0-2])[0-3][0-9][-_]?[0-2][0-9][0-5][0-9][0-5][0-9]                # a time
      | 20[0-9]{{2}}([-/._])[01][0-9]\1[0-3][0-9](?![0-9])                                        # a date
      | [0-3]?[0-9]([-/.])[01]?[0-9]\2(?:19|20)[0-9]{{2}}(?![0-9])
      | (?<!\.)(?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}}(?!\.?[0-9])                                    # an IP address
        # A list; of single digits it may be a card, and with its thousands apart too.
      | {_ALONE}(?=(?:[0-9],\s?-?){{0,9}}[0-9]{{2}})(?![0-9]{{1,3}}(?:,[0-9]{{3}}){{4,6}}(?!,?[0-9]))
        [0-9]{{1,3}}(?:,\s?-?[0-9]{{1,3}}{_ENDS}){{3,}}
      | {_ALONE}[0-9]{{1,3}}\.[0-9]{{1,9}}(?:,\s?-?[0-9]{{1,3}}\.[0-9]{{1,9}}{_ENDS})+
    )
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Other numbers. Of a decimal as Python and JSON print it that is below 1 or has an exponent this is all, else what
stands before the places: a card may follow a sentence that ends in a number."""
_BETWEEN = b"\t\n\v\f\r\x1c\x1d\x1e\x1f .,/_-"
"""What may stand between the digits of a card, of ASCII."""
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_GROUP = re.compile(r"[0-9]+")
_FIRST = frozenset("23456")
_NETWORKS = re.compile(
    r"""4(?:.{12}|.{15}|.{17,18})       # Visa
    | 5[1-5].{14} | 2[2-7].{14,17}      # Mastercard, Mir
    | 3[47].{13}                        # American Express
    | 35.{14,17} | 2131.{11}            # JCB
    | 3[0689].{12,17}                   # Diners Club
    | 5[06-9].{11,17} | 6.{12,18}       # Maestro, Discover, UnionPay, RuPay
    """,
    re.VERBOSE,
)
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def cards_in(text: str) -> Iterator[tuple[int, int]]:
    """The ranges of card numbers: 13 to 19 digits in whole groups, with the begin and the length that a card network
    gives, and the right check digit."""
    # Most texts have no 13 digits in a row, whatever is between them, and this look takes a fraction of the time.
    if text.isascii() and b"0" * 13 not in text.encode().translate(_AS_ZEROS, _BETWEEN):
        return
    # So is the look for other numbers left out where nothing has the digits of a card.
    if next(_runs_in(text), None) is not None:
        yield from _runs_in(_NO_CARD.sub(lambda other: "x" * len(other[0]), text))


def _runs_in(text: str) -> Iterator[tuple[int, int]]:
    for run in _RUN.finditer(text):
        groups = [(match.start() + run.start(), match[0]) for match in _GROUP.finditer(run[0])]
        yield from _cards(groups)


def _cards(groups: list[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """Sums from the start of a run give each stretch's sum at once: linear in the number of digits."""
    number = "".join(group for _, group in groups)
    digits = [*map(int, number)]
    sums = (
        [0, *accumulate(_DOUBLED[d] if place % 2 == 0 else d for place, d in enumerate(digits))],
        [0, *accumulate(_DOUBLED[d] if place % 2 == 1 else d for place, d in enumerate(digits))],
    )
    ends = [0, *accumulate(len(group) for _, group in groups)]
    for first, (start, group) in enumerate(groups):
        if group[0] not in _FIRST:
            continue
        since = ends[first]
        for end in range(bisect_left(ends, since + 13, first), len(ends)):
            if ends[end] - since > 19:
                break
            # The last digit is not doubled: those at the other parity are.
            odd = sums[ends[end] % 2]
            if (odd[ends[end]] - odd[since]) % 10 == 0 and _NETWORKS.fullmatch(number, since, ends[end]):
                at, final = groups[end - 1]
                yield start, at + len(final)


# Accounts -----------------------------------------------------------------------------------------

# It begins with the digits and looks back at the letters: few characters of a text are digits. What follows is only
# looked at, because another account number may begin in it.
_IBAN = re.compile(
    r"[0-9]{2}(?<=[A-Za-z]{2}..)(?<![A-Za-z0-9]....)(?=((?:[ -]?[A-Za-z0-9]){11,30}+))",
    re.DOTALL,
)
_LENGTHS = {
    country: int(length)
    for country, length in re.findall(
        r"(..)(..)",
        "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BR29BY28CH21CR22CY28CZ24DE22DK18DO28EE20EG29ES24FI18FO18FR27GB22GE22GI23"
        "GL18GR27GT28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MR27MT31MU30"
        "NL18NO15PK24PL28PS29PT25QA29RO24RS22SA24SC31SD18SE24SI19SK24SM27ST25SV28TL23TN24TR26UA29VA22VG24XK20",
    )
}
_AS_DIGITS = {char: str(int(char, 36)) for char in string.digits + string.ascii_letters}


_BYTES = [bytes([number]) for number in range(256)]
_BY_KIND = b"".join(b"0" if each.isdigit() else b"a" if each.isalpha() else b"." for each in _BYTES)
"""Of each byte, `0` for a digit, `a` for a letter, and `.` for any other."""


def ibans_in(text: str) -> Iterator[tuple[int, int]]:
    """The ranges of account numbers with the length of their country and the right check digits."""
    if text.isascii() and b".aa00" not in b"." + text.encode().translate(_BY_KIND):
        return  # no word begins with a country and check digits
    end = 0
    for match in _IBAN.finditer(text):
        start = match.start() - 2
        if start < end:
            continue
        found = text[start : match.end(1)]
        letters = found.replace(" ", "").replace("-", "")
        length = _LENGTHS.get(letters[:2].upper(), len(letters))
        if len(letters) < length:
            continue
        if int("".join(map(_AS_DIGITS.__getitem__, letters[4:length] + letters[:4]))) % 97 == 1:
            places = [place for place, char in enumerate(found) if char not in " -"]
            end = start + places[length - 1] + 1
            yield start, end


# Identity papers ----------------------------------------------------------------------------------

_NATIONAL = re.compile(
    r"""\b(?!000|666|9\d\d)\d{3}[- ](?!00)\d{2}[- ](?!0000)\d{4}\b                          # US social security
    | \b[A-Z]{2}\ ?\d{2}\ ?\d{2}\ ?\d{2}\ ?[A-D]\b                                           # UK
    | \b[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]\b                                      # Italy
    | (?<!\d[ -])\b[2-9]\d{3}[ -]\d{4}[ -]\d{4}\b(?![ -]?\d)                                 # India, Aadhaar
    | \b[12]\ ?\d{2}\ ?(?:0[1-9]|1[0-2])\ ?(?:\d{2}|2[AB])\ ?\d{3}\ ?\d{3}\ ?\d{2}\b         # France
    | \b[XYZ]?\d{7,8}-?[TRWAGMYFPDXBNJZSQVHLCKE]\b(?<=\w{9})                                 # Spain
    """,
    re.VERBOSE,
)
_PAN = re.compile(r"\b[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]\b")  # India
_PAPERS = (
    "ssn", "social security", "social insurance", "national insurance", "national id", "nino", "passport", "tax id",
    "taxpayer id", "aadhaar", "nhs", "codice fiscale", "driver's licen", "drivers licen", "driver licen",
    "driving licen", "identity card", "id card", "personal id", "steuer-id", "steuerid", "dni", "nie", "bsn", "cpf",
    "curp", "bank account", "personalausweis", "reisepass", "pasaporte", "passeport", "passapor", "паспорт",
)  # fmt: skip
_NAMED = re.compile(
    rf"""\b(?:{"|".join(_PAPERS)})[^\W\d]{{0,12}}"""
    r"""(?=[\s:#'"=(]{0,4}[\w .:#'"=-]{0,60}(?:\s{1,3}\w)?(?P<beyond>))""",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?<!\w)(?:(?!(?:is|es|no|nr|(?-i:at|by|in|of|on|or|to)|has|had|was)\b)(?:(?-i:[A-Z]{3,7})|[A-Z]{1,2})[ .-]){0,2}"
    r"(?P<bare>[A-Z]{0,8}[0-9][A-Z0-9]*"
    r"(?:[ .-]{1,2}(?:[A-Z]{0,3}[0-9][A-Z0-9]*|[A-Z](?![A-Z0-9])))*)",
    re.IGNORECASE,
)
_TIME = re.compile(
    r"(?:19|20)\d\d(?:-(?:19|20)\d\d|([-./ ])\d\d?\1\d\d?)?|\d\d?([-./ ])\d\d?\2(?:19|20)\d\d|V?\d\d?(?:\.\d\d?)+",
    re.IGNORECASE,
)
"""A year, two of them, a date, or the number of a version."""
_WORD = re.compile(r"\w+")
_LINKS = frozenset((
    "number", "numbers", "num", "no", "nr", "nº", "id", "code", "nummer", "numero", "número", "numéro", "номер", "is",
    "was", "ist", "lautet", "es", "est", "è", "é", "now", "still", "here", "before", "new", "and", "or", "und", "et",
    "oder", "и", "или", "die", "der", "het", "nos",
))  # fmt: skip
_LONGEST = 40
_SURE = 8
"""Digits that are the number of a paper, whatever is between them and its name: amounts and years have fewer."""
_MIXED, _SURE_MIXED = re.compile(r"[A-Z][0-9]|[0-9][A-Z]", re.IGNORECASE), 5
"""The same together with letters."""


def papers_in(text: str, folded: str, digits: int) -> Iterator[tuple[int, int]]:
    """The ranges of the numbers of identity papers: by their form, or after the name of a paper."""
    if digits >= 6:
        for match in _NATIONAL.finditer(text):
            yield match.span()
    if digits >= 4:
        for match in _PAN.finditer(text):
            yield match.span()
    if digits >= 3 and any(map(folded.__contains__, _PAPERS)):
        for match in _NAMED.finditer(text):
            begin, end = match.end(), match.start("beyond")
            said, last = text[begin : end + _LONGEST], 0
            for number in _NUMBER.finditer(said):
                words = _WORD.findall(said[last : number.start()].lower())
                # Another number of a paper follows at once, or after "and".
                if begin + number.start() >= end or (last and not _LINKS.issuperset(words)):
                    break
                if _is_of_paper(number, words):
                    last = number.end()
                    yield begin + number.start(), begin + last


def _is_of_paper(number: re.Match[str], words: Sequence[str]) -> bool:
    """True if a number is that of a paper, and no year, date or amount. The words are those after the paper's name."""
    if _TIME.fullmatch(number["bare"]):
        return False
    digits = digits_in(number[0])
    if _LINKS.issuperset(words[-1:]):
        return len(number["bare"]) >= 6 and digits >= 3
    return digits >= (_SURE_MIXED if _MIXED.search(number[0]) else _SURE)
