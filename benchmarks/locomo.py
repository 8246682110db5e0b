"""What reaches the prompt: `python benchmarks/locomo.py DATA [--most N] [--json FILE]`.

DATA is the LoCoMo data set (Maharana and others, 2024; github.com/snap-research/locomo): its JSON file or a zip
of it. It is not part of this project.

Each of its conversations runs through a governed graph, one session at a time, with a scripted model that answers
each extraction with the data's own observations: claims about one of the two speakers, with the ids of the
messages that they come from. Then each question that names exactly one speaker, and that is not adversarial, is
asked in a governed turn as that speaker, and the facts that `FactsProvider` shows are held against the question's
evidence messages. Questions whose evidence is in no claim about that speaker are left out. Nothing is answered:
this measures retrieval, not answers.

"any evidence" is the share of questions with at least one evidence message among the sources of the shown facts;
"evidence found" is the mean share of the evidence messages of stored claims that are. Beside the provider stand
plain BM25 over all claims about the speaker, its best 12, and the newest 12; "lines" is the mean number of facts
shown. The rows with embeddings need
`LocalEmbeddings` (see docs/memory.md) and are left out without them.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from rich.console import Console
from rich.table import Table

from arbiter import ArbiterOS
from arbiter.errors import ConfigurationError
from arbiter.memory import (
    Entity,
    EvaluationCycle,
    Fact,
    FactEvaluator,
    FactsProvider,
    LocalEmbeddings,
    Memory,
    ProviderContext,
    ProviderResult,
)

SHOWN = 12
ADVERSARIAL = 5
_PAIR = re.compile(r"Pair (\d+)\.")


@dataclass(slots=True)
class Row:
    """The questions asked of one way of retrieval, and the evidence that it found."""

    name: str
    asked: int = 0
    any_evidence: int = 0
    found: float = 0.0
    lines: int = 0

    def add(self, evidence: frozenset[str], stored: frozenset[str], shown: Sequence[Fact]) -> None:
        sources = {id for fact in shown for id in fact.source_message_ids}
        self.asked += 1
        self.any_evidence += bool(evidence & sources)
        self.found += len(evidence & sources) / len(evidence & stored)
        self.lines += len(shown)


class Annotations(BaseChatModel):
    """A model that extracts the claims that it was given, and finds no two of them related."""

    claims: Sequence[Mapping[str, Any]] = ()

    @property
    def _llm_type(self) -> str:
        return "annotations"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        prompt = "\n".join(str(message.text) for message in messages)
        pairs = [{"pair": int(number), "relation": "unrelated"} for number in _PAIR.findall(prompt)]
        answer = {"relations": pairs} if pairs else {"claims": list(self.claims)}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(json.dumps(answer)))])


class Tap(FactsProvider):
    """A `FactsProvider` that keeps the facts that it showed last."""

    shown: Sequence[Fact] = ()

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        result = await super().get(ctx)
        self.shown = [Fact.from_value(value) for value in result.data["facts"]]
        return result


class Chat:
    """A governed graph that learns from its messages, and one that shows facts to its node."""

    def __init__(self, store: BaseStore, people: Sequence[str]) -> None:
        self.store = store
        self.people = people
        self.now = datetime(2023, 1, 1, tzinfo=UTC)
        self.model = Annotations()
        self.provider = Tap()
        self.learning = self._governed(FactEvaluator())
        self.asking = self._governed()

    def _governed(self, *evaluators: FactEvaluator) -> Any:
        def reply(state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage("Yes.")]}

        arbiter_os = ArbiterOS()
        cycle = EvaluationCycle(
            store=self.store,
            evaluator_model=self.model,
            clock=lambda: self.now,
            entities=[Entity(id=name, names=(name,)) for name in self.people],
            conversation_length=2,
            handler_timeout_s=None,
        )
        arbiter_os.add_evaluation_cycle(cycle)
        for evaluator in evaluators:
            arbiter_os.add_evaluator(evaluator)
        if not evaluators:
            arbiter_os.add_advisor(self.provider)
        graph = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply").compile()
        return arbiter_os.govern(graph, {"reply": "RESPOND"})

    def learn(self, thread: str, messages: Sequence[BaseMessage], claims: Sequence[dict[str, Any]]) -> None:
        self.model.claims = claims
        self.learning.invoke({"messages": list(messages)}, _config(thread, self.people[0]))

    def ask(self, thread: str, person: str, question: str) -> Sequence[Fact]:
        self.provider.shown = ()
        self.asking.invoke({"messages": [HumanMessage(question)]}, _config(thread, person))
        return self.provider.shown


def _config(thread: str, person: str) -> Any:
    return {"configurable": {"thread_id": thread, "user_id": person}}


# The data -----------------------------------------------------------------------------------------


def conversations(path: Path) -> Iterator[Mapping[str, Any]]:
    """The conversations of a JSON file (a list, or one), or of all JSON files of a zip."""
    texts = [path.read_bytes()]
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as whole:
            names = sorted(n for n in whole.namelist() if n.endswith(".json") and "__MACOSX" not in n)
            texts = [whole.read(name) for name in names]
    for text in texts:
        given: list[Any] = json.loads(text if text.lstrip().startswith(b"[") else b"[" + text + b"]")
        for each in given:
            # Later editions have the sessions and observations in objects of their own.
            yield {**each, **each.get("conversation", {}), **each.get("observation", {})}


def ids_in(given: Any) -> list[str]:
    """The ids of messages in an annotation, which has them as a text, a list, or a list of lists."""
    return re.findall(r"D\d+:\d+", json.dumps(given))


def observations(conversation: Mapping[str, Any], session: int) -> list[dict[str, Any]]:
    found: Mapping[str, Sequence[Any]] = conversation.get(f"session_{session}_observation") or {}
    return [
        {"claim": each[0], "type": "fact", "subject": person, "source_message_ids": ids_in(each[1:])}
        for person, told in found.items()
        for each in told
        if isinstance(each, list) and ids_in(each[1:])
    ]


def time_of(text: str) -> datetime:
    """The time of a session: "1:56 pm on 8 May, 2023"."""
    plain = text.strip().replace("am on", "AM").replace("pm on", "PM")
    return datetime.strptime(plain, "%I:%M %p %d %B, %Y").replace(tzinfo=UTC)


def taught(conversation: Mapping[str, Any], embeddings: Embeddings | None) -> Chat:
    index: Any = None
    if embeddings is not None:
        dims = len(embeddings.embed_query("dimensions"))
        index = {"dims": dims, "embed": embeddings, "fields": ["claim"]}
    chat = Chat(InMemoryStore(index=index), [conversation["speaker_a"], conversation["speaker_b"]])
    session = 1
    while f"session_{session}" in conversation:
        said: Sequence[Mapping[str, Any]] = conversation[f"session_{session}"]
        if said:
            chat.now = time_of(conversation[f"session_{session}_date_time"])
            messages = [
                HumanMessage(
                    m["text"],
                    id=m["dia_id"],
                    name=m["speaker"],
                    additional_kwargs={"entity_id": m["speaker"]},
                )
                for m in said
            ]
            chat.learn(f"session-{session}", messages, observations(conversation, session))
        session += 1
    return chat


# The comparison -----------------------------------------------------------------------------------


def plain_bm25(query: str, claims: Sequence[str]) -> list[float]:
    """The BM25 score of each claim, with words as they are."""

    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    documents = [Counter(words(claim)) for claim in claims]
    mean = sum(document.total() for document in documents) / max(len(documents), 1)
    having = Counter(word for document in documents for word in document)
    worth = {
        word: math.log(1 + (len(documents) - having[word] + 0.5) / (having[word] + 0.5))
        for word in words(query)
    }
    return [
        sum(
            value * document[word] * 2.2 / (document[word] + 1.2 * (0.25 + 0.75 * document.total() / mean))
            for word, value in worth.items()
        )
        for document in documents
    ]


def best(facts: Sequence[Fact], scores: Sequence[float]) -> list[Fact]:
    order = sorted(range(len(facts)), key=lambda at: scores[at], reverse=True)
    return [facts[at] for at in order[:SHOWN]]


def measured(path: Path, most: int, embeddings: Embeddings | None, told: Callable[[str], None]) -> list[Row]:
    rows: dict[str, Row] = defaultdict(lambda: Row(""))
    for number, conversation in enumerate(conversations(path)):
        if number == most:
            break
        chats = {"FactsProvider, no embeddings": taught(conversation, None)}
        if embeddings is not None:
            chats["FactsProvider, MiniLM"] = taught(conversation, embeddings)
        plain = next(iter(chats.values()))
        facts = {person: Memory(plain.store).facts(person, None) for person in plain.people}
        for asked, question in enumerate(conversation["qa"]):
            text, evidence = question["question"], frozenset(ids_in(question.get("evidence") or []))
            named = [person for person in plain.people if person.lower() in text.lower()]
            if question.get("category") == ADVERSARIAL or len(named) != 1:
                continue
            known = facts[named[0]]
            stored = frozenset(id for fact in known for id in fact.source_message_ids)
            if not evidence & stored:
                continue
            ways = {
                **{name: chat.ask(f"question-{asked}", named[0], text) for name, chat in chats.items()},
                f"plain BM25, best {SHOWN}": best(known, plain_bm25(text, [fact.claim for fact in known])),
                f"newest {SHOWN}": best(known, [fact.last_seen_at.timestamp() for fact in known]),
            }
            for name, shown in ways.items():
                rows[name].name = name
                rows[name].add(evidence, stored, shown)
        told(f"{' and '.join(plain.people)}: {sum(map(len, facts.values()))} facts")
    return list(rows.values())


def local_embeddings() -> Embeddings | None:
    embeddings = LocalEmbeddings()
    try:
        embeddings.embed_query("loads the model")
    except ConfigurationError:
        return None
    return embeddings


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="the JSON file of LoCoMo, or a zip of it")
    parser.add_argument("--most", type=int, default=-1, help="the number of conversations; all by default")
    parser.add_argument("--json", type=Path, help="a file for the results")
    given = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    console = Console()
    rows = measured(given.data, given.most, local_embeddings(), console.print)
    table = Table("", "questions", "any evidence", "evidence found", "lines")
    for row in rows:
        table.add_row(
            row.name,
            str(row.asked),
            f"{row.any_evidence / row.asked:.1%}",
            f"{row.found / row.asked:.1%}",
            f"{row.lines / row.asked:.1f}",
        )
    console.print(table)
    if given.json:
        found = {
            row.name: {
                "questions": row.asked,
                "any_evidence": row.any_evidence / row.asked,
                "evidence_found": row.found / row.asked,
            }
            for row in rows
        }
        given.json.write_text(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
