"""The constitution: packs become rules, extend one another, are reloaded whole, and are shadowed."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from arbiter import (
    ArbiterOS,
    ArbiterWarning,
    ConfigurationError,
    PackError,
    Param,
    PolicyChecker,
    PolicyRouter,
    PolicyViolationError,
    RegistrationError,
    UnknownInstructionError,
    UnknownNodeError,
    Verdict,
)
from arbiter._constitution.loading import Constitution, load_constitution
from arbiter.errors import ParameterError
from arbiter.evaluators import JudgeEvaluator
from arbiter.instructions import GENERATE, TOOL_CALL, find_instruction
from arbiter.routers import EvaluationRouter
from tests.support import MODES, Check, Spy, chain, good, run, thread


def project(root: Path, **files: str) -> Path:
    """A project with these packs: `policies__a="..."` is `policies/a.yaml`. Headers are added."""
    for key, text in files.items():
        folder, _, name = key.partition("__")
        path = root / folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        body = textwrap.dedent(text).lstrip("\n")
        head = "" if body.startswith("version") else f"version: 1\nname: {name}\ndescription: A test.\n"
        path.write_text(head + body, encoding="utf-8")
    return root


NO_TOOLS = """
    checkers:
      - name: no_tools
        use: forbid_sequence
        bad_sequence: [TOOL_CALL]
"""
REFLECTING = """
    routers:
      - {name: low, use: evaluation_failed, evaluator: quality, target: reflect, target_nodes: [write]}
    evaluators:
      - {name: quality, use: threshold, key: score, threshold: 0.5}
"""


class Refuses(PolicyChecker):
    """A checker of a project's own, as a pack names it."""

    def __init__(
        self,
        name: str,
        limit: Annotated[int, Param("the most of an amount", tighter="lower")],
        *,
        words: list[str] | None = None,
        on_deny: str = "raise",
    ) -> None:
        super().__init__(name, on_deny=on_deny)
        if limit < 0:
            raise ParameterError(f"checker {name!r}", "limit", f"expected a number from 0, got {limit}")
        if limit == 13:
            raise ValueError("13 is no limit")
        self.limit = limit
        self.words = words

    def check_before(self, history: Any) -> Verdict:
        amount = history.entries[-1][-1].input_state.get("amount", 0)
        return Verdict.allow() if amount <= self.limit else Verdict.deny(f"{amount} is above {self.limit}")


class NeedsCode(PolicyChecker):
    """Cannot be given in YAML."""

    def __init__(self, name: str, function: type) -> None:
        super().__init__(name)

    def check_before(self, history: Any) -> bool:
        return True


OWN = "tests.constitution.test_constitution.Refuses"


# What it does -------------------------------------------------------------------------------------


@MODES
def test_a_project_is_governed_by_its_files(tmp_path: Path, mode: str) -> None:
    """Bindings, a checker, an evaluator and a router of three folders govern one graph."""
    project(
        tmp_path,
        instructions__nodes="""
            instructions:
              - {node: "pay*", instruction: TOOL_CALL}
              - {node: write, instruction: GENERATE}
        """,
        policies__rules="""
            checkers:
              - name: no_pay
                use: forbid_sequence
                bad_sequence: [GENERATE, TOOL_CALL]
            routers:
              - {name: low, use: evaluation_failed, evaluator: quality, target: reflect, target_nodes: [write]}
        """,
        evaluators__quality="""
            evaluators:
              - {name: quality, use: threshold, key: score, threshold: 0.5, target_instructions: [GENERATE]}
        """,
    )
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    write, pay, reflect = Spy("write", score=0.1), Spy("pay"), Spy("reflect")
    output = run(arbiter_os.govern(chain(write, pay, extra=[reflect])), {"log": []}, mode=mode)
    assert output["log"] == ["write", "reflect"]
    write.update["score"] = 0.9
    with pytest.raises(PolicyViolationError, match="no_pay"):
        run(arbiter_os.govern(chain(write, pay, extra=[reflect])), {"log": []}, mode=mode)
    assert not pay.calls
    assert arbiter_os.history.entries[0][0].instruction is GENERATE
    assert arbiter_os.history.entries[1][0].instruction is TOOL_CALL


def test_the_order_is_that_of_the_files(tmp_path: Path) -> None:
    """Files by name, rules as they stand in them; what is extended comes first."""
    rule = "checkers:\n  - {{name: {0}, use: forbid_sequence, bad_sequence: [GENERATE]}}\n"
    project(
        tmp_path,
        policies__a="extends: [z]\n" + rule.format("of_a"),
        policies__b=rule.format("of_b"),
        policies__z=rule.format("of_z"),
    )
    loaded = load_constitution(tmp_path)
    assert [checker.name for checker in loaded.checkers] == ["of_z", "of_a", "of_b"]
    assert loaded.packs == ("z", "a", "b")


def test_a_rule_knows_where_it_was_declared(tmp_path: Path) -> None:
    """The place has file and line, for reports."""
    project(
        tmp_path, policies__a="checkers:\n  - name: x\n    use: forbid_sequence\n    bad_sequence: [LOAD]\n"
    )
    (checker,) = load_constitution(tmp_path).checkers
    assert checker.source == "policies/a.yaml:5"


def test_a_single_file_is_a_constitution(tmp_path: Path) -> None:
    """For a shadow, or a script."""
    project(tmp_path, policies__a=NO_TOOLS)
    assert [c.name for c in load_constitution(tmp_path / "policies" / "a.yaml").checkers] == ["no_tools"]


def test_code_can_add_to_a_constitution(tmp_path: Path) -> None:
    """Contracts of both kinds hold, and a name that one kind has taken is taken for the other."""
    arbiter_os = ArbiterOS.from_constitution(project(tmp_path, policies__a=NO_TOOLS))
    with pytest.raises(RegistrationError, match="no_tools"):
        arbiter_os.add_policy_checker(Check("no_tools", good))
    arbiter_os.add_policy_checker(Check("mine", lambda _: False, target_nodes=["pay"]))
    with pytest.raises(PolicyViolationError, match="mine"):
        arbiter_os.govern(chain(Spy("pay"))).invoke({"log": []})


def test_domain_cores_are_declared_in_packs(tmp_path: Path) -> None:
    """Instructions of a project's own, for bindings and targets; the same declaration is the same core."""
    project(
        tmp_path,
        instructions__core="""
            instructions:
              - core: ClaimsCore
                members:
                  PAY_CLAIM: {meaning: Pays a claim., acts: true}
              - {node: pay, instruction: PAY_CLAIM}
        """,
        policies__rules="""
            checkers:
              - {name: never, use: forbid_sequence, bad_sequence: [ClaimsCore.PAY_CLAIM]}
        """,
    )
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    found = find_instruction("PAY_CLAIM")
    assert found.acts
    assert not found.unverified
    app = arbiter_os.govern(chain(Spy("pay")))
    with pytest.raises(PolicyViolationError, match="never"):
        app.invoke({"log": []})
    arbiter_os.load_constitution()
    assert find_instruction("PAY_CLAIM") is found
    with pytest.raises(PolicyViolationError, match="never"):
        app.invoke({"log": []})


def test_bindings_with_a_fingerprint_are_for_graphs_that_fit(tmp_path: Path) -> None:
    """`match` narrows a pack of bindings to the graphs that say so of themselves."""
    project(
        tmp_path,
        instructions__a="""
            match: [{metadata: {team: payments}}]
            instructions: [{node: pay, instruction: TOOL_CALL}]
        """,
    )
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    other, fitting = chain(Spy("pay")), chain(Spy("pay")).with_config(metadata={"team": "payments"})
    for graph, instruction in ((other, None), (fitting, TOOL_CALL)):
        arbiter_os.govern(graph).invoke({"log": []})
        assert arbiter_os.history.entries[0][0].instruction is instruction


# Classes of one's own -----------------------------------------------------------------------------


def test_a_class_under_an_allowed_prefix_can_be_named(tmp_path: Path) -> None:
    """Its constructor says which parameters it takes."""
    project(tmp_path, policies__a=f"checkers:\n  - {{name: small, use: {OWN}, limit: 10, words: [a]}}\n")
    arbiter_os = ArbiterOS.from_constitution(tmp_path, allow=["tests."])
    app = arbiter_os.govern(chain(Spy("pay")))
    assert app.invoke({"log": [], "amount": 10})["log"] == ["pay"]
    with pytest.raises(PolicyViolationError, match="11 is above 10"):
        app.invoke({"log": [], "amount": 11})


