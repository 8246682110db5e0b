"""An assistant for Python's standard library that says only what it can prove.

    python examples/stdlib_assistant.py
    python examples/stdlib_assistant.py "How do I merge two sorted lists?"
    python examples/stdlib_assistant.py --model openai:gpt-5-mini "How do I shuffle a list?"

The graph is ordinary LangGraph: `retrieve` (LOAD) asks SQLite's full-text search, which holds the
docstrings of the modules installed on this machine; `answer` (GENERATE) quotes the sentences that
fit best, or asks a model; `verify` (VERIFY) looks every sentence up; `respond` (RESPOND) speaks.
Ungoverned it answers everything, sense or nonsense. `build_arbiter` adds two rules:

- a poorly supported answer goes to `reflect`, which rewrites the query, at most `MAX_REWRITES`
  times a question;
- `respond` does not run before a `verify` that passed.

Needs nothing but the plain package: no network and, without `--model`, no model.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import contextlib
import gc
import importlib
import inspect
import math
import os
import platform
import re
import sqlite3
import sys
import sysconfig
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self, TypedDict, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from arbiter import (
    ArbiterOS,
    EvaluationResult,
    EvaluationRouter,
    History,
    NodeEvaluator,
    PolicyChecker,
    PolicyViolationError,
    Verdict,
)
from arbiter.instructions import GENERATE, REFLECT, RESPOND, VERIFY

QUESTIONS = (
    "How do I shuffle a list in place?",
    "How do I delete a folder and everything in it?",
    "How do I water my tomato plants?",
)
MAX_REWRITES = 2


# --- The library: docstrings in SQLite's full-text search -----------------------------------------

HOMES = {
    "_collections_abc": "collections.abc",
    "_pydatetime": "datetime",
    "_pydecimal": "decimal",
    "_pyio": "io",
    "genericpath": "os.path",
    os.path.__name__: "os.path",
}
"""Private source files whose contents users import under another name."""

NOT_DOCUMENTATION = frozenset(
    str.split(
        "__pycache__ dist-packages distutils encodings ensurepip idle_test idlelib lib2to3 ntpath"
        " posixpath pydoc_data site-packages test tests turtledemo"
    )
) - {os.path.__name__}

COMPILED = str.split(
    "builtins io math cmath time sys os itertools functools collections array struct random zlib"
    " binascii csv datetime hashlib threading socket sqlite3 unicodedata gc"
)
"""Modules written in C, or filled at import: a parser finds no docstrings in them."""


@dataclass(frozen=True, slots=True)
class Document:
    """The documentation of one module, class or function, under the name that users import."""

    name: str
    signature: str
    text: str


def parsed_documents() -> Iterator[Document]:
    """Docstrings read from the installed source files; nothing is imported."""
    for path, module in source_files(Path(sysconfig.get_path("stdlib"))):
        tree = ast.parse(path.read_bytes())
        if text := ast.get_docstring(tree):
            yield Document(module, module, text)
        yield from definitions(tree.body, module)


def source_files(root: Path) -> Iterator[tuple[Path, str]]:
    """The source files under `root` that document something, each with its module's name."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - NOT_DOCUMENTATION)
        for file in sorted(files):
            path = Path(folder, file)
            if path.suffix == ".py" and path.stem not in NOT_DOCUMENTATION:
                first, *others = path.relative_to(root).with_suffix("").parts
                home = HOMES.get(first, first)
                if not home.startswith("_"):
                    yield path, ".".join([home, *(part for part in others if part[0] != "_")])


def definitions(body: Sequence[ast.stmt], prefix: str) -> Iterator[Document]:
    """The documented public classes, methods and functions of `body`, outermost first."""
    for node in body:
        match node:
            case ast.If() | ast.Try():
                yield from definitions([*node.body, *node.orelse], prefix)
            case ast.ClassDef(name=name) if not name.startswith("_"):
                if text := ast.get_docstring(node):
                    yield Document(f"{prefix}.{name}", f"class {prefix}.{name}", text)
                yield from definitions(node.body, f"{prefix}.{name}")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("_") and (text := ast.get_docstring(node)):
                    parameters = re.sub(r"^(self|cls)(, )?", "", ast.unparse(node.args))
                    yield Document(f"{prefix}.{name}", f"{prefix}.{name}({parameters})", text)
            case _:
                pass


