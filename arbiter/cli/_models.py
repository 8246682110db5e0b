"""Chat models for commands that run nothing: a rule that names a model loads without a key or a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from langchain_core.language_models import FakeListChatModel


class StandIn(FakeListChatModel):
    """A model that is never called, and prints as its name."""

    def __str__(self) -> str:
        return str(self.name)


class StandIns(Mapping[str, StandIn]):
    """A stand-in model for every name that a pack uses."""

    def __getitem__(self, name: str) -> StandIn:
        return StandIn(name=name, responses=[])

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