@pytest.mark.parametrize("allow", [(), ("test.",), ("tests.test_constitutio",), ("mycompany.",)])
def test_no_other_class_is_even_imported(tmp_path: Path, allow: tuple[str, ...]) -> None:
    """A prefix ends at a dot, and by default there is none."""
    project(tmp_path, policies__a=f"checkers:\n  - {{name: small, use: {OWN}, limit: 10}}\n")
    with pytest.raises(PackError, match="expected a class or function under an allowed prefix"):
        load_constitution(tmp_path, allow=allow)


@pytest.mark.parametrize("allow", ["tests.", ["."], [""]])
def test_a_prefix_that_would_allow_everything_is_refused(tmp_path: Path, allow: Any) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        load_constitution(project(tmp_path, policies__a=NO_TOOLS), allow=allow)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (f"{{name: x, use: {OWN}}}", "checkers[0].limit: expected a value, got nothing"),
        (f"{{name: x, use: {OWN}, limit: -1}}", "checkers[0].limit: expected a number from 0, got -1"),
        (f"{{name: x, use: {OWN}, limit: 13}}", "checkers[0]: Refuses could not be made: ValueError: 13"),
        (f"{{name: x, use: {OWN}, limit: 1, on_deny: explode}}", "checkers[0].on_deny: expected 'raise', "),
        (
            f"{{name: x, use: {OWN}, limit: 1, on_deny: end, mode: 'no'}}",
            "checkers[0].mode: expected 'enforce'",
        ),
        (
            "{name: x, use: tests.constitution.test_constitution.NeedsCode, function: a}",
            "'function' cannot be given in YAML",
        ),
        ("{name: x, use: tests.constitution.test_constitution.Nobody}", "has no class or function 'Nobody'"),
        ("{name: x, use: tests.nowhere.Nobody}", "ModuleNotFoundError"),
        ("{name: x, use: tests.support.Spy}", "expected a subclass of PolicyChecker"),
    ],
)
def test_a_wrong_class_is_reported_at_its_entry(tmp_path: Path, entry: str, message: str) -> None:
    project(tmp_path, policies__a=f"checkers:\n  - {entry}\n")
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path, allow=["tests."])
    assert message in str(caught.value)
    assert str(caught.value).startswith("policies/a.yaml:5: checkers[0]")


# Extending ----------------------------------------------------------------------------------------

BASE = f"""
    checkers:
      - {{name: small, use: {OWN}, limit: 10}}
"""


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ("{name: small, limit: 5}", 5),
        (f"{{name: small, use: {OWN}, limit: 5}}", 5),
        ("{name: small, limit: 50, override: true}", 50),
        ("{name: small, description: Same.}", 10),
        ("{name: small, on_deny: raise}", 10),
    ],
)
def test_a_rule_may_be_tightened_and_with_override_loosened(tmp_path: Path, change: str, limit: int) -> None:
    project(tmp_path, policies__base=BASE, policies__mine=f"extends: [base]\ncheckers:\n  - {change}\n")
    (checker,) = load_constitution(tmp_path, allow=["tests."]).checkers
    assert isinstance(checker, Refuses)
    assert checker.limit == limit
    assert checker.source.startswith("policies/mine.yaml")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("{name: small, limit: 50}", "checkers[0].limit: expected at most 10, got 50"),
        ("{name: small, mode: audit}", "checkers[0].mode: expected 'enforce', got 'audit'"),
        ("{name: small, mode: 'off'}", "checkers[0].mode: expected 'enforce', got 'off'"),
        ("{name: small, on_deny: audit}", "checkers[0].on_deny: expected 'raise', got 'audit'"),
        ("{name: small, on_deny: end}", "checkers[0].on_deny: expected 'raise', got 'end'"),
        ("{name: small, on_deny: 'redirect:pay'}", "checkers[0].on_deny: expected 'raise'"),
        ("{name: small, words: [x]}", "checkers[0].words: expected None, got ['x']"),
        ("{name: small, use: forbid_sequence, bad_sequence: [LOAD]}", "checkers[0].use: expected"),
    ],
)
def test_loosening_needs_override(tmp_path: Path, change: str, where: str) -> None:
    """A change that is not known to be tighter is refused, with the place of the rule that it would
    change."""
    project(tmp_path, policies__base=BASE, policies__mine=f"extends: [base]\ncheckers:\n  - {change}\n")
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path, allow=["tests."])
    assert where in str(caught.value)
    assert "it changes the rule at policies/base.yaml:5" in str(caught.value)
    assert "override: true" in str(caught.value)


TOOLS = "use: tools, allow: ['*'], deny: [rm]"
BOUND = "use: require_before, required: VERIFY, target_nodes: [pay]"
PER_MINUTE = "use: rate_limit, calls: 5, per_seconds: 60"
LOW = "use: metric_below, key: s, threshold: 0.5, target: reflect, on_cap: end"
DENIED = "use: tools, deny: [{{tool: t, arguments: {{a: {{equals: {0}}}}}}}]"
QUICK = "use: latency, at_most: 3"


@pytest.mark.parametrize(
    ("section", "base", "change", "parameter"),
    [
        ("checkers", TOOLS, "deny: null", "deny"),
        ("checkers", TOOLS, "use: tools, allow: ['*']", "deny"),
        ("checkers", f"{BOUND}, bound_to: [amount]", "bound_to: null", "bound_to"),
        ("checkers", f"{BOUND}, bound_to: [amount]", BOUND, "bound_to"),
        ("checkers", PER_MINUTE, "burst: 6", "burst"),
        ("checkers", f"{PER_MINUTE}, burst: 2", PER_MINUTE, "burst"),
        ("checkers", DENIED.format("1"), DENIED.format("true"), "deny"),
        (
            "checkers",
            DENIED.format("1").replace("deny", "allow"),
            "allow: [{tool: t, arguments: {a: {one_of: [1, 2]}}}]",
            "allow",
        ),
        ("checkers", "use: at_most, times: 1, on_deny: 'redirect:a'", "on_deny: 'redirect:b'", "on_deny"),
        ("checkers", "use: at_most, times: 1, on_deny: end", "on_deny: 'redirect:b'", "on_deny"),
        ("routers", "use: escalate", "max_redirects: 0", "max_redirects"),
        ("routers", "use: escalate", "on_cap: continue", "on_cap"),
        ("routers", "use: escalate", "on_reject: end", "on_reject"),
        ("routers", LOW, "max_redirects: 2", "max_redirects"),
        ("routers", LOW, LOW.replace("end", "continue"), "on_cap"),
        ("routers", f"{LOW}, best_by: q", "best_by: r", "best_by"),
        ("routers", "use: on_error, target: a, target_nodes: [b]", "target_nodes: [b, c]", "target_nodes"),
        ("evaluators", QUICK, "deadline: 0.001", "deadline"),
        ("evaluators", f"{QUICK}, durable: true", "durable: false", "durable"),
    ],
)
def test_no_way_of_loosening_goes_unsaid(
    tmp_path: Path, section: str, base: str, change: str, parameter: str
) -> None:
    """Left out, null, a default, another type, another place to go: none is known to be tighter."""

    def mine(entry: str) -> None:
        project(tmp_path, policies__mine=f"extends: [base]\n{section}:\n  - {{name: r, {entry}}}\n")

    project(tmp_path, policies__base=f"{section}:\n  - {{name: r, {base}}}\n")
    mine(change)
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert f"{section}[0].{parameter}: expected" in str(caught.value)
    assert "override: true" in str(caught.value)
    mine(f"{change}, override: true")
    load_constitution(tmp_path)


