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


class Harmless(BaseCallbackHandler):
    """A handler that gets every event, but can neither write through the config nor end the run."""

    raise_error = False

    def __init__(self, handler: BaseCallbackHandler, isolated_config: RunnableConfig | None) -> None:
        self.run_inline = handler.run_inline
        for name in dir(handler):
            if name.startswith("on_") and callable(method := getattr(handler, name)):
                setattr(self, name, inside(method, lambda _: _isolated(isolated_config)))
        self._handler = handler

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("ignore_"):
            return getattr(self._handler, name)
        return super().__getattribute__(name)


def inside(
    method: Callable[..., Any], context: Callable[[Mapping[str, Any]], AbstractContextManager[None]]
) -> Callable[..., Any]:
    """A method of a handler, which runs in a context that is made of the keyword arguments of each call."""
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
