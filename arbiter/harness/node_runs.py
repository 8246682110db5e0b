"""Node runs of a case as plain data: what each node read and wrote, for exports to trainers.

The journal keeps them beside the answer of a governed graph, superstep by superstep. Messages are in the form of
chat APIs: `{"role": ..., "content": ...}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages

from arbiter._values.copies import Exporter
from arbiter._values.kinds import is_list
from arbiter.harness.trajectories import Visits
from arbiter.history._items import History
from arbiter.history._record import Record


def node_runs_of(history: History, visits: Visits) -> list[list[dict[str, Any]]]:
    """The node runs of each superstep, of a history with these visits. Waits for no evaluation."""
    plain = Exporter(_chat_message)
    return [
        [_node_run(item.record, visit, plain) for item, visit in zip(superstep, step, strict=True)]
        for superstep, step in zip(history.entries, visits, strict=True)
    ]


def _node_run(record: Record, visit: Mapping[str, Any], plain: Exporter) -> dict[str, Any]:
    # The states are read from the record: each view of a part of them costs as much as the part.
    found: dict[str, Any] = {"item_id": record.id, "node": visit["node"]}
    if "instruction" in visit:
        found["instruction"] = visit["instruction"]
    found["status"], found["input"] = record.status, plain(record.input)
    if record.status == "completed":
        found["output"] = plain(record.output) if record.output else {}
        if (record.gating or record.account) and (original := _original(record, plain)) not in (None, ""):
            found["original"] = original
    if record.output and (tokens := _tokens(record.output)) is not None:
        found["tokens"] = tokens
    if record.checks and (
        violations := [name for name, verdict in record.checks.items() if verdict.kind != "allow"]
    ):
        found["violations"] = violations
    return found


def _chat_message(model: Any) -> Any:
    return convert_to_openai_messages(model) if isinstance(model, BaseMessage) else model.model_dump()


def _tokens(output: Mapping[str, Any]) -> int | None:
    """The tokens of the model's messages in an output; None if no message reports them."""
    used = [
        message.usage_metadata["total_tokens"]
        for part in output.values()
        for message in (part if is_list(part) else (part,))
        if isinstance(message, AIMessage) and message.usage_metadata is not None
    ]
    return sum(used) if used else None


def _original(record: Record, plain: Exporter) -> Any:
    """The first draft of an output that a correction gate accepted after sending it back; None if there is none."""
    gating = record.gating
    if "outcome" in gating:  # a gate of personas
        changed = (
            gating.get("outcome") in ("passed_after_retry", "corrected")
            and gating.get("corrected_text") is not None
        )
        return gating.get("original_text") if changed else None
    # A gate that gave up says so in a note.
    drafts = () if record.account is None else record.account.drafts
    if not drafts or any(name.startswith("gate ") for name in record.notes):
        return None
    return plain(drafts[0][0])


def steering(record: Record) -> tuple[frozenset[str], frozenset[str]]:
    """The scores that steered the run at this node: evaluators that a rule read, and dimensions that a gate judged.

    The results of evaluators that are `durable` count as read, because later rules may read them.
    """
    read: tuple[Iterable[str], Iterable[str]] = getattr(record.evaluations, "read", ((), ()))
    gating: Mapping[str, Any] = record.gating if record.gating.get("enforced", False) else {}
    return frozenset({*read[0], *read[1]}), frozenset(gating.get("dimension_scores") or ())
