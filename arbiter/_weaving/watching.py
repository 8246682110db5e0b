"""The handlers of checkers in a body: they see its calls, also those with callbacks of their own."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from arbiter._threads.forks import new_lock

_handlers: ContextVar[tuple[BaseCallbackHandler, ...]] = ContextVar("arbiter_handlers", default=())
"""The handlers of the node runs whose bodies run in this context, outer ones first."""
_places: list[_Place] = []
_lock = new_lock()


class _Place:
    """A place in `_handlers`, in the form of the `ContextVar` that LangChain reads for each callback manager.

    A call with callbacks of its own (`model.invoke(x, {"callbacks": [...]})`, `tool.run(x)`) does not get
    those of the config around it, so LangChain adds the handler to that call's own. A handler that the config
    around does not have is not meant to see the call: a contract makes it.
    """

    def __init__(self, index: int) -> None:
        self.index = index

    def get(self) -> BaseCallbackHandler | None:
        handlers = _handlers.get()
        if self.index >= len(handlers):
            return None
        handler = handlers[self.index]
        around: Any = (var_child_runnable_config.get() or {}).get("callbacks") or ()
        if isinstance(around, BaseCallbackManager):
            around = around.handlers
        return handler if any(one is handler for one in around) else None


@contextmanager
def watched(
    config: RunnableConfig | None, handlers: Sequence[BaseCallbackHandler]
) -> Generator[RunnableConfig]:
    """A config with handlers that see all LangChain calls of this context while it is the ambient one."""
    token = _handlers.set(around := (*_handlers.get(), *handlers))
    if len(_places) < len(around):
        _add_places(len(around))
    try:
        yield _with_handlers(config or {}, handlers)
    finally:
        try:
            _handlers.reset(token)
        except ValueError:  # an async generator may be closed in another context
            pass


def _add_places(number: int) -> None:
    from langchain_core.tracers.context import register_configure_hook  # langsmith comes with it

    with _lock:
        while len(_places) < number:
            _places.append(place := _Place(len(_places)))
            register_configure_hook(cast("ContextVar[Any]", place), inheritable=True)


def _with_handlers(config: RunnableConfig, handlers: Sequence[BaseCallbackHandler]) -> RunnableConfig:
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        for handler in handlers:
            callbacks.add_handler(handler, inherit=True)
    else:
        callbacks = [*(callbacks or ()), *handlers]
    return {**config, "callbacks": callbacks}
