"""`TrustProvider`: the trust in the user."""

from __future__ import annotations

from arbiter.memory.providers._composing import ProviderResult
from arbiter.memory.providers._provider import Provider, ProviderContext
from arbiter.memory.trust import Trust


class TrustProvider(Provider):
    """The trust in the user of the turn, 0 to 100, and its confidence, 0 to 1 (0 with fewer than three pieces
    of evidence).

    The section is empty without evidence. Other people's trust is never shown.
    """

    name = "trust"
    description = "Trust in the user"
    position = 50

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        profile = await Trust(ctx.needed_store(), ctx.agent_id, ctx.clock).profile(ctx.entity_id)
        if not profile.evidence:
            return ProviderResult()
        text = f"{profile.overall} of 100, confidence {profile.confidence:.2f}"
        return ProviderResult(
            text=text,
            values={self.name: text},
            data={"overall": profile.overall, "confidence": profile.confidence},
        )
