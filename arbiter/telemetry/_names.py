"""The names of spans, attributes, log records and metrics, in one place.

`gen_ai.*`, `error.type` and `log.record.uid` are OpenTelemetry's semantic conventions, of which those for
generative AI are still in development; `arbiter.*` are our own.
"""

from __future__ import annotations

SCOPE = "arbiter"

INVOKE_AGENT = "invoke_agent"
INVOKE_WORKFLOW = "invoke_workflow"
EXECUTE_TOOL = "execute_tool"
EVALUATE = "evaluate"

OPERATION = "gen_ai.operation.name"
AGENT = "gen_ai.agent.name"
WORKFLOW = "gen_ai.workflow.name"
TOOL = "gen_ai.tool.name"
CONVERSATION = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"
RECORD_ID = "log.record.uid"

EVALUATION = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_SCORE = "gen_ai.evaluation.score.value"
EVALUATION_LABEL = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION = "gen_ai.evaluation.explanation"
EVALUATION_VERSION = "arbiter.evaluation.version"
EVALUATION_READ = "arbiter.evaluation.read"

RUN = "arbiter.run"
EXECUTION = "arbiter.execution"
RULES = "arbiter.rules"
OUTCOME = "arbiter.outcome"
NODE = "arbiter.node"
INSTRUCTION = "arbiter.instruction"
STEP = "arbiter.step"
TASK = "arbiter.task"
ATTEMPT = "arbiter.attempt"
STATUS = "arbiter.status"
VERDICT = "arbiter.verdict"
POLICY = "arbiter.policy"
REDIRECTED_TO = "arbiter.redirected_to"
EVALUATOR = "arbiter.evaluator"
INPUT = "arbiter.input"
OUTPUT = "arbiter.output"
REASON = "arbiter.reason"

DECISION = "arbiter.policy.decision"
DECISION_KIND = "arbiter.policy.decision.kind"
ENFORCED = "arbiter.policy.decision.enforced"

DECISIONS = "arbiter.decisions"
SCORES = "arbiter.evaluation.score"
DURATIONS = "arbiter.node.duration"
QUEUED = "arbiter.ledger.queued"
DROPPED = "arbiter.ledger.dropped"
LAG = "arbiter.ledger.lag"
