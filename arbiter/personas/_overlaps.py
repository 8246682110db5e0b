"""The mean overlap of many messages, by matrices: the same number as pair by pair, for ten thousand of them.

Two messages share as many n-grams as the product of their rows in a matrix with a column for each n-gram. A
column that many messages have is multiplied; for other columns, each pair of messages with the n-gram is
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_COMMON = 300
"""A column with more messages than this is multiplied."""
_CELLS = 40_000_000
"""Most cells of the matrix, and of the product of some of its rows with all others."""
_ROWS = 16
"""Rows of a product that are processed at a time, few enough to stay in the cache."""
_PAIRS = 4_000_000
_LARGEST = 2**62


def overlap_sums(messages: Sequence[Sequence[str]], n: int) -> Iterator[float]:
    """The Jaccard overlaps of the word n-grams of every unordered pair of messages, as partial sums."""
    rows, columns, sizes = _ngrams(messages, n)
    keep = np.flatnonzero(sizes)  # a message without n-grams shares none
    rows, sizes = (np.cumsum(sizes > 0) - 1)[rows], sizes[keep].astype(float)
    holders = _together(rows, columns)
    common = [column for column in holders[: _CELLS // max(1, len(sizes))] if len(column[0]) > _COMMON]
    matrix = np.zeros((len(sizes), len(common)), np.float32)  # exact up to 16 million n-grams of a message
    for number, (having, _) in enumerate(common):
        matrix[having, number] = 1
    weights = np.array([weight for _, weight in common], np.float32)
    rare = _counted(holders[len(common) :], len(sizes))
    many = _ROWS * max(1, _CELLS // (2 * _ROWS * max(1, len(sizes))))
    for top in range(0, len(sizes), many):
        product = (matrix[top : top + many] * weights) @ matrix[top:].T
        for begin in range(top, min(top + many, len(sizes)), _ROWS):
            both = product[begin - top : begin - top + _ROWS, begin - top :] + rare(begin)
            both[:, :_ROWS] = np.triu(both[:, :_ROWS], 1)  # each pair once
            yield float((both / (sizes[begin : begin + _ROWS, None] + sizes[begin:] - both)).sum())


def _ngrams(messages: Sequence[Sequence[str]], n: int) -> tuple[Array, Array, Array]:
    """Each n-gram of each message once, as row and column numbers, and the number of n-grams of each
    message."""
    numbers = {word: at for at, word in enumerate(dict.fromkeys(chain.from_iterable(messages)))}
    words = np.fromiter(map(numbers.__getitem__, chain.from_iterable(messages)), np.int64)
    row = np.repeat(np.arange(len(messages)), [len(words) for words in messages])
    grams, most = words, len(numbers)
    for size in range(1, n):
        if most > _LARGEST // max(1, len(numbers) * len(messages)):
            distinct, grams = np.unique(grams, return_inverse=True)
            most = len(distinct)
        grams, most = grams[:-1] * len(numbers) + words[size:], most * len(numbers)
    if most > _LARGEST // len(messages):
        grams = np.unique(grams, return_inverse=True)[1]
    begins = row[: len(grams)]
    inside = begins == row[n - 1 :]
    found = np.sort(grams[inside] * len(messages) + begins[inside])
    columns, rows = np.divmod(found[np.diff(found, prepend=-1) > 0], len(messages))
    return rows, columns, np.bincount(rows, minlength=len(messages))


def _together(rows: Array, columns: Array) -> list[tuple[Array, int]]:
    """The messages of each n-gram that several messages have, the most first, with the number of n-grams
    that have exactly these messages, such as those of one sentence."""
    begins = np.flatnonzero(np.diff(columns, prepend=-1))
    ends = np.append(begins[1:], len(columns))
    several = ends - begins > 1
    counts: dict[bytes, int] = {}
    for begin, end in zip(begins[several].tolist(), ends[several].tolist(), strict=True):
        key = rows[begin:end].tobytes()
        counts[key] = counts.get(key, 0) + 1
    found = [(np.frombuffer(key, rows.dtype), count) for key, count in counts.items()]
    return sorted(found, key=lambda column: -len(column[0]))


def _counted(columns: Sequence[tuple[Array, int]], messages: int) -> Callable[[int], Array]:
    """A function that counts the shared n-grams of these columns.

    For a first message it returns those that `_ROWS` messages from there on share with all messages from
    there on.
    """
    lengths = np.array([len(having) for having, _ in columns], np.int64)
    holders = np.concatenate([np.empty(0, np.int64), *(having for having, _ in columns)])
    weights = np.repeat(np.array([weight for _, weight in columns], float), lengths)
    # The number of holders after each holder in its column, with which it forms pairs.
    after = np.repeat(np.cumsum(lengths), lengths) - 1 - np.arange(len(holders))
    by_row = np.argsort(holders, kind="stable")
    starts = np.searchsorted(holders[by_row], np.arange(messages + _ROWS))

    def shared(begin: int) -> Array:
        width = messages - begin
        found = np.zeros(min(_ROWS, width) * width)
        places = by_row[starts[begin] : starts[begin + _ROWS]]
        for some in np.array_split(places, 1 + int(after[places].sum()) // _PAIRS):
            pairs = after[some]
            first = np.repeat(some, pairs)
            nth = np.arange(len(first)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
            where = (holders[first] - begin) * width + holders[first + 1 + nth] - begin
            found += np.bincount(where, weights[first], len(found))
        return found.reshape(-1, width)

    return shared
