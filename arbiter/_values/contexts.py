"""Context variables that have a value for a while, such as the ambient config."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

T = TypeVar("T")


@contextmanager
def during(variable: ContextVar[T], value: T) -> Generator[None]:
    """Let `variable` have that value inside the `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def ambient(config: RunnableConfig | None) -> AbstractContextManager[None]:
    """Let `get_config()`, `get_store()` and similar functions find those of `config` inside the `with` block."""
    return during(var_child_runnable_config, config)
