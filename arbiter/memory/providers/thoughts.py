"""`ReflectionProvider`: what the agent made of this conversation so far."""

from __future__ import annotations

from arbiter.memory.providers.composing import ProviderResult, one_line
from arbiter.memory.providers.provider import Provider, ProviderContext
from arbiter.memory.records import Thought, readable
from arbiter.memory.stores import namespace


class ReflectionProvider(Provider):
    """Says the last thoughts that the agent had about this room, newest first; never those about another one."""

    name = "reflection"
    description = "Earlier thoughts about this conversation"
    position = 40
    most = 3

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        # A few more, because a thought that was corrected counts as written when that was done.
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
