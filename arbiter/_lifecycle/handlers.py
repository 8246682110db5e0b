"""Callback handlers of checkers: those of one without effect, and one that sees which of them ask a model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from arbiter._threads.deadlines import is_from_outside

_log = logging.getLogger("arbiter")


class ModelChecks(BaseCallbackHandler):
    """Sees which of the checkers of a node run ask a model, and when these began and ended."""

    run_inline = True

    def __init__(self) -> None:
        self.found: list[tuple[str, int, int]] = []
        """The names, and when they began and ended, in nanoseconds since 1970."""
        self._now: tuple[str, int] | None = None
        self._asks = False

    def next(self, name: str | None) -> None:
        """That checker is called now; None after the last one."""
        at = time.time_ns()
        if self._asks and self._now is not None:
            self.found.append((*self._now, at))
        self._asks, self._now = False, None if name is None else (name, at)

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self._asks = True

    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        self._asks = True


Context = Callable[[Mapping[str, Any]], AbstractContextManager[None]]
"""Makes the context of an event of its keyword arguments."""


class Inside(BaseCallbackHandler):
    """A handler that handles each event in a context."""

    def __init__(self, handler: BaseCallbackHandler, context: Context, *, raise_error: bool) -> None:
        self._inside = handler, context
        # Read here: of an object that is no handler, this fails before the node runs.
        self.run_inline = handler.run_inline
        self.raise_error = raise_error

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            handler, context = self._inside
            return _inside(getattr(handler, name), context)
        if name.startswith("ignore_"):
            return getattr(self._inside[0], name)
        return super().__getattribute__(name)


def harmless(handler: BaseCallbackHandler, isolated_config: RunnableConfig | None) -> BaseCallbackHandler:
    """The handler, which gets every event, but can neither write through the config nor end the run."""
    return Inside(handler, lambda _: _isolated(isolated_config), raise_error=False)


def _inside(method: Callable[..., Any], context: Context) -> Callable[..., Any]:
    if iscoroutinefunction(method):

        @wraps(method)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            with context(kwargs):
                return await method(*args, **kwargs)

        return acall

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with context(kwargs):
            return method(*args, **kwargs)

    return call


@contextmanager
def _isolated(isolated_config: RunnableConfig | None) -> Generator[None]:
    token = var_child_runnable_config.set(isolated_config)
    try:
        yield
    except BaseException as exc:
        # LangChain reads a NotImplementedError as "call on_llm_start instead".
        if isinstance(exc, NotImplementedError) or is_from_outside(exc):
            raise
        _log.warning("a callback handler of a checker under audit failed: %s", type(exc).__name__)
    finally:
        var_child_runnable_config.reset(token)
