"""Answers to paused runs over real HTTP: what is asked comes from the checkpointer, and the run goes on once."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command
from starlette.applications import Starlette

from arbiter import ArbiterOS
from arbiter.checkers import ApprovalChecker, ConditionChecker
from arbiter.errors import ConfigurationError
from arbiter.ledger import Ledger
from arbiter.routers import EscalationRouter
from arbiter.web import viewer
from tests.ledger.ledger_support import sql
from tests.support import until
from tests.web.paused_graph import SECRET, Payments, State, asks, chained, conf, large, paused, tell
from tests.web.serving import OWN, browsing, served, signed_in

LATE = "Somebody has answered, or the input has changed."


class Page:
    """The page of a question, as a browser has it: it stays as it was when it was loaded."""

    def __init__(self, client: httpx.Client, address: str) -> None:
        self.client, self.address = client, address
        self.response = client.get(address)
        self.text = unescape(self.response.text)

    def answer(self, answer: str, headers: Any = None, **fields: str) -> httpx.Response:
        hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', self.text))
        data = {**hidden, "answer": answer, **fields}
        return self.client.post(self.address, data=data, headers={**OWN, **(headers or {})})


@contextmanager
def inbox(ledger: Ledger, graph: Any, **options: Any) -> Generator[httpx.Client]:
    """A client at a viewer of that ledger."""
    graphs = {} if graph is None else {"payments": graph}
    with served(viewer(ledger, graphs, auth=signed_in, **options)) as address, browsing(address) as client:
        yield client


def questions(client: httpx.Client) -> list[Page]:
    """The pages of the questions that the inbox lists."""
    listed = re.findall(r'href="(/inbox/[^"?]+)"', client.get("/inbox").text)
    return [Page(client, address) for address in listed]


def at_once(pages: Sequence[Page]) -> list[int]:
    """The status codes of approvals of all these pages at the same time."""
    with ThreadPoolExecutor(len(pages)) as workers:
        asked = [workers.submit(page.answer, "approve") for page in pages]
        return sorted(each.result().status_code for each in asked)


@pytest.fixture
def ledger(tmp_path: Path) -> Generator[Ledger]:
    with Ledger(tmp_path / "arbiter.db", flush_every=0.01) as opened:
        yield opened


@pytest.fixture
def payments(tmp_path: Path) -> Payments:
    return Payments(tmp_path)


@pytest.fixture
def graph(ledger: Ledger, payments: Payments) -> Any:
    return payments.governed(ledger)


def answers(ledger: Ledger, folder: Path) -> list[tuple[str, str | None]]:
    """The kind and the author of each answer that the ledger recorded."""
    assert ledger.flush(20)
    with sql(folder / "arbiter.db") as run:
        rows = run("SELECT body FROM entries WHERE kind = 'answer' ORDER BY id")
    return [(body["answer"], body["by"]) for (text,) in rows for body in [json.loads(text)]]


def test_a_checkpointer_that_cannot_be_read_is_no_fault_of_the_ledger(
    ledger: Ledger, graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names the graph; it said that an entry of the ledger was changed, or nothing."""
    paused(graph, "pay-7")

    def locked(*_: Any, **__: Any) -> Any:
        raise ValueError(f"no answer for {SECRET}")

    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        monkeypatch.setattr(SqliteSaver, "get_tuple", locked)
        for response in (client.get("/inbox"), client.get(page.address), page.answer("approve")):
            assert response.status_code == 503
            assert "checkpoints of graph" in response.text
            assert "ValueError: no answer for" in response.text
            assert SECRET not in response.text


@pytest.mark.lengthy
def test_an_approval_resumes_the_run_under_the_name_of_the_user(
    ledger: Ledger, graph: Any, payments: Payments, tmp_path: Path
) -> None:
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        for text in ("a large amount", "large asks", "5000", '"Löhne"', "who may approve"):
            assert text in page.text
        answered = page.answer("approve", by="mallory", user="mallory")
        assert answered.url.path == "/inbox"
        assert "the run has ended" in answered.text
        assert questions(client) == []
    assert payments.paid == ["5000 Löhne None"]
    assert answers(ledger, tmp_path) == [("approve", "ann")]
    assert graph.get_state(conf("pay-7")).values["done"] is True


