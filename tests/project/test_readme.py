"""The promises of the README and docs/, in their words: each docstring here is a sentence of one of these
pages.

The pages are short enough to read, plain in their English, and their examples run.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import jsonschema
import pytest
import yaml
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy
from pydantic import BaseModel, Field
from rich.console import Console

from arbiter import (
    Advisor,
    AmbiguousHistoryError,
    ArbiterError,
    ArbiterOS,
    ConfigurationError,
    Correction,
    CorrectionError,
    CorrectionGate,
    FeedbackAdvisor,
    History,
    HistoryPolicyChecker,
    NotAGraphError,
    OutputSchemaError,
    PolicyChecker,
    PolicyViolationError,
    RegistrationError,
    SyncDriverError,
    UnknownInstructionError,
    UnknownNodeError,
    Verdict,
)
from arbiter._constitution.kinds import KINDS
from arbiter._constitution.loading import load_constitution
from arbiter.errors import PackError
from arbiter.harness.files import suite_schema
from arbiter.instructions import (
    FILTER,
    GENERATE,
    RESPOND,
    STORE,
    VERIFY,
    Instruction,
    known_instructions,
)
from arbiter.memory import EvaluationCycle, FactEvaluator, FactsProvider
from arbiter.personas import AdherenceEvaluator, Persona, load_propositions
from arbiter.routers import EvaluationRouter
from tests import docs_check
from tests.support import (
    MODES,
    Check,
    Hold,
    Judge,
    Route,
    Spy,
    State,
    allow,
    bad,
    chain,
    good,
    run,
    statuses,
    thread,
)

README = docs_check.ROOT / "README.md"
TOUR = docs_check.ROOT / "docs/tour.md"
BUILT_IN = [member for member in known_instructions() if type(member).__module__ == "arbiter.instructions"]


def plain(text: str) -> str:
    """Text without its markup and line ends."""
    return " ".join(re.sub(r"[`*\"]", "", text).split())


@cache
def plain_pages() -> Mapping[str, str]:
    """The pages that promise something about all of Arbiter, without their markup."""
    promising = (README, *sorted((docs_check.ROOT / "docs").glob("*.md")))
    return {docs_check.shown(page): plain(page.read_text(encoding="utf-8")) for page in promising}


ABOUT_PAGES = frozenset(
    {
        "test_pages_run_and_print_what_they_say",
        "test_a_page_that_shows_another_output_fails",
        "test_the_history_on_the_page_is_the_one_that_is_printed",
        "test_the_packs_on_pages_load",
        "test_the_readme_is_one_page",
        "test_lines_of_prose_fit_an_editor",
        "test_lines_of_examples_fit_an_editor",
        "test_sentences_have_subjects",
        "test_links_lead_somewhere",
        "test_paths_on_pages_exist",
        "test_the_page_of_instructions_is_that_of_the_code",
    }
)


# The pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", docs_check.pages(), ids=docs_check.shown)
def test_pages_run_and_print_what_they_say(page: Path) -> None:
    """The Python examples on all pages run as they stand."""
    docs_check.run(page)


@pytest.mark.parametrize("said", ["print(6 * 7)  # {}", "print(6 * 7)\n# {}", "print('a', 6 * 7)\n# a\n# {}"])
def test_a_page_that_shows_another_output_fails(tmp_path: Path, said: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{said.format(42)}\n```\n", encoding="utf-8")
    docs_check.run(page)
    page.write_text(f"```python\n{said.format(41)}\n```\n", encoding="utf-8")
    with pytest.raises(docs_check.PageError, match="the page says that this prints"):
        docs_check.run(page)


@pytest.mark.parametrize("name", ["tour", "quickstart"])
def test_the_history_on_the_page_is_the_one_that_is_printed(name: str) -> None:
    """A page that shows a history shows what its examples print."""
    text = (docs_check.ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    before, _, after = text.partition("```text\n╔")
    shown = "╔" + after.partition("```")[0].rstrip()
    names: dict[str, Any] = {}
    for block in docs_check.blocks(before):
        exec(compile(block.source.replace(".pprint()", ""), f"{name}.md", "exec"), names)
    out = io.StringIO()
    names["arbiter_os"].history.pprint(Console(file=out, width=80))
    assert untimed(out.getvalue()).startswith(untimed(shown))


def untimed(text: str) -> str:
    return re.sub(r"\d+(\.\d)? m?s\b", "0.1 ms", text)


@pytest.mark.lengthy
def test_the_packs_on_pages_load(tmp_path: Path) -> None:
    """A pack that a page shows, whole or in part, can be loaded. (`test_kinds.py` loads those of the kinds.)"""
    models = {"openai:gpt-5-mini": FakeListChatModel(responses=[""])}
    suites = jsonschema.Draft202012Validator(suite_schema())
    head = "version: 1\nname: shown\ndescription: Shown on a page.\n"
    loaded = 0
    for page in docs_check.pages():
        for pack in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            if re.search(r"^suite:", pack, re.M):
                suites.validate(yaml.safe_load(pack))
                continue
            if re.search(r"^(checkers|routers|evaluators):", pack, re.M) and page.parent.name != "kinds":
                file = tmp_path / f"{page.stem}.yaml"
                file.write_text(pack if "version:" in pack else head + pack, encoding="utf-8")
                load_constitution(file, models=models)
                loaded += 1
    assert loaded


def test_links_lead_somewhere() -> None:
    """Each relative link of a page is a file of the repository, and its anchor a heading of that file."""
    for page in docs_check.pages():
        for link in re.findall(r"\]\((?!https?:)([^)]+)", page.read_text(encoding="utf-8")):
            target, _, anchor = link.partition("#")
            file = page.parent / target if target else page
            assert file.exists(), f"{docs_check.shown(page)}: {link}"
            assert not anchor or anchor in anchors(file), f"{docs_check.shown(page)}: {link}"


def test_paths_on_pages_exist() -> None:
    """A module, test or benchmark that a page names is a file of the repository."""
    for page in [*docs_check.pages(), docs_check.ROOT / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:arbiter|benchmarks|examples|tests)/[\w./]+)`", text):
            assert (docs_check.ROOT / path).exists(), f"{docs_check.shown(page)}: {path}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_one_page() -> None:
    """At most 900 words, and the two commands come first."""
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert re.findall(r"^make \w+", text, re.M)[:2] == ["make demo", "make test"]


def prose(page: Path) -> str:
    """A page without code, tables, headings and comments."""
    text = re.sub(r"^ *(```+|~~~+).*?^ *\1$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"^(\||#|<!--).*$", "", text, flags=re.M)


def test_lines_of_prose_fit_an_editor() -> None:
    """At most 110 columns, apart from a single link or piece of code that is longer."""
    assert [
        f"{docs_check.shown(page)}: {line}"
        for page in docs_check.pages()
        for line in prose(page).splitlines()
        if len(line) > 110 and " " in re.sub(r"`[^`]*`", "", line.strip())
    ] == []


def test_lines_of_examples_fit_an_editor() -> None:
    """At most 110 columns in Python and YAML, apart from expected output after the code."""
    assert [
        f"{docs_check.shown(page)}: {line}"
        for page in docs_check.pages()
        for block in re.findall(r"^ *```(?:python|yaml)$(.*?)^ *```$", page.read_text("utf-8"), re.M | re.S)
        for line in block.splitlines()
        if len(re.sub(r"\)  # .*", ")", line)) > 110
    ] == []


HEADLESS = re.compile(
    r"(\*\*)?(What|Who|Whoever|Whom|Whose|(One|Those) (that|who)|That which|All (that|of them)|Nobody|Nothing)\b"
)


PRIVATE = re.compile(r"\b(nobody|whoever|(is|are|be|was) told)\b", re.I)


TEXT = re.compile(r'^([^\n]*?)"""(.*?)"""', re.DOTALL | re.MULTILINE)


def docstrings(folder: str) -> Iterator[tuple[Path, str]]:
    """The docstrings of a folder, also those of attributes, each with its module. To parse the code takes longer."""
    for module in sorted((docs_check.ROOT / folder).rglob("*.py")):
        for before, text in TEXT.findall(module.read_text(encoding="utf-8")):
            if before.strip() in ("", "r"):
                yield module, text


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "texts",
    [
        lambda: [(page, prose(page)) for page in docs_check.pages()],
        lambda: list(docstrings("arbiter")),
        lambda: list(docstrings("tests")),
    ],
    ids=["pages", "docstrings", "tests"],
)
def test_sentences_have_subjects(texts: Callable[[], Sequence[tuple[Path, str]]]) -> None:
    """At most one sentence in 200 begins with "What it saw is ..." or "One that ...", and private words are absent."""
    sentences = [
        (docs_check.shown(file), " ".join(sentence.split()))
        for file, text in texts()
        for sentence in re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n[-*] ", text)
        if len(sentence.strip()) > 15 and not sentence.rstrip().endswith("?")
    ]
    headless = [(file, sentence) for file, sentence in sentences if HEADLESS.match(sentence)]
    assert len(headless) <= 0.005 * len(sentences), headless
    assert [said for said in sentences if PRIVATE.search(said[1])] == []


def test_the_page_of_instructions_is_that_of_the_code() -> None:
    """The tables are written from the code and compared with it by a test."""
    text = (docs_check.ROOT / "docs/instructions.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- instructions: begin -->")[2].partition("<!-- instructions: end")[0]
    assert shown.strip() == instruction_tables().strip()
    assert len(BUILT_IN) == 32
    assert len({type(member) for member in BUILT_IN}) == 8


def instruction_tables() -> str:
    """The tables of docs/instructions.md. `python -m tests.project.test_readme` prints them."""
    cores: dict[type[Instruction], list[Instruction]] = {}
    for member in BUILT_IN:
        cores.setdefault(type(member), []).append(member)
    lines: list[str] = []
    for core, members in cores.items():
        lines += [f"### {core.__name__}", "", core.__doc__ or "", ""]
        lines += ["| instruction | meaning | unverified | acts |", "|---|---|---|---|"]
        for member in members:
            unverified, acts = ("yes" if fact else "" for fact in (member.unverified, member.acts))
            lines.append(f"| {member} | {member.meaning} | {unverified} | {acts} |")
        lines.append("")
    return "\n".join(lines)


# The whole ----------------------------------------------------------------------------------------


@MODES
def test_the_graph_stays_what_it_was(mode: str) -> None:
    """The graph, its code and its results stay what they were."""
    graph = chain(Spy("write", score=0.9), Spy("verify"), Spy("respond"))
    before = dict(graph.nodes), dict(graph.channels), graph.get_graph().draw_mermaid()
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("open", allow))
    arbiter_os.add_evaluator(Judge("good", good))
    arbiter_os.add_policy_router(Route("nowhere", lambda h, o: None))
    governed = arbiter_os.govern(graph)
    assert governed is not graph
    assert run(governed, {"log": []}, mode=mode) == run(graph, {"log": []}, mode=mode)
    assert (dict(graph.nodes), dict(graph.channels), graph.get_graph().draw_mermaid()) == before
    assert governed.get_graph().draw_mermaid() == before[2]


class NoMethod(PolicyChecker):
    pass


def same_name(arbiter_os: ArbiterOS, graph: Any) -> None:
    arbiter_os.add_policy_checker(Check("taken", allow))


def no_method(arbiter_os: ArbiterOS, graph: Any) -> None:
    arbiter_os.add_policy_checker(NoMethod("empty"))


def unknown_instruction(arbiter_os: ArbiterOS, graph: Any) -> None:
    arbiter_os.govern(graph, {"a": "GENRATE"})


def no_such_node(arbiter_os: ArbiterOS, graph: Any) -> None:
    arbiter_os.govern(graph, {"b": GENERATE})


def no_graph(arbiter_os: ArbiterOS, graph: Any) -> None:
    arbiter_os.govern(42)


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (same_name, RegistrationError),
        (no_method, RegistrationError),
        (unknown_instruction, UnknownInstructionError),
        (no_such_node, UnknownNodeError),
        (no_graph, NotAGraphError),
    ],
)
def test_mistakes_come_early(mistake: Callable[[ArbiterOS, Any], Any], error: type[ArbiterError]) -> None:
    """Configuration mistakes are errors when you register or govern, not in the middle of a run"""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("taken", allow))
    with pytest.raises(error):
        mistake(arbiter_os, chain(Spy("a")))


@MODES
def test_views_are_read_only(mode: str) -> None:
    """The history that a contract gets is read-only."""

    def meddle(history: History) -> bool:
        cast(Any, history.entries[-1][-1].input_state)["amount"] = 0
        return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("meddler", meddle))
    with pytest.raises(PolicyViolationError, match="read-only"):
        run(arbiter_os.govern(chain(Spy("pay"))), {"amount": 5}, mode=mode)


@MODES
def test_later_rules_count(mode: str) -> None:
    """Contracts that you register later also govern graphs that were governed before."""
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("pay")))
    arbiter_os.add_policy_checker(Check("late", lambda _: False))
    with pytest.raises(PolicyViolationError, match="late"):
        run(app, {"log": []}, mode=mode)


@MODES
def test_views_end_before_the_siblings(mode: str) -> None:
    """never a sibling that runs at the same time"""
    seen: dict[str, list[str]] = {}

    def look(history: History) -> bool:
        *past, own = history.items()
        seen[own.node] = [item.node for item in past]
        return True

    builder = StateGraph(State)
    builder.add_node("first", Spy("first"))
    builder.add_edge(START, "first")
    for name in ("left", "right"):
        builder.add_node(name, Spy(name))
        builder.add_edge("first", name)
    builder.add_node("last", Spy("last"))
    builder.add_edge(["left", "right"], "last")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", look))
    run(arbiter_os.govern(builder), {"log": []}, mode=mode)
    assert seen == {
        "first": [],
        "left": ["first"],
        "right": ["first"],
        "last": ["first", "left", "right"],
    }


# Checkers -----------------------------------------------------------------------------------------


def broken(_: History) -> bool:
    raise ValueError("no idea")


def sleepy(_: History) -> bool:
    time.sleep(10)
    return True


def nonsense(_: History) -> str:
    return "of course"


@MODES
@pytest.mark.parametrize("answer", [broken, sleepy, nonsense])
def test_a_failed_checker_denies(answer: Callable[[History], Any], mode: str) -> None:
    """A checker that raises, times out or returns anything else counts as a denial."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("failing", answer, deadline=0.05))
    with pytest.raises(PolicyViolationError):
        run(arbiter_os.govern(chain(pay)), {"log": []}, mode=mode)
    assert pay.calls == []


