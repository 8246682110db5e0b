"""The snippets of the evaluators guide that users of ArbiterOS know, run as they stand.

The text of each is the guide's. Two things are replaced: the package that it imports from, and the name of
the class. The objects that the guide assumes (an `arbiter_os`, a `generate_fn`) are provided.
"""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from rich.console import Console

import arbiter
from arbiter import ArbiterOS, EvaluationResult, History, HistoryItem, NodeEvaluator
from arbiter.instructions import CognitiveCore, NormativeCore
from tests.support import MODES, run

NON_BLOCKING = """\
# Even if evaluator fails, execution continues
result = node_function(state)
evaluations = run_evaluators(history)  # Never raises exceptions
# Execution proceeds regardless of evaluation results
"""

TARGETS = """\
# Only evaluate GENERATE nodes
evaluator = ThresholdEvaluator(
    name="confidence_check",
    key="confidence",
    threshold=0.7,
    target_instructions=[CognitiveCore.GENERATE]
)

# Evaluate multiple instruction types
evaluator = QualityEvaluator(
    name="quality",
    target_instructions=[CognitiveCore.GENERATE, CognitiveCore.REFLECT]
)

# Evaluate ALL nodes (default)
evaluator = UniversalEvaluator(name="universal")  # target_instructions=None
"""

THRESHOLD = """\
from arbiteros_alpha import ThresholdEvaluator
from arbiteros_alpha.instructions import CognitiveCore

evaluator = ThresholdEvaluator(
    name="confidence_check",
    key="confidence",           # Key in output_state to check
    threshold=0.7,              # Minimum acceptable value
    target_instructions=[CognitiveCore.GENERATE]
)

arbiter_os.add_evaluator(evaluator)
"""

RESPONSE_LENGTH = '''\
from arbiteros_alpha.evaluation import NodeEvaluator, EvaluationResult
from arbiteros_alpha.instructions import CognitiveCore

class ResponseLengthEvaluator(NodeEvaluator):
    """Evaluates response quality based on length."""

    def __init__(self, min_length: int = 50):
        super().__init__(
            name="response_length",
            target_instructions=[CognitiveCore.GENERATE]  # Only GENERATE
        )
        self.min_length = min_length

    def evaluate(self, history) -> EvaluationResult:
        # Access the most recent node execution
        current_item = history.entries[-1][-1]

        # Extract output
        response = current_item.output_state.get("response", "")
        length = len(response)

        # Calculate score (0.0 to 1.0)
        score = min(length / 100, 1.0)

        # Determine pass/fail
        passed = length >= self.min_length

        # Provide feedback
        feedback = f"Response length: {length} chars"

        return EvaluationResult(
            score=score,
            passed=passed,
            feedback=feedback
        )
'''

CONSISTENCY = '''\
class ConsistencyEvaluator(NodeEvaluator):
    """Checks consistency across multiple responses."""

    def __init__(self):
        super().__init__(
            name="consistency_check",
            target_instructions=[CognitiveCore.GENERATE]
        )

    def evaluate(self, history) -> EvaluationResult:
        # Access all previous executions
        all_entries = [
            item for superstep in history.entries
            for item in superstep
        ]

        # Find all previous GENERATE nodes
        previous_generates = [
            item for item in all_entries[:-1]  # Exclude current
            if item.instruction == CognitiveCore.GENERATE
        ]

        if not previous_generates:
            return EvaluationResult(
                score=1.0,
                passed=True,
                feedback="First response, nothing to compare"
            )

        # Compare with previous responses
        current = all_entries[-1].output_state
        previous = previous_generates[-1].output_state

        # Check tone consistency
        current_tone = current.get("tone", "")
        previous_tone = previous.get("tone", "")

        consistent = current_tone == previous_tone
        score = 1.0 if consistent else 0.5

        return EvaluationResult(
            score=score,
            passed=consistent,
            feedback=f"Tone consistency: {'consistent' if consistent else 'inconsistent'}"
        )
'''

IN_THE_HISTORY = """\
# Execute node with evaluators
arbiter_os.add_evaluator(confidence_evaluator)
arbiter_os.add_evaluator(quality_evaluator)

state = {"query": "test"}
result = arbiter_os.execute(state, generate_fn)

# Access evaluation results from history
last_item = arbiter_os.history.entries[-1][-1]
evaluations = last_item.evaluation_results

for evaluator_name, eval_result in evaluations.items():
    print(f"{evaluator_name}: score={eval_result.score:.2f}, "
          f"passed={eval_result.passed}")
"""