@pytest.mark.parametrize(
    ("base", "change"),
    [
        (TOOLS, "deny: [rm, mv]"),
        (TOOLS, "allow: []"),
        (BOUND, "bound_to: [amount], once_per_use: true, target_nodes: null"),
        (PER_MINUTE, "calls: 3"),
        (PER_MINUTE, "burst: 5"),
        (PER_MINUTE, "burst: 2, per_seconds: 61.5"),
        ("use: at_most, times: 1, on_deny: 'redirect:a'", "on_deny: raise"),
        ("use: at_most, times: 1, on_deny: audit", "on_deny: end"),
        ("use: approval", "reason: Look., approvers: [anna]"),
    ],
)
def test_a_tighter_change_needs_no_override(tmp_path: Path, base: str, change: str) -> None:
    project(
        tmp_path,
        policies__base=f"checkers:\n  - {{name: r, {base}}}\n",
        policies__mine=f"extends: [base]\ncheckers:\n  - {{name: r, {change}}}\n",
    )
    (checker,) = load_constitution(tmp_path).checkers
    assert checker.source.startswith("policies/mine")


def test_narrower_targets_are_looser(tmp_path: Path) -> None:
    project(
        tmp_path,
        policies__base=NO_TOOLS,
        policies__mine="extends: [base]\ncheckers:\n  - {name: no_tools, target_nodes: [pay]}\n",
    )
    with pytest.raises(PackError, match="target_nodes"):
        load_constitution(tmp_path)


def test_a_pack_in_audit_mode_audits_its_own_rules(tmp_path: Path) -> None:
    """Those of the packs that it extends go on as they were."""
    project(
        tmp_path,
        policies__base=NO_TOOLS,
        policies__mine="extends: [base]\nmode: audit\n"
        + NO_TOOLS.replace("no_tools", "x").replace("\n    ", "\n"),
    )
    modes = {checker.name: checker.mode for checker in load_constitution(tmp_path).checkers}
    assert modes == {"no_tools": "enforce", "x": "audit"}


@pytest.mark.parametrize(("mode", "expected"), [("mode: enforce\n", "enforce"), ("", "audit")])
def test_the_mode_of_a_pack_holds_for_the_rules_that_it_changes(
    tmp_path: Path, mode: str, expected: str
) -> None:
    """A pack that says to enforce its rules enforces them; one that says nothing keeps their mode."""
    project(
        tmp_path,
        policies__base="mode: audit\n" + BASE_TIMES,
        policies__mine=f"extends: [base]\n{mode}checkers:\n  - {{name: x, times: 2}}\n",
    )
    (checker,) = load_constitution(tmp_path).checkers
    assert checker.mode == expected


BASE_TIMES = "checkers:\n  - {name: x, use: at_most, times: 3}\n"


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (
            "mode: audit\nextends: [base]\ncheckers:\n  - {name: x, times: 2}\n",
            "policies/mine.yaml:7: checkers[0].mode: expected 'enforce', got 'audit'",
        ),
        (
            "extends: [base]\ncheckers:\n  - {name: x, tims: 2}\n",
            "policies/mine.yaml:6: checkers[0].tims: expected one of",
        ),
        (
            "extends: [base]\ncheckers:\n  - {name: x, times: '2'}\n",
            "policies/mine.yaml:6: checkers[0].times: expected a whole number, got '2'. Write 2",
        ),
    ],
)
def test_a_mistake_in_a_change_of_a_rule_is_named_itself(tmp_path: Path, mine: str, said: str) -> None:
    """At its own line, and not as a rule that became looser."""
    base = BASE_TIMES.replace("times", "mode: enforce, times")
    project(tmp_path, policies__base=base, policies__mine=mine)
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(said)
    assert ("override" in line.partition("got")[2]) == ("mode" in said)


@pytest.mark.parametrize(
    ("base", "change", "said"),
    [
        (
            "mode: 'of', times: 3",
            "times: 2",
            ["policies/base.yaml:5: checkers[0].mode: expected 'enforce', "],
        ),
        (
            "target_instructions: GENERAT, times: 3",
            "target_instructions: GENERATE, times: 9",
            [
                "policies/mine.yaml:6: checkers[0].target_instructions: expected all of ['GENERAT'], got ['GENERATE']",
                "policies/mine.yaml:6: checkers[0].times: expected at most 3, got 9",
            ],
        ),
    ],
)
def test_a_mistake_in_a_rule_is_reported_although_another_pack_changes_it(
    tmp_path: Path, base: str, change: str, said: list[str]
) -> None:
    project(
        tmp_path,
        policies__base=f"checkers:\n  - {{name: x, use: at_most, {base}}}\n",
        policies__mine=f"extends: [base]\ncheckers:\n  - {{name: x, {change}}}\n",
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("use: require_before, required: VERIFY", "required: NormativeCore.VERIFY"),
        ("use: never_after, after: LOAD", "after: MemoryCore.LOAD"),
        ("use: forbid_sequence, bad_sequence: [MemoryCore.LOAD, GENERATE]", "bad_sequence: [LOAD, GENERATE]"),
        (
            "use: flow, labels: {u: {input_keys: [x]}}, forbid: {u: [TOOL_CALL]}",
            "forbid: {u: [ExecutionCore.TOOL_CALL]}",
        ),
    ],
)
def test_a_step_may_be_named_with_its_core_where_a_pack_is_extended(
    tmp_path: Path, rule: str, change: str
) -> None:
    project(
        tmp_path,
        policies__base=f"checkers: [{{name: x, {rule}}}]\n",
        policies__mine=f"extends: [base]\ncheckers: [{{name: x, {change}}}]\n",
    )
    assert [checker.name for checker in load_constitution(tmp_path).checkers] == ["x"]


def test_an_instruction_may_be_named_with_its_core_where_a_pack_is_extended(tmp_path: Path) -> None:
    project(
        tmp_path,
        policies__base=BASE_TIMES.replace("times", "target_instructions: GENERATE, times"),
        policies__mine="extends: [base]\ncheckers:\n"
        "  - {name: x, target_instructions: [CognitiveCore.GENERATE, TOOL_CALL]}\n",
    )
    (checker,) = load_constitution(tmp_path).checkers
    assert checker.target_instructions == (GENERATE, TOOL_CALL)


def test_the_same_name_in_packs_that_do_not_extend_one_another_is_a_mistake(tmp_path: Path) -> None:
    project(tmp_path, policies__a=NO_TOOLS, policies__b=NO_TOOLS)
    with pytest.raises(PackError, match=r"policies/b.yaml:5: .* which the rule at policies/a.yaml:5 has"):
        load_constitution(tmp_path)


def test_a_circle_of_packs_is_named(tmp_path: Path) -> None:
    project(
        tmp_path, policies__a="extends: [b]\n", policies__b="extends: [c]\n", policies__c="extends: [a]\n"
    )
    with pytest.raises(PackError, match="circle: a → b → c → a"):
        load_constitution(tmp_path)