@MODES
def test_a_refused_run_can_be_resumed(mode: str) -> None:
    """the checkpoint before the node stays, so the run can be resumed"""
    is_open: list[bool] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("door", lambda _: bool(is_open), target_nodes=["pay"]))
    app = arbiter_os.govern(chain(Spy("ask"), Spy("pay"), checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError):
        run(app, {"log": []}, thread("a"), mode=mode)
    is_open.append(True)
    assert run(app, None, thread("a"), mode=mode)["log"] == ["ask", "pay"]


@MODES
def test_denial_redirects(mode: str) -> None:
    """that node runs instead of the normal successors"""
    arbiter_os = ArbiterOS()
    no = Check("no", lambda _: False, target_nodes=["pay"], on_deny="redirect:hold")
    arbiter_os.add_policy_checker(no)
    app = arbiter_os.govern(chain(Spy("ask"), Spy("pay"), Spy("thank"), extra=[Spy("hold")]))
    assert run(app, {"log": []}, mode=mode)["log"] == ["ask", "hold"]


@MODES
def test_denial_ends(mode: str) -> None:
    """no edge is taken: this path of the run is over"""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("no", lambda _: False, target_nodes=["pay"], on_deny="end"))
    app = arbiter_os.govern(chain(Spy("ask"), Spy("pay"), Spy("thank")))
    assert run(app, {"log": []}, mode=mode)["log"] == ["ask"]


