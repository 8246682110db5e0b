"""`TrustProvider`: how far the user can be trusted, as far as there is evidence."""

from __future__ import annotations

from arbiter.memory.providers.composing import ProviderResult
from arbiter.memory.providers.provider import Provider, ProviderContext
from arbiter.memory.trust import Trust


class TrustProvider(Provider):
    """Says the trust in the user of the turn, 0 to 100, and how sure that is, 0 to 1 (0 for less than three pieces of
    evidence); nothing without evidence, and nothing about anybody else."""

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