def test_a_reference_to_a_broken_pack_is_not_a_mistake(tmp_path: Path) -> None:
    """One mistake is reported once."""
    project(
        tmp_path,
        policies__base="checkers: 3\n",
        policies__mine="extends: [base]\ncheckers:\n  - {name: x, use: forbid_sequence, bad_sequence: [LOAD]}\n",
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert len(caught.value.mistakes) == 1


# All or nothing -----------------------------------------------------------------------------------


def test_all_mistakes_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    project(
        tmp_path,
        instructions__i="instructions:\n  - {node: a, instruction: GENERAT}\n  - {nod: a}\n",
        policies__p="checkers:\n  - {name: x, use: forbid_sequenc}\n  - {use: forbid_sequence, bad_sequence: 1}\n",
        evaluators__e="evaluators:\n  - {name: q, use: threshold, key: 3}\n",
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    files = [mistake.file for mistake in caught.value.mistakes]
    assert files == sorted(files, key=["instructions/i.yaml", "policies/p.yaml", "evaluators/e.yaml"].index)
    assert len(files) == 9
    assert "Did you mean 'forbid_sequence'?" in str(caught.value)
    assert "Did you mean 'GENERATE'?" in str(caught.value)


def test_a_failed_constitution_leaves_no_trace(tmp_path: Path) -> None:
    """Not even a domain core."""
    project(
        tmp_path,
        instructions__core="instructions:\n  - {core: LostCore, members: {LOSE_IT: {meaning: Nothing.}}}\n",
        policies__rules="checkers:\n  - {name: x, use: nonsense}\n",
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert caught.tb  # which holds all that there was
    with pytest.raises(UnknownInstructionError):
        find_instruction("LOSE_IT")


@pytest.mark.parametrize("source", ["", "nowhere", "arbiter:kernl"])
def test_a_missing_constitution_is_an_error(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"constitution|no pack"):
        load_constitution(source)


def test_the_text_of_a_pack_in_the_place_of_its_path_is_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"'version: 1\\nname: a.*Give the path of a folder or of a"):
        ArbiterOS.from_constitution("version: 1\nname: a\n" + "# a rule\n" * 40)


@pytest.mark.parametrize("source", [5, b"policies"])
def test_a_source_that_is_not_a_path_is_reported(source: Any) -> None:
    with pytest.raises(ConfigurationError, match="Give its path"):
        ArbiterOS.from_constitution(source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            (", threshold: 0.5}", ", threshold: 0.5, mode: 'off'}"),
            "reads evaluator 'quality', whose mode is 'off'",
        ),
        (("{name: quality, use", "{name: qualty, use"), "Did you mean 'qualty'"),
        (
            (
                "evaluators:",
                "evaluators:\n  - {name: all, use: weighted, weights: {quality: 1, cofidence: 1}}",
            ),
            "evaluator 'all' reads evaluator 'cofidence', which is not registered",
        ),
        (("target: reflect", "target: reflct"), "redirects to 'reflct', which is not a node of this graph"),
    ],
)
def test_a_rule_that_does_not_fit_the_others_or_the_graph_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    project(tmp_path, policies__a=textwrap.dedent(REFLECTING).replace(*change))
    with pytest.raises(ConfigurationError) as caught:
        ArbiterOS.from_constitution(tmp_path).govern(chain(Spy("write"), extra=[Spy("reflect")]))
    assert message in str(caught.value)
    assert str(caught.value).startswith("policies/a.yaml:")


# Reloading ----------------------------------------------------------------------------------------


def test_a_reload_that_fails_keeps_the_old_one_in_force(tmp_path: Path) -> None:
    project(tmp_path, policies__a=BASE)
    arbiter_os = ArbiterOS.from_constitution(tmp_path, allow=["tests."])
    app = arbiter_os.govern(chain(Spy("pay")))
    project(tmp_path, policies__a="checkers:\n  - {name: small, use: nonsense}\n")
    with pytest.raises(PackError):
        arbiter_os.load_constitution()
    with pytest.raises(PolicyViolationError, match="above 10"):
        app.invoke({"log": [], "amount": 11})


def test_a_reload_that_does_not_fit_a_governed_graph_changes_nothing(tmp_path: Path) -> None:
    arbiter_os = ArbiterOS.from_constitution(project(tmp_path, policies__a=NO_TOOLS))
    app = arbiter_os.govern(chain(Spy("write")))
    project(tmp_path, policies__a=REFLECTING)
    with pytest.raises(UnknownNodeError, match="reflect"):
        arbiter_os.load_constitution()
    assert app.invoke({"log": []})["log"] == ["write"]
    assert [c.name for c in arbiter_os.constitution.contracts] == ["no_tools"]  # type: ignore[union-attr]


CORE = """
    instructions:
      - {{core: {0}, members: {{{1}: {{meaning: {2}, acts: {3}}}}}}}
      - {{node: pay, instruction: {1}}}
    checkers:
      - {{name: never, use: at_most, times: 0, target_instructions: [{1}]}}
"""


def test_a_reload_that_fails_leaves_no_core_and_no_meaning(tmp_path: Path) -> None:
    """It is the graph that refuses, after all files were read."""
    project(tmp_path, policies__a=CORE.format("FailCore", "FAIL_IT", "Before.", "true"))
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    app = arbiter_os.govern(chain(Spy("pay")))
    project(
        tmp_path,
        policies__a=CORE.format("FailCore", "FAIL_IT", "After.", "true"),
        policies__b="instructions:\n  - {core: GoneCore, members: {GONE_IT: {meaning: Nothing.}}}\n"
        "checkers:\n  - {name: x, use: at_most, times: 1, on_deny: 'redirect:nope'}\n",
    )
    with pytest.raises(UnknownNodeError, match="nope") as caught:
        arbiter_os.load_constitution()
    assert caught.tb
    with pytest.raises(UnknownInstructionError):
        find_instruction("GONE_IT")
    assert find_instruction("FAIL_IT").meaning == "Before."
    with pytest.raises(PolicyViolationError, match="never"):
        app.invoke({"log": []})


def test_a_core_whose_meanings_changed_is_the_same(tmp_path: Path) -> None:
    """Graphs governed before and after the reload are held by the same rules."""
    project(tmp_path, policies__a=CORE.format("SameCore", "SAME_IT", "Before.", "true"))
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    before, rule = arbiter_os.govern(chain(Spy("pay"))), arbiter_os.constitution.checkers[0]  # type: ignore[union-attr]
    project(tmp_path, policies__a=CORE.format("SameCore", "SAME_IT", "After.", "true"))
    assert arbiter_os.load_constitution().checkers[0] is rule
    assert find_instruction("SAME_IT").meaning == "After."
    for app in (before, arbiter_os.govern(chain(Spy("pay")))):
        with pytest.raises(PolicyViolationError, match="never"):
            app.invoke({"log": []})


@pytest.mark.parametrize("use", ["graph", "label", "function", "checker"])
@pytest.mark.parametrize("load", ["reload", "shadow"])
def test_a_core_in_use_keeps_its_members(tmp_path: Path, use: str, load: str) -> None:
    """Graphs that use the old members would match no rule that names the new ones."""
    project(tmp_path, policies__a=CORE.format("UsedCore", "USE_IT", "Same.", "true"))
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    old = find_instruction("USE_IT")
    held: Any = None  # as long as somebody has it
    match use:
        case "graph":
            held = arbiter_os.govern(chain(Spy("pay")))
        case "label":
            arbiter_os.instruction("USE_IT")(good)
        case "function":
            arbiter_os.govern(good, instruction="USE_IT")
        case _:
            arbiter_os.add_policy_checker(Check("mine", good, target_instructions=[old]))
    project(tmp_path, policies__a=CORE.format("UsedCore", "USE_IT", "Same.", "false"))
    with pytest.raises(PackError, match=r"a\.yaml:5: .*expected the members of UsedCore") as caught:
        arbiter_os.load_constitution() if load == "reload" else arbiter_os.load_shadow(tmp_path)
    assert "another name" in str(caught.value)
    assert find_instruction("USE_IT") is old
    with pytest.raises(PolicyViolationError, match="never"):
        arbiter_os.govern(chain(Spy("pay"))).invoke({"log": []})
    del held


def test_a_core_that_nothing_uses_may_change_and_its_rules_are_made_anew(tmp_path: Path) -> None:
    project(tmp_path, policies__a=CORE.format("FreeCore", "FREE_IT", "Same.", "true"))
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    old = find_instruction("FREE_IT")
    project(tmp_path, policies__a=CORE.format("FreeCore", "FREE_IT", "Same.", "false"))
    with pytest.raises(PackError, match="expected the members of FreeCore"):
        arbiter_os.load_shadow(tmp_path)  # beside rules that go by it
    arbiter_os.load_constitution()
    assert find_instruction("FREE_IT") is not old
    with pytest.raises(PolicyViolationError, match="never"):
        arbiter_os.govern(chain(Spy("pay"))).invoke({"log": []})


def test_a_reload_may_bring_an_evaluator_with_the_router_that_reads_it(tmp_path: Path) -> None:
    """New rules are checked together, also on graphs that are governed."""
    arbiter_os = ArbiterOS.from_constitution(project(tmp_path, policies__a=NO_TOOLS))
    app = arbiter_os.govern(chain(Spy("write", score=0.1), extra=[Spy("reflect")]))
    project(tmp_path, policies__a=REFLECTING)
    arbiter_os.load_constitution()
    assert app.invoke({"log": []})["log"] == ["write", "reflect"]