PRINTED = """\
arbiter_os.history.pprint()
"""

OUTPUT = """\
╔═══ SuperStep 1 ═══╗
  [1.1] GENERATE
    Evaluations:
      ✓ confidence_check: score=0.90 - confidence=0.90 (✓ threshold=0.7)
      ✓ response_quality: score=0.66 - Quality assessment: length=82 chars
      ✗ consistency_check: score=0.50 - Tone inconsistent with previous
"""

TRACKER = """\
class PerformanceTracker(NodeEvaluator):
    def __init__(self):
        super().__init__(name="performance")
        self.scores = []

    def evaluate(self, history):
        score = calculate_quality(history.entries[-1][-1])
        self.scores.append(score)

        avg_score = sum(self.scores) / len(self.scores)

        return EvaluationResult(
            score=score,
            passed=score > 0.6,
            feedback=f"Current: {score:.2f}, Average: {avg_score:.2f}"
        )
"""

REFLECTION = """\
# Evaluator assesses quality
quality_evaluator = ThresholdEvaluator(
    name="quality_check",
    key="quality_score",
    threshold=0.7,
    target_instructions=[CognitiveCore.GENERATE]
)

# Router triggers reflection on low quality
class ReflectionRouter(PolicyRouter):
    def route_after(self, history, current_output):
        last_item = history.entries[-1][-1]
        quality_eval = last_item.evaluation_results.get("quality_check")

        if quality_eval and not quality_eval.passed:
            return "reflect_node"  # Trigger reflection
        return None  # Continue normal flow

arbiter_os.add_evaluator(quality_evaluator)
arbiter_os.add_policy_router(ReflectionRouter(name="auto_reflect"))
"""

REWARD = '''\
class RewardEvaluator(NodeEvaluator):
    """Generates RL rewards for training."""

    def __init__(self):
        super().__init__(name="rl_reward")
        self.episode_rewards = []

    def evaluate(self, history) -> EvaluationResult:
        current = history.entries[-1][-1]

        # Multi-factor reward calculation
        factors = {
            "correctness": self._check_correctness(current),
            "efficiency": self._check_efficiency(current),
            "safety": self._check_safety(current)
        }

        # Weighted reward
        reward = (
            0.5 * factors["correctness"] +
            0.3 * factors["efficiency"] +
            0.2 * factors["safety"]
        )

        self.episode_rewards.append(reward)

        return EvaluationResult(
            score=reward,
            passed=reward > 0.5,
            feedback=f"Reward: {reward:.2f} | Factors: {factors}"
        )

    def get_episode_reward(self) -> float:
        """Get cumulative reward for training."""
        return sum(self.episode_rewards)
'''

FAIL_GRACEFULLY = """\
def evaluate(self, history) -> EvaluationResult:
    try:
        current = history.entries[-1][-1]
        value = current.output_state.get("key", 0.0)  # Default value

        # ... evaluation logic ...

    except Exception as e:
        # Never crash - return neutral evaluation
        return EvaluationResult(
            score=0.0,
            passed=False,
            feedback=f"Evaluation error: {str(e)}"
        )
"""

FILTERING = """\
# ✗ Bad: Evaluates all nodes, including VERIFY (may not have "response")
class ResponseEvaluator(NodeEvaluator):
    def __init__(self):
        super().__init__(name="response_eval")  # No filtering!

# ✓ Good: Only evaluates GENERATE nodes
class ResponseEvaluator(NodeEvaluator):
    def __init__(self):
        super().__init__(
            name="response_eval",
            target_instructions=[CognitiveCore.GENERATE]  # Filtered!
        )
"""

FEEDBACK = """\
# ✗ Bad: Vague feedback
feedback = "Low quality"

# ✓ Good: Specific, actionable feedback
feedback = (
    f"Quality issues: length={len(response)} chars (min=50), "
    f"confidence={conf:.2f} (threshold=0.7), "
    f"tone={tone} (expected='formal')"
)
"""

NORMALIZE = """\
def evaluate(self, history) -> EvaluationResult:
    raw_value = current.output_state.get("metric", 0)

    # Normalize to 0.0-1.0
    score = max(0.0, min(1.0, raw_value / 100))

    return EvaluationResult(score=score, ...)
"""


SNIPPETS = {
    name: text
    for name, text in list(globals().items())
    if name.isupper() and isinstance(text, str) and name not in {"OUTPUT", "MODES"}
}


class State(TypedDict, total=False):
    query: str
    response: str
    confidence: float
    quality_score: float
    tone: str


