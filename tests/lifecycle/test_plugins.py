"""Plugins: evaluators and providers that are registered in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from arbiter import ArbiterOS, Plugin, PolicyChecker, RegistrationError, ThresholdEvaluator, Verdict
from arbiter.memory import EvaluationCycle, FactsProvider, TimeProvider, TrustEvaluator


class Allows(PolicyChecker):
    def check_before(self, history: Any) -> Verdict:
        return Verdict.allow()


async def _later(config: Any, arbiter_os: Any) -> None:
    pass


def plugin(**parts: Any) -> Plugin:
    given: dict[str, Any] = {
        "name": "memory",
        "evaluators": [TrustEvaluator()],
        "providers": [TimeProvider()],
    }
    given.update(parts)
    return Plugin(**given)


def test_one_call_registers_all_parts() -> None:
    cycle = EvaluationCycle(store=InMemoryStore())
    arbiter_os = ArbiterOS()
    arbiter_os.use(plugin(cycle=cycle))
    assert [each.name for each in arbiter_os.evaluators] == ["TRUST"]
    assert arbiter_os.evaluation_cycle is cycle
    seen: list[str] = []

    def reply(state: MessagesState) -> dict[str, Any]:
        seen.extend(str(message.text) for message in state["messages"])
        return {"messages": [("ai", "Hi")]}

    app: Any = arbiter_os.govern(
        StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply").compile()
    )
    app.invoke({"messages": [("user", "Hello")]}, {"configurable": {"thread_id": "1", "user_id": "ada"}})
    assert "## Now" in seen[0]
    item = arbiter_os.history.last()
    assert item is not None
    assert "TRUST" in item.evaluation_results


def test_init_gets_the_config_and_may_register_the_same_evaluator_too() -> None:
    """As in a plugin whose init calls registerEvaluator(x), and which also lists x."""
    own = ThresholdEvaluator("quality", "score", 0.5)
    given: list[Mapping[str, Any]] = []

    def init(config: Mapping[str, Any], arbiter_os: ArbiterOS) -> None:
        given.append(config)
        arbiter_os.add_evaluator(own)

    arbiter_os = ArbiterOS()
    made = plugin(init=init, evaluators=[own], providers=[])
    arbiter_os.use(made, {"level": 3})
    arbiter_os.use(made)
    assert given == [{"level": 3}]
    assert list(arbiter_os.evaluators) == [own]


def test_a_plugin_that_cannot_be_registered_leaves_nothing_behind() -> None:
    def init(config: Mapping[str, Any], arbiter_os: ArbiterOS) -> None:
        arbiter_os.add_policy_checker(Allows("allows"))

    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(kept := FactsProvider())
    clash = plugin(init=init, providers=[TimeProvider(), FactsProvider()])
    with pytest.raises(RegistrationError, match="an advisor named 'facts' is registered already"):
        arbiter_os.use(clash)
    assert not arbiter_os.evaluators
    assert not arbiter_os.checkers
    arbiter_os.remove(kept)
    arbiter_os.use(clash)
    assert [each.name for each in arbiter_os.evaluators] == ["TRUST"]


def test_registering_the_same_object_twice_changes_nothing() -> None:
    provider, evaluator, checker = TimeProvider(), TrustEvaluator(), Allows("allows")
    arbiter_os = ArbiterOS()
    for _ in range(2):
        arbiter_os.add_advisor(provider)
        arbiter_os.add_evaluator(evaluator)
        arbiter_os.add_policy_checker(checker)
    assert list(arbiter_os.evaluators) == [evaluator]
    assert list(arbiter_os.checkers) == [checker]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (TrustEvaluator(), "expected an arbiter.Plugin"),
        (plugin(name=" "), "expected a non-empty text"),
        (plugin(init=_later), "has an async init"),
        (plugin(evaluators=[TimeProvider()]), "expected a NodeEvaluator"),
        (plugin(evaluators=[TrustEvaluator]), "make an object of it"),
    ],
)
def test_an_object_that_is_not_a_plugin_is_refused(wrong: Any, told: str) -> None:
    with pytest.raises(RegistrationError, match=told):
        ArbiterOS().use(wrong)


def test_two_plugins_of_one_name_are_refused() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.use(plugin())
    with pytest.raises(RegistrationError, match="a plugin named 'memory' is used already"):
        arbiter_os.use(plugin())