def test_a_reload_that_takes_away_what_a_router_of_the_code_reads_changes_nothing(tmp_path: Path) -> None:
    quality = "evaluators:\n  - {name: quality, use: threshold, key: score, threshold: 0.5}\n"
    arbiter_os = ArbiterOS.from_constitution(project(tmp_path, policies__a=quality))
    arbiter_os.add_policy_router(EvaluationRouter("low", "quality", "reflect", target_nodes=["write"]))
    app = arbiter_os.govern(chain(Spy("write", score=0.1), extra=[Spy("reflect")]))
    project(tmp_path, policies__a=NO_TOOLS)
    with pytest.raises(ConfigurationError, match="router 'low' reads evaluator 'quality'"):
        arbiter_os.load_constitution()
    assert app.invoke({"log": []})["log"] == ["write", "reflect"]


def test_a_reload_that_takes_a_name_of_the_code_changes_nothing(tmp_path: Path) -> None:
    arbiter_os = ArbiterOS.from_constitution(project(tmp_path, policies__a=BASE), allow=["tests."])
    arbiter_os.add_policy_checker(Check("mine", good))
    project(tmp_path, policies__b=f"checkers:\n  - {{name: mine, use: {OWN}, limit: 10}}\n")
    with pytest.raises(RegistrationError, match="mine"):
        arbiter_os.load_constitution()
    with pytest.raises(PolicyViolationError, match="small"):
        arbiter_os.govern(chain(Spy("pay"))).invoke({"log": [], "amount": 11})


def test_a_reload_holds_for_graphs_that_are_governed_and_keeps_what_did_not_change(tmp_path: Path) -> None:
    project(tmp_path, policies__a=BASE, policies__b=NO_TOOLS)
    arbiter_os = ArbiterOS.from_constitution(tmp_path, allow=["tests."])
    app = arbiter_os.govern(chain(Spy("pay")))
    before = arbiter_os.constitution
    project(tmp_path, policies__a=BASE.replace("10", "5"))
    arbiter_os.load_constitution()
    after = arbiter_os.constitution
    assert before is not None
    assert after is not None
    assert after.checkers[1] is before.checkers[1]
    assert after.checkers[0] is not before.checkers[0]
    with pytest.raises(PolicyViolationError, match="6 is above 5"):
        app.invoke({"log": [], "amount": 6})


@pytest.mark.parametrize(
    "by", [", description: Once.", ", mode: audit", "}\n  - {name: y, use: at_most, times: 9"]
)
def test_counts_of_a_rule_outlive_changes_that_decide_nothing(tmp_path: Path, by: str) -> None:
    """Its words, its place and its mode are no reason to begin anew."""
    once = "checkers:\n{0}  - {{name: b, use: budget, calls: 1, per: process, target_nodes: [pay]{1}}}\n"
    project(tmp_path, policies__a=once.format("", ""))
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    app = arbiter_os.govern(chain(Spy("pay")))
    app.invoke({"log": []})
    project(tmp_path, policies__a=once.format("  # moved\n", by))
    (checker, *_) = arbiter_os.load_constitution().checkers
    assert (checker.source, checker.description, checker.mode) == (
        "policies/a.yaml:6",
        "Once." if "Once" in by else "",
        "audit" if "audit" in by else "enforce",
    )
    if checker.mode == "audit":
        assert app.invoke({"log": []})["log"] == ["pay"]
        project(tmp_path, policies__a=once.format("", ""))
        arbiter_os.load_constitution()
    with pytest.raises(PolicyViolationError, match="are used"):
        app.invoke({"log": []})


def test_a_reload_with_another_model_asks_that_model(tmp_path: Path) -> None:
    """Rules that name another model, or none, stay the objects that they were, with their counts."""
    judged = "{{name: {0}, use: judge, rubric: It is good., model: {0}}}"
    project(
        tmp_path,
        evaluators__a=f"evaluators: [{judged.format('one')}, {judged.format('two')}]\n",
        policies__b=BASE_TIMES.replace("times", "target_nodes: one, times"),
    )
    first, second, other = (FakeListChatModel(responses=["{}"]) for _ in range(3))
    arbiter_os = ArbiterOS.from_constitution(tmp_path, models={"one": first, "two": other})
    before, checkers = arbiter_os.evaluators, arbiter_os.checkers
    arbiter_os.load_constitution(tmp_path, models={"one": second, "two": other})
    one, two = arbiter_os.evaluators
    assert isinstance(one, JudgeEvaluator)
    assert one.model is second
    assert two is before[1]
    arbiter_os.load_constitution()  # reads the same again
    assert arbiter_os.evaluators == (one, two)
    assert arbiter_os.checkers == checkers
    arbiter_os.load_constitution(models={"one": first, "two": other})  # so does this, with other models
    one = arbiter_os.evaluators[0]
    assert isinstance(one, JudgeEvaluator)
    assert one.model is first


def test_a_reload_with_another_text_for_a_model_asks_that_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {name: FakeListChatModel(responses=["{}"]) for name in ("maker:old", "maker:new")}

    def init_chat_model(name: str, **_: Any) -> FakeListChatModel:
        return made[name]

    monkeypatch.setattr("langchain.chat_models.init_chat_model", init_chat_model)
    project(
        tmp_path, evaluators__a="evaluators: [{name: j, use: judge, rubric: It is good., model: judge}]\n"
    )
    arbiter_os = ArbiterOS.from_constitution(tmp_path, models={"judge": "maker:old"})
    (before,) = arbiter_os.evaluators
    assert arbiter_os.load_constitution().evaluators == (before,)
    (judge,) = arbiter_os.load_constitution(models={"judge": "maker:new"}).evaluators
    assert isinstance(judge, JudgeEvaluator)
    assert judge.model is made["maker:new"]


def test_a_reload_that_fails_changes_no_mode(tmp_path: Path) -> None:
    project(tmp_path, policies__a=NO_TOOLS)
    arbiter_os = ArbiterOS.from_constitution(tmp_path)
    app = arbiter_os.govern(chain(Spy("pay")), {"pay": TOOL_CALL})
    far = "checkers:\n  - {name: far, use: at_most, times: 1, on_deny: 'redirect:nope'}\n"
    project(tmp_path, policies__a="mode: audit\n" + textwrap.dedent(NO_TOOLS), policies__b=far)
    with pytest.raises(UnknownNodeError):
        arbiter_os.load_constitution()
    with pytest.raises(PolicyViolationError, match="no_tools"):
        app.invoke({"log": []})


@MODES
def test_a_policy_that_changed_while_a_run_was_paused_is_applied_on_resume(tmp_path: Path, mode: str) -> None:
    """The human has approved, and the action is checked again all the same."""
    project(tmp_path, policies__a=BASE)
    arbiter_os = ArbiterOS.from_constitution(tmp_path, allow=["tests."])
    arbiter_os.add_policy_checker(Check("human", lambda _: Verdict.ask("May it?")))
    pay = Spy("pay")
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    assert "__interrupt__" in run(app, {"log": [], "amount": 7}, thread("t"), mode=mode)
    project(tmp_path, policies__a=BASE.replace("10", "5"))
    arbiter_os.load_constitution()
    with pytest.raises(PolicyViolationError, match="7 is above 5"):
        run(app, Command(resume="approve"), thread("t"), mode=mode)
    assert not pay.calls


# Shadow -------------------------------------------------------------------------------------------


@MODES
def test_a_shadow_changes_nothing_and_reports_each_difference(tmp_path: Path, mode: str) -> None:
    enforced = project(tmp_path / "now", policies__a=BASE)
    project(
        tmp_path / "next",
        policies__a=BASE.replace("10", "5"),
        policies__b="routers:\n  - {name: low, use: metric_below, key: score, threshold: 0.5, target: reflect}\n",
    )
    arbiter_os = ArbiterOS.from_constitution(enforced, allow=["tests."], shadow=tmp_path / "next")
    app = arbiter_os.govern(chain(Spy("write", score=0.1), Spy("pay", score=0.9), extra=[Spy("reflect")]))
    assert run(app, {"log": [], "amount": 7}, mode=mode)["log"] == ["write", "pay"]
    assert run(app, {"log": [], "amount": 3}, mode=mode)["log"] == ["write", "pay"]
    report = arbiter_os.shadow_report()
    assert [(d.stage, d.node, str(d.enforced), str(d.shadow)) for d in report] == [
        ("check", "write", "allow", "deny by small"),
        ("route", "write", "continue", "redirect → reflect by low"),
        ("check", "pay", "allow", "deny by small"),
        ("route", "write", "continue", "redirect → reflect by low"),
    ]
    assert report.compared == 8
    assert "7 is above 5" in report[0].shadow.reason
    json.dumps(report.to_dicts())
    with pytest.raises(PolicyViolationError, match="11 is above 10"):
        run(app, {"log": [], "amount": 11}, mode=mode)
    assert len(arbiter_os.shadow_report()) == 4  # there both deny


