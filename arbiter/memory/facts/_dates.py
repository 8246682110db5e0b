"""Dates as models write them: a time, a day, a month or a year."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import Any

_PART = re.compile(r"(\d{4})(?:[-/](\d{1,2})(?:[-/](\d{1,2}))?)?")


def first_moment(given: Any) -> datetime | None:
    """The beginning of what is written: of the year 2019, the month 2019-05, the day 2019-05-12, or the time
    itself. Without a zone if none is written. None for anything else."""
    return _moment(given, last=False)


def end_of(given: Any) -> datetime | None:
    """Like `first_moment`, for the moment when it is over: "until 2019-05" ends with the month."""
    return _moment(given, last=True)


def in_zone(when: datetime | None, zone: tzinfo | None) -> datetime | None:
    """`when` as an aware time; a time without a zone is one of `zone`."""
    return when if when is None or when.tzinfo is not None else when.replace(tzinfo=zone)


def _moment(given: Any, *, last: bool) -> datetime | None:
    if isinstance(given, datetime):
        return given
    if isinstance(given, bool) or not isinstance(given, str | int):
        return None
    text = str(given).strip()
    try:
        found = _PART.fullmatch(text)
        if found is None:
            return datetime.fromisoformat(text)
        year, month, day = (None if part is None else int(part) for part in found.groups())
        begin = datetime.fromisoformat(f"{year:04}-{month or 1:02}-{day or 1:02}")
        if not last:
            return begin
        if day is not None:
            return begin + timedelta(days=1)
        if month is None:
            return begin.replace(year=begin.year + 1)
        return (begin + timedelta(days=31)).replace(day=1)
    except (ValueError, OverflowError):
        return None
