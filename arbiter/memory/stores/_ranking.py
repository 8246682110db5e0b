"""BM25 over an index of words, with a cost that follows the hits and not the number of records.

Postings are read newest first. A word that is in most records is read for its last hundred only: it says little
about a record, so it adds to the score of records that another word has found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from math import log
from typing import Any, NamedTuple, cast

from arbiter._threads.forks import new_lock
from arbiter.memory.stores._portable import Namespace, claim_of, digest_of
from arbiter.memory.stores._words import terms_of

K1, B = 1.2, 0.75
PAGE = 100
"""Postings of a word that are read at once."""
_COMMON, _NEARLY_ALL = 0.5, 0.9
"""The shares of records from which on a word is not read to its end: with rarer words, and without."""
_REST = 5_000
_BEST = 2_000
_MOST_OF_VALUE = 200
_ALL = 100_000
EVERY = ""
"""The word that every record has."""


class Posting(NamedTuple):
    """A record with a word: its number in its place, how often it has the word, and its number of words."""

    record: int
    times: int
    length: int


class Written(NamedTuple):
    """The part of a record that an index keeps. `seen` orders records by time; a closed one, such as a
    superseded fact, is searched for only if asked."""

    words: Mapping[str, int]
    seen: str
    is_open: bool


CLOSED = ("superseded", "corrected", "retracted", "expired")


LINKS = ("slot", "refines", "superseded_by", "source_message_ids")


def link(name: str, value: str) -> str:
    """A word that a record with that value has. It counts nothing, and no text has it."""
    return "=" + digest_of(f"{name}\n{value}")[:24]


def linked(index: Index, places: Sequence[Place], words: Sequence[str]) -> list[Hit]:
    found: list[Hit] = []
    for (place, word), page in index.pages(places, words).items():
        if len(page) == PAGE:
            page = [*page, *index.rest(place, word, page[-1].record, _ALL)]
        keys = index.keys(place, [posting.record for posting in page])
        found += [Hit(0.0, place[0], key) for key in keys.values()]
    return found


def is_open(value: Mapping[str, Any]) -> bool:
    return value.get("state") not in CLOSED


def written_of(value: Mapping[str, Any]) -> Written | None:
    """The part of a value to index: the words of its claim, and those of its slot and value; None without
    a claim."""
    claim = claim_of(value)
    if claim is None:
        return None
    words = terms_of(claim)
    for name in ("slot", "value"):
        given: object = value.get(name)
        if isinstance(given, str):
            words |= terms_of(given[:_MOST_OF_VALUE])
    for name in LINKS:
        found: object = value.get(name)
        for each in cast("list[object]", found) if isinstance(found, list) else [found]:
            if isinstance(each, str):
                words[link(name, each)] = 0
    seen: object = value.get("last_seen_at")
    # A Counter takes a link, which counts nothing, for one that is not there.
    return Written(dict(words), seen if isinstance(seen, str) else "", is_open(value))


Place = tuple[Namespace, bool]
"""A namespace, and whether it is the part with open records."""
Words = dict[tuple[Place, str], list[Posting]]


class Index(ABC):
    """The words of the records of several namespaces. Each place numbers its records from 1."""

    @abstractmethod
    def pages(self, places: Sequence[Place], words: Sequence[str]) -> Words:
        """The newest postings of each word, newest first, at most `PAGE` of each."""

    @abstractmethod
    def rest(self, place: Place, word: str, before: int, most: int) -> list[Posting]:
        """At most `most` postings of records before that one, newest first."""

    @abstractmethod
    def some(self, place: Place, words: Sequence[str], records: Sequence[int]) -> dict[str, list[Posting]]:
        """The postings of these words for these records."""

    @abstractmethod
    def keys(self, place: Place, records: Sequence[int]) -> dict[int, str]:
        """The keys of records by their numbers."""

    @abstractmethod
    def newest(self, place: Place, offset: int, limit: int) -> list[tuple[str, str]]:
        """Pairs (`seen`, key) of records, the latest first."""


class Hit(NamedTuple):
    score: float
    ns: Namespace
    key: str


def ranked(index: Index, places: Sequence[Place], terms: Mapping[str, float], limit: int) -> list[Hit]:
    """The records that have any of the terms, best first by BM25 over all these places, at most `limit`.

    Of equal ones the newer comes first.
    """
    scores = _scored(index, places, terms, limit)
    best = nlargest(limit, ((score, record, place) for (place, record), score in scores.items()), key=_order)
    keys = {place: index.keys(place, [r for _, r, at in best if at == place]) for place in places}
    return [
        Hit(score, place[0], keys[place][record]) for score, record, place in best if record in keys[place]
    ]


def _order(found: tuple[float, int, Place]) -> tuple[float, int]:
    return found[:2]


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


class _Shelf:
    """The open or the closed records of a namespace."""

    def __init__(self) -> None:
        self.words: dict[str, dict[int, Posting]] = {}
        self.records: dict[int, tuple[str, Written]] = {}
        self.numbers: dict[str, int] = {}
        self.seen: list[tuple[str, int]] = []
        self.last = 0

    def known(self, key: str) -> Written | None:
        number = self.numbers.get(key)
        return None if number is None else self.records[number][1]

    def add(self, key: str, written: Written) -> None:
        number = self.last = self.last + 1
        length = sum(written.words.values())
        for word, count in {EVERY: 1, **written.words}.items():
            self.words.setdefault(word, {})[number] = Posting(number, count, length)
        self.records[number] = key, written
        self.numbers[key] = number
        insort(self.seen, (written.seen, number))

    def drop(self, key: str) -> None:
        number = self.numbers.pop(key, None)
        if number is None:
            return
        _, written = self.records.pop(number)
        for word in (EVERY, *written.words):
            del self.words[word][number]
            if not self.words[word]:
                del self.words[word]
        del self.seen[bisect_left(self.seen, (written.seen, number))]


class MemoryIndex(Index):
    """An index in this process."""

    def __init__(self) -> None:
        self._shelves: dict[Place, _Shelf] = {}
        self._records = 0
        self._guard = new_lock()

    def put(self, ns: Namespace, key: str, written: Written | None) -> None:
        """Index a record anew; None removes it."""
        with self._guard:
            for is_live in (True, False):
                shelf = self._shelves.setdefault((ns, is_live), _Shelf())
                before = len(shelf.records)
                if written is None or written.is_open != is_live:
                    shelf.drop(key)
                elif shelf.known(key) != written:
                    shelf.drop(key)
                    shelf.add(key, written)
                self._records += len(shelf.records) - before

    def held(self, ns: Namespace) -> list[str]:
        with self._guard:
            return [key for is_live in (True, False) for key in self._at((ns, is_live)).numbers]

    def size(self, ns: Namespace | None = None) -> int:
        with self._guard:
            if ns is None:
                return self._records
            return sum(len(self._at((ns, is_live)).records) for is_live in (True, False))

    def drop(self, ns: Namespace) -> None:
        with self._guard:
            for is_live in (True, False):
                shelf = self._shelves.pop((ns, is_live), None)
                self._records -= 0 if shelf is None else len(shelf.records)

    def pages(self, places: Sequence[Place], words: Sequence[str]) -> Words:
        with self._guard:
            return {(place, word): self._newest(place, word, PAGE) for place in places for word in words}

    def rest(self, place: Place, word: str, before: int, most: int) -> list[Posting]:
        with self._guard:
            found = self._newest(place, word, PAGE + most)
        return [posting for posting in found if posting.record < before]

    def some(self, place: Place, words: Sequence[str], records: Sequence[int]) -> dict[str, list[Posting]]:
        with self._guard:
            held = {word: self._at(place).words.get(word, {}) for word in words}
            return {word: [has[record] for record in records if record in has] for word, has in held.items()}

    def keys(self, place: Place, records: Sequence[int]) -> dict[int, str]:
        with self._guard:
            held = self._at(place).records
            return {record: held[record][0] for record in records if record in held}

    def newest(self, place: Place, offset: int, limit: int) -> list[tuple[str, str]]:
        with self._guard:
            shelf = self._at(place)
            end = max(len(shelf.seen) - offset, 0)
            chosen = reversed(shelf.seen[max(end - limit, 0) : end])
            return [(seen, shelf.records[number][0]) for seen, number in chosen]

    def _at(self, place: Place) -> _Shelf:
        return self._shelves.get(place) or _Shelf()

    def _newest(self, place: Place, word: str, most: int) -> list[Posting]:
        return list(islice(reversed(self._at(place).words.get(word, {}).values()), most))
