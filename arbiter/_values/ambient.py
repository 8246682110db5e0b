"""The ambient config: that of the code which runs, as LangGraph's `get_config()` and similar functions find it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config


@contextmanager
def ambient(config: RunnableConfig | None) -> Generator[None]:
    """Let `get_config()`, `get_store()` and similar functions find those of `config` inside the `with` block."""
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