@pytest.mark.lengthy
def test_an_edit_sends_the_changed_fields_and_leaves_secrets_alone(
    ledger: Ledger, graph: Any, payments: Payments, tmp_path: Path
) -> None:
    paused(graph, "pay-7", account={"iban": "x", "api_key": SECRET})
    ledger.flush(20)
    # A field may be named like the part of an entry in which a ledger keeps what is said of each rule.
    assert ledger.shown({"notes": {"api_key": "k"}}) == {"notes": {"api_key": {"$secret": "field"}}}
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert SECRET not in page.text
        assert "Parts of it are redacted. It stays as it is." in page.text
        names = re.findall(r'<textarea id="(field-\d)"', page.text)
        assert names == ["field-0", "field-1"]  # the account has none
        refused = page.answer("edit", **{"field-2": '{"iban": "y", "api_key": "[secret: field]"}'})
        assert (refused.status_code, payments.paid) == (400, [])
        assert page.answer("edit", **{"field-0": "900", "field-1": '"Löhne"'}).status_code == 200
    assert payments.paid == [f"900 Löhne {SECRET}"]
    assert answers(ledger, tmp_path) == [("edit", "ann")]
    with sql(tmp_path / "arbiter.db") as run:
        (given,) = run("SELECT c.body FROM entries e JOIN contents c ON c.entry = e.id WHERE kind = 'answer'")
    assert json.loads(given[0])["detail"] == {"amount": 900}


@pytest.mark.lengthy
def test_a_rejection_needs_a_reason(ledger: Ledger, graph: Any, payments: Payments, tmp_path: Path) -> None:
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        refused = page.answer("reject", message=" ")
        assert refused.status_code == 400
        assert "Give a reason" in refused.text
        assert page.answer("reject", message="no", number="1" * 5_000).status_code == 400
        ended = page.answer("reject", message="not this <b>month</b>")
        assert "the run was denied</span>: " in ended.text
        assert "not this &lt;b&gt;month&lt;/b&gt;" in ended.text
        assert "No question waits" in ended.text
        assert "more paused" not in ended.text
        assert page.answer("approve").status_code == 409
    assert (payments.paid, answers(ledger, tmp_path)) == ([], [("reject", "ann")])


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"field-0": "nine"}, "This is not JSON"),
        ({"field-0": "NaN"}, "This is not JSON"),
        ({"field-0": "[" * 100_000}, "This is not JSON"),
        ({"field-2": '{"limit": 1e999}'}, "This is not JSON: 1e999 is too large"),
        ({"field-0": '"900"'}, "It does not fit"),
        ({"field-1": "7"}, "It does not fit"),
        ({"field-0": "5000"}, "Nothing was changed"),
        ({}, "Nothing was changed"),
    ],
)
def test_a_wrong_edit_shows_the_form_again_and_resumes_nothing(
    ledger: Ledger, graph: Any, payments: Payments, fields: dict[str, str], said: str
) -> None:
    paused(graph, "pay-7", account={"limit": 1})
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        again = page.answer("edit", **fields)
        assert again.status_code == 400
        assert said in again.text
        for name, text in fields.items():
            assert f'aria-describedby="mistake-{name}"' in again.text or said.startswith("Nothing")
            assert text in unescape(again.text)  # what was typed is not lost
        assert payments.paid == []
        assert len(questions(client)) == 1


@pytest.mark.lengthy
def test_an_answer_that_is_too_late_resumes_nothing(ledger: Ledger, graph: Any, payments: Payments) -> None:
    """Another process has answered, the input has changed, or the same node asks about another input."""
    paused(graph, "a")
    paused(graph, "b")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        pages = {page.text.partition("thread ")[2][:60]: page for page in questions(client)}
        (a,) = [page for text, page in pages.items() if ">a<" in text]
        (b,) = [page for text, page in pages.items() if ">b<" in text]
        graph.invoke(Command(resume="approve"), conf("a"))
        late = a.answer("approve")
        assert (late.status_code, LATE in late.text) == (409, True)
        graph.update_state(conf("b"), {"amount": 9000}, as_node="__start__")
        graph.invoke(None, conf("b"))
        late = b.answer("approve")
        assert (late.status_code, LATE in late.text) == (409, True)
        assert payments.paid == ["5000 Löhne None"]
        assert Page(client, a.address).response.status_code == 409
        (fresh,) = questions(client)
        assert fresh.answer("approve").status_code == 200
    assert payments.paid == ["5000 Löhne None", "9000 Löhne None"]