def imported_documents() -> Iterator[Document]:
    """Docstrings of compiled modules, which only an import can show."""
    seen: set[int] = set()
    for module in COMPILED:
        with contextlib.suppress(ImportError):
            prefix = "" if module == "builtins" else f"{module}."
            for name, member in public_members(importlib.import_module(module)):
                if id(member) not in seen:
                    seen.add(id(member))
                    yield from described(f"{prefix}{name}", member)


def public_members(owner: object) -> list[tuple[str, object]]:
    return [
        (name, member)
        for name, member in vars(owner).items()
        if not name.startswith("_") and (inspect.isroutine(member) or inspect.isclass(member))
    ]


def described(name: str, member: object) -> Iterator[Document]:
    text = inspect.getdoc(member)
    if text:
        # Old C functions have their signature as the first line of their docstring.
        head, _, rest = text.partition("\n")
        if re.match(rf"(\w+\.)?{name.rpartition('.')[2]}\(", head):
            yield Document(name, f"{name}{head[head.index('(') :]}", rest.strip() or text)
        else:
            yield Document(name, f"{name}{signature_of(member)}", text)
    if inspect.isclass(member):
        for method, function in public_members(member):
            if inspect.isroutine(function):
                yield from described(f"{name}.{method}", function)


def signature_of(member: object) -> str:
    if not callable(member):
        return ""
    try:
        parameters = str(inspect.signature(member))
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r"\((self|cls)?(, )?/?(, )?", "(", parameters, count=1)


@contextlib.contextmanager
def cycles_uncollected() -> Generator[None]:
    """Switch the garbage collector off: syntax trees have many objects and no cycles, and scanning them
    takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Library:
    """The documentation of the installed standard library, searchable."""

    def __init__(self, documents: Mapping[str, Document]) -> None:
        self.documents = documents
        # Any thread that runs a node may read it; nothing writes to it after this.
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(
            "CREATE VIRTUAL TABLE docs"
            " USING fts5(name UNINDEXED, names, summary, text, tokenize='porter unicode61')"
        )
        self._index.executemany(
            "INSERT INTO docs VALUES (?, ?, ?, ?)",
            (
                (document.name, names_in(name), document.text.partition("\n\n")[0], document.text)
                for name, document in documents.items()
            ),
        )

    @classmethod
    def installed(cls) -> Self:
        documents: dict[str, Document] = {}
        with cycles_uncollected():
            for document in (*parsed_documents(), *imported_documents()):
                documents.setdefault(document.name, document)
        return cls(documents)

    def close(self) -> None:
        self._index.close()

    def search(self, query: str, limit: int = 6) -> list[str]:
        """Names of the documents that fit `query` (FTS5 syntax), best first.

        A name counts six times as much as the body and the first paragraph three times; of two
        equals, the one with fewer dots wins: `random.shuffle` before `random.Random.shuffle`.
        """
        if not query:
            return []
        rows = self._index.execute(
            "SELECT name FROM docs WHERE docs MATCH ? ORDER BY bm25(docs, 0, 6, 3, 1)"
            " + 0.8 * (length(name) - length(replace(name, '.', ''))) LIMIT ?",
            (query, limit),
        )
        return [name for (name,) in rows]

    def weight(self, word: str) -> float:
        """The inverse document frequency of `word`; the highest value for an unknown word."""
        ((found,),) = self._index.execute("SELECT count(*) FROM docs WHERE docs MATCH ?", (quoted(word),))
        return round(math.log((len(self.documents) + 1) / (found + 1)), 2)


# --- Words: the terms of a question, and their coverage by a text ---------------------------------

STOP_WORDS = frozenset(
    str.split(
        "a about after all an and any appears are as at be best by can compute could do does"
        " each every few for from function get give given has have how i if in into is it its"
        " long look many me method module much my need of often on one or out python should so"
        " some someone something such that the their them there these this to up us use using"
        " want was way we what when where which who whose why will with would you your"
    )
)

SYNONYMS = {
    "average": "mean",
    "big": "large largest max",
    "biggest": "largest max",
    "choose": "choice sample",
    "clone": "copy",
    "concatenate": "join chain",
    "convert": "transform",
    "delete": "remove unlink",
    "dict": "dictionary mapping",
    "dictionary": "dict mapping",
    "download": "retrieve urlopen",
    "duplicate": "copy repeated",
    "everything": "recursively tree",
    "fast": "quick efficient",
    "flatten": "chain",
    "folder": "directory",
    "iterate": "iterator loop",
    "link": "url",
    "list": "sequence",
    "memoize": "cache",
    "parse": "deserialize decode load",
    "pause": "sleep delay",
    "pick": "choose choice",
    "program": "process command",
    "remove": "delete unlink",
    "run": "execute",
    "save": "serialize dump write",
    "small": "smallest min",
    "smallest": "min",
    "spread": "deviation variance",
    "text": "string str",
    "unpack": "extract",
    "wait": "sleep delay",
}


def split_identifier(word: str) -> list[str]:
    """The words of `moveToEnd` or `move_to_end`."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", word)]


