"""Messages that were read and have another text since: a chat may replace a message under its id."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter.memory._context import EvalContext
from arbiter.memory._conversation import originals, text_of
from arbiter.memory._cursors import TAIL
from arbiter.memory._notes import key_of_messages
from arbiter.memory.stores import Value, namespace

_LOOKED_AT = 4 * TAIL
"""The last messages of a conversation among which an edited one is found."""
_HEAD, _END = 6_000, 1_500


class Edits:
    """The texts of the human messages of a room that an evaluator has read last, as hashes with a random key."""

    def __init__(self, ctx: EvalContext, evaluator: str) -> None:
        self.ctx = ctx
        self.store = ctx.needed_store()
        self._name = f"texts:{evaluator}"
        self._namespace = namespace(ctx.agent_id, "cursors", ctx.room_id)

    async def found(self) -> list[BaseMessage]:
        """The edited messages, oldest first. A turn that ended before the one that was noted last may have
        older texts, and finds none."""
        value = await self.store.aget(self._namespace, self._name)
        known = _texts_in(value)
        if value is None or self.ctx.ended_at.isoformat() < str(value.get("at", "")):
            return []
        key = await key_of_messages(self.store, self.ctx.agent_id)
        said = originals(self.ctx.messages)
        return [
            self.ctx.messages[place]
            for place in range(max(0, len(said) - _LOOKED_AT), len(said))
            if (id := said[place].id) in known and known[id] != _mark(said[place], key)
        ]

    async def note(self, read: Iterable[BaseMessage]) -> None:
        """Keep the texts that these messages have now."""
        ids = {message.id for message in read if isinstance(message, HumanMessage) and message.id}
        if not ids:
            return
        key = await key_of_messages(self.store, self.ctx.agent_id)
        said = originals(self.ctx.messages)
        marks = {message.id: _mark(message, key) for message in said if message.id in ids}
        at = self.ctx.ended_at.isoformat()

        def change(value: Value | None) -> Value | None:
            before = str((value or {}).get("at", ""))
            known = _texts_in(value)
            left = {id: mark for id, mark in known.items() if id not in marks}
            texts = {**marks, **known} if at < before else {**left, **marks}
            return {"at": max(at, before), "texts": [[*pair] for pair in texts.items()][-TAIL:]}

        await self.store.aupdate(self._namespace, self._name, change)


def _texts_in(value: Value | None) -> dict[str, str]:
    return {str(id): str(mark) for id, mark in (value or {}).get("texts", ())}


def _mark(message: BaseMessage, key: bytes) -> str:
    text = text_of(message)
    shown = f"{len(text)} {text[:_HEAD]} {text[-_END:]}".encode(errors="surrogatepass")
    return hmac.digest(key, shown, "sha256").hex()[:16]
