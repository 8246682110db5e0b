"""The account to which a node run is charged: that of its run, its thread, its user or the process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar

from langgraph.config import get_config

from arbiter._values.parameters import Param
from arbiter.errors import ParameterError
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History

A = TypeVar("A")
UserKey = Annotated[str, Param("where the config of a run has its user, in `configurable`", min_length=1)]

KEEP_ACCOUNTS = 10_000
"""The number of accounts that one checker keeps by default, the most recently used ones."""


def account_of(history: History, per: str, user_key: str) -> str | None:
    """The name of the account, or None if the run has no thread or no user.

    The user is the text or whole number in the config's `configurable` under `user_key`.
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


def ensure_user(owner: str, per: str, user_key: str) -> None:
    """Raise `ParameterError` if accounts that are not those of users have a key for users."""
    if per != "user" and user_key != "user_id":
        raise ParameterError(owner, "user_key", f"expected per='user' with it, got per={per!r}.")


def no_account(per: str, user_key: str) -> str:
    """The reason why a node run without an account is denied."""
    if per == "user":
        return f"the config of this run has no {user_key!r} in 'configurable'; no account can be charged"
    return "this run has no thread_id; no account can be charged"


def causal(history: History) -> CausalHistory:
    """The history of a check in a run. Raises `TypeError` for any other history."""
    if not isinstance(history, CausalHistory):
        raise TypeError(f"expected the history of a node run, got a {type(history).__name__}")
    return history


_LOOKS = 8
"""The number of accounts that adding one looks at, however many there are."""


class Accounts(Generic[A]):
    """Accounts by name, most recently used last. If there are too many, the oldest ones for which `may_go` is
    true are dropped. All others are kept, so there may be more for a while. `dropped` is called with each
    that was dropped.
    """

    def __init__(
        self,
        may_go: Callable[[A], bool],
        *,
        keep: int | None = None,
        dropped: Callable[[A], None] | None = None,
    ) -> None:
        self._accounts: OrderedDict[str, A] = OrderedDict()
        self._may_go = may_go
        self._keep = KEEP_ACCOUNTS if keep is None else keep
        self._dropped = dropped

    def get(self, name: str) -> A | None:
        account = self._accounts.get(name)
        if account is not None:
            self._accounts.move_to_end(name)
        return account

    def add(self, name: str, account: A) -> A:
        for old in list(islice(self._accounts, _LOOKS)) if len(self._accounts) >= self._keep else ():
            if len(self._accounts) < self._keep:
                break
            if self._may_go(self._accounts[old]):
                gone = self._accounts.pop(old)
                if self._dropped is not None:
                    self._dropped(gone)
            else:
                self._accounts.move_to_end(old)  # its next turn comes after all others
        self._accounts[name] = account
        return account

    def newest(self) -> A | None:
        return next(reversed(self._accounts.values()), None)