@pytest.mark.lengthy
def test_a_second_question_of_a_node_is_not_answered_by_the_page_of_the_first(
    ledger: Ledger, payments: Payments
) -> None:
    """Also where both are asked under one id: the page of the first names its digest and number as well."""
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_checker(large())
    arbiter_os.add_policy_checker(
        ConditionChecker(
            "small", ask_when="input.amount < 100", reason="a small amount", target_nodes=["pay"]
        )
    )
    graph = arbiter_os.govern(payments.graph())
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (first,) = questions(client)
        assert "waits for a human again" in first.answer("edit", **{"field-0": "50"}).text
        (second,) = questions(client)
        assert "a small amount" in second.text
        assert first.answer("approve").status_code == 409
        first.address = second.address
        assert first.answer("approve").status_code == 409
        assert payments.paid == []
        assert second.answer("approve").status_code == 200
    assert payments.paid == ["50 Löhne None"]


@pytest.mark.lengthy
def test_of_many_answers_at_once_one_counts(
    ledger: Ledger, graph: Any, payments: Payments, tmp_path: Path
) -> None:
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert at_once([page] * 8) == [200] + [409] * 7
    assert payments.paid == ["5000 Löhne None"]
    assert answers(ledger, tmp_path) == [("approve", "ann")]


@pytest.mark.lengthy
def test_a_reader_sees_questions_and_cannot_answer(ledger: Ledger, graph: Any, payments: Payments) -> None:
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        refused = page.answer("approve", {"x-user": "ben read"})
        assert (refused.status_code, payments.paid) == (403, [])
        client.headers["x-user"] = "ben read"
        (page,) = questions(client)
        assert "5000" in page.text
        assert "<textarea" not in page.text
        assert client.post(page.address, data={"answer": "approve"}, headers=OWN).status_code == 403


@pytest.mark.lengthy
def test_only_the_named_people_approve(ledger: Ledger, payments: Payments, tmp_path: Path) -> None:
    checker = ApprovalChecker("boss", approvers=["cleo"], target_nodes=["pay"])
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_checker(checker)
    graph = arbiter_os.govern(payments.graph())
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert "You may not approve this" in page.text
        refused = page.answer("approve")
        assert (refused.status_code, "These may: cleo." in refused.text) == (400, True)
        assert page.answer("edit", **{"field-0": "1"}).status_code == 400
        assert page.answer("approve", {"x-user": "cleo"}).status_code == 200
    assert (payments.paid, answers(ledger, tmp_path)) == (["5000 Löhne None"], [("approve", "cleo")])


@pytest.mark.lengthy
def test_a_question_of_a_node_itself_is_answered(ledger: Ledger, payments: Payments) -> None:
    graph = ArbiterOS(ledger=ledger).govern(payments.graph(asks=asks))
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert "which colour?" in page.text
        assert SECRET not in page.text
        assert page.answer("", value=" ").status_code == 400
        assert page.answer("", value='{"a": ').status_code == 400
        assert page.answer("", value="blue").status_code == 200
    assert graph.get_state(conf("pay-7")).values["note"] == "blue"


@pytest.mark.lengthy
def test_a_run_goes_on_with_the_settings_that_it_had(
    ledger: Ledger, payments: Payments, tmp_path: Path
) -> None:
    """A rule for each user finds the user, although the form does not name one."""
    seen: list[Any] = []
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_checker(large())

    def look(state: State, config: RunnableConfig) -> State:
        seen.append(config.get("configurable", {})["user_id"])
        return {}

    graph = arbiter_os.govern(payments.graph(pay=look))
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        page.answer("approve")
    assert seen == ["u-12"]


@pytest.mark.lengthy
def test_a_question_of_a_function_in_a_node_is_answered(
    ledger: Ledger, payments: Payments, tmp_path: Path
) -> None:
    paid: list[int] = []

    def transfer(amount: int) -> int:
        paid.append(amount)
        return amount

    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["transfer"]))
    governed = arbiter_os.govern(transfer)

    def pay(state: State) -> State:
        return {"paid": governed(state.get("amount", 0))}

    graph = arbiter_os.govern(payments.graph(pay=pay))
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert "the run has ended" in page.answer("edit", **{"field-0": "9"}).text
    assert (paid, answers(ledger, tmp_path)) == ([9], [("edit", "ann")])


@pytest.mark.lengthy
def test_an_output_that_waits_is_edited(ledger: Ledger, payments: Payments, tmp_path: Path) -> None:
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_router(EscalationRouter("look", key="paid", below=10_000, target_nodes=["pay"]))
    graph = arbiter_os.govern(payments.graph())
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert "<h2>Output</h2>" in page.text
        assert page.answer("edit", **{"field-0": '"much"'}).status_code == 400
        assert "the run has ended" in page.answer("edit", **{"field-0": "70"}).text
    assert graph.get_state(conf("pay-7")).values["paid"] == 70
    assert (payments.paid, answers(ledger, tmp_path)) == (["5000 Löhne None"], [("edit", "ann")])


