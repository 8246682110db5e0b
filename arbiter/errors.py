"""All exceptions that Arbiter raises on purpose.

    ArbiterError
    ├── ConfigurationError (ValueError)         before the first node runs
    │   ├── UnknownInstructionError             a name that no core has, or that two have
    │   ├── UnknownNodeError                    a name that is not a node of the graph
    │   ├── RegistrationError                   a duplicate name, a missing method, a wrong type
    │   ├── ParameterError                      a parameter of a checker, router or evaluator
    │   ├── NotAGraphError (TypeError)          something that cannot be governed
    │   └── PackError                           mistakes in a YAML pack, all of them at once
    ├── PolicyViolationError (RuntimeError)     a checker denied, or failed and therefore denied
    │   └── ApprovalUsedError                   a human's answer that another execution of the graph has used
    ├── ConditionError (ValueError)             a condition that is not CEL, or has no answer
    ├── OutputSchemaError (ValueError)          a node's output does not fit its schema
    ├── CorrectionError (RuntimeError)          a correction gate gave up, or failed
    ├── ReadOnlyTypeError (TypeError)           a contract tried to change the state or history
    ├── SyncDriverError (TypeError)             a coroutine in a run that was started with `invoke`
    ├── AmbiguousHistoryError (LookupError)     `arbiter_os.history` where several threads run
    └── EvaluationError (RuntimeError)          a failed evaluation whose result was required
        └── MissingEvaluationError (KeyError)   the same, read by its name as from a mapping

`ArbiterWarning` (UserWarning) reports settings without effect, or with less effect than it seems: a rule that
applies to no node.

Each error keeps the parts of its message as fields, and can be pickled, so that another process can read it.
An exception of a node's body is never wrapped in one of these: it is raised unchanged.
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, Self

_LIBRARIES = frozenset(
    {"arbiter", "asyncio", "concurrent", "contextvars", "langchain_core", "langgraph", "threading"}
)


_LONGEST_NAME = 200
"""Characters of a wrong name that are compared with the right ones."""


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` most likely means, ignoring case, or None."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    found = get_close_matches(str(name)[:_LONGEST_NAME].casefold(), by_folded, n=1)
    return by_folded[found[0]] if found else None


def nearest(name: str, candidates: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the end of an error message (with the leading blank), or `""`."""
    found = closest(name, candidates)
    return f" Did you mean {found!r}?" if found else ""


def callers() -> int:
    """The `stacklevel` of the caller's own code, so that a warning points at a line that the user can change."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    return level - 1 if frame is not None else 1


def with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiouAEIOU" else f"a {noun}"


def describe(error: BaseException) -> str:
    """An error as one text: its class, and its message if it has one. Never raises, even if the message cannot
    be made."""
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException as exc:  # also SystemExit: it would end the thread that reports the error
        if isinstance(exc, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: (its text raised {type(exc).__name__})"


class ArbiterError(Exception):
    """The base class: `except ArbiterError` catches all exceptions of Arbiter, and no others."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with `args`, the message; these classes take their fields.
        return _restore, (type(self), self.args), dict(self.__dict__)


def _restore(kind: type[ArbiterError], args: tuple[object, ...]) -> ArbiterError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class ArbiterWarning(UserWarning):
    """A setting has no effect, or less effect than it seems. The message names its place and the remedy."""


class ConfigurationError(ArbiterError, ValueError):
    """A registered, governed or loaded object is wrong.

    Raised before the first node runs. If the mistake shows only later (a recording without an answer), the
    node run that it concerns raises it.
    """


