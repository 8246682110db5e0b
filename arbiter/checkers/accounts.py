"""Whose account a node run counts on: that of its run, its thread, its user or the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from langgraph.config import get_config

from arbiter.errors import ParameterError
from arbiter.history import CausalHistory, History
from arbiter.states import is_number

A = TypeVar("A")

KEEP_ACCOUNTS = 10_000
"""How many accounts one checker keeps: those that were used last."""


def account_of(history: History, per: str, user_key: str) -> str | None:
    """The name of the account, or None when the run has none: no thread, or no user.

    The user is what the run's config has in `configurable` under `user_key`: a text or a whole number.
    """
    if per == "process":
        return "process"
    if per == "run":
        return causal(history).run_id
    if per == "thread":
        return causal(history).thread_id
    try:
        configurable: Mapping[str, Any] = get_config().get("configurable", {})
    except RuntimeError:  # a governed function outside of any run
        return None
    user = configurable.get(user_key)
    if isinstance(user, bool) or not isinstance(user, str | int) or user == "":
        return None
    return str(user)


def no_account(per: str, user_key: str) -> str:
    """Why a node run without an account is denied."""
    if per == "user":
        return (
            f"the config of this run has no {user_key!r} in 'configurable'; nobody's account can be charged"
        )
    return "this run has no thread_id; no account can be charged"


def causal(history: History) -> CausalHistory:
    """The history that every check in a run is given."""
    if not isinstance(history, CausalHistory):
        raise TypeError(f"expected the history of a node run, got a {type(history).__name__}")
    return history


class Accounts(Generic[A]):
    """Accounts by name, those used last at the end. Of too many, the oldest go that `may_go`."""

    def __init__(self, may_go: Callable[[A], bool]) -> None:
        self._accounts: dict[str, A] = {}
        self._may_go = may_go

    def get(self, name: str) -> A | None:
        account = self._accounts.pop(name, None)
        if account is not None:
            self._accounts[name] = account
        return account

    def add(self, name: str, account: A) -> A:
        while len(self._accounts) >= KEEP_ACCOUNTS:
            gone = next((old for old, of_old in self._accounts.items() if self._may_go(of_old)), None)
            if gone is None:
                break
            del self._accounts[gone]
        self._accounts[name] = account
        return account

    def newest(self) -> A | None:
        return next(reversed(self._accounts.values()), None)


def positive(owner: str, parameter: str, value: object, *, whole: bool = False) -> None:
    """Refuse what is no number above 0; with `whole`, no whole one."""
    if is_number(value) and value > 0 and (isinstance(value, int) or not whole):
        return
    kind = "a whole number" if whole else "a number"
    raise ParameterError(owner, parameter, f"expected {kind} above 0, got {value!r}.")


def non_empty(owner: str, parameter: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ParameterError(owner, parameter, f"expected a non-empty text, got {value!r}.")


def one_of(owner: str, parameter: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise ParameterError(owner, parameter, f"expected one of {choices}, got {value!r}.")
