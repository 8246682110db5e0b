"""The page of evaluations: score and pass rate over time as curves and as a table, and the lowest node runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arbiter.errors import ConfigurationError
from arbiter.ledger import Ledger
from arbiter.ledger._entries import HOUR
from arbiter.ledger._queries import time_from
from arbiter.web.charts import HEIGHT, LEFT, WIDTH, chart_of
from arbiter.web.context import ViewerContext, ensure_known

POINTS = 300
"""The most points of a curve."""
LOWEST = 20
"""The lowest scores that are listed."""
_HOURS: Mapping[str, int] = {"hour": 1, "day": 24}
Row = Mapping[str, Any]


def routes(context: ViewerContext) -> list[Route]:
    def evaluations(request: Request) -> Response:
        names, nodes = context.ledger.names("evaluator"), context.ledger.names("node")
        asked = {key: request.query_params.get(key, "").strip() for key in ("name", "node", "every", "since")}
        asked["name"] = _meant(asked["name"], names) or (names[0] if names else "")
        asked["node"] = _meant(asked["node"], nodes)
        asked["every"] = asked["every"] or "hour"
        values: dict[str, Any] = {"rows": [], "lowest": [], "size": 1, "problem": None}
        status = 200
        try:
            if names:
                ensure_known("name", asked["name"], names)
                ensure_known("every", asked["every"], tuple(_HOURS))
                if asked["node"]:
                    ensure_known("node", asked["node"], nodes)
                values.update(_values(context.ledger, asked))
        except ConfigurationError as error:
            values["problem"], status = str(error), 400
        rows: Sequence[Row] = values["rows"]
        times = [row["at"] for row in rows]
        values["score"] = chart_of(
            times, [row["mean"] for row in rows], [(row["least"], row["most"]) for row in rows]
        )
        values["rate"] = chart_of(times, [row["passed"] for row in rows])
        values["box"] = {"width": WIDTH, "height": HEIGHT, "left": LEFT}
        return context.page(
            request, "evaluations.html", status, asked=asked, names=names, nodes=nodes, **values
        )

    return [Route("/evaluations", evaluations, methods=["GET"])]


def _meant(name: str, names: Sequence[str]) -> str:
    """The name that a form sent, as it is recorded: a browser changes line ends."""
    return name if name in names else next((each for each in names if each.split() == name.split()), name)


def _values(ledger: Ledger, asked: Mapping[str, str]) -> dict[str, Any]:
    name, node, every = asked["name"], asked["node"] or None, asked["every"]
    since = time_from("since", asked["since"] or None, time.time())
    unit: Literal["hour", "day"] = "hour" if every == "hour" else "day"
    if node is None:
        worst = ledger.reader.lowest_scores(name, since=since, limit=LOWEST)
        rows = ledger.scores(name, every=unit, since=asked["since"] or None)
        if len(rows) > POINTS and unit == "hour":
            unit, rows = "day", ledger.scores(name, every="day", since=asked["since"] or None)
    else:
        scores = ledger.reader.newest_scores(name, node=node, since=since)
        worst = sorted((score, entry) for _, score, _, entry in scores)[:LOWEST]
        rows = rows_of([score[:3] for score in scores], _HOURS[unit])
    rows, size = bounded([row for row in rows if row["count"]])  # the others have no score to draw
    places = ledger.reader.places([entry for _, entry in worst])
    lowest = [{"score": score, **places[entry]} for score, entry in worst if entry in places]
    return {"rows": rows, "size": size, "unit": unit, "lowest": lowest}


def rows_of(scores: Iterable[tuple[int, float, bool | None]], hours: int) -> list[Row]:
    """Scores by so many hours, as `Ledger.scores` gives them."""
    parts: dict[int, list[tuple[float, bool | None]]] = {}
    for at, score, passed in scores:
        parts.setdefault(at // HOUR // hours * hours, []).append((score, passed))
    return [_row(datetime.fromtimestamp(hour * 3600, UTC), part) for hour, part in sorted(parts.items())]


def _row(at: datetime, scores: Sequence[tuple[float, bool | None]]) -> Row:
    judged = [passed for _, passed in scores if passed is not None]
    values = [score for score, _ in scores]
    return {
        "at": at,
        "count": len(values),
        "mean": sum(values) / len(values),
        "least": min(values),
        "most": max(values),
        "passed": sum(judged) / len(judged) if judged else None,
    }


def bounded(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """At most `POINTS` rows, and of how many rows each is made. Pass rates are weighted by the counts."""
    size = -(-len(rows) // POINTS) or 1
    if size == 1:
        return [*rows], 1
    begin = rows[0]["at"]
    step = (rows[-1]["at"] - begin) / POINTS + timedelta(seconds=1)
    parts: dict[int, list[Row]] = {}
    for row in rows:
        parts.setdefault((row["at"] - begin) // step, []).append(row)
    return [_merged(part) for part in parts.values()], size


def _merged(rows: Sequence[Row]) -> Row:
    count = sum(row["count"] for row in rows)
    judged = [row for row in rows if row["passed"] is not None]
    weight = sum(row["count"] for row in judged)
    return {
        "at": rows[0]["at"],
        "count": count,
        "mean": sum(row["mean"] * row["count"] for row in rows) / count,
        "least": min(row["least"] for row in rows),
        "most": max(row["most"] for row in rows),
        "passed": sum(row["passed"] * row["count"] for row in judged) / weight if weight else None,
    }
