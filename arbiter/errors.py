"""Everything that Arbiter raises on purpose.

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
    ├── ConditionError (ValueError)             a condition that is no CEL, or could not be answered
    ├── OutputSchemaError (ValueError)          a node returned what its output schema refuses
    ├── CorrectionError (RuntimeError)          a correction gate gave up, or failed
    ├── ReadOnlyTypeError (TypeError)           a contract tried to change what it is shown
    ├── SyncDriverError (TypeError)             a coroutine in a run that was started with `invoke`
    ├── AmbiguousHistoryError (LookupError)     `arbiter_os.history` where several threads run
    └── EvaluationError (RuntimeError)          an evaluation that failed, for a reader who insists
        └── MissingEvaluationError (KeyError)   the same, read by its name as from a mapping

`ArbiterWarning` (UserWarning) is for what does nothing, or less than it seems: a rule that applies to no node.

Each error keeps what its sentence says as fields, and survives pickling, so that it can be read in
another process. An exception of a node's body is never wrapped in any of these: it passes through
as it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Self


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` most likely meant, upper and lower case aside, or None."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    found = get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[found[0]] if found else None


def nearest(name: str, candidates: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` to end an error with (the blank in front included), or `""`."""
    found = closest(name, candidates)
    return f" Did you mean {found!r}?" if found else ""


def describe(error: BaseException) -> str:
    """An error as one text: its class and what it says, also if it cannot say anything."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as exc:
        return f"{type(error).__name__}: (its text raised {type(exc).__name__})"


class ArbiterError(Exception):
    """The base of them all: `except ArbiterError` catches what Arbiter raises, nothing else."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with `args`, the message; ours are called with their fields.
        return _restore, (type(self), self.args), dict(self.__dict__)


def _restore(kind: type[ArbiterError], args: tuple[object, ...]) -> ArbiterError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class ArbiterWarning(UserWarning):
    """Something that was set up does nothing, or less than it seems. The text says where it is and what to do."""


class ConfigurationError(ArbiterError, ValueError):
    """Something registered, governed or loaded is wrong. Raised before the first node runs, or where it shows only
    then (a recording without an answer) by the node run that it concerns."""


class UnknownInstructionError(ConfigurationError):
    """A text that names no instruction, or more than one. `name` is the text as it was given."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class UnknownNodeError(ConfigurationError):
    """A node that the graph does not have.

    `claim` is the beginning of the sentence, up to the name: "router 'auto_reflect' redirects to".
    `names` are the graph's nodes, sorted; `nearest` is the one that was probably meant, or None. `remedy` is what else
    may help.
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
    """What cannot be registered: its name is taken, a method is missing, a type is wrong."""


class ParameterError(ConfigurationError):
    """A parameter of a checker, router, evaluator, ... is wrong.

    `owner` says whose ("checker 'spend_limit'"), `parameter` is its name, with a path for what is inside it
    ("allow[2].when"), `problem` what was expected and found.
    """

    def __init__(self, owner: str, parameter: str, problem: str) -> None:
        self.owner = owner
        self.parameter = parameter
        self.problem = problem
        super().__init__(f"{owner}: {parameter}: {problem}")


class NotAGraphError(ConfigurationError, TypeError):
    """What was to be governed or executed is no graph, builder, function or Runnable."""


@dataclass(frozen=True, slots=True)
class PackMistake:
    """One thing wrong in a pack. `line` counts from 1; `path` is as in "instructions[2].node"."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: "
        return where + (f"{self.path}: {self.message}" if self.path else self.message)


class PackError(ConfigurationError):
    """Mistakes in packs: all that were found in one load, one line each, in the order of the files.

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
        """The error of a single mistake."""
        return cls([PackMistake(file, line, path, message)])


