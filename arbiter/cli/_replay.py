"""`arbiter replay`: another constitution decides about recorded runs, and the exit code says whether it differs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from arbiter._objects import import_from_here
from arbiter.cli._options import Screen, opened, option_of
from arbiter.cli._streams import counting, reader_may_leave
from arbiter.errors import ArbiterError, ConfigurationError, describe, nearest

if TYPE_CHECKING:
    from arbiter.cli._app_options import ReplayOptions
    from arbiter.ledger import ReplayReport

OUTCOMES = ("looser", "stricter", "elsewhere", "unknown")


def replay_runs(options: ReplayOptions) -> int:
    """Print the report. Returns 1 if there are decisions of an outcome in `fail_on`."""
    screen = Screen(options.format)
    failing = _outcomes(options.fail_on)
    if not options.constitution:
        raise ConfigurationError("replay needs the constitution that is to decide: arbiter replay -c DIR")
    if options.file is not None and option_of(options.ledger):
        raise ConfigurationError("--from reads a file in place of a ledger. Leave out --ledger, or --from.")
    import_from_here()
    with counting("node runs replayed") as show:
        report = _report(options, options.constitution, show)
    with reader_may_leave():
        if screen.format == "json":
            sys.stdout.write(report.to_json())
        elif screen.format == "jsonl":
            sys.stdout.writelines(json.dumps(each) + "\n" for each in report.to_dicts())
        else:
            report.pprint(screen.console, all=options.all)
    return 1 if any(getattr(report.summary, outcome) for outcome in failing) else 0


def _report(options: ReplayOptions, constitution: list[str], progress: Callable[[int], None]) -> ReplayReport:
    since, until, file = options.since, options.until, options.file
    asked: dict[str, Any] = {"threads": options.threads or None, "allow": options.allow, "progress": progress}
    if file is None:
        with opened(options.ledger) as ledger:
            return ledger.replay(constitution, since=since, until=until, **asked)
    from arbiter.ledger._database import CHANGED
    from arbiter.ledger._exporting import read_records
    from arbiter.ledger._queries import span
    from arbiter.ledger.replaying._replay import replay

    begin, end = span(since, until, time.time())
    try:
        return replay(read_records(file), constitution, since=begin, until=end, **asked)
    except ArbiterError:
        raise
    except CHANGED as error:
        raise ConfigurationError(
            f"{file!r} has an entry that cannot be read ({describe(error)}), because it was changed. Export it again."
        ) from error


def _outcomes(fail_on: str) -> tuple[str, ...]:
    if fail_on.strip() == "none":
        return ()
    found = tuple(name.strip() for name in fail_on.split(","))
    for name in found:
        if name not in OUTCOMES:
            raise ConfigurationError(
                f"--fail-on has {name!r}; expected none, or some of {', '.join(OUTCOMES)}.{nearest(name, OUTCOMES)}"
            )
    return found
