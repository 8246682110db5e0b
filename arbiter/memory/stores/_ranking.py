"""BM25 over an index of words, with a cost that follows the hits and not the number of records.

Postings are read newest first. A word that is in most records is read for its last hundred only: it says little
about a record, so it adds to the score of records that another word has found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import log
from typing import NamedTuple

from arbiter.memory.stores._portable import Namespace
from arbiter.memory.stores._word_tables import Index
from arbiter.memory.stores._words import EVERY, PAGE, Place, Posting

K1, B = 1.2, 0.75
_COMMON, _NEARLY_ALL = 0.5, 0.9
"""The shares of records from which on a word is not read to its end: with rarer words, and without."""
_REST = 5_000
_BEST = 2_000
_ALL = 100_000


def linked(index: Index, places: Sequence[Place], words: Sequence[str]) -> list[Hit]:
    found: list[Hit] = []
    for (place, word), page in index.pages(places, words).items():
        if len(page) == PAGE:
            page = [*page, *index.rest(place, word, page[-1].record, _ALL)]
        keys = index.keys(place, [posting.record for posting in page])
        found += [Hit(0.0, place[0], key) for key in keys.values()]
    return found


class Hit(NamedTuple):
    score: float
    ns: Namespace
    key: str


def ranked(index: Index, places: Sequence[Place], terms: Mapping[str, float], limit: int) -> list[Hit]:
    """The records that have any of the terms, best first by BM25 over all these places, at most `limit`.

    Of equal ones the newer comes first.
    """
    scores = _scored(index, places, terms, limit)
    found = ((score, record, place) for (place, record), score in scores.items())
    best = nlargest(limit, found, key=lambda each: each[:2])
    keys = {place: index.keys(place, [r for _, r, at in best if at == place]) for place in places}
    return [
        Hit(score, place[0], keys[place][record]) for score, record, place in best if record in keys[place]
    ]


@dataclass(slots=True)
class _Read:
    """The postings of a word in a place. `share` estimates how many of the place's records have the word, if
    there are more than a page."""

    place: Place
    word: str
    page: list[Posting]
    share: float
    is_cut: bool = False

    def number(self, records: int) -> float:
        return max(self.share * records, len(self.page)) if self.is_cut else len(self.page)


def _scored(
    index: Index, places: Sequence[Place], terms: Mapping[str, float], limit: int
) -> dict[tuple[Place, int], float]:
    pages = index.pages(places, [EVERY, *terms])
    sizes = {place: _size(pages.get((place, EVERY), [])) for place in places}
    records = sum(number for number, _ in sizes.values())
    if not records:
        return {}
    mean = sum(number * length for number, length in sizes.values()) / records
    reads = [
        _Read(place, word, page, _density(page, sizes[place][0]))
        for place in places
        for word in terms
        if (page := pages.get((place, word), []))
    ]
    _complete(index, reads)
    number: dict[str, float] = defaultdict(float)
    for read in reads:
        number[read.word] += read.number(sizes[read.place][0])
    worth = {
        word: terms[word] * log(1 + (max(records - having, 0) + 0.5) / (having + 0.5))
        for word, having in number.items()
    }
    scores: dict[tuple[Place, int], float] = defaultdict(float)
    for read in reads:
        for posting in read.page:
            scores[read.place, posting.record] += worth[read.word] * _weight(posting, mean)
    missing = sum(worth[word] * (K1 + 1) for word in {read.word for read in reads if read.is_cut})
    best = _may_be_best(scores, limit, missing) if missing else []
    for place in places:
        cut = {
            read.word: {posting.record for posting in read.page}
            for read in reads
            if read.is_cut and read.place == place
        }
        wanted = [record for at, record in best if at == place]
        for word, postings in index.some(place, list(cut), wanted).items():
            for posting in postings:
                if posting.record not in cut[word]:
                    scores[place, posting.record] += worth[word] * _weight(posting, mean)
    return scores


def _may_be_best(
    scores: Mapping[tuple[Place, int], float], limit: int, missing: float
) -> list[tuple[Place, int]]:
    """The records that can be among the best `limit` if at most `missing` is added to their scores."""
    found = nlargest(_BEST, scores.items(), key=lambda pair: (pair[1], pair[0][1]))
    least = found[min(limit, len(found)) - 1][1] if found else 0.0
    return [at for at, score in found if score + missing >= least]


def _size(page: Sequence[Posting]) -> tuple[int, float]:
    """The number of records of a place (its highest number, if not all were read), and their mean length."""
    if not page:
        return 0, 0.0
    number = len(page) if len(page) < PAGE else page[0].record
    return number, sum(posting.length for posting in page) / len(page)


def _density(page: Sequence[Posting], records: int) -> float:
    """The share of records with a word, by the numbers of the newest ones that have it; 0.0 if the page has
    all of them."""
    if len(page) < PAGE:
        return 0.0
    return len(page) / (max(records, page[0].record) - page[-1].record + 1)


def _complete(index: Index, reads: Sequence[_Read]) -> None:
    """Read the rest of the words that are not common. If there are only common ones, read the rarer of them."""
    limit = _COMMON if any(read.share < _COMMON for read in reads) else _NEARLY_ALL
    for read in reads:
        read.is_cut = read.share >= limit
        if read.share and not read.is_cut:
            rest = index.rest(read.place, read.word, read.page[-1].record, _REST)
            read.page += rest
            read.is_cut = len(rest) == _REST


def _weight(posting: Posting, mean: float) -> float:
    times = posting.times
    return times * (K1 + 1) / (times + K1 * (1 - B + B * posting.length / mean))