@MODES
@pytest.mark.parametrize("answer", ["raise", "ask", "nonsense", "interrupt"])
def test_a_shadow_rule_that_misbehaves_is_only_reported(
    tmp_path: Path, mode: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project(
        tmp_path,
        policies__a=f"checkers:\n  - {{name: bad, use: tests.constitution.test_constitution.Bad, answer: {answer}}}\n",
    )
    arbiter_os = ArbiterOS()
    arbiter_os.load_shadow(tmp_path, allow=["tests."])
    app = arbiter_os.govern(chain(Spy("pay"), checkpointer=InMemorySaver()))
    assert run(app, {"log": []}, thread("t"), mode=mode) == {"log": ["pay"]}
    (difference,) = arbiter_os.shadow_report()
    assert difference.shadow.kind == ("ask" if answer in ("ask", "interrupt") else "deny")
    assert difference.thread_id == "t"
    arbiter_os.shadow_report().pprint()
    assert "1 of" in capsys.readouterr().out
    arbiter_os.load_shadow(None)
    assert len(arbiter_os.shadow_report()) == 0


class Bad(PolicyChecker):
    """Misbehaves in the way that the test sets."""

    def __init__(self, name: str, answer: str) -> None:
        super().__init__(name)
        self.how = answer

    def check_before(self, history: Any) -> Any:
        from langgraph.types import interrupt

        match self.how:
            case "raise":
                raise ValueError("bad")
            case "ask":
                return Verdict.ask("May it?")
            case "interrupt":
                return interrupt("May it?")
            case _:
                return "nonsense"


class Far(PolicyRouter):
    """Goes to a node that is not there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)

    def route_after(self, history: Any, current_output: Any) -> str:
        return "nowhere"


def test_a_shadow_router_to_nowhere_would_not_redirect(tmp_path: Path) -> None:
    project(
        tmp_path, policies__a="routers:\n  - {name: far, use: tests.constitution.test_constitution.Far}\n"
    )
    arbiter_os = ArbiterOS()
    arbiter_os.load_shadow(tmp_path, allow=["tests."])
    arbiter_os.govern(chain(Spy("pay"))).invoke({"log": []})
    assert not list(arbiter_os.shadow_report())


def test_a_constitution_is_data(tmp_path: Path) -> None:
    """Loading registers nothing; the same file loads twice."""
    project(tmp_path, policies__a=NO_TOOLS)
    first, second = load_constitution(tmp_path), load_constitution(tmp_path)
    assert isinstance(first, Constitution)
    assert first.declared == second.declared


@MODES
def test_a_shadow_looks_at_outputs_too(tmp_path: Path, mode: str) -> None:
    """A schema that the next constitution will demand refuses nothing yet."""
    project(
        tmp_path,
        policies__a="""
            checkers:
              - name: scored
                use: schema
                output: {required: [score]}
                target_nodes: [write, pay]
        """,
    )
    arbiter_os = ArbiterOS()
    arbiter_os.load_shadow(tmp_path)
    app = arbiter_os.govern(chain(Spy("write", score=0.5), Spy("pay")))
    assert run(app, {"log": []}, mode=mode)["log"] == ["write", "pay"]
    assert [(d.node, d.enforced.kind, d.shadow.kind) for d in arbiter_os.shadow_report()] == [
        ("pay", "allow", "deny")
    ]


STOPPING = """
    checkers:
      - name: no_removing
        use: tools
        deny: [remove]
    routers:
      - name: to_pay
        use: on_error
        target: pay
        target_nodes: [write]
"""


@tool
def remove(path: str) -> str:
    """Remove a file."""
    return path


@MODES
@pytest.mark.parametrize("also_in_force", [False, True])
def test_a_shadow_reports_what_it_would_stop_in_a_body(
    tmp_path: Path, also_in_force: bool, mode: str
) -> None:
    """Where the rules in force stop the same, nothing differs."""
    project(tmp_path, policies__a=STOPPING)

    def pay(state: Any) -> Any:
        with contextlib.suppress(PolicyViolationError):
            remove.invoke({"path": "x"})
        return {"log": ["pay"]}

    arbiter_os = ArbiterOS()
    if also_in_force:
        arbiter_os.load_constitution(tmp_path)
    arbiter_os.load_shadow(tmp_path)
    app = arbiter_os.govern(chain(Spy("write"), pay))
    assert run(app, {"log": []}, mode=mode)["log"] == ["write", "pay"]
    found = [(d.stage, d.node, d.enforced.kind, str(d.shadow)) for d in arbiter_os.shadow_report()]
    assert found == ([] if also_in_force else [("check", "pay", "allow", "deny by no_removing")])
    if not also_in_force:
        assert arbiter_os.shadow_report()[0].shadow.reason == "stops in the body: remove"


@MODES
@pytest.mark.parametrize("also_in_force", [False, True])
def test_a_shadow_reports_where_it_would_go_after_an_error(
    tmp_path: Path, also_in_force: bool, mode: str
) -> None:
    """Where the rules in force go there too, nothing differs."""
    project(tmp_path, policies__a=STOPPING)

    def write(state: Any) -> Any:
        raise ValueError("broken")

    arbiter_os = ArbiterOS()
    if also_in_force:
        arbiter_os.load_constitution(tmp_path)
    arbiter_os.load_shadow(tmp_path)
    app = arbiter_os.govern(chain(write, Spy("pay")))
    if also_in_force:
        assert run(app, {"log": []}, mode=mode)["log"] == ["pay"]
    else:
        with pytest.raises(ValueError, match="broken"):
            run(app, {"log": []}, mode=mode)
    found = [(d.stage, d.node, str(d.enforced), str(d.shadow)) for d in arbiter_os.shadow_report()]
    assert found == ([] if also_in_force else [("route", "write", "continue", "redirect → pay by to_pay")])


# All at once --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "paths"),
    [
        ("version: 1\nname: p", ["description"]),
        ("version: 2\nname: p\ndescription: d\nmode: enforced", ["version", "mode"]),
        (
            "version: 1\nname: P\ndescription: d\nextends: arbiter:kernel\ncolour: red",
            ["name", "extends", "colour"],
        ),
        ("version: 1\ndescription: d\nmatch: [{}]\nrouters: [3]", ["name", "match[0]", "routers[0]"]),
    ],
)
def test_a_mistake_of_a_pack_hides_none_of_its_rules(tmp_path: Path, head: str, paths: list[str]) -> None:
    rules = (
        "instructions:\n  - {node: pay, instruction: TOLL_CALL}\n"
        "checkers:\n  - {name: a, use: at_most, times: -1}\n  - {name: b, use: at_mots}\n"
    )
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "p.yaml").write_text(f"{head}\n{rules}", encoding="utf-8")
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    expected = {*paths, "instructions[0].instruction", "checkers[0].times", "checkers[1].use"}
    assert {mistake.path for mistake in caught.value.mistakes} == expected


def test_a_broken_pack_is_extended_without_another_mistake(tmp_path: Path) -> None:
    project(tmp_path, policies__mine="extends: [base]\ncheckers:\n  - {name: few, times: 2}\n")
    (tmp_path / "policies" / "base.yaml").write_text(
        "version: 1\nname: base\ncheckers:\n  - {name: few, use: at_most, times: 3}\n", encoding="utf-8"
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert [mistake.path for mistake in caught.value.mistakes] == ["description"]


def test_a_name_that_is_taken_hides_nothing_of_the_rule(tmp_path: Path) -> None:
    project(
        tmp_path,
        policies__a="checkers:\n  - {name: few, use: at_most, times: 3}\n"
        "  - {name: few, use: at_most, times: -1, target_nodes: ['*'], colour: red}\n",
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert {mistake.path.removeprefix("checkers[1].") for mistake in caught.value.mistakes} == {
        "name",
        "times",
        "target_nodes[0]",
        "colour",
    }


@pytest.mark.parametrize("name", ["", "name: 7, ", "name: '', "])
def test_a_name_that_is_missing_hides_nothing_of_the_rule(tmp_path: Path, name: str) -> None:
    project(
        tmp_path,
        policies__a=f"checkers:\n  - {{{name}use: at_most, times: -1, mode: adit, targets: [pay]}}\n",
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert {mistake.path.removeprefix("checkers[0].") for mistake in caught.value.mistakes} == {
        "name",
        "times",
        "mode",
        "targets",
    }


def test_each_parameter_that_a_constructor_refuses_is_reported(tmp_path: Path) -> None:
    project(
        tmp_path,
        policies__a="checkers:\n  - {name: c, use: condition, deny_when: 'amount > 1', ask_when: 'input.'}\n",
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert {mistake.path for mistake in caught.value.mistakes} == {
        "checkers[0].deny_when",
        "checkers[0].ask_when",
    }


# Spelling -----------------------------------------------------------------------------------------


class NamesItself(PolicyChecker):
    """As on the page about policies: the name is the class's own."""

    def __init__(self, most: int, **where: Any) -> None:
        super().__init__("limit", target_instructions=[TOOL_CALL], **where)
        self.most = most

    def check_before(self, history: Any) -> bool:
        return int(history.entries[-1][-1].input_state["amount"]) <= self.most


class NamesItselfAlone(NamesItself):
    def __init__(self, most: int = 10) -> None:
        super().__init__(most)


class Forwards(Refuses):
    """Its base class has a required parameter, which it gives itself."""

    def __init__(self, name: str, *, most: int, **where: Any) -> None:
        super().__init__(name, limit=most, **where)


class Deeper(Forwards):
    def __init__(self, **everything: Any) -> None:
        super().__init__(**everything)


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (NamesItself, "most: 10"),
        (NamesItself, "most: 10, target_nodes: [pay], on_deny: raise, deadline: 5"),
        (NamesItselfAlone, "most: 10"),
        (Forwards, "most: 10, words: [a], on_deny: raise"),
        (Deeper, "most: 10, words: [a], mode: enforce"),
    ],
)
@MODES
def test_a_class_is_made_by_keywords_and_takes_what_its_base_takes(
    tmp_path: Path, cls: type[Any], given: str, mode: str
) -> None:
    use = f"tests.constitution.test_constitution.{cls.__name__}"
    project(tmp_path, policies__a=f"checkers:\n  - {{name: mine, use: {use}, {given}}}\n")
    arbiter_os = ArbiterOS.from_constitution(tmp_path, allow=["tests."])
    app = arbiter_os.govern(chain(Spy("pay")), {"pay": TOOL_CALL})
    assert run(app, {"amount": 10}, mode=mode)["log"] == ["pay"]
    with pytest.raises(PolicyViolationError, match="policy 'mine' denied"):
        run(app, {"amount": 11}, mode=mode)


