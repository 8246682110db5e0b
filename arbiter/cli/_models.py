"""Chat models for commands that run nothing: a rule that names a model loads without a key or a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from arbiter.models import model_of
from arbiter.models._unmade import UnmadeModel


class StandIns(Mapping[str, UnmadeModel]):
    """A model for every name that a pack uses. None of them is asked."""

    def __getitem__(self, name: str) -> UnmadeModel:
        return UnmadeModel(name=name, make=model_of)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
