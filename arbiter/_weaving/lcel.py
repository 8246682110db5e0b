"""A node that is an LCEL sequence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig

from arbiter._values.contexts import ambient


class LcelSteps:
    """The steps of a node that is an LCEL sequence. They run as in LangGraph: flattened into the node's own
    steps.

    LangGraph gives each step a child of the node's callbacks with the tag `seq:step:N`. Only the first step
    runs with the node's config as the ambient one.
    """

    def __init__(self, steps: Sequence[Runnable[Any, Any]]) -> None:
        self.steps = steps

    def _configs(self, config: RunnableConfig) -> list[RunnableConfig]:
        return [config, *(_lcel_config(config, n) for n in range(2, len(self.steps) + 1))]

    def invoke(self, input: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        configs, before = self._configs(config), ambient_before.get()
        value = self.steps[0].invoke(input, configs[0], **kwargs)
        with ambient(before):
            for step, step_config in zip(self.steps[1:], configs[1:], strict=True):
                value = step.invoke(value, step_config)
        return value

    async def ainvoke(self, input: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        configs, before = self._configs(config), ambient_before.get()
        value = await self.steps[0].ainvoke(input, configs[0], **kwargs)
        with ambient(before):
            for step, step_config in zip(self.steps[1:], configs[1:], strict=True):
                value = await step.ainvoke(value, step_config)
        return value

    async def astream(self, input: Any, config: RunnableConfig, **kwargs: Any) -> AsyncIterator[Any]:
        configs = self._configs(config)
        stream = self.steps[0].astream(input, configs[0], **kwargs)
        for step, step_config in zip(self.steps[1:], configs[1:], strict=True):
            stream = step.atransform(stream, step_config)
        async for chunk in stream:
            yield chunk


def _lcel_config(config: RunnableConfig, number: int) -> RunnableConfig:
    callbacks = config.get("callbacks")
    if not isinstance(callbacks, BaseCallbackManager):
        return config
    manager = callbacks.copy()
    manager.remove_tags(["seq:step:1"])
    manager.add_tags([f"seq:step:{number}"], inherit=False)
    return {**config, "callbacks": manager}


ambient_before: ContextVar[RunnableConfig | None] = ContextVar("arbiter_ambient", default=None)
"""The ambient config outside of the sequence that runs: that of a node around it, or of its time limit."""