def generate_fn(state: State) -> State:
    return {"response": "An answer of some length. " * 3, "confidence": 0.9, "tone": "formal"}


class QualityEvaluator(NodeEvaluator):
    """The guide speaks of it, and of UniversalEvaluator, without defining them."""

    def evaluate(self, history: History) -> EvaluationResult:
        return EvaluationResult(1.0, True, "fine")


def ours(snippet: str) -> str:
    """The snippet after the two replacements.

    One abbreviates a call with `...` where that is no Python; an argument is put in its place.
    """
    snippet = snippet.replace("arbiteros_alpha", "arbiter").replace("ArbiterOSAlpha", "ArbiterOS")
    return snippet.replace("score=score, ...)", "score=score, passed=score > 0.5)")


def given() -> dict[str, Any]:
    """The objects that the guide assumes: the public names, and an `arbiter_os`."""
    names: dict[str, Any] = {name: getattr(arbiter, name) for name in arbiter.__all__}
    return {
        **names,
        "CognitiveCore": CognitiveCore,
        "arbiter_os": ArbiterOS(),
        "generate_fn": generate_fn,
        "state": {"query": "test"},
        "QualityEvaluator": QualityEvaluator,
        "UniversalEvaluator": QualityEvaluator,
    }


def after(*snippets: str, **more: Any) -> dict[str, Any]:
    """The names that those snippets leave behind when they are run one after another."""
    namespace = {**given(), **more}
    for snippet in snippets:
        exec(compile(ours(snippet), "<guide>", "exec", dont_inherit=True), namespace)
    return namespace