def names_in(name: str) -> str:
    """The text under which a name is found: the name unchanged, and its separate words."""
    return f"{name} {' '.join(split_identifier(name))}"


def terms_of(question: str) -> list[str]:
    """The words of `question` that are worth searching for, once each, in order."""
    words = re.findall(r"\w+", question)
    return list(dict.fromkeys(word for word in words if word.lower() not in STOP_WORDS))


def stem(word: str) -> str:
    """`word` without its usual English endings: the same for sort, sorts, sorted and sorting."""
    for ending in ("ations", "ation", "ings", "ing", "ies", "ied", "ions", "ion", "es", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    word = word[:-1] if word.endswith(("e", "y", "i")) and len(word) > 3 else word
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def alternatives(term: str) -> list[list[str]]:
    """The words that match `term`: itself, its words if it is an identifier, its synonyms."""
    return [
        [term.lower()],
        split_identifier(term),
        *([synonym] for synonym in SYNONYMS.get(term.lower(), "").split()),
    ]


def missing_terms(terms: Mapping[str, float], text: str) -> list[str]:
    """The terms that `text` does not contain in any of their forms."""
    words = re.findall(r"[^\W_]+", text)
    stems = {stem(part) for word in words for part in (word.lower(), *split_identifier(word))}
    return [
        term
        for term in terms
        if not any(words and {*map(stem, words)} <= stems for words in alternatives(term))
    ]


def coverage(terms: Mapping[str, float], text: str) -> float:
    """The share of the terms' weight that `text` covers, 0.0 to 1.0; 0.0 without terms."""
    return share_without(missing_terms(terms, text), terms)


def share_without(missing: Iterable[str], terms: Mapping[str, float]) -> float:
    total = sum(terms.values())
    return 1 - sum(terms[term] for term in missing) / total if total else 0.0


def sentences_of(text: str) -> list[str]:
    """`text` cut into sentences, a blank line ending one too, with line breaks undone."""
    return [
        sentence
        for paragraph in re.split(r"\n\s*\n", text)
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'`*(])", " ".join(paragraph.split()))
        if sentence
    ]


def quotable(text: str) -> list[str]:
    """The sentences of a docstring that make sense alone: no examples, no tables."""
    doctests = re.compile(r"^ *>>>.*?(?:\n *\n|\Z)", re.MULTILINE | re.DOTALL)
    indented = re.compile(r"^ +.*$", re.MULTILINE)
    first, *others = sentences_of(indented.sub("\n", doctests.sub("\n", text))) or [""]
    return [first, *(other for other in others if re.match(r"[A-Z\"'`*(].{1,200}[.!?]$", other))]


def plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def quoted(words: str) -> str:
    return f'"{words}"'


# --- The graph: ordinary LangGraph, which knows nothing of Arbiter --------------------------------


class Question(TypedDict):
    question: str


class State(Question):
    terms: dict[str, float]  # the question's words and their weights
    query: str  # in the syntax of FTS5
    rewrites: int
    documents: list[str]  # names of what was retrieved, best first
    signature: str
    answer: str
    sources: list[str]  # names of the documents that the answer quotes
    unsupported: list[str]  # sentences of the answer that none of its sources contains
    missing: list[str]  # terms that no source mentions
    reply: str


# Each node receives only the part of the state that it works on, which keeps the history short.


class Search(Question, total=False):
    query: str
    documents: list[str]


class Found(Question):
    terms: dict[str, float]
    documents: list[str]


class Draft(TypedDict):
    terms: dict[str, float]
    answer: str
    sources: list[str]


class Rejected(Draft, total=False):
    rewrites: int


class Verified(TypedDict):
    answer: str


Assistant = Pregel[State, None, Question, State]
Update = dict[str, Any]
Part = TypeVar("Part", contravariant=True)


class Node(Protocol[Part]):
    """The type of a node for LangGraph, which requires a parameter called `state`."""

    def __call__(self, state: Part) -> Update: ...


INSTRUCTIONS = {
    "retrieve": "LOAD",
    "answer": "GENERATE",
    "verify": "VERIFY",
    "respond": "RESPOND",
    "reflect": "REFLECT",
}


def build_graph(library: Library, model: BaseChatModel | None = None) -> Assistant:
    """The ungoverned assistant: nothing leads to `reflect`, and `respond` always speaks."""
    answer = extractive(library) if model is None else generative(library, model)
    graph = StateGraph(State, input_schema=Question)
    graph.add_node("retrieve", retriever(library))
    graph.add_node("answer", answer)
    graph.add_node("verify", verifier(library))
    graph.add_node("respond", respond)
    graph.add_node("reflect", reflect)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "answer")
    graph.add_edge("answer", "verify")
    graph.add_edge("verify", "respond")
    graph.add_edge("respond", END)
    graph.add_edge("reflect", "retrieve")
    return graph.compile(name="stdlib_assistant")


