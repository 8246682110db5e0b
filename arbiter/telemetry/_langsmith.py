"""`LangSmithScores`: scores of a ledger as feedback in LangSmith."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import requests
from langsmith import Client
from langsmith.integrations.otel import langsmith_run_id_from_otel_span_id
from langsmith.utils import LangSmithError, LangSmithNotFoundError, get_tracer_project
from urllib3 import Retry

from arbiter.errors import ConfigurationError
from arbiter.ledger._receivers import (
    BatchRefused,
    Delivery,
    ExportedScore,
    ReceiverBusy,
    ReceiverError,
    Refusal,
    ScoreReceiver,
)
from arbiter.telemetry._answers import REASON, meaning_of

_COMMENT = 500
_CONFLICT, _NOT_FOUND = 409, 404


class LangSmithScores(ScoreReceiver):
    """Sends scores to LangSmith, as feedback on the run that each node run's span became.

    `client` is a `langsmith.Client`; by default the environment names the workspace, with LANGSMITH_API_KEY and
    LANGSMITH_ENDPOINT. `project` is the name of the project that has the spans, by default LANGSMITH_PROJECT or
    "default". The value of a score is "pass" or "fail" if the evaluator judges; failed evaluations are
    feedback with `error`. LangSmith keeps four decimal places. A run that is not there yet is asked for again
    during ten minutes.

    Raises `ConfigurationError` for a client that leaves out feedback by its `tracing_sampling_rate`.
    """

    most = 20
    takes_failures = True

    def __init__(self, client: Client | None = None, project: str | None = None) -> None:
        if client is None:
            # Neither retries nor threads of its own: the export repeats a batch, and reads each answer.
            session = requests.Session()
            session.hooks["response"].append(_refuse_to_move)
            client = Client(
                auto_batch_tracing=False, retry_config=Retry(0), tracing_sampling_rate=1.0, session=session
            )
        elif client.tracing_sample_rate is not None and client.tracing_sample_rate < 1:
            raise ConfigurationError(
                f"LangSmithScores: the client has tracing_sampling_rate={client.tracing_sample_rate:g}, by which "
                "it leaves out feedback without a word. Give it a client of its own."
            )
        self._client = client
        self._project = project or get_tracer_project() or "default"
        self._session: Any = None
        self.name = f"langsmith {client.api_url} {self._project}"

    def send(self, batch: Sequence[ExportedScore]) -> Delivery:
        try:
            session = self._session_id()
        except LangSmithNotFoundError:  # the project comes with its first run
            return Delivery(accepted=0, later=[score.id for score in batch])
        refused: list[Refusal] = []
        later: list[str] = []
        for score in batch:
            try:
                self._create(score, session)
            except LookupError:
                later.append(score.id)
            except BatchRefused as error:
                refused.append(Refusal(str(error), score.id))
        return Delivery(accepted=len(batch) - len(refused) - len(later), refused=refused, later=later)

    def _session_id(self) -> Any:
        if self._session is None:
            try:
                with _read():
                    self._session = self._client.read_project(project_name=self._project).id
            except LookupError as error:
                raise ReceiverError(f"{self._client.api_url} is not LangSmith: it answered 404.") from error
        return self._session

    def _create(self, score: ExportedScore, session: Any) -> None:
        """Send one score. Raises `LookupError` if its run is not there, and what `_read` raises."""
        with _read():
            # With a `trace_id` the client would queue the feedback and return before anything is sent.
            self._client.create_feedback(
                run_id=langsmith_run_id_from_otel_span_id(int(score.span, 16)),
                session_id=session,
                key=score.evaluator,
                score=score.score,
                value=None if score.passed is None else "pass" if score.passed else "fail",
                comment=score.comment[:_COMMENT] or None,
                feedback_id=score.id,
                feedback_source_type="model",
                source_info={"version": score.version, "node": score.node},
                error=True if score.score is None else None,
                stop_after_attempt=1,
            )


def _refuse_to_move(answer: requests.Response, **_: Any) -> None:
    """Refuse a redirect that makes a GET of a POST: it would store nothing and succeed."""
    if answer.request.method == "POST" and answer.status_code in (301, 302, 303):
        raise requests.TooManyRedirects(f"moved to {answer.headers.get('Location')}", response=answer)


@contextmanager
def _read() -> Generator[None]:
    """Raise what an answer means. An id that LangSmith has already is no error."""
    with _quiet():
        try:
            yield
        except (LangSmithError, requests.RequestException) as error:
            answer = _answer_of(error)
            if answer is None:
                if isinstance(error, LangSmithNotFoundError):
                    raise
                raise ReceiverBusy(f"LangSmith cannot be reached: {str(error)[:REASON]}") from error
            status, text = answer.status_code, answer.text[:REASON]
            if status == _CONFLICT:
                return
            if status == _NOT_FOUND:
                raise LookupError(text) from error
            settings = "LANGSMITH_API_KEY, LANGSMITH_WORKSPACE_ID and LANGSMITH_ENDPOINT"
            raise meaning_of("LangSmith", status, text, answer.headers, settings) from error


def _answer_of(error: BaseException | None) -> requests.Response | None:
    """The HTTP answer that an error of the client comes from, if there was one."""
    while error is not None:
        if isinstance(error, requests.HTTPError | requests.TooManyRedirects) and error.response is not None:
            return error.response
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def _quiet() -> Generator[None]:
    """Keep the client's log of tracebacks on this thread away: the export reports failures itself."""
    logger, here = logging.getLogger("langsmith.client"), threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger.addFilter(elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(elsewhere)