@MODES
def test_denial_is_audited(mode: str) -> None:
    """the denial is recorded, and the node runs: to try a rule before it counts"""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("no", lambda _: (False, "too much"), on_deny="audit"))
    assert run(arbiter_os.govern(chain(Spy("pay"))), {"log": []}, mode=mode)["log"] == ["pay"]
    item = arbiter_os.history.entries[-1][-1]
    assert item.status == "completed"
    assert item.check_policy_results["no"] == Verdict.deny("too much")


@MODES
def test_the_strongest_verdict_wins(mode: str) -> None:
    """The strongest verdict wins: deny over ask over allow."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("allows", allow))
    arbiter_os.add_policy_checker(Check("asks", lambda _: Verdict.ask("may I?")))
    app = arbiter_os.govern(chain(Spy("pay"), checkpointer=InMemorySaver()))
    assert "__interrupt__" in run(app, {"log": []}, thread("a"), mode=mode)
    arbiter_os.add_policy_checker(Check("denies", lambda _: Verdict.deny("never")))
    with pytest.raises(PolicyViolationError, match="never"):
        run(app, {"log": []}, thread("b"), mode=mode)


# Human approval -----------------------------------------------------------------------------------


def asking(pay: Spy, most: int = 100) -> tuple[ArbiterOS, Any]:
    """A graph that asks before it pays more than `most`."""

    def check(history: History) -> Verdict:
        amount = history.entries[-1][-1].input_state["amount"]
        return Verdict.ask(f"{amount} is much") if amount > most else Verdict.allow()

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("asks", check, target_nodes=["pay"]))
    return arbiter_os, arbiter_os.govern(chain(pay, Spy("thank"), checkpointer=InMemorySaver()))


def answered(answer: Any) -> Command[Any]:
    return Command(resume=answer)


@MODES
def test_an_approval_is_for_one_input(mode: str) -> None:
    """An approval counts once, and only for the input that was shown; if the state was changed in between, the
    question is asked again."""
    pay = Spy("pay")
    _, app = asking(pay)
    first = run(app, {"log": [], "amount": 500}, thread("a"), mode=mode)
    assert first["__interrupt__"][0].value["input"]["amount"] == 500
    swapped: Command[Any] = Command(resume="approve", update={"amount": 9000})
    again = run(app, swapped, thread("a"), mode=mode)
    assert again["__interrupt__"][0].value["input"]["amount"] == 9000
    assert pay.calls == []
    assert run(app, answered("approve"), thread("a"), mode=mode)["log"] == ["pay", "thank"]
    # Once: the same input on the same thread is asked about again.
    assert "__interrupt__" in run(app, {"log": [], "amount": 9000}, thread("a"), mode=mode)


@MODES
def test_an_edit_is_for_this_node(mode: str) -> None:
    """An edit changes the input of this node and not the state, and the new input is checked again."""
    pay = Spy("pay")
    arbiter_os, app = asking(pay)

    def limit(history: History) -> bool:
        return bool(history.entries[-1][-1].input_state["amount"] <= 1000)

    run(app, {"log": [], "amount": 500}, thread("a"), mode=mode)
    edit = answered({"type": "edit", "input": {"amount": 90}})
    assert run(app, edit, thread("a"), mode=mode)["amount"] == 500
    assert pay.calls[0]["amount"] == 90

    arbiter_os.add_policy_checker(Check("limit", limit, target_nodes=["pay"]))
    run(app, {"log": [], "amount": 500}, thread("b"), mode=mode)
    with pytest.raises(PolicyViolationError, match="limit"):
        edit = answered({"type": "edit", "input": {"amount": 5000}})
        run(app, edit, thread("b"), mode=mode)
    assert len(pay.calls) == 1


@MODES
@pytest.mark.parametrize("answer", ["yes", True, {"type": "allow"}, {"type": "reject"}, ["approve"]])
def test_any_other_answer_rejects(answer: Any, mode: str) -> None:
    """Any other answer is a rejection."""
    pay = Spy("pay")
    _, app = asking(pay)
    run(app, {"log": [], "amount": 500}, thread("a"), mode=mode)
    with pytest.raises(PolicyViolationError, match="rejected"):
        run(app, answered(answer), thread("a"), mode=mode)
    assert pay.calls == []


# Evaluators ---------------------------------------------------------------------------------------


def meddling(history: History) -> Any:
    cast(Any, history.entries[-1][-1].output_state)["log"] = ["nothing happened"]


@MODES
@pytest.mark.parametrize("judge", [broken, meddling, nonsense])
def test_a_failed_evaluator_changes_nothing(judge: Callable[[History], Any], mode: str) -> None:
    """It blocks nothing and changes nothing, and its failure is never a score."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("judge", judge, durable=True))
    assert run(arbiter_os.govern(chain(Spy("pay"))), {"log": []}, mode=mode)["log"] == ["pay"]
    item = arbiter_os.history.entries[-1][-1]
    assert item.status == "completed"
    assert dict(item.evaluation_results) == {}
    assert item.evaluation_errors["judge"]


