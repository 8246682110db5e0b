"""`TimeProvider`: the current time."""

from __future__ import annotations

from datetime import UTC

from arbiter.memory.providers._composing import ProviderResult
from arbiter.memory.providers._provider import Provider, ProviderContext


class TimeProvider(Provider):
    """The date and time in UTC, to the minute, by the cycle's clock. Needs no store."""

    name = "time"
    description = "Now"
    position = 0

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        now = ctx.clock().astimezone(UTC)
        text = now.strftime("%A, %Y-%m-%d %H:%M UTC")
        return ProviderResult(text=text, values={self.name: text}, data={"now": now.isoformat()})