class UnknownInstructionError(ConfigurationError):
    """A text that names no instruction, or more than one. `name` is the given text."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class UnknownNodeError(ConfigurationError):
    """A node that the graph does not have.

    `claim` is the beginning of the message, up to the name: "router 'auto_reflect' redirects to". `names` are
    the graph's nodes, sorted; `nearest` is the node that was probably meant, or None. `remedy` is further
    advice.
    """

    def __init__(
        self, claim: str, *, node: str, names: Iterable[str], nearest: str | None = None, remedy: str = ""
    ) -> None:
        self.node = node
        self.names = tuple(sorted(names))
        self.nearest = nearest or closest(node, self.names)
        meant = f" Did you mean {self.nearest!r}?" if self.nearest else ""
        super().__init__(
            f"{claim} {node!r}, which is not a node of this graph. "
            f"Nodes: {', '.join(self.names) or 'none'}.{meant}{remedy and ' ' + remedy}"
        )


class RegistrationError(ConfigurationError):
    """A contract that cannot be registered: its name is taken, a method is missing, a type is wrong."""


class ParameterError(ConfigurationError):
    """A parameter of a checker, router or evaluator is wrong.

    `owner` is its contract ("checker 'spend_limit'"), `parameter` its name, with a path for an inner part
    ("allow[2].when"), `problem` the expected and the actual value.
    """

    def __init__(self, owner: str, parameter: str, problem: str) -> None:
        self.owner = owner
        self.parameter = parameter
        self.problem = problem
        super().__init__(f"{owner}: {parameter}: {problem}")


class NotAGraphError(ConfigurationError, TypeError):
    """An object to govern or execute is not a graph, builder, function or Runnable."""


@dataclass(frozen=True, slots=True)
class PackMistake:
    """One mistake in a pack. `line` counts from 1; `path` is a path such as "instructions[2].node"."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: "
        return where + (f"{self.path}: {self.message}" if self.path else self.message)


class PackError(ConfigurationError):
    """All mistakes in packs that one load found, one line each, in the order of the files.

    `file`, `line` and `message` are those of the first.
    """

    def __init__(self, mistakes: Sequence[PackMistake]) -> None:
        self.mistakes = tuple(mistakes)
        self.file = self.mistakes[0].file
        self.line = self.mistakes[0].line
        self.message = self.mistakes[0].message
        super().__init__("\n".join(map(str, self.mistakes)))

    @classmethod
    def at(cls, file: str, line: int, message: str, path: str = "") -> Self:
        """The error for a single mistake."""
        return cls([PackMistake(file, line, path, message)])


# A RuntimeError on purpose: LangGraph's default RetryPolicy does not retry those. A denial that is
# tried again three times is three denials, with the waiting in between.
class PolicyViolationError(ArbiterError, RuntimeError):
    """A node was not run, or its output not committed, because a policy does not allow it.

    `policy` is the name of the checker. `cause` is the exception of a checker that failed instead of
    deciding. The checkpoint before the node stays: once the reason is gone, the run can be resumed.
    """

    def __init__(
        self,
        *,
        policy: str,
        node: str,
        instruction: Enum | None = None,
        reason: str = "",
        cause: BaseException | None = None,
    ) -> None:
        self.policy = policy
        self.node = node
        self.instruction = instruction
        self.reason = reason or _failure(cause)
        self.cause = cause
        where = f"node {node!r}" if instruction is None else f"node {node!r} ({instruction})"
        super().__init__(
            f"policy {policy!r} denied {where}: {self.reason}"
            if reason or cause is None
            else f"checker {policy!r} {self.reason} on {where}; "
            "the node was not run, because a failed check never allows."
        )
        self.__cause__ = cause


class ApprovalUsedError(PolicyViolationError):
    """A human's answer that another execution of the graph, in this process or another, has used or is using.

    The node was not run here, whatever `on_deny` of `policy` says.
    """

    def __init__(
        self,
        *,
        policy: str,
        node: str,
        instruction: Enum | None = None,
        cause: BaseException | None = None,
    ) -> None:
        reason = (
            "the answer to its question was already used by another execution of the graph on this thread"
        )
        if cause is not None:
            reason = f"that an approval is used could not be saved: {describe(cause)}"
        super().__init__(policy=policy, node=node, instruction=instruction, reason=reason, cause=cause)


