"""`ReflectionProvider`: the agent's earlier thoughts about this conversation."""

from __future__ import annotations

from arbiter.memory._records import Thought, readable
from arbiter.memory.providers._composing import ProviderResult, one_line
from arbiter.memory.providers._provider import Provider, ProviderContext
from arbiter.memory.stores import namespace


class ReflectionProvider(Provider):
    """The agent's last thoughts about this room, newest first; never thoughts about another room."""

    name = "reflection"
    description = "Earlier thoughts about this conversation"
    position = 40
    most = 3

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        # Read a few more: stores sort by the time of writing, and a corrected thought was written later.
        place = namespace(ctx.agent_id, "thoughts", ctx.room_id)
        entries = await ctx.needed_store().alist(place, limit=self.most * 4)
        found = readable(Thought, (entry.value for entry in entries))
        shown = sorted(found, key=lambda thought: thought.at, reverse=True)[: self.most]
        text = "\n".join(f"[{thought.at.date().isoformat()}] {one_line(thought.text)}" for thought in shown)
        return ProviderResult(
            text=text,
            values={self.name: text},
            data={"thoughts": [thought.to_value() for thought in shown]},
        )