@pytest.mark.lengthy
def test_a_question_in_a_subgraph_is_answered(ledger: Ledger, payments: Payments) -> None:
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_checker(large())
    graph = arbiter_os.govern(payments.graph(inner=chained({"pay": payments.pay}), tell=tell))
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert page.answer("edit", **{"field-0": '"900"'}).status_code == 400
        assert page.answer("edit", **{"field-0": "900"}).status_code == 200
    assert payments.paid == ["900 Löhne None"]


@pytest.mark.lengthy
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_question_is_open_until_it_is_answered_and_again_when_it_is_asked_again(
    ledger: Ledger, payments: Payments, is_nested: bool
) -> None:
    """LangGraph shows the interrupt also after its answer, if the node has failed since."""
    fails = [True]

    def pay(state: State) -> State:
        if fails and fails.pop():
            raise TimeoutError("bank")
        return payments.pay(state)

    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_checker(large())
    nodes = {"inner": chained({"pay": pay})} if is_nested else {"pay": pay}
    graph = arbiter_os.govern(payments.graph(**nodes))
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert "the run failed" in page.answer("approve").text
        assert questions(client) == []
        graph.invoke(None, conf("pay-7"))
        ledger.flush(20)
        (again,) = questions(client)
        assert "the earlier approval is used" in again.text
        assert page.answer("approve").status_code == 409
        assert "the run has ended" in again.answer("approve").text
    assert payments.paid == ["5000 Löhne None"]


@pytest.mark.lengthy
def test_the_application_resumes_the_run_by_itself(ledger: Ledger, graph: Any, payments: Payments) -> None:
    """With `on_answer` the viewer hands the answer over, once, and resumes nothing."""
    taken: list[Any] = []

    async def on_answer(thread_id: str, interrupt_id: str, answer: Any) -> None:
        taken.append((thread_id, interrupt_id, answer))
        if len(taken) == 1:
            raise ConnectionError(f"no queue, and the key is {SECRET}")

    question = paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph, on_answer=on_answer) as client:
        (page,) = questions(client)
        failed = page.answer("approve")
        assert "the run failed" in failed.text
        assert SECRET not in failed.text
        assert "passed on to the application" in page.answer("edit", **{"field-0": "1"}).text
        assert page.answer("approve").status_code == 409
    assert taken == [
        ("pay-7", question.id, {"type": "approve", "by": "ann"}),
        ("pay-7", question.id, {"type": "edit", "input": {"amount": 1}, "by": "ann"}),
    ]
    assert payments.paid == []


def test_without_a_graph_the_router_that_asks_is_named(ledger: Ledger, payments: Payments) -> None:
    """A question of a router is not one of the node itself, which takes any answer."""
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_router(EscalationRouter("look", key="paid", below=10_000, target_nodes=["pay"]))
    paused(arbiter_os.govern(payments.graph()), "pay-7")
    paused(arbiter_os.govern(payments.graph(asks=asks)), "own-7")
    ledger.flush(20)
    with inbox(ledger, None) as client:
        page = unescape(client.get("/inbox").text)
    assert ">look<" in page
    assert "--thread pay-7 --resume approve<" in page
    assert page.count("the node itself") == 1
    assert "--thread own-7 --resume ANSWER<" in page


@pytest.mark.lengthy
def test_without_a_graph_the_command_to_type_is_shown(ledger: Ledger, graph: Any) -> None:
    paused(graph, "pay 7; rm")
    ledger.flush(20)
    with inbox(ledger, None) as client:
        page = unescape(client.get("/inbox").text)
        assert "arbiter run MODULE:GRAPH -c . --thread 'pay 7; rm' --resume approve" in page
        assert "a large amount" in page
        assert questions(client) == []


@pytest.mark.lengthy
def test_a_pause_that_the_ledger_does_not_know_is_found(ledger: Ledger, graph: Any, tmp_path: Path) -> None:
    """The process was killed before it could record that the run waits."""
    graph.invoke({"amount": 1}, conf("pay-7"))
    ledger.flush(20)
    with Ledger(tmp_path / "lost.db") as lost:
        paused(Payments(tmp_path).governed(lost), "pay-7")
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        assert page.answer("approve").status_code == 200