# A RuntimeError on purpose: LangGraph's default RetryPolicy does not retry those. A denial that is
# tried again three times is three denials, with the waiting in between.
class PolicyViolationError(ArbiterError, RuntimeError):
    """A node was not run, or its output not committed, because a policy does not allow it.

    `policy` is the name of the checker. `cause` is what it raised, when it failed instead of
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
            "the answer to its question is used already, by another execution of the graph on this thread"
        )
        if cause is not None:
            reason = f"that an approval is used could not be saved: {type(cause).__name__}: {cause}"
        super().__init__(policy=policy, node=node, instruction=instruction, reason=reason, cause=cause)


def _failure(cause: BaseException | None) -> str:
    if cause is None:
        return "no reason was given"
    if isinstance(cause.__cause__, StopIteration):
        cause = cause.__cause__  # Arbiter's own wrapper: an event loop hands on no StopIteration
    # What other exceptions say may be made of the state, and this text is kept. It is in `cause` and the traceback.
    said = f" ({cause})" if isinstance(cause, ArbiterError | TimeoutError) else ""
    return f"raised {type(cause).__name__}{said}"


class ReadOnlyTypeError(ArbiterError, TypeError):
    """A contract tried to change the state or the history that it is shown."""


class ConditionError(ArbiterError, ValueError):
    """A condition is wrong, or has no answer for the values that it was asked about.

    `expression` is the condition, `problem` what is wrong with it, `field` the field that is missing or unfit,
    where it is one.
    """

    def __init__(self, expression: str, problem: str, *, field: str | None = None) -> None:
        self.expression = expression
        self.problem = problem
        self.field = field
        shown = expression if len(expression) <= 200 else expression[:197] + "..."
        super().__init__(f"condition {shown!r}: {problem}")


class OutputSchemaError(ArbiterError, ValueError):
    """A node returned something that its declared output schema refuses; nothing was committed.

    `schema` is the schema's name, `message` what it found wrong.
    """

    def __init__(self, *, node: str, schema: str, message: str) -> None:
        self.node = node
        self.schema = schema
        self.message = message
        super().__init__(f"node {node!r} returned what schema {schema} refuses: {message}")


class CorrectionError(ArbiterError, RuntimeError):
    """A correction gate gave up on a node's drafts, used up its attempts, or failed itself."""

    def __init__(self, *, gate: str, node: str, reason: str) -> None:
        self.gate = gate
        self.node = node
        self.reason = reason
        super().__init__(f"correction gate {gate!r} let no draft of node {node!r} pass: {reason}")


class SyncDriverError(ArbiterError, TypeError):
    """A coroutine came back in a run that was started with `invoke`, which cannot await it.

    `source` says whose it was: "the node's body", "checker 'spend_limit'".
    """

    def __init__(self, *, node: str, source: str = "the node's body") -> None:
        self.node = node
        self.source = source
        super().__init__(
            f"{source} returned a coroutine on node {node!r} in a synchronous run. "
            "Start the run with ainvoke (or astream, abatch, aexecute)."
        )


class EvaluationError(ArbiterError, RuntimeError):
    """An evaluation that gave no result: its evaluator raised, timed out or returned nonsense.

    Evaluations never raise into a run; this is for callers who ask for the failed one by name.
    """

    def __init__(self, message: str, *, evaluator: str = "", node: str = "") -> None:
        self.evaluator = evaluator
        self.node = node
        super().__init__(message)


class AmbiguousHistoryError(ArbiterError, LookupError):
    """`arbiter_os.history` was read where no run has begun, and several threads are known, or several runs without a
    thread in a server: the latest run may be somebody else's."""

    def __init__(self) -> None:
        super().__init__(
            "no run has begun in this context, and this ArbiterOS governs several threads or runs, so that the latest "
            "run may be somebody else's. Ask for a thread: arbiter_os.history_of(thread_id=...). (A graph that runs in "
            "a task of its own, as with asyncio.wait_for, gather and create_task, begins its run in that task.)"
        )


class MissingEvaluationError(EvaluationError, KeyError):
    """The result of an evaluator that failed was read as `evaluation_results[name]`. The text says why it failed."""

    def __str__(self) -> str:  # that of a KeyError puts it in quotes
        return str(self.args[0])
