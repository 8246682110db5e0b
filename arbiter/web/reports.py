"""The pages of measurements: reports of evaluation runs, results of experiments, and a published table recomputed."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arbiter.errors import ConfigurationError
from arbiter.experiments import verify_table1
from arbiter.experiments.results import load_result
from arbiter.experiments.runner import FOLDER as EXPERIMENTS
from arbiter.harness.journal import FOLDER, runs_in, summary_of
from arbiter.harness.reports.page import values_of
from arbiter.harness.reports.report import load_report
from arbiter.web.context import ViewerContext
from arbiter.web.thread import PAGE, number

NEWEST = 50
"""The runs that are listed."""


def routes(context: ViewerContext) -> list[Route]:
    folder = FOLDER if context.reports is None else Path(context.reports)

    def reports(request: Request) -> Response:
        runs, experiments = _lines(folder), _lines(EXPERIMENTS)
        return context.page(request, "reports.html", runs=runs, experiments=experiments, folder=folder)

    def report(request: Request) -> Response:
        found = load_report(_found(folder, request))
        first = min(number(request, "after") or 0, max(len(found.results) - 1, 0))
        part = slice(first, first + PAGE)
        return context.page(
            request, "report.html", part=part, size=PAGE, of=len(found.results), **values_of(found, part)
        )

    def experiment(request: Request) -> Response:
        result = load_result(_found(EXPERIMENTS, request))
        return context.page(
            request, "experiment.html", result=result, marks=result.marks, text=result.table()
        )

    def picture(request: Request) -> Response:
        result = load_result(_found(EXPERIMENTS, request))
        return Response(result.picture(), media_type="image/svg+xml")

    def table(request: Request) -> Response:
        found = verify_table1()
        text = found.text(sensitivity=True)
        return context.page(request, "table1.html", text=text, problems=found.problems)

    return [
        Route("/reports", reports, methods=["GET"]),
        Route("/reports/runs/{run}", report, methods=["GET"]),
        Route("/reports/experiments/{run}", experiment, methods=["GET"]),
        Route("/reports/experiments/{run}/picture.svg", picture, methods=["GET"]),
        Route("/reports/table1", table, methods=["GET"]),
    ]


def _found(folder: Path, request: Request) -> Path:
    """The folder of the run that the path names. The name is compared with those that are there, and never made
    into a path.
    """
    found = {run.name: run for run in runs_in(folder)}.get(request.path_params["run"])
    if found is None:
        raise HTTPException(404, "There is no such run.")
    return found


def _lines(folder: Path) -> list[dict[str, str]]:
    return [_line(run) for run in runs_in(folder)[: -NEWEST - 1 : -1]]


def _line(folder: Path) -> dict[str, str]:
    try:
        found = summary_of(folder)
    except ConfigurationError as error:
        return {"run": folder.name, "suite": "", "target": "", "cases": "", "state": str(error)}
    return {
        "run": folder.name,
        "suite": found.suite.removeprefix("experiment:"),
        "target": found.target,
        "cases": f"{found.done:,}",
        "state": found.state,
    }
