"""Column types and server defaults that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, ColumnElement, DateTime, Dialect, Text, Uuid
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeDecorator

from arbiter._databases import storable, storable_data


class Time(TypeDecorator[datetime]):
    """An aware time. Naive ones are refused; times come back in UTC.

    SQLite keeps no zone: the column has the time in UTC there.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        given: Any = value
        if not isinstance(given, datetime) or value.tzinfo is None or value.utcoffset() is None:
            raise ValueError(f"expected a time with a zone, got {value!r}. Write datetime.now(UTC).")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Words(TypeDecorator[str]):
    """A text of any characters."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class Json(TypeDecorator[Any]):
    """JSON with texts of any characters. None is NULL."""

    impl = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable_data(value)


Texts: Any = JSON().with_variant(ARRAY(Text()), "postgresql")
"""A list of texts."""


class NewUuid(ColumnElement[UUID]):
    """A random uuid (version 4), made by the database."""

    inherit_cache = True
    type = Uuid()


class Now(ColumnElement[datetime]):
    """The time of the statement, by the clock of the database."""

    inherit_cache = True
    type = Time()


_UUID = (
    "lower(hex(randomblob(6)) || '4' || substr(hex(randomblob(2)), 2) || "
    "substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || hex(randomblob(6)))"
)


@compiles(NewUuid)
def _new_uuid(element: NewUuid, compiler: Any, **_: Any) -> str:
    return _UUID if compiler.dialect.name == "sqlite" else "gen_random_uuid()"


@compiles(Now)
def _now(element: Now, compiler: Any, **_: Any) -> str:
    # As SQLAlchemy writes times, with microseconds, so that times compare as texts.
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')" if compiler.dialect.name == "sqlite" else "now()"
