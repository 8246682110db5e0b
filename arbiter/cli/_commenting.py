"""`arbiter eval comment`: the comment about runs on a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arbiter.cli._runs import gated, summaries
from arbiter.cli._streams import tell
from arbiter.errors import ConfigurationError
from arbiter.harness.journal import FOLDER, reading, run_folder
from arbiter.harness.reports.github import OF_SUMMARY, PullRequest, render


def write_comment(
    runs: Sequence[str],
    pr: int | None,
    baseline: Path | None,
    *,
    ci: bool,
    strict: bool,
    accept_changed: bool,
) -> None:
    """Write the comment about some runs, or about the newest run of each suite; without `pr`, print it."""
    folders = [run_folder(run) for run in runs] or _newest()
    if baseline is not None and len(folders) > 1:
        raise ConfigurationError(f"--baseline is for one run, and there are {len(folders)}. Name one.")
    # Before anything is read: a missing token is the likeliest mistake.
    pull_request = None if pr is None else PullRequest.of_environment(pr)
    options = {"ci": ci, "strict": strict, "accept_changed": accept_changed}
    with reading(*folders):
        reports = [gated(folder, baseline, **options) for folder in folders]
        text = render(reports, OF_SUMMARY) if pull_request is None else render(reports)
    if pull_request is None:
        print(text)
        return
    url = pull_request.upsert(text)
    tell(f"wrote the comment {url}")


def _newest() -> list[Path]:
    """The newest run of each suite."""
    folders = {found.suite: FOLDER / run for run, found in summaries(FOLDER)}
    return list(folders.values()) or [run_folder("last")]