def judged(evaluator: NodeEvaluator, *outputs: dict[str, Any]) -> EvaluationResult:
    """The result of an evaluator for the last of several GENERATE steps with these outputs."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    for output in outputs:

        def step(state: Any, output: dict[str, Any] = output) -> dict[str, Any]:
            return output

        arbiter_os.execute({}, step, instruction="GENERATE")
    assert arbiter_os.drain(60)
    return arbiter_os.history.entries[-1][-1].evaluation_results[evaluator.name]


@pytest.mark.parametrize("name", sorted(SNIPPETS))
def test_every_snippet_compiles_after_the_two_replacements(name: str) -> None:
    """No snippet needs another change."""
    text = ours(SNIPPETS[name])
    assert "alpha" not in text.lower()
    compile(text, name, "exec", dont_inherit=True)


def test_even_if_an_evaluator_fails_execution_continues() -> None:
    """`run_evaluators` stands for what Arbiter does by itself: reading the results never raises."""

    class Failing(NodeEvaluator):
        def evaluate(self, history: History) -> EvaluationResult:
            raise RuntimeError("no judge")

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Failing("failing"))

    def run_evaluators(history: History) -> dict[str, EvaluationResult]:
        return dict(history.entries[-1][-1].evaluation_results)

    names = after(
        NON_BLOCKING,
        node_function=arbiter_os.govern(generate_fn, instruction=CognitiveCore.GENERATE),
        run_evaluators=run_evaluators,
        history=LatestHistory(arbiter_os),
    )
    assert names["result"]["confidence"] == 0.9
    assert names["evaluations"] == {}
    assert "no judge" in arbiter_os.history.entries[-1][-1].evaluation_errors["failing"]


class LatestHistory:
    """The `history` of the snippet: that of the moment at which it is looked at."""

    def __init__(self, arbiter_os: ArbiterOS) -> None:
        self.arbiter_os = arbiter_os

    @property
    def entries(self) -> Any:
        return self.arbiter_os.history.entries


@pytest.mark.parametrize(
    ("instruction", "confidence_check", "quality", "universal"),
    [("GENERATE", 1, 1, 1), ("REFLECT", 0, 1, 1), ("VERIFY", 0, 0, 1)],
)
def test_evaluators_target_one_several_or_all_instructions(
    instruction: str, confidence_check: int, quality: int, universal: int
) -> None:
    """Each of the three in the snippet applies where the snippet says."""
    arbiter_os = ArbiterOS()
    one = after(TARGETS.partition("# Evaluate multiple")[0])["evaluator"]
    several = after(TARGETS.partition("# Evaluate ALL")[0])["evaluator"]
    everything = after(TARGETS)["evaluator"]
    for evaluator in (one, several, everything):
        arbiter_os.add_evaluator(evaluator)
    arbiter_os.execute({}, generate_fn, instruction=instruction)
    results = arbiter_os.history.entries[-1][-1].evaluation_results
    assert ("confidence_check" in results) is bool(confidence_check)
    assert ("quality" in results) is bool(quality)
    assert ("universal" in results) is bool(universal)


@pytest.mark.parametrize(
    ("output", "score", "passed"),
    [({"confidence": 0.7}, 0.7, True), ({"confidence": 0.69}, 0.69, False), ({}, 0.0, False)],
    ids=["at the threshold", "below it", "key missing"],
)
def test_threshold_evaluator_behaves_as_described(output: dict[str, Any], score: float, passed: bool) -> None:
    """At least the threshold passes, less fails, and a missing key scores 0.0 and fails."""
    evaluator = after(THRESHOLD, arbiter_os=ArbiterOS())["evaluator"]
    result = judged(evaluator, output)
    assert (result.score, result.passed) == (score, passed)


@pytest.mark.parametrize(("length", "score", "passed"), [(82, 0.82, True), (49, 0.49, False)])
def test_custom_evaluator_judges_the_length(length: int, score: float, passed: bool) -> None:
    """`history.entries[-1][-1]` is the node that was just run."""
    result = judged(after(RESPONSE_LENGTH)["ResponseLengthEvaluator"](), {"response": "x" * length})
    assert (result.score, result.passed) == (score, passed)
    assert result.feedback == f"Response length: {length} chars"


def test_history_aware_evaluator_compares_with_earlier_responses() -> None:
    """All earlier entries are there, and the last of them is the current one."""
    consistency = after(CONSISTENCY)["ConsistencyEvaluator"]
    formal, casual = {"tone": "formal"}, {"tone": "casual"}
    assert judged(consistency(), formal).feedback == "First response, nothing to compare"
    assert judged(consistency(), formal, formal).score == 1.0
    other = judged(consistency(), formal, casual)
    assert (other.score, other.passed) == (0.5, False)
    assert other.feedback == "Tone consistency: inconsistent"


def test_results_are_in_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    """The snippet prints one line for each evaluator."""
    consistency = after(CONSISTENCY)["ConsistencyEvaluator"]()
    length = after(RESPONSE_LENGTH)["ResponseLengthEvaluator"]()

    def labelled(state: State) -> State:
        return generate_fn(state)

    arbiter_os = ArbiterOS()
    names = after(
        IN_THE_HISTORY,
        arbiter_os=arbiter_os,
        confidence_evaluator=length,
        quality_evaluator=consistency,
        generate_fn=arbiter_os.instruction(CognitiveCore.GENERATE)(labelled),
    )
    assert names["result"]["confidence"] == 0.9
    assert capsys.readouterr().out.splitlines() == [
        "response_length: score=0.78, passed=True",
        "consistency_check: score=1.00, passed=True",
    ]


def test_history_is_printed_in_the_shape_that_the_guide_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Superstep, item, and a line for each evaluation, in this order; inputs and outputs between."""

    class Says(NodeEvaluator):
        def __init__(self, name: str, result: EvaluationResult) -> None:
            super().__init__(name)
            self.result = result

        def evaluate(self, history: History) -> EvaluationResult:
            return self.result

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(after(THRESHOLD)["evaluator"])
    for name, score, passed, feedback in (
        ("response_quality", 0.66, True, "Quality assessment: length=82 chars"),
        ("consistency_check", 0.5, False, "Tone inconsistent with previous"),
    ):
        arbiter_os.add_evaluator(Says(name, EvaluationResult(score, passed, feedback)))
    arbiter_os.execute({"query": "test"}, generate_fn, instruction=CognitiveCore.GENERATE)
    after(PRINTED, arbiter_os=arbiter_os)
    printed = iter(capsys.readouterr().out.splitlines())
    for line in OUTPUT.splitlines():
        assert any(found.startswith(line) for found in printed), line

    page = io.StringIO()
    arbiter_os.history.pprint(Console(file=page, width=80))
    assert all(len(line) <= 80 for line in page.getvalue().splitlines())


def test_performance_tracker_keeps_its_scores() -> None:
    """The calls of one evaluator run one after another, so that it can count in `self`."""

    def calculate_quality(item: Any) -> float:
        return float(item.output_state["confidence"])

    tracker = after(TRACKER, calculate_quality=calculate_quality)["PerformanceTracker"]()
    result = judged(tracker, {"confidence": 0.4}, {"confidence": 0.8})
    assert sorted(tracker.scores) == [0.4, 0.8]
    assert (result.score, result.passed) == (0.8, True)
    assert result.feedback.startswith("Current: 0.80, Average: ")