@pytest.mark.lengthy
def test_a_long_run_does_not_keep_its_page_waiting(ledger: Ledger, payments: Payments) -> None:
    """The answer is taken, the run goes on, and a second answer to its thread is late."""
    goes_on = threading.Event()

    def slow(_: State) -> State:
        goes_on.wait(30)
        return {"done": True}

    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_policy_checker(large())
    graph = arbiter_os.govern(payments.graph(pay=slow))
    paused(graph, "pay-7")
    ledger.flush(20)
    with inbox(ledger, graph) as client:
        (page,) = questions(client)
        try:
            assert "the run goes on" in page.answer("approve").text
            assert page.answer("approve").status_code == 409
        finally:
            goes_on.set()
        until(lambda: "the run has ended" in client.get("/inbox").text)


def test_graphs_that_cannot_be_answered_are_refused(ledger: Ledger, graph: Any, payments: Payments) -> None:
    wrong: list[tuple[Any, Any, str]] = [
        ({"a": payments.graph()}, {}, "graph 'a' is not governed with a ledger"),
        ({"a": "a.py:graph"}, {}, "expected a governed graph"),
        ({}, {"on_answer": print}, "on_answer needs graphs"),
        ({"a": ArbiterOS(ledger=ledger).govern(chained({"tell": tell}))}, {}, "has no checkpointer"),
    ]
    for graphs, options, said in wrong:
        with pytest.raises(ConfigurationError, match=said):
            viewer(ledger, graphs, **options)


@pytest.mark.lengthy
def test_an_answer_needs_the_rule_that_asked(
    ledger: Ledger, graph: Any, payments: Payments, tmp_path: Path
) -> None:
    """Under other rules nothing would read the answer: a rejected payment would be made."""
    paused(graph, "pay-7")
    ledger.flush(20)
    other = ArbiterOS(ledger=ledger).govern(Payments(tmp_path).graph())
    with inbox(ledger, other) as client:
        (page,) = questions(client)
        refused = page.answer("reject", message="no")
        assert (refused.status_code, "lack 'large', which asked" in unescape(refused.text)) == (400, True)
    assert payments.paid == []


@pytest.mark.lengthy
def test_questions_are_answered_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    """Ledger and checkpoints are in PostgreSQL; of two viewers that answer at once, one counts."""
    with (
        PostgresSaver.from_conn_string(postgres_url) as one,
        PostgresSaver.from_conn_string(postgres_url) as two,
    ):
        one.setup()
        with Ledger(postgres_url) as ledger, Ledger(postgres_url) as other:
            payments = [Payments(tmp_path, one), Payments(tmp_path, two)]
            graphs = [each.governed(of) for each, of in zip(payments, (ledger, other), strict=True)]
            paused(graphs[0], "pay-7")
            ledger.flush(20)
            with inbox(ledger, graphs[0]) as first, inbox(other, graphs[1]) as second:
                assert at_once([*questions(first), *questions(second)]) == [200, 409]
            assert payments[0].paid == ["5000 Löhne None"]
            ledger.flush(20)
            other.flush(20)
            with psycopg.connect(postgres_url) as connection:
                found = connection.execute("SELECT body FROM entries WHERE kind = 'answer'").fetchall()
            assert {json.loads(body)["by"] for (body,) in found} == {"ann"}


@pytest.mark.lengthy
def test_an_async_graph_goes_on_in_the_loop_of_its_checkpointer(ledger: Ledger, tmp_path: Path) -> None:
    """A viewer that is mounted in the application whose event loop the checkpointer belongs to."""
    paid: list[int] = []

    async def pay(state: State) -> State:
        paid.append(state.get("amount", 0))
        return {"paid": state.get("amount", 0)}

    app = Starlette()

    @asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "async.db")) as saver:
            arbiter_os = ArbiterOS(ledger=ledger)
            arbiter_os.add_policy_checker(large())
            graph = arbiter_os.govern(chained({"pay": pay}, checkpointer=saver))
            await graph.ainvoke({"amount": 5000}, conf("pay-7"))
            await ledger.aflush(20)
            app.mount("/arbiter", viewer(ledger, {"payments": graph}, auth=signed_in))
            yield

    app.router.lifespan_context = lambda _: running()
    with served(app) as address, browsing(address) as client:
        listed = re.findall(r'href="(/arbiter/inbox/[^"?]+)"', client.get("/arbiter/inbox").text)
        assert "the run has ended" in Page(client, listed[0]).answer("edit", **{"field-0": "70"}).text
    assert paid == [70]