@MODES
def test_only_readers_wait_for_a_score(mode: str, hold: Hold) -> None:
    """Scores are computed in the background; only code that reads a score waits for it."""

    def slow(history: History) -> Any:
        return hold() and good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("slow", slow))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    run(app, {"log": []}, mode=mode)
    hold.release()
    assert arbiter_os.history.entries[0][0].evaluation_results["slow"].passed


# Routers ------------------------------------------------------------------------------------------


@MODES
def test_a_redirect_replaces(mode: str) -> None:
    """A redirect replaces the normal successors: no edge, conditional edge or join of the
    node is taken."""
    asked: list[str] = []

    def choose(_: State) -> str:
        asked.append("choose")
        return "chosen"

    builder = StateGraph(State)
    for name in ("first", "other", "by_edge", "chosen", "joined", "reflect"):
        builder.add_node(name, Spy(name))
    builder.add_edge(START, "first")
    builder.add_edge(START, "other")
    builder.add_edge("first", "by_edge")
    builder.add_conditional_edges("first", choose, ["chosen"])
    builder.add_edge(["first", "other"], "joined")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("away", lambda h, o: "reflect", target_nodes=["first"]))
    result = run(arbiter_os.govern(builder), {"log": []}, mode=mode)
    assert result["log"] == ["first", "other", "reflect"]
    assert asked == []


def looping() -> Any:
    """write → verify, and reflect → write, where nothing leads to reflect."""
    builder = StateGraph(State)
    for name in ("write", "verify", "reflect", "rest"):
        builder.add_node(name, Spy(name))
    builder.add_edge(START, "write")
    builder.add_edge("write", "verify")
    builder.add_edge("reflect", "write")
    return builder.compile()


@MODES
def test_the_first_router_wins(mode: str) -> None:
    """All routers of a node are asked, in the order in which they were added; the first
    that names a node wins."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("silent", lambda h, o: None, target_nodes=["write"]))
    arbiter_os.add_policy_router(Route("first", lambda h, o: "rest", target_nodes=["write"]))
    arbiter_os.add_policy_router(Route("second", lambda h, o: "reflect", target_nodes=["write"]))
    result = run(arbiter_os.govern(looping()), {"log": []}, mode=mode)
    assert result["log"] == ["write", "rest"]
    item = arbiter_os.history.entries[0][0]
    assert item.route_policy_results == {"silent": None, "first": "rest", "second": "reflect"}


@MODES
def test_redirects_are_capped(mode: str) -> None:
    """`max_redirects` caps each router in one run (default 3); after that the normal edges
    are taken."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("again", lambda h, o: "reflect", target_nodes=["write"]))
    app = arbiter_os.govern(looping())
    for _ in range(2):
        run(app, {"log": []}, mode=mode)
        assert arbiter_os.history.count(node="reflect") == 3
        assert arbiter_os.history.count(node="verify") == 1
        last_write = arbiter_os.history.last(node="write")
        assert last_write is not None
        assert "max_redirects=3" in last_write.notes["router again"]


