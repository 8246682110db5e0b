"""Chat models that are only named, for commands that ask none of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable


class UnmadeModel(BaseChatModel):
    """A model that a text like "openai:gpt-5-mini" names. `make` makes it when it is first asked."""

    make: Callable[[str], Any]

    @cached_property
    def made(self) -> Any:
        """The model itself."""
        return self.make(str(self))

    def __str__(self) -> str:
        return str(self.name)

    @property
    def _llm_type(self) -> str:
        return "unmade"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        provider, colon, name = str(self).partition(":")
        if not colon:
            provider, name = "", provider
        return {"ls_model_type": "chat", "ls_provider": provider, "ls_model_name": name}

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.made._generate(*args, **kwargs)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.made._agenerate(*args, **kwargs)

    def bind_tools(self, *args: Any, **kwargs: Any) -> Runnable[Any, Any]:
        return self.made.bind_tools(*args, **kwargs)  # type: ignore[no-any-return]

    def with_structured_output(self, *args: Any, **kwargs: Any) -> Runnable[Any, Any]:
        return self.made.with_structured_output(*args, **kwargs)  # type: ignore[no-any-return]