def _failure(cause: BaseException | None) -> str:
    if cause is None:
        return "no reason was given"
    if isinstance(cause.__cause__, StopIteration | GeneratorExit):
        cause = cause.__cause__  # Arbiter's own wrapper, which asyncio passes on
    # Messages of other exceptions may contain parts of the state, and this text is stored. `cause` and the
    # traceback have them.
    said = f" ({cause})" if isinstance(cause, ArbiterError | TimeoutError) else ""
    return f"raised {type(cause).__name__}{said}"


class ReadOnlyTypeError(ArbiterError, TypeError):
    """A contract tried to change a read-only object: the state, the history or, in audit mode, the graph's
    store.
    """


class ConditionError(ArbiterError, ValueError):
    """A condition is wrong, or has no answer for the given values.

    `expression` is the condition, `problem` the mistake, and `field` the missing or unfit field, if there is
    one.
    """

    def __init__(self, expression: str, problem: str, *, field: str | None = None) -> None:
        self.expression = expression
        self.problem = problem
        self.field = field
        shown = expression if len(expression) <= 200 else expression[:197] + "..."
        super().__init__(f"condition {shown!r}: {problem}")


class OutputSchemaError(ArbiterError, ValueError):
    """A node returned an output that does not fit its declared schema; nothing was committed.

    `schema` is the schema's name, `message` the mistake.
    """

    def __init__(self, *, node: str, schema: str, message: str) -> None:
        self.node = node
        self.schema = schema
        self.message = message
        super().__init__(f"node {node!r} returned an output that schema {schema} refuses: {message}")


class CorrectionError(ArbiterError, RuntimeError):
    """A correction gate gave up on a node's drafts, used up its attempts, or failed itself."""

    def __init__(self, *, gate: str, node: str, reason: str) -> None:
        self.gate = gate
        self.node = node
        self.reason = reason
        super().__init__(f"correction gate {gate!r} let no draft of node {node!r} pass: {reason}")


class SyncDriverError(ArbiterError, TypeError):
    """A coroutine was returned in a run that was started with `invoke`, which cannot await it.

    `source` is its origin: "the node's body", "checker 'spend_limit'".
    """

    def __init__(self, *, node: str, source: str = "the node's body") -> None:
        self.node = node
        self.source = source
        super().__init__(
            f"{source} returned a coroutine on node {node!r} in a synchronous run. "
            "Start the run with ainvoke (or astream, abatch, aexecute)."
        )


Unscored = Literal["not_applicable", "abstained", "timeout", "error"]
"""Why an evaluation gave no score."""


class EvaluationError(ArbiterError, RuntimeError):
    """An evaluation that gave no result: its evaluator raised, timed out or returned an invalid value.

    Evaluations never raise into a run; this is for code that reads the result of a failed one by name. An
    evaluator raises it to say which `outcome` it is: "abstained" if a judge was asked and decided nothing,
    "not_applicable" if there was nothing to judge.
    """

    def __init__(
        self, message: str, *, evaluator: str = "", node: str = "", outcome: Unscored = "error"
    ) -> None:
        self.evaluator = evaluator
        self.node = node
        self.outcome: Unscored = outcome
        super().__init__(message)


class AmbiguousHistoryError(ArbiterError, LookupError):
    """`arbiter_os.history` was read in a context without a run, and the latest run may be another caller's.

    That is so if several threads are known, or several runs without a thread in a server.
    """

    def __init__(self) -> None:
        super().__init__(
            "no run has begun in this context, and this ArbiterOS governs several threads or runs, so that the latest "
            "run may be another caller's. Ask for a thread: arbiter_os.history_of(thread_id=...). (A graph that runs "
            "in a task of its own, as with asyncio.wait_for, gather and create_task, begins its run in that task.)"
        )


class MissingEvaluationError(EvaluationError, KeyError):
    """The result of a failed evaluator was read as `evaluation_results[name]`. The message gives the reason."""

    def __str__(self) -> str:  # KeyError would put the message in quotes
        return str(self.args[0])