@pytest.mark.lengthy
@MODES
def test_rescue_comes_after_the_retries(mode: str) -> None:
    """With `on_error=True` a router is asked after the node has failed for good, when LangGraph's own retries are
    used up, and may send the run to a fallback:"""
    tries: list[int] = []

    def pay(state: State) -> State:
        tries.append(1)
        raise ConnectionError("away")

    builder = StateGraph(State)
    builder.add_node("pay", pay, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.01))
    builder.add_node("hold", Spy("hold"))
    builder.add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    rescue = Route("rescue", lambda h, o: "hold", target_nodes=["pay"], on_error=True)
    arbiter_os.add_policy_router(rescue)
    assert run(arbiter_os.govern(builder), {"log": []}, mode=mode)["log"] == ["hold"]
    assert len(tries) == 3
    assert statuses(arbiter_os) == [("pay", "failed"), ("hold", "completed")]


# Advisors and gates -------------------------------------------------------------------------------


class Advise(Advisor):
    def __init__(self, name: str, advice: Any) -> None:
        super().__init__(name)
        self.advice = advice

    def advise(self, history: History, state: Mapping[str, Any]) -> Any:
        return self.advice


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    advice: str


@MODES
def test_advice_stays_out_of_the_state(mode: str) -> None:
    """An advisor adds context to one call of a node; the context never becomes part of the state."""
    given: list[Any] = []

    def talk(state: Chat) -> Chat:
        given.append(state)
        return {"messages": [*state.get("messages", []), AIMessage("hello")]}

    builder = StateGraph(Chat)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(Advise("polite", "be polite"))
    app = arbiter_os.govern(builder)
    result = run(app, {"messages": [("user", "hi")]}, mode=mode)
    assert [message.text for message in given[0]["messages"]] == ["be polite", "hi"]
    assert [message.text for message in result["messages"]] == ["hi", "hello"]

    pay = Spy("pay")
    assert "advice" not in run(arbiter_os.govern(chain(pay)), {"log": []}, mode=mode)
    assert pay.calls[0]["advice"] == "be polite"


@MODES
def test_feedback_reaches_the_next_call(mode: str) -> None:
    """`FeedbackAdvisor(name, evaluator)` gives a node the feedback of an evaluator on the newest output that it
    judged."""
    write = Spy("write")
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", bad, target_nodes=["write"], durable=True))
    arbiter_os.add_advisor(FeedbackAdvisor("feedback", "quality", target_nodes=["write"]))
    router = Route("again", lambda h, o: "write", target_nodes=["write"], max_redirects=1)
    arbiter_os.add_policy_router(router)
    run(arbiter_os.govern(chain(write)), {"log": []}, mode=mode)
    assert [call.get("advice") for call in write.calls] == [None, "quality: bad"]


class Gate(CorrectionGate):
    def __init__(self, name: str, *answers: Correction, **options: Any) -> None:
        super().__init__(name, max_attempts=3, **options)
        self.answers = answers

    def review(self, history: History, draft: Mapping[str, Any], attempt: int) -> Correction:
        return self.answers[min(attempt, len(self.answers)) - 1]


@MODES
def test_drafts_are_judged_before_they_count(mode: str) -> None:
    """A gate judges each draft of a node before anything of it is committed."""
    write = Spy("write")
    arbiter_os = ArbiterOS()
    gate = Gate("gate", Correction.retry("longer"), Correction.commit({"log": ["in its place"]}))
    arbiter_os.add_correction_gate(gate)
    assert run(arbiter_os.govern(chain(write)), {"log": []}, mode=mode)["log"] == ["in its place"]
    assert [call.get("feedback") for call in write.calls] == [None, "longer"]
    assert arbiter_os.history.entries[-1][-1].corrections == ("longer",)


@MODES
def test_gates_give_up(mode: str) -> None:
    """When `max_attempts` calls are used up, the last draft is taken, or with
    `on_exhausted="raise"` the node fails with a `CorrectionError`."""
    for on_exhausted in ("commit", "raise"):
        write = Spy("write")
        arbiter_os = ArbiterOS()
        gate = Gate("gate", Correction.retry("longer"), on_exhausted=on_exhausted)
        arbiter_os.add_correction_gate(gate)
        app = arbiter_os.govern(chain(write))
        if on_exhausted == "commit":
            assert run(app, {"log": []}, mode=mode)["log"] == ["write"]
        else:
            with pytest.raises(CorrectionError):
                run(app, {"log": []}, mode=mode)
        assert len(write.calls) == 3


# History ------------------------------------------------------------------------------------------


def test_memory_is_bounded() -> None:
    """`keep` bounds how many items of a thread stay in memory, `keep_threads` how many threads
    (`None` keeps all); `count` stays exact."""
    for keep, kept in ((2, 2), (None, 3)):
        arbiter_os = ArbiterOS(keep=keep)
        app = arbiter_os.govern(chain(Spy("a"), Spy("b"), Spy("c")), {"a": GENERATE})
        run(app, {"log": []}, thread("x"))
        history = arbiter_os.history_of(thread_id="x")
        assert len(list(history.items())) == kept
        assert (history.count(), history.count(GENERATE), history.count(node="a")) == (3, 1, 1)


@MODES
def test_histories_are_kept_apart(mode: str) -> None:
    """`arbiter_os.history` is the newest run of the current context; outside of any run it is the latest run, or an
    `AmbiguousHistoryError` if that run may belong to another caller. `arbiter_os.history_of(thread_id=...)` has all
    runs of a thread."""
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver()))
    for name in ("x", "x", "y"):
        run(app, {"log": []}, thread(name), mode=mode)
    if mode == "sync":
        assert arbiter_os.history.count() == 2
    else:
        with pytest.raises(AmbiguousHistoryError):
            _ = arbiter_os.history
    assert arbiter_os.history_of(thread_id="x").count() == 4
    assert arbiter_os.history_of(thread_id="y").count() == 2


# Running ------------------------------------------------------------------------------------------


def test_governing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `ArbiterOS` remembers the graphs that it governs, so a second call weaves nothing."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("open", allow))
    graph = chain(Spy("a"))
    arbiter_os.execute({"log": []}, graph)

    def weave(*_: Any, **__: Any) -> Any:
        raise AssertionError("woven again")

    monkeypatch.setattr("arbiter.arbiter_os.weave", weave)
    assert arbiter_os.execute({"log": []}, graph) == {"log": ["a"]}