@MODES
def test_reflection_router_sends_a_bad_answer_to_reflect(mode: str) -> None:
    """The redirect happens: `reflect_node` runs in place of `send`, until the quality is high enough."""
    names = after(REFLECTION)
    arbiter_os: ArbiterOS = names["arbiter_os"]
    sent: list[float] = []

    def generate(state: State) -> State:
        return {"quality_score": 0.9 if state.get("tone") == "reflected" else 0.3}

    def reflect_node(state: State) -> State:
        return {"tone": "reflected"}

    def send(state: State) -> State:
        sent.append(state.get("quality_score", 0.0))
        return {}

    builder = StateGraph(State)
    builder.add_node(generate)
    builder.add_node(reflect_node)
    builder.add_node(send)
    builder.add_edge(START, "generate")
    builder.add_edge("generate", "send")
    builder.add_edge("reflect_node", "generate")
    app = arbiter_os.govern(
        builder.compile(),
        instructions={
            "generate": CognitiveCore.GENERATE,
            "reflect_node": CognitiveCore.REFLECT,
            "send": NormativeCore.VERIFY,
        },
    )
    result = run(app, {"query": "test"}, mode=mode)
    assert result["quality_score"] == 0.9
    assert sent == [0.9]
    items = list(arbiter_os.history.items())
    assert [item.node for item in items] == ["generate", "reflect_node", "generate", "send"]
    assert items[0].route_policy_results == {"auto_reflect": "reflect_node"}
    assert [item.redirected_to for item in items] == ["reflect_node", None, None, None]


def test_reward_evaluator_adds_up_an_episode() -> None:
    """The three checks are the user's own; the sum is that of the steps."""
    kind: Any = after(REWARD)["RewardEvaluator"]

    def confidence(_: NodeEvaluator, item: HistoryItem) -> float:
        return float(item.output_state["confidence"])

    for check in ("_check_correctness", "_check_efficiency", "_check_safety"):
        setattr(kind, check, confidence)
    evaluator = kind()
    result = judged(evaluator, {"confidence": 0.4}, {"confidence": 0.8})
    assert result.passed
    assert result.score == pytest.approx(0.8)
    assert evaluator.get_episode_reward() == pytest.approx(1.2)


def test_the_part_of_an_evaluator_that_fails_gracefully() -> None:
    """Without the omitted part it returns None, which is no score and affects nothing else."""
    result, errors = evaluated_by(after(FAIL_GRACEFULLY)["evaluate"])
    assert result is None
    assert "returned None" in errors["shown"]


def test_the_part_of_an_evaluator_that_normalizes() -> None:
    """The score is that of the snippet, 0.0 to 1.0."""
    current = SimpleNamespace(output_state={"metric": 250})
    result, errors = evaluated_by(after(NORMALIZE, current=current)["evaluate"])
    assert result is not None
    assert result.score == 1.0
    assert errors == {}


def evaluated_by(shown: Any) -> tuple[EvaluationResult | None, dict[str, str]]:
    """The outcome of an evaluator with that method: its result, and what went wrong."""

    class Shown(NodeEvaluator):
        def evaluate(self, history: History) -> EvaluationResult:
            answer: EvaluationResult = shown(self, history)
            return answer

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Shown("shown"))
    assert arbiter_os.execute({}, generate_fn)["confidence"] == 0.9
    item = arbiter_os.history.entries[-1][-1]
    return item.evaluation_results.get("shown"), dict(item.evaluation_errors)


def test_filtered_evaluator_leaves_other_instructions_alone() -> None:
    """Of the two classes in the snippet, the second one is for GENERATE only."""
    evaluator = after(FILTERING)["ResponseEvaluator"]
    assert evaluator.__init__ is not NodeEvaluator.__init__
    arbiter_os = ArbiterOS()

    class Complete(evaluator):  # type: ignore[misc, valid-type]
        def evaluate(self, history: History) -> EvaluationResult:
            return EvaluationResult(1.0, True)

    arbiter_os.add_evaluator(Complete())
    for instruction, applies in (("GENERATE", True), ("VERIFY", False)):
        arbiter_os.execute({}, generate_fn, instruction=instruction)
        results = arbiter_os.history.entries[-1][-1].evaluation_results
        assert ("response_eval" in results) is applies


def test_feedback_snippet_makes_a_text() -> None:
    """The second of the two is specific."""
    names = after(FEEDBACK, response="short", conf=0.5, tone="casual")
    assert names["feedback"] == (
        "Quality issues: length=5 chars (min=50), confidence=0.50 (threshold=0.7), "
        "tone=casual (expected='formal')"
    )