def retriever(library: Library) -> Node[Search]:
    def retrieve(state: Search) -> Update:
        if "query" in state:
            found = dict.fromkeys([*library.search(state["query"]), *state.get("documents", [])])
            return {"documents": list(found)[:8]}
        terms = {term: library.weight(term) for term in terms_of(state["question"])}
        query = any_of(terms)
        return {"terms": terms, "query": query, "documents": library.search(query)}

    return retrieve


def extractive(library: Library) -> Node[Found]:
    def answer(state: Found) -> Update:
        """Quotes the document that covers most of the question, without any model.

        A match in a document's name counts a little more than one in its text.
        """
        terms = state["terms"]
        documents = [library.documents[name] for name in state["documents"]]
        drafts = [(document, quotation(document, terms)) for document in documents]
        if not drafts:
            return {"signature": "", "answer": "", "sources": []}

        def fit(draft: tuple[Document, str]) -> float:
            name = draft[0].name
            return coverage(terms, f"{name} {draft[1]}") + 0.2 * coverage(terms, name)

        document, quotes = max(drafts, key=fit)
        return {"signature": document.signature, "answer": quotes, "sources": [document.name]}

    return answer


def quotation(document: Document, terms: Mapping[str, float], limit: int = 1) -> str:
    """The first sentence of `document`, and up to `limit` more that cover more of `terms`."""
    answer, *others = quotable(document.text)
    for _ in range(limit):
        said = f"{document.name} {answer}"
        best = max(others, key=lambda other: coverage(terms, f"{said} {other}"), default="")
        if coverage(terms, f"{said} {best}") <= coverage(terms, said):
            break
        answer = f"{answer} {best}"
    return answer


PROMPT = """Answer the question about Python's standard library with one to three sentences copied \
word for word from the documents below, and with nothing else. If none of them answers it, write: \
The documentation does not say.

{documents}

Question: {question}"""


def generative(library: Library, model: BaseChatModel) -> Node[Found]:
    def answer(state: Found) -> Update:
        """Asks the model, and finds the documents that it quoted."""
        documents = [library.documents[name] for name in state["documents"]]
        prompt = PROMPT.format(
            documents="\n\n".join(f"# {document.name}\n{document.text}" for document in documents),
            question=state["question"],
        )
        text = str(model.invoke(prompt).text).strip()
        used = [document for document in documents if any(holds(document, text))]
        return {
            "signature": used[0].signature if used else "",
            "answer": text,
            "sources": [document.name for document in used],
        }

    return answer


def holds(document: Document, answer: str) -> list[bool]:
    """For each sentence of `answer`, True if `document` contains it word for word."""
    text = plain(document.text)
    return [plain(sentence) in text for sentence in sentences_of(answer)]


def verifier(library: Library) -> Node[Draft]:
    def verify(state: Draft) -> Update:
        """Looks every sentence up again, and the question's terms in the sources."""
        sources = [library.documents[name] for name in state["sources"]]
        unsupported = [
            sentence
            for sentence in sentences_of(state["answer"])
            if not any(all(holds(source, sentence)) for source in sources)
        ]
        texts = " ".join(f"{source.name} {source.text}" for source in sources)
        return {"unsupported": unsupported, "missing": missing_terms(state["terms"], texts)}

    return verify


def respond(state: Verified) -> Update:
    return {"reply": state["answer"]}