def test_functions_stay_of_their_kind() -> None:
    """`govern` also takes a function and returns one of the same kind"""

    def double(number: int) -> int:
        return 2 * number

    async def adouble(number: int) -> int:
        return 2 * number

    arbiter_os = ArbiterOS()
    governed, agoverned = arbiter_os.govern(double), arbiter_os.govern(adouble)
    assert inspect.signature(governed) == inspect.signature(double)
    assert inspect.iscoroutinefunction(agoverned)
    assert governed(2) == asyncio.run(agoverned(2)) == 4


class Small(BaseModel):
    amount: int = Field(le=100)


@MODES
def test_schemas_are_kept(mode: str) -> None:
    """Input that does not fit a node's schema is denied before the node runs; output that
    does not fit is an error after it, and nothing of it is committed."""
    pay = Spy("pay")
    app = ArbiterOS().govern(chain(pay), schemas={"pay": {"input": Small}})
    with pytest.raises(PolicyViolationError):
        run(app, {"amount": 500}, mode=mode)
    assert pay.calls == []

    graph = chain(Spy("ask"), Spy("pay", amount=500), checkpointer=InMemorySaver())
    app = ArbiterOS().govern(graph, schemas={"pay": {"output": Small}})
    with pytest.raises(OutputSchemaError):
        run(app, {"log": [], "amount": 5}, thread("a"), mode=mode)
    assert app.get_state(cast(Any, thread("a"))).values == {"log": ["ask"], "amount": 5}


def test_instructions_are_found_in_four_places() -> None:
    """Four places can give a node its instruction, and the first of them wins: `govern(instructions=...)`, the
    `@instruction` label, the node's LangGraph metadata, a binding pack."""
    arbiter_os = ArbiterOS()

    @arbiter_os.instruction(STORE)
    def labelled(state: State) -> State:
        return {}

    builder = StateGraph(State)
    metadata = {"instruction": "FILTER"}
    builder.add_node("named", labelled, metadata=metadata)
    builder.add_node("labelled", labelled, metadata=metadata)
    builder.add_node("tagged", Spy("tagged"), metadata=metadata)
    builder.add_node("bare", Spy("bare"))
    builder.add_edge(START, "named")
    builder.add_edge("named", "labelled")
    builder.add_edge("labelled", "tagged")
    builder.add_edge("tagged", "bare")
    arbiter_os.govern(builder, {"named": RESPOND}).invoke({"log": []})
    found = [item.instruction for item in arbiter_os.history.items()]
    assert found == [RESPOND, STORE, FILTER, None]


def test_packs_know_the_usual_agents() -> None:
    """They know the agents of LangChain's `create_agent`, middleware included, and
    LangGraph's prebuilt ones, so these need no names:"""
    agents = pytest.importorskip("langchain.agents")
    arbiter_os = ArbiterOS(strict=True)
    agent: Any = agents.create_agent(FakeListChatModel(responses=["hello"]))
    run(arbiter_os.govern(agent), {"messages": [("user", "hi")]})
    assert [item.instruction for item in arbiter_os.history.items()] == [GENERATE]


def test_strict_refuses() -> None:
    """`ArbiterOS(strict=True)` refuses such a graph."""
    with pytest.raises(ConfigurationError, match="pay"):
        ArbiterOS(strict=True).govern(chain(Spy("pay")))


# Async --------------------------------------------------------------------------------------------


@pytest.mark.lengthy
async def test_slow_contracts_do_not_stall_the_loop() -> None:
    """A sync checker, evaluator or router that proves slow runs in a thread, so it never
    stalls the event loop."""

    beats = 0
    went_on: list[bool] = []

    def slow(_: Any, __: Any = None) -> Any:
        seen, until = beats, time.monotonic() + 60
        while beats < seen + 3 and time.monotonic() < until:
            time.sleep(0.01)
        went_on.append(beats >= seen + 3)
        return True

    def judge(history: History) -> Any:
        slow(history)
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("slow_check", slow))
    arbiter_os.add_evaluator(Judge("slow_judge", judge, durable=True))
    arbiter_os.add_policy_router(Route("slow_route", lambda h, o: slow(h) and None))
    app = arbiter_os.govern(chain(Spy("a")))

    async def heartbeat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    beating = asyncio.create_task(heartbeat())
    await app.ainvoke({"log": []})
    beating.cancel()
    assert went_on == [True] * 3


def test_a_coroutine_in_a_sync_run_is_named() -> None:
    """An async checker, router, advisor or gate in a run that was started with `invoke` is a `SyncDriverError`
    that names the node and says `ainvoke`."""

    class Slow(PolicyChecker):
        async def check_before(self, history: History) -> bool:
            return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Slow("slow"))
    with pytest.raises(SyncDriverError, match=r"'pay'.*ainvoke"):
        arbiter_os.govern(chain(Spy("pay"))).invoke({"log": []})


def test_an_async_node_in_a_sync_run_fails_as_in_the_bare_graph() -> None:
    """A node that is `async def` needs one of the four, too; with `invoke` it raises LangGraph's own error, as in
    the bare graph."""

    async def pay(state: Any) -> Any:
        return {"log": ["pay"]}

    graph = chain(pay)
    for each in (graph, ArbiterOS().govern(graph)):
        with pytest.raises(TypeError, match="No synchronous function provided") as caught:
            each.invoke({"log": []})
        assert not isinstance(caught.value, SyncDriverError)


# Subgraphs and resumes ----------------------------------------------------------------------------


