"""Rules about the order and number of steps, as the linter reads them: by class name and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arbiter import History, PolicyChecker
from arbiter.instructions import Instruction


class _Rule(PolicyChecker):
    def check_before(self, history: History) -> bool:
        return True


class RequireBefore(_Rule):
    def __init__(
        self,
        name: str,
        required: Instruction | str,
        *,
        once_per_use: bool = False,
        since: Sequence[Instruction | str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self.required = required
        self.once_per_use = once_per_use
        self.since = since


class WithinSteps(_Rule):
    def __init__(self, name: str, required: Instruction | str, steps: int, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.required = required
        self.steps = steps


class NeverAfter(_Rule):
    def __init__(self, name: str, after: Instruction | str, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.after = after


class AtMost(_Rule):
    def __init__(self, name: str, times: int, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.times = times


class ToolsChecker(_Rule):
    def __init__(self, name: str, *, allow: list[str], deny: list[str], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.allow = allow
        self.deny = deny
