"""`ProfileProvider`: the profiles of the user."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from arbiter.memory.facts._profiles import Profiles, checked_schemas, lines_of
from arbiter.memory.providers._composing import ProviderResult, one_line
from arbiter.memory.providers._provider import Provider, ProviderContext


class ProfileProvider(Provider):
    """The fields of the user's profiles, as far as this room may see them; `FactEvaluator(schemas=...)` fills
    them."""

    name = "profile"
    description = "Profile of the user"
    position = 5

    def __init__(self, *schemas: type[BaseModel], name: str = "", **options: Any) -> None:
        super().__init__(name, **options)
        self.schemas = checked_schemas(f"provider {self.name!r}", schemas)

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        profiles = Profiles(ctx.needed_store(), agent_id=ctx.agent_id, entity_id=ctx.entity_id)
        found = [await profiles.read(schema, room_id=ctx.room_id) for schema in self.schemas]
        lines = [
            f"{one_line(name, 100)}: {one_line(value)}"
            for profile in found
            for name, value in lines_of(profile)
        ]
        text = "\n".join(lines)
        data = {
            type(profile).__name__: profile.model_dump(mode="json", exclude_unset=True) for profile in found
        }
        return ProviderResult(text=text, values={self.name: text}, data=data)
