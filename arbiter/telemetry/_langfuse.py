"""`LangfuseScores`: scores of a ledger for Langfuse."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import httpx
from langfuse import __version__ as langfuse_version
from langfuse.api import CreateScoreBatchResults, CreateScoreRequest, LangfuseAPI, ScoreDataType
from langfuse.api.core import ApiError

from arbiter.errors import ConfigurationError
from arbiter.ledger._receivers import (
    BatchRefused,
    Delivery,
    ExportedScore,
    ReceiverBusy,
    Refusal,
    ScoreReceiver,
)
from arbiter.telemetry._answers import REASON, meaning_of

_COMMENT = 500
_BYTES = 900_000
_TIMEOUT = 30.0
_HOST = "https://cloud.langfuse.com"


class LangfuseScores(ScoreReceiver):
    """Sends scores to Langfuse, each to the observation that its node run's span became.

    `client` is a `langfuse.Langfuse`; by default the environment names the project, with LANGFUSE_PUBLIC_KEY,
    LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL. Scores are numeric; the pass mark, the version of the evaluator
    and the node are in their metadata. Failed evaluations are not sent. If Langfuse refuses a part of a batch,
    it does not say which scores: the ledger keeps their number and the messages.

    Raises `ConfigurationError` if there are no keys.
    """

    def __init__(self, client: Any = None) -> None:
        if client is None:
            self._api, host, key = _api_of_environment()
        else:
            self._api, host, key = _api_of(client)
        self.name = f"langfuse {host} {key}"

    def send(self, batch: Sequence[ExportedScore]) -> Delivery:
        request = [_request(score) for score in batch]
        size = sum(len(each.model_dump_json()) + 1 for each in request)
        if size > _BYTES:
            raise BatchRefused(f"{size:,} bytes are more than Langfuse takes at once")
        try:
            # `create_score` would queue the scores and drop them in an outage.
            answer = self._api.scores.create(request=request, request_options={"max_retries": 0})
        except ApiError as error:
            raise _read(error) from error
        except httpx.HTTPError as error:
            raise ReceiverBusy(f"Langfuse cannot be reached: {error or type(error).__name__}") from error
        if not isinstance(answer, CreateScoreBatchResults):
            return Delivery(accepted=len(batch))
        messages = "; ".join(dict.fromkeys(each.message for each in answer.errors)) or "no message"
        refused = [Refusal(messages[:REASON], count=answer.rejected)] if answer.rejected else []
        return Delivery(accepted=len(batch) - answer.rejected, refused=refused)


def _request(score: ExportedScore) -> CreateScoreRequest:
    assert score.score is not None  # failures are not taken
    return CreateScoreRequest(
        id=score.id,
        trace_id=score.trace,
        observation_id=score.span,
        name=score.evaluator,
        value=score.score,
        data_type=ScoreDataType("NUMERIC"),
        comment=score.comment[:_COMMENT] or None,
        metadata={"passed": score.passed, "version": score.version, "node": score.node},
        timestamp=score.at,  # with the same id and time, a score that comes again takes its own place
    )


def _read(error: ApiError) -> Exception:
    """The meaning of an answer with an error."""
    return meaning_of(
        "Langfuse",
        error.status_code or 0,
        str(error.body)[:REASON],
        error.headers,
        "LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL",
    )


def _api_of_environment() -> tuple[LangfuseAPI, str, str]:
    # A `Langfuse` would start threads and a tracer, and every later one with this key would be the same object.
    public, secret = os.environ.get("LANGFUSE_PUBLIC_KEY"), os.environ.get("LANGFUSE_SECRET_KEY")
    if not public or not secret:
        raise ConfigurationError(
            "LangfuseScores needs a client, or LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY in the environment."
        )
    host = os.environ.get("LANGFUSE_BASE_URL") or os.environ.get("LANGFUSE_HOST") or _HOST
    api = LangfuseAPI(
        base_url=host,
        username=public,
        password=secret,
        x_langfuse_sdk_name="python",
        x_langfuse_sdk_version=langfuse_version,
        x_langfuse_public_key=public,
        # A connection for each batch: none stays open between them.
        httpx_client=httpx.Client(timeout=_TIMEOUT, limits=httpx.Limits(max_keepalive_connections=0)),
    )
    return api, host, public


def _api_of(client: Any) -> tuple[LangfuseAPI, str, str]:
    try:
        api: Any = client.api
        resources: Any = client._resources
        return api, str(resources.base_url), str(resources.public_key)
    except AttributeError:
        raise ConfigurationError(
            f"LangfuseScores: expected a langfuse.Langfuse with keys, got {client!r:.80}."
        ) from None