def test_a_parameter_that_a_constructor_lacks_is_reported_with_the_remedy(tmp_path: Path) -> None:
    use = "tests.constitution.test_constitution.NamesItselfAlone"
    project(
        tmp_path, policies__a=f"checkers:\n  - {{name: x, use: {use}, target_nodes: [pay], colour: red}}\n"
    )
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path, allow=["tests."])
    targets, colour = caught.value.mistakes
    assert "Add target_nodes to NamesItselfAlone.__init__" in targets.message
    assert "Add" not in colour.message


@pytest.mark.parametrize("parameter", ["target_nodes: pay", "target_instructions: TOOL_CALL"])
@pytest.mark.parametrize(
    ("section", "rule"),
    [
        ("checkers", "use: at_most, times: 3"),
        ("routers", "use: on_error, target: pay"),
        ("evaluators", "use: latency, at_most: 3"),
    ],
)
def test_one_target_may_be_a_text(tmp_path: Path, section: str, rule: str, parameter: str) -> None:
    """As in Python."""
    project(tmp_path, policies__a=f"{section}:\n  - {{name: x, {rule}, {parameter}}}\n")
    (contract,) = load_constitution(tmp_path).contracts
    assert contract.target_nodes == ("pay",) or contract.target_instructions == (TOOL_CALL,)


def test_a_target_that_is_a_text_is_compared_as_a_list(tmp_path: Path) -> None:
    base = "checkers:\n  - {name: x, use: at_most, times: 3, target_nodes: pay}\n"
    for change, sound in (("[pay, write]", True), ("pay", True), ("[pay]", True), ("write", False)):
        mine = f"extends: [base]\ncheckers:\n  - {{name: x, target_nodes: {change}}}\n"
        project(tmp_path, policies__base=base, policies__mine=mine)
        with contextlib.nullcontext() if sound else pytest.raises(PackError, match="expected all of"):
            load_constitution(tmp_path)


@pytest.mark.parametrize(
    ("source", "meant"),
    [("kernel", "arbiter:kernel"), ("kernal", "arbiter:kernel"), ("budget", "arbiter:budgets")],
)
def test_the_name_of_a_pack_that_ships_is_recognised(tmp_path: Path, source: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Did you mean '{meant}'?"):
        load_constitution(source)
    with pytest.raises(PackError, match=f"Did you mean '{meant}'?"):
        load_constitution(project(tmp_path, policies__a=f"extends: ['{source}']\n"))


def test_one_prefix_is_not_taken_apart(tmp_path: Path) -> None:
    given: Any = "tests."
    with pytest.raises(
        ConfigurationError, match=r"allow is 'tests\.'; expected a list of prefixes: \['tests\.'\]"
    ):
        ArbiterOS.from_constitution(project(tmp_path, policies__a=NO_TOOLS), allow=given)
    with pytest.raises(ConfigurationError, match="allow is 'tests"):
        ArbiterOS().load_shadow(tmp_path, allow=given)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (
            "tests.support.allow",
            "checker allow() asks for _; the function of a checker can ask for state, item,",
        ),
        ("tests.support.MODES", "has no class or function 'MODES', but a MarkDecorator of that name"),
        ("tests.support.Chekc", "has no class or function 'Chekc'. Did you mean 'Check'?"),
    ],
)
def test_a_path_to_something_other_than_a_class_is_reported(tmp_path: Path, use: str, said: str) -> None:
    project(tmp_path, policies__a=f"checkers:\n  - {{name: x, use: {use}}}\n")
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path, allow=["tests."])
    assert "expected a subclass of PolicyChecker" in str(caught.value)
    assert said in str(caught.value)


def test_a_field_of_the_input_is_recognised_in_a_condition(tmp_path: Path) -> None:
    project(tmp_path, policies__a="checkers:\n  - {name: x, use: condition, deny_when: 'amount > 3'}\n")
    with pytest.raises(PackError, match=r"there is no variable 'amount'.* Did you mean input\.amount\?$"):
        load_constitution(tmp_path)


@pytest.mark.parametrize("other", ["colour: red", "mode: nothing", "target_nodes: ['*']"])
def test_a_class_that_is_not_allowed_is_not_imported_for_the_sake_of_other_mistakes(
    tmp_path: Path, other: str
) -> None:
    rule = f"{{name: x, use: schema, output: this.thing, {other}}}"
    project(tmp_path, policies__a=f"checkers:\n  - {rule}\n")
    with pytest.raises(PackError) as caught:
        load_constitution(tmp_path)
    assert "this" not in sys.modules
    assert len(caught.value.mistakes) == 2


POLICY = """version: 1
name: {name}
description: d
checkers:
  - {{name: {rule}, use: condition, deny_when: "input.amount > 10"}}
"""


def _folder(folder: Path, name: str, rule: str) -> Path:
    (folder / "policies").mkdir(parents=True)
    (folder / "policies" / "p.yaml").write_text(POLICY.format(name=name, rule=rule))
    return folder


def test_several_sources_are_in_force_together(tmp_path: Path) -> None:
    sources: list[str | Path] = [
        "arbiter:kernel",
        str(_folder(tmp_path / "a", "one", "small")),
        _folder(tmp_path / "b", "two", "tiny"),
    ]
    arbiter_os = ArbiterOS.from_constitution(sources)
    assert arbiter_os.constitution is not None
    assert arbiter_os.constitution.packs[-2:] == ("one", "two")
    names = [checker.name for checker in arbiter_os.checkers]
    assert names[-2:] == ["small", "tiny"]
    assert len(names) > 2
    sources.clear()  # what was loaded is loaded again
    assert len(arbiter_os.load_constitution().checkers) == len(names)