@MODES
def test_subgraphs_share_the_past(mode: str) -> None:
    """The history that a policy sees includes the past of the parent graphs, and the node runs of a subgraph are
    part of the past of the nodes after it."""
    seen: dict[str, list[str]] = {}

    def look(history: History) -> bool:
        *past, own = history.items()
        seen[own.node] = [item.node for item in past]
        return True

    builder = StateGraph(State)
    builder.add_node("before", Spy("before"))
    builder.add_node("team", chain(Spy("inside"), Spy("further")))
    builder.add_node("behind", Spy("behind"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "team")
    builder.add_edge("team", "behind")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", look))
    run(arbiter_os.govern(builder, {"team:inside": GENERATE}), {"log": []}, mode=mode)
    assert seen["inside"] == ["before"]
    assert seen["further"] == ["before", "inside"]
    assert seen["behind"] == ["before", "inside", "further", "team"]


def after_write(state: State) -> str:
    return "respond" if state.get("amount") else "verify"


@MODES
def test_another_process_decides_the_same(mode: str) -> None:
    """A new process decides as the old one would have."""
    saver = InMemorySaver()
    builder = StateGraph(State)
    for name in ("write", "verify", "respond"):
        builder.add_node(name, Spy(name))
    builder.add_edge(START, "write")
    builder.add_conditional_edges("write", after_write, ["respond", "verify"])
    builder.add_edge("verify", "respond")

    def process() -> Any:
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(HistoryPolicyChecker("verify_first", [GENERATE, RESPOND]))
        graph = builder.compile(checkpointer=saver, interrupt_before=["respond"])
        kinds = {"write": GENERATE, "verify": VERIFY, "respond": RESPOND}
        return arbiter_os.govern(graph, kinds)

    run(process(), {"log": [], "amount": 1}, thread("hurried"), mode=mode)
    with pytest.raises(PolicyViolationError, match="verify_first"):
        run(process(), None, thread("hurried"), mode=mode)
    run(process(), {"log": [], "amount": 0}, thread("careful"), mode=mode)
    careful = run(process(), None, thread("careful"), mode=mode)
    assert careful["log"] == ["write", "verify", "respond"]


@pytest.mark.parametrize("stream_mode", ["values", "updates", "custom", "messages"])
def test_streams_and_states_show_nothing_of_governing(stream_mode: Any) -> None:
    """None of this shows in outputs, streams, `get_state().values`, or the state that tools, middleware and edges
    get."""
    plain_graph = chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver())
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("open", allow))
    app = arbiter_os.govern(plain_graph)
    governed = list(app.stream({"log": []}, cast(Any, thread("a")), stream_mode=stream_mode))
    ungoverned = list(plain_graph.stream({"log": []}, thread("b"), stream_mode=stream_mode))
    assert governed == ungoverned
    values = app.get_state(cast(Any, thread("a"))).values
    assert values == plain_graph.get_state(thread("b")).values == {"log": ["a", "b"]}


# Limits -------------------------------------------------------------------------------------------


def test_generator_functions_need_a_graph() -> None:
    """A generator function is governed as a node of a graph, not on its own."""

    def numbers(state: State) -> Any:
        yield {"log": ["one"]}

    arbiter_os = ArbiterOS()
    with pytest.raises(NotAGraphError):
        arbiter_os.govern(numbers)


def test_one_arbiter_os_for_a_graph() -> None:
    """One graph is governed by one `ArbiterOS`."""
    governed = ArbiterOS().govern(chain(Spy("a")))
    with pytest.raises(ConfigurationError):
        ArbiterOS().govern(governed)


def test_a_redirect_needs_a_node() -> None:
    """A redirect can go to nodes that edges can lead to: those of a `StateGraph` and `END`."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("no", allow, on_deny="redirect:hodl"))
    with pytest.raises(UnknownNodeError, match="hold"):
        arbiter_os.govern(chain(Spy("pay"), Spy("hold")))


# Rules as files -----------------------------------------------------------------------------------

PACK = """
version: 1
name: payments
description: What may be paid.
instructions: [{node: pay, instruction: TOOL_CALL}]
checkers:
  - {name: limit, use: condition, deny_when: input.amount > 5, target_nodes: [pay]}
"""


def constitution(folder: Path, pack: str = PACK, name: str = "payments") -> Path:
    (folder / "policies").mkdir(parents=True, exist_ok=True)
    (folder / "policies" / f"{name}.yaml").write_text(pack, encoding="utf-8")
    return folder


@MODES
def test_rules_are_files(mode: str, tmp_path: Path) -> None:
    """Rules can be YAML files that a reader who does not program can review."""
    pay = Spy("pay")
    app = ArbiterOS.from_constitution(constitution(tmp_path)).govern(chain(pay))
    run(app, {"amount": 5}, mode=mode)
    with pytest.raises(PolicyViolationError, match="limit"):
        run(app, {"amount": 6}, mode=mode)
    assert len(pay.calls) == 1


def test_classes_are_allowed_by_prefix(tmp_path: Path) -> None:
    """A pack can name your own classes only under a prefix that you allow."""
    pack = PACK.replace(
        "use: condition, deny_when: input.amount > 5", "use: tests.project.test_readme.NeverPays"
    )
    constitution(tmp_path, pack)
    with pytest.raises(PackError, match=r"policies/payments.yaml:7: checkers\[0\].use"):
        ArbiterOS.from_constitution(tmp_path)
    (checker,) = ArbiterOS.from_constitution(tmp_path, allow=["tests."]).constitution.checkers  # type: ignore[union-attr]
    assert isinstance(checker, NeverPays)


class NeverPays(PolicyChecker):
    def check_before(self, history: History) -> bool:
        return False


def test_all_mistakes_are_reported(tmp_path: Path) -> None:
    """All files are read before any rule is in force, and every mistake is reported with its file and line."""
    constitution(tmp_path, PACK.replace("use: condition", "use: conditions"))
    constitution(tmp_path, PACK.replace("name: payments", "nam: other"), "other")
    with pytest.raises(PackError) as raised:
        ArbiterOS.from_constitution(tmp_path)
    told = str(raised.value)
    assert "policies/payments.yaml:7: checkers[0].use" in told
    assert "policies/other.yaml:3: nam" in told


def test_a_failed_reload_changes_nothing(tmp_path: Path) -> None:
    """If a reload fails, the rules already in force stay in force."""
    arbiter_os = ArbiterOS.from_constitution(constitution(tmp_path))
    app = arbiter_os.govern(chain(Spy("pay")))
    constitution(tmp_path, PACK.replace("> 5", "> > 5"))
    with pytest.raises(PackError):
        arbiter_os.load_constitution()
    with pytest.raises(PolicyViolationError, match="limit"):
        run(app, {"amount": 6})


def test_loosening_needs_override(tmp_path: Path) -> None:
    """A pack can make the rules that it extends tighter; a change that loosens a rule needs `override: true`."""
    pack = "version: 1\nname: ours\ndescription: Ours.\nextends: [arbiter:kernel]\ncheckers:\n"
    ArbiterOS.from_constitution(constitution(tmp_path, pack + "  - {name: model_calls, times: 10}\n"))
    looser = pack + "  - {name: model_calls, times: 1000}\n"
    with pytest.raises(PackError, match="override: true"):
        ArbiterOS.from_constitution(constitution(tmp_path, looser))
    said = looser.replace("times: 1000", "times: 1000, override: true")
    ArbiterOS.from_constitution(constitution(tmp_path, said))


def test_the_linter_calls_nothing(tmp_path: Path) -> None:
    """The linter finds mistakes in a graph and its rules before anything runs; it calls neither a node nor a
    rule."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS.from_constitution(
        constitution(tmp_path, PACK.replace("target_nodes: [pay]", "target_nodes: [pai]"))
    )
    (finding,) = arbiter_os.lint(chain(pay)).errors
    assert (finding.code, finding.source) == ("unknown-node", "policies/payments.yaml:7")
    assert len(pay.calls) == 0


