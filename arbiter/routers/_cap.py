"""What the built-in routers do where they may not decide once more."""

from __future__ import annotations

from typing import Any, get_args

from arbiter.errors import ParameterError
from arbiter.policy import OnCap, PolicyRouter


def set_cap(router: PolicyRouter, on_cap: OnCap, best_by: str | None) -> None:
    """Set `on_cap` and `best_by` of a router. Raises `ParameterError`, also for its `max_redirects`."""
    owner = f"router {router.name!r}"
    most: Any = router.max_redirects
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise ParameterError(
            owner, "max_redirects", f"expected a whole number from 0, got {most!r}. Write 3."
        )
    if on_cap not in get_args(OnCap):
        raise ParameterError(
            owner,
            "on_cap",
            f"expected 'continue', 'end' or 'best_attempt', got {on_cap!r}. Write 'continue'.",
        )
    given: Any = best_by
    if given is not None and (not isinstance(given, str) or not given):
        raise ParameterError(owner, "best_by", f"expected the name of an evaluator, got {given!r}.")
    if on_cap == "best_attempt" and best_by is None:
        raise ParameterError(
            owner,
            "best_by",
            "expected the name of an evaluator, got None. on_cap='best_attempt' compares by it.",
        )
    router.on_cap = on_cap
    router.best_by = best_by if on_cap == "best_attempt" else None