def test_a_file_that_two_sources_have_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of a script, and then one that a person names."""
    _folder(tmp_path, "one", "small")
    monkeypatch.chdir(tmp_path)
    arbiter_os = ArbiterOS.from_constitution([".", "policies/p.yaml", tmp_path, "."])
    assert [checker.name for checker in arbiter_os.checkers] == ["small"]


def test_mistakes_in_several_sources_say_in_which(tmp_path: Path) -> None:
    _folder(tmp_path / "a", "one", "small")
    _folder(tmp_path / "b", "two", "small")
    with pytest.raises(PackError) as caught:
        ArbiterOS.from_constitution([tmp_path / "a", tmp_path / "b"])
    assert "b/policies/p.yaml:5: checkers[0].name: expected a name of its own" in str(caught.value)
    assert "a/policies/p.yaml:5" in str(caught.value)


def test_two_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = [_folder(tmp_path / name, "one", "small") / "policies" / "p.yaml" for name in "ab"]
    with pytest.raises(PackError) as caught:
        ArbiterOS.from_constitution(files)
    assert (
        f"{files[1]}:2: name: expected a name of its own, got 'one', which {files[0]} has"
        in str(caught.value).splitlines()
    )


@pytest.mark.parametrize(
    ("sources", "match"),
    [
        ([], "the list of sources is empty"),
        (["arbiter:kernel", "kernel"], "Did you mean 'arbiter:kernel'"),
        (["arbiter:kernel", 7], "got 7"),
    ],
)
def test_a_list_with_an_invalid_source_is_refused(sources: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        ArbiterOS.from_constitution(sources)


# Models and prefixes ------------------------------------------------------------------------------

JUDGED = """
    evaluators:
      - {name: quality, use: judge, rubric: good, model: judge}
"""


def warnings_of(tmp_path: Path, **given: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ArbiterOS.from_constitution(tmp_path, **given)
    return [str(each.message) for each in caught if each.category is ArbiterWarning]


MODEL = FakeListChatModel(responses=[""])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"models": ["judge"]}, r"models is \['judge'\]; expected a mapping .* such as {'judge': model}"),
        ({"models": {1: MODEL}}, "models is .*expected a mapping from the names"),
        ({"allow": 5}, r"allow is 5; expected a list of prefixes: \['mycompany.'\]"),
        ({"allow": [5]}, "allow has 5; expected a text"),
        ({"models": {"jugde": MODEL}}, r"policies/a.yaml:5: evaluators\[0\].model: .*Did you mean 'jugde'"),
    ],
)
def test_models_and_prefixes_of_a_wrong_type_or_spelling_are_errors(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ArbiterOS.from_constitution(project(tmp_path, policies__a=JUDGED), **given)


def test_models_and_prefixes_that_no_rule_uses_are_a_warning(tmp_path: Path) -> None:
    project(tmp_path, policies__a=JUDGED)
    used = {"judge": MODEL}
    assert warnings_of(tmp_path, models=used) == []
    (text,) = warnings_of(tmp_path, models={**used, "writer": MODEL, "editor": MODEL})
    assert text == (
        "models has 'writer', 'editor', and no rule names them. Rules name: 'judge'. "
        "Correct the name, or leave them out."
    )
    (text,) = warnings_of(tmp_path, models=used, allow=["mycompany"])
    assert text.startswith("allow has 'mycompany.', and no rule names a class or function under it.")


def test_what_only_a_shadow_uses_is_used(tmp_path: Path) -> None:
    shadow = project(tmp_path / "shadow", policies__a=JUDGED)
    project(tmp_path / "now", policies__a=NO_TOOLS)
    assert warnings_of(tmp_path / "now", models={"judge": MODEL}, shadow=shadow) == []
    (text,) = warnings_of(tmp_path / "now", models={"judge": MODEL})
    assert "No rule names a model" in text
    arbiter_os = ArbiterOS.from_constitution(tmp_path / "now")
    arbiter_os.load_shadow(shadow, models={"judge": MODEL})
    with pytest.warns(ArbiterWarning, match="models has 'judge'"):
        arbiter_os.load_shadow(tmp_path / "now", models={"judge": MODEL})
    with pytest.warns(ArbiterWarning, match="allow has 'tests.'"):
        arbiter_os.load_constitution(tmp_path / "now", allow=["tests"])
    arbiter_os.load_constitution()  # reads it again, without telling it again


# Files that put no rule in force ------------------------------------------------------------------


def test_a_folder_whose_name_is_nearly_that_of_a_folder_of_packs_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project(tmp_path, policies__a=NO_TOOLS, evaluator__e="evaluators: []")
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals/s.yaml").write_text("suite: s\nevaluators: []\ncases: []\n")
    assert load_constitution(tmp_path).packs == ("a",)
    assert caplog.messages == [
        f"the YAML files in {str(tmp_path / 'evaluator')!r} are not read. Did you mean 'evaluators'?"
    ]


def test_a_folder_of_packs_within_a_folder_of_packs_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the files right in a folder are packs; the folders of propositions and personas are others."""
    project(
        tmp_path,
        policies__a=NO_TOOLS,
        evaluators__e="evaluators: []",
        **{"policies/team__b": NO_TOOLS, "evaluators/personas__ann": "evaluators: []"},
    )
    (tmp_path / "policies" / "notes").mkdir()
    assert load_constitution(tmp_path).packs == ("a", "e")
    policies = tmp_path / "policies"
    assert caplog.messages == [
        f"the YAML files in {str(policies / 'team')!r} are not read: packs are the files right in "
        f"{str(policies)!r}. Move them there."
    ]


def test_the_ending_of_a_pack_may_be_in_capitals(tmp_path: Path) -> None:
    project(tmp_path, policies__a=NO_TOOLS)
    (tmp_path / "policies" / "a.yaml").rename(tmp_path / "policies" / "A.YAML")
    assert [checker.name for checker in load_constitution(tmp_path).checkers] == ["no_tools"]


def test_a_constitution_without_a_file_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "policies").mkdir()
    assert load_constitution(tmp_path).packs == ()
    assert caplog.messages == [f"the constitution {str(tmp_path)!r} has no YAML file, and so no rule."]


def test_a_pack_with_a_header_only_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An empty list says that there is to be no rule, and is not reported."""
    project(tmp_path, policies__a="", policies__b="checkers: []", policies__c="extends: [b]")
    assert load_constitution(tmp_path).packs == ("a", "b", "c")
    assert caplog.messages == [
        "the pack 'a' (policies/a.yaml) has a header only, and so no rule. Add checkers, routers, evaluators, "
        "instructions or records, or the packs that it extends."
    ]


def test_a_match_without_a_binding_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It does not keep the rules of its pack from other graphs."""
    match = "match:\n  - metadata: {graph: invoices}\n"
    bound = f"{match}instructions:\n  - {{node: pay, instruction: TOOL_CALL}}\n"
    project(tmp_path, policies__a=match + BASE_TIMES, policies__b=bound)
    assert [checker.name for checker in load_constitution(tmp_path).checkers] == ["x"]
    assert caplog.messages == [
        "the pack 'a' (policies/a.yaml) has a match, which says for which graphs its bindings are, and binds no "
        "node: its rules apply to every graph."
    ]


def test_a_word_that_yaml_reads_as_true_or_false_is_reported_where_a_text_may_be_meant(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The country NO is no Norway without quotes. A parameter that is true or false itself may be any such word."""
    country = "{tool: pay, arguments: {country: {one_of: [SE, NO]}, quick: {equals: true}}}"
    project(
        tmp_path,
        policies__a=f"checkers:\n  - {{name: x, use: tools, deny: [{country}]}}\n"
        "  - {name: y, use: require_before, required: VERIFY, once_per_use: yes}\n",
    )
    assert len(load_constitution(tmp_path).checkers) == 2
    assert caplog.messages == [
        "policies/a.yaml:5: checkers[0].deny[0].arguments.country.one_of[1]: YAML reads NO as false. Write false, or "
        "'NO' in quotes for the text."
    ]