@MODES
def test_audit_records_and_does_nothing(mode: str, tmp_path: Path) -> None:
    """Under mode: audit, for a pack or a rule, the decisions of a rule are recorded, and the graph behaves as if
    the rule were not there."""
    for pack in (PACK.replace("name: limit,", "name: limit, mode: audit,"), PACK + "mode: audit\n"):
        arbiter_os = ArbiterOS.from_constitution(constitution(tmp_path, pack))
        pay = Spy("pay")
        run(arbiter_os.govern(chain(pay)), {"amount": 6}, mode=mode)
        assert len(pay.calls) == 1
        (item,) = arbiter_os.history.items()
        assert item.check_policy_results["limit"].kind == "deny"


@MODES
def test_a_shadow_watches(mode: str, tmp_path: Path) -> None:
    """A shadow constitution is a whole set of rules that decides next to the one in force, without effect; the
    report lists each decision in which they differ."""
    arbiter_os = ArbiterOS.from_constitution("arbiter:kernel", shadow=constitution(tmp_path))
    pay = Spy("pay")
    app = arbiter_os.govern(chain(pay), {"pay": "TOOL_CALL"})
    run(app, {"amount": 5}, mode=mode)
    run(app, {"amount": 6}, mode=mode)
    assert len(pay.calls) == 2
    (difference,) = arbiter_os.shadow_report()
    assert (difference.node, difference.enforced.kind, difference.shadow.policy) == ("pay", "allow", "limit")


@MODES
def test_a_drifting_agent_is_sent_to_a_reflect_node(mode: str) -> None:
    """A router can send a drifting agent to a reflect node."""
    drifting = GenericFakeChatModel(messages=iter([AIMessage(judged(1)), AIMessage(judged(9))]))
    arbiter_os = ArbiterOS()
    ann = Persona("Ann", "Terse.")
    arbiter_os.add_evaluator(AdherenceEvaluator(persona=ann, judge=drifting, target_nodes=["write"]))
    arbiter_os.add_policy_router(EvaluationRouter("drift", "adherence", "reflect", target_nodes=["write"]))
    said: list[str] = []

    def write(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("Hm.", name="Ann")]}

    def reflect(state: Any) -> dict[str, Any]:
        said.append("reflect")
        return {}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("write", write)
    builder.add_node("reflect", reflect)
    builder.add_edge(START, "write")
    builder.add_edge("reflect", "write")
    run(arbiter_os.govern(builder.compile()), {"messages": [HumanMessage("Well?")]}, mode=mode)
    assert said == ["reflect"]


@MODES
def test_facts_learned_in_one_thread_are_known_in_the_next(mode: str) -> None:
    """Facts learned in one thread are known in the next."""
    claims = json.dumps({"claims": [{"claim": "Ada lives in Oslo", "type": "status"}]})
    model = GenericFakeChatModel(messages=iter([AIMessage(claims), AIMessage('{"claims": []}')]))
    arbiter_os = ArbiterOS()
    cycle = EvaluationCycle(store=InMemoryStore(), evaluator_model=model, conversation_length=4)
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_evaluator(FactEvaluator())
    arbiter_os.add_advisor(FactsProvider())
    told: list[str] = []

    def talk(state: Any) -> dict[str, Any]:
        told.append("\n".join(str(message.text) for message in state["messages"]))
        return {"messages": [AIMessage("I see.")]}

    builder: Any = StateGraph(MessagesState)
    app = arbiter_os.govern(builder.add_node("talk", talk).add_edge(START, "talk").compile())
    for thread_id, text in (("monday", "I live in Oslo"), ("friday", "Hello again")):
        config = {"configurable": {"thread_id": thread_id, "user_id": "ada"}}
        run(app, {"messages": [HumanMessage(text)]}, config, mode=mode)
    assert "Ada lives in Oslo" not in told[0]
    assert "Ada lives in Oslo" in told[1]


def judged(score: int) -> str:
    """A judge's answer about the four claims that ship."""
    claims = load_propositions(None, "adherence").propositions
    scores = [{"id": claim.id, "score": 9 - score if claim.inverted else score} for claim in claims]
    return json.dumps({"judgements": scores})


def test_the_kinds_are_counted() -> None:
    """There are 12 kinds of checkers"""
    assert {section: len(kinds) for section, kinds in KINDS.items()} == {
        "checkers": 12,
        "routers": 4,
        "evaluators": 14,
    }
    assert "4 of routers and 14 of evaluators" in plain(TOUR.read_text(encoding="utf-8"))


# And each of them is there ----------------------------------------------------------------------

PROMISES = {
    name: function.__doc__ or ""
    for name, function in list(globals().items())
    if name.startswith("test_") and name not in ABOUT_PAGES
}


@pytest.mark.parametrize("name", PROMISES)
def test_a_page_says_so_in_the_same_words(name: str) -> None:
    assert any(plain(PROMISES[name]) in text for text in plain_pages().values())


if __name__ == "__main__":
    print(instruction_tables())