def reflect(state: Rejected) -> Update:
    """Rewrites the query around the terms that the draft does not mention."""
    rewrites = state.get("rewrites", 0) + 1
    draft = " ".join([*state["sources"], state["answer"]])
    return {
        "query": rewritten(state["terms"], missing_terms(state["terms"], draft), rewrites),
        "rewrites": rewrites,
    }


def rewritten(terms: Mapping[str, float], missing: Sequence[str], rewrites: int) -> str:
    """The next query: first with synonyms of the missing terms, then with words of the same beginning,
    then without the terms that were found."""
    others = [word for term in missing for group in alternatives(term) for word in group]
    beginnings = [f"{quoted(stem(term.lower())[:6])}*" for term in missing if len(term) > 3]
    queries = (
        any_of(terms),
        any_of([*terms, *others]),
        " OR ".join([any_of([*terms, *others]), *beginnings]),
        " OR ".join([any_of([*missing, *others]), *beginnings]),
    )
    different = list(dict.fromkeys(queries))
    return different[min(rewrites, len(different) - 1)]


def any_of(words: Iterable[str]) -> str:
    return " OR ".join(quoted(word) for word in dict.fromkeys(map(str.lower, words)))


# --- The governance: the rules for Arbiter --------------------------------------------------------


class Support(NodeEvaluator):
    """The weighted share of the question's terms that a draft mentions."""

    def __init__(self, threshold: float = 0.7) -> None:
        super().__init__("support", target_instructions=[GENERATE])
        self.threshold = threshold

    def evaluate(self, history: History) -> EvaluationResult:
        draft = history.item
        text = " ".join([*draft.output_state["sources"], draft.output_state["answer"]])
        terms = draft.input_state["terms"]
        score = coverage(terms, text)
        return EvaluationResult(
            score=score,
            passed=score >= self.threshold,
            feedback=spoken_of(missing_terms(terms, text), "the draft"),
        )


class Grounded(NodeEvaluator):
    """Passes if VERIFY found every sentence, in sources that mention the question's terms.

    It is durable, because the checker below relies on it: its result is committed with the writes of
    `verify`.
    """

    def __init__(self, threshold: float = 0.55) -> None:
        super().__init__("grounded", target_instructions=[VERIFY], durable=True)
        self.threshold = threshold

    def evaluate(self, history: History) -> EvaluationResult:
        verification = history.item
        unsupported = verification.output_state["unsupported"]
        missing = verification.output_state["missing"]
        score = share_without(missing, verification.input_state["terms"])
        if unsupported:
            return EvaluationResult(
                score=0.0,
                passed=False,
                feedback=f"the documentation does not say: {unsupported[0]!r}",
            )
        return EvaluationResult(
            score=score,
            passed=score >= self.threshold,
            feedback=spoken_of(missing, "the documentation found"),
        )


def spoken_of(missing: Sequence[str], what: str) -> str:
    if not missing:
        return f"{what} speaks of all that was asked"
    return f"{what} does not speak of {', '.join(map(repr, missing))}"


class VerifiedBeforeRespond(PolicyChecker):
    """Denies RESPOND without a passed VERIFY of the newest draft."""

    def __init__(self) -> None:
        super().__init__("verified_before_respond", target_instructions=[RESPOND])

    def check_before(self, history: History) -> Verdict:
        verified, drafted = history.last(instruction=VERIFY), history.last(instruction=GENERATE)
        if verified is None or (drafted is not None and drafted.step >= verified.step):
            return Verdict.deny("the answer was not verified")
        result = verified.evaluation_results.get("grounded")
        if result is None:
            return Verdict.deny("the verification was not evaluated")
        return Verdict.allow() if result.passed else Verdict.deny(result.feedback)


def build_arbiter() -> ArbiterOS:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Support())
    arbiter_os.add_evaluator(Grounded())
    arbiter_os.add_policy_router(
        EvaluationRouter(
            "reflect_on_poor_support",
            evaluator="support",
            target="reflect",
            max_redirects=MAX_REWRITES,
        )
    )
    arbiter_os.add_policy_checker(VerifiedBeforeRespond())
    return arbiter_os


@cache
def governed() -> Pregel[Any, Any, Any, Any]:
    """The governed assistant over the installed library, as suites/assistant.yaml measures it."""
    library = Library.installed()
    atexit.register(library.close)
    return build_arbiter().govern(build_graph(library), instructions=INSTRUCTIONS)


# --- The story: ask, and print what happened ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one question. `state` is None if a policy refused the answer."""

    question: str
    state: State | None
    refusal: PolicyViolationError | None
    history: History


