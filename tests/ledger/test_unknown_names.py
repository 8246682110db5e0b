"""A name that a ledger does not know is an error or a warning with the nearest one, never an empty answer."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError

from arbiter import ArbiterOS, ArbiterWarning, ConfigurationError
from arbiter.ledger import Ledger
from tests.ledger.ledger_support import recorded
from tests.support import Spy, chain, thread


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Generator[Ledger]:
    with recorded(tmp_path_factory.mktemp("l") / "l.db") as made:
        yield made


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"thread_id": "t00"}, "this ledger has no thread 't00'. Did you mean 't0'"),
        ({"run": "r1"}, "this ledger has no run 'r1'. item.run names one"),
        ({"thread_id": "t0", "run": "r1"}, "no run 'r1' in thread 't0'"),
    ],
)
def test_an_unknown_thread_or_run_is_an_error(ledger: Ledger, question: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        list(ledger.items(**question))
    with pytest.raises(ConfigurationError, match=said):
        ledger.items(**question).page()


def test_an_unknown_run_is_looked_for_among_the_newest_entries_only(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbiter.ledger._queries._RUNS", 2)
    (item,) = ledger.items(thread_id="t0", node="pay")
    for run in ("r1", item.run):
        with pytest.warns(ArbiterWarning, match=r"none of the newest 2 entries is of run '.*'\. item\.run"):
            assert list(ledger.items(run=run, verdict="deny")) == []
    with pytest.raises(ConfigurationError, match="this ledger has no run 'r1'"):
        list(ledger.items(run="r1"))  # its pages have looked at all


def test_a_run_without_node_runs_is_known_however_old_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbiter.ledger._queries._RUNS", 2)
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), checkpointer=InMemorySaver()))
        with pytest.raises(EmptyInputError):
            app.invoke(None, thread("t"))
        for number in range(2):
            app.invoke({}, thread(f"t{number}"))
        assert ledger.flush(60)
        runs = [execution["run"] for execution in ledger.executions()]
        assert [len(list(ledger.items(run=run))) for run in runs] == [1, 1, 0]
        assert list(ledger.items(run=runs[-1], thread_id="t")) == []


@pytest.mark.parametrize(
    ("method", "question", "said"),
    [
        ("items", {"node": "pai"}, "node is 'pai', which .* Did you mean 'pay'. Known"),
        ("items", {"policy": "limmit"}, "policy is 'limmit', .* Did you mean 'limit'"),
        ("items", {"evaluator": "scor"}, "evaluator is 'scor', .* mean 'score'"),
        ("items", {"node": "\udcff"}, "node is '.udcff', which does not occur"),
        ("items", {"instruction": "X.Y"}, "instruction is 'X.Y', which does not occur"),
        ("items", {"subject": "user-9"}, "about the subject 'user-9'. Did you mean 'user-"),
        ("threads", {"subject": "user-9"}, "about the subject 'user-9'"),
        ("scores", {"evaluator": "scor"}, "evaluator is 'scor', .* mean 'score'"),
    ],
)
def test_a_name_that_does_not_occur_is_a_warning_at_the_callers_line(
    ledger: Ledger, method: str, question: Any, said: str
) -> None:
    with pytest.warns(ArbiterWarning, match=said) as warned:
        assert list(getattr(ledger, method)(**question)) == []
    assert [each.filename for each in warned] == [__file__]


def test_known_names_without_a_match_are_no_warning(ledger: Ledger) -> None:
    assert not list(ledger.items(node="pay", verdict="deny"))
    assert len(list(ledger.items(thread_id=next(iter(ledger.threads()))["ref"]))) == 2


def test_an_unknown_kind_of_names_is_an_error(ledger: Ledger) -> None:
    kind: Any = "nodes"
    with pytest.raises(ConfigurationError, match=r"got 'nodes'\. Did you mean 'node'"):
        ledger.names(kind)


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("flush", {"timeout": "x"}, "timeout: expected seconds, or None, got 'x'"),
        ("items", {"run": ["a"]}, r"run: expected a text, got \['a'\]"),
        ("items", {"node": 5}, "node: expected a text, got 5"),
        ("items", {"instruction": 5}, "instruction: expected a text, got 5"),
        ("items", {"policy": b"x"}, "policy: expected a text, got b'x'"),
        ("items", {"evaluator": {}}, "evaluator: expected a text, got {}"),
        ("items", {"subject": 5}, "subject: expected a text, got 5"),
        ("follow", {"thread_id": ["a"]}, "this ledger has no thread"),
        ("follow", {"thread_id": "t0", "every": "x"}, "every: expected a number from 0, got 'x'"),
        ("threads", {"subject": 5}, "subject: expected a text, got 5"),
        ("erase", {"subject": 5, "reason": "x"}, "subject: expected a text, got 5"),
        ("counts", {"by": 5}, "by: expected one of items, .*, got 5"),
        ("scores", {"evaluator": 5}, "evaluator: expected a text, got 5"),
        ("scores", {"evaluator": "score", "every": []}, r"every: expected 'hour', 'day' or None, got \[\]"),
        ("verify", {"keys": 5}, "keys: expected a list of keys, got 5"),
        ("verify", {"keys": [5]}, "key: expected bytes or a text, got int"),
        ("verify", {"anchors": 5}, "anchors: expected a file, or a list of anchors, got 5"),
        ("verify", {"anchors": ["a"]}, "anchors: expected lines of a ledger, got 'a'"),
        ("replay", {"source": ".", "threads": "t0"}, "threads: expected a list of thread ids, got 't0'"),
    ],
)
def test_an_argument_of_another_type_is_a_sentence(
    ledger: Ledger, method: str, given: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        list(getattr(ledger, method)(**given))


@pytest.mark.lengthy
def test_erasing_an_unknown_name_is_a_warning(tmp_path: Path) -> None:
    """A typing mistake in a request for erasure must not look like a success."""
    with recorded(tmp_path / "l.db") as ledger:
        with pytest.warns(ArbiterWarning, match=r"no thread 't00'. Did you mean 't0'. Nothing was erased"):
            assert ledger.erase(thread_id="t00", reason="request").threads == 0
        with pytest.warns(ArbiterWarning, match=r"subject 'user'. Did you mean 'user-.'. Nothing was erased"):
            assert ledger.erase(subject="user", reason="request").threads == 0
        assert ledger.erase(thread_id="t0", reason="request").threads == 1
        (ref,) = [str(thread["ref"]) for thread in ledger.threads() if thread["erased_at"]]
        assert ledger.erase(thread_id=ref, reason="once more").threads == 0
        assert ledger.verify()


def test_a_thread_without_an_id_is_erased_by_its_ref(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({"amount": 1})
        assert ledger.flush(60)
        (item,) = ledger.items()
        assert item.input_state
        erased = ledger.erase(thread_id=item.ref, reason="request")
        assert (erased.threads, erased.contents) == (1, 2)
        (item,) = ledger.items()
        assert not item.input_state
        assert ledger.verify()


@pytest.mark.parametrize("thread_id", [5, UUID(int=5)], ids=["number", "uuid"])
def test_a_thread_is_found_by_the_number_or_uuid_that_langgraph_was_given(
    tmp_path: Path, thread_id: Any
) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"))).invoke({"amount": 1}, thread(thread_id))
        assert ledger.flush(60)
        assert list(ledger.history(thread_id))
        assert ledger.verify(thread_id)
        (item,) = ledger.items(thread_id=thread_id)
        assert list(ledger.items(thread_id=thread_id, run=item.run))
        assert list(ledger.executions(thread_id=thread_id))
        assert next(iter(ledger.follow(thread_id)))
        assert list(ledger.records(thread_id=thread_id).threads())
        assert ledger.erase(thread_id=thread_id, reason="request").threads == 1


def test_waiting_for_ever_is_no_traceback(ledger: Ledger) -> None:
    assert ledger.flush(timeout=1e300)
    with pytest.raises(ConfigurationError, match=r"flush_every: expected a number from 0.001 to 3600"):
        Ledger("never.db", flush_every=1e300)


def test_numbers_beyond_what_a_database_holds_are_no_traceback(ledger: Ledger) -> None:
    after = f"{ledger.uuid[:4]}.{'9' * 30}"
    assert ledger.prune(1e300).contents == 0
    assert ledger.prune(10**9).threads == 0
    assert len(list(ledger.items(since="99999999999999w"))) == 6
    assert list(ledger.threads(since="9" * 40 + "d"))
    with pytest.raises(ConfigurationError, match="after: expected"):
        ledger.items().page(after=after)
    with pytest.raises(ConfigurationError, match="after: expected"):
        ledger.threads().page(after=f"{after}.{after}")
