"""The logger `arbiter`: events at a node, and no secret in any message."""

from __future__ import annotations

import logging

from arbiter._lifecycle.runs import NodeRun
from arbiter.redaction import SecretRedactor

_log = logging.getLogger("arbiter")


def log(run: NodeRun, event: str, *args: object) -> None:
    """Log an event at a node to the logger `arbiter`. Costs nothing if no handler wants INFO records."""
    if _log.isEnabledFor(logging.INFO):
        record, thread = run.record, run.run.log.thread_id
        of = f" ({record.instruction.name})" if record.instruction else ""
        where = f"node {record.node!r}{of}, step {record.step}" + (f", thread {thread!r}" if thread else "")
        _log.info(f"%s: {event}", where, *args)


class _Redacted(logging.Filter):
    """Lets every record through, and replaces the secrets in its message: reasons and errors often copy values
    of a state.
    """

    redactor = SecretRedactor()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:
            return True  # the handlers report a message that does not fit its arguments
        if (redacted := self.redactor.text(text)) != text:
            record.msg, record.args = redacted, None
        return True


_log.addFilter(_Redacted())