def ask(arbiter_os: ArbiterOS, assistant: Assistant, question: str) -> Outcome:
    """Asks a governed assistant; a refusal is an outcome like any other."""
    state: State | None = None
    refusal: PolicyViolationError | None = None
    try:
        state = cast(State, assistant.invoke({"question": question}))
    except PolicyViolationError as error:
        refusal = error
    return Outcome(question=question, state=state, refusal=refusal, history=arbiter_os.history)


def show(outcome: Outcome, console: Console) -> None:
    console.print()
    console.rule(Text(outcome.question, "bold"))
    console.print(Padding(decisions(outcome.history), (1, 2)))
    console.print(answer_panel(outcome.state) if outcome.state else refusal_panel(outcome))
    console.print()
    outcome.history.pprint(console)


def decisions(history: History) -> Table:
    """The decisions on the way, one row each."""
    table = Table.grid(padding=(0, 2))
    for item in history.items():
        if item.instruction is REFLECT:
            table.add_row(item.node, "asks", Text(item.output_state["query"]))
        for name, result in item.evaluation_results.items():
            verdict = Text("passes", "green") if result.passed else Text("fails", "red")
            table.add_row(item.node, verdict, Text(f"{name} {result.score:.2f}: {result.feedback}"))
        if item.redirected_to:
            table.add_row(item.node, "goes to", Text(item.redirected_to, "yellow"))
        for policy, remark in item.notes.items():
            table.add_row(item.node, "stays", Text(f"{policy}: {remark}", "yellow"))
    return table


def answer_panel(state: State) -> Panel:
    return Panel(answer_text(state), title="answer", border_style="green")


def answer_text(state: State) -> Text:
    text = Text()
    if signature := state["signature"]:
        text.append(f"{signature}\n", "bold")
    text.append(state["reply"])
    return text.append(f"\n[{', '.join(state['sources'])}]", "dim")


def brief(outcome: Outcome) -> Text:
    return answer_text(outcome.state) if outcome.state else Text(f"refused: {outcome.refusal}")


def refusal_panel(outcome: Outcome) -> Panel:
    text = Text(str(outcome.refusal))
    draft = outcome.history.last(instruction=GENERATE)
    if draft is not None and (withheld := draft.output_state.get("answer")):
        text.append(f"\n\nWithheld: {withheld!r}", "dim")
    return Panel(text, title="refused", border_style="red")


def summary(outcomes: Sequence[Outcome]) -> Table:
    table = Table("question", "answer", "rewrites", title="What happened")
    for outcome in outcomes:
        answer = Text(", ".join(outcome.state["sources"]) if outcome.state else "")
        if outcome.refusal:
            answer.append(f"refused by {outcome.refusal.policy}", "red")
        question = Text(outcome.question)
        table.add_row(question, answer, str(outcome.history.count(instruction=REFLECT)))
    return table


def load_model(name: str) -> BaseChatModel:
    """The chat model called `name` ("provider:model")."""
    try:
        from langchain.chat_models import init_chat_model
    except ImportError:
        sys.exit("--model needs the package langchain. Run: pip install langchain")
    try:
        return init_chat_model(name)
    except (ImportError, ValueError) as error:
        sys.exit(f"--model {name}: {error}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ask Python's standard library a question.")
    parser.add_argument("questions", nargs="*", metavar="question", help="three are asked if none is given")
    parser.add_argument("--model", metavar="provider:name", help="let a chat model write the answers")
    parser.add_argument("--quiet", action="store_true", help="print the answers only")
    options = parser.parse_args(argv)

    console = Console()
    model = load_model(options.model) if options.model else None
    begun = time.perf_counter()
    with contextlib.closing(Library.installed()) as library:
        arbiter_os = build_arbiter()
        assistant = arbiter_os.govern(build_graph(library, model), instructions=INSTRUCTIONS)
        took = time.perf_counter() - begun
        questions = options.questions or QUESTIONS
        if options.quiet:
            for question in questions:
                console.print(brief(ask(arbiter_os, assistant, question)), soft_wrap=True)
            return 0
        console.print(
            f"Indexed {len(library.documents):,} docstrings of Python"
            f" {platform.python_version()} in {took:.1f} s.",
            highlight=False,
        )
        outcomes: list[Outcome] = []
        for question in questions:
            outcomes.append(ask(arbiter_os, assistant, question))
            show(outcomes[-1], console)
    console.print()
    console.print(summary(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
