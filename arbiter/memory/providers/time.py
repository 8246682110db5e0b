"""`TimeProvider`: what time it is."""

from __future__ import annotations

from datetime import UTC

from arbiter.memory.providers.composing import ProviderResult
from arbiter.memory.providers.provider import Provider, ProviderContext


class TimeProvider(Provider):
    """Says the date and the time, to the minute, by the cycle's clock. Needs no store."""

    name = "time"
    description = "Now"
    position = 0

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        now = ctx.clock().astimezone(UTC)
        text = now.strftime("%A, %Y-%m-%d %H:%M UTC")
        return ProviderResult(text=text, values={self.name: text}, data={"now": now.isoformat()})
