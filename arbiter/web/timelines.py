"""A page of a thread's entries as supersteps: node runs that ran at the same time side by side, and remarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from arbiter.ledger._contents import said
from arbiter.ledger._entries import ITEMS, checks_of, routes_of, times_of
from arbiter.ledger._reading import Entry
from arbiter.web.drawing import target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A node run in the timeline. `share` is its duration as a part of the longest one's, 0 to 100."""

    seq: int
    node: str
    instruction: str | None
    status: str
    verdict: str
    policy: str | None
    target: str | None
    why: str
    attempt: int
    seconds: float
    share: float
    lowest: tuple[str, float, bool | None] | None
    """The evaluator with the lowest score, the score, and whether it passed."""
    recovered: bool


@dataclass(slots=True, kw_only=True)
class Step:
    """A superstep of a graph, or of a subgraph, of which `namespace` is the name."""

    number: int
    run: str
    namespace: str
    runs: list[Run] = field(default_factory=list[Run])


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """An entry that is no node run: an answer, the end of an execution, a gap, an erasure."""

    seq: int
    at: datetime
    text: str


def timeline_of(entries: Sequence[Entry]) -> list[Step | Remark]:
    """The supersteps and remarks of these entries, oldest first."""
    longest = max((entry.body.get("took", 0) for entry in entries if entry.kind in ITEMS), default=0)
    found: list[Step | Remark] = []
    for entry in entries:
        body = entry.body
        if entry.kind not in ITEMS:
            found.append(Remark(seq=entry.seq, at=entry.at, text=_remark(entry.kind, body)))
            continue
        place = {
            "number": body.get("step", 0),
            "run": body.get("run", ""),
            "namespace": body.get("namespace", ""),
        }
        last = found[-1] if found else None
        if not isinstance(last, Step) or (last.number, last.run, last.namespace) != tuple(place.values()):
            last = Step(**place)
            found.append(last)
        last.runs.append(_run(entry, longest))
    return found


def _run(entry: Entry, longest: int) -> Run:
    body = entry.body
    _, seconds = times_of(body)
    decision: Mapping[str, Any] = body.get("decision") or {}
    policy = decision.get("policy")
    reasons: Mapping[str, str] = said(entry.contents.get("reasons")) or {}
    kind = decision.get("kind") or ("allow" if body.get("status") != "denied" else "deny")
    instruction = body.get("instruction")
    return Run(
        seq=entry.seq,
        node=str(body.get("node", "")),
        instruction=None if instruction is None else str(instruction).rpartition(".")[2],
        status=str(body.get("status", "")),
        verdict=str(kind),
        policy=policy,
        target=target_of(body),
        why=reasons.get(str(policy)) or said(entry.contents.get("error")) or "",
        attempt=int(body.get("attempt", 1)),
        seconds=seconds,
        share=round(100 * body.get("took", 0) / longest, 1) if longest else 0.0,
        lowest=min(entry.scores, key=lambda score: score[1], default=None),
        recovered=entry.kind == "recovered",
    )


def _remark(kind: str, body: Mapping[str, Any]) -> str:
    match kind:
        case "answer":
            by = f" by {body['by']}" if body.get("by") else ""
            about = f"the question of {body.get('policy_asked')} about {body.get('node')}"
            return f"a human answered {about}: {body.get('answer')}{by}"
        case "execution":
            return f"the call of the graph ended: {body.get('outcome')}"
        case "gap":
            return f"{body.get('n', 0):,} node runs were not recorded"
        case "erasure":
            return f"the contents of {body.get('entries', 0):,} entries were erased"
        case "pruned":
            return "entries were removed because they had been kept long enough"
        case _:
            return kind


def policies_of(body: Mapping[str, Any]) -> list[str]:
    """The names of the rules that took part in a node run."""
    routes = [(name, to) for name, to in routes_of(body).items() if to is not None]
    evals: Sequence[Sequence[Any]] = body.get("evals") or ()
    named = (*checks_of(body), *(name for name, _ in routes), *(str(each[0]) for each in evals))
    decided: list[Mapping[str, Any]] = [body.get("decision") or {}, body.get("route") or {}]
    first = [str(each["policy"]) for each in decided if each.get("policy")]
    return list(dict.fromkeys((*first, *named)))
