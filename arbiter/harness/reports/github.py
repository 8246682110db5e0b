"""The report as the one comment of a pull request, and the part of GitHub's API that writes it.

    reports ─▶ render ─▶ Markdown that begins with MARKER ─▶ PullRequest.upsert ─▶ the comment with MARKER

A comment is found again by the marker at its start, so that a second run of a job replaces the first one's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from arbiter._values.kinds import is_list, is_mapping
from arbiter.errors import ConfigurationError, describe
from arbiter.harness.comparisons import decimals
from arbiter.harness.reports import markdown
from arbiter.harness.reports.markdown import escaped, table_row
from arbiter.harness.reports.report import Report
from arbiter.harness.reports.texts import decision
from arbiter.harness.scores import NINE
from arbiter.statistics import half_up

if TYPE_CHECKING:
    import httpx

MARKER = "<!-- arbiter eval -->"
MOST = 65_536
"""The characters that GitHub takes in a comment."""
OF_SUMMARY = 300_000
"""The characters for the summary of a job, of which GitHub takes a megabyte."""
_STATUS = {0: "✓ passed", 1: "✗ failed"}
_CUT = "\n*The whole report is too long to show here. `arbiter eval report RUN --out report.md` writes it.*\n"
_PAGE = 100
_SECONDS = 30.0


# The text -----------------------------------------------------------------------------------------


def render(reports: Sequence[Report], most: int = MOST) -> str:
    """The comment about some runs: a table with a line for each, one line for each that failed, the reports.

    A cell is the mean with its change from the baseline: `7.5 (=)`, `6.5 (-1.5)`; `—` if the run has no such
    row or no score. "overall" is the mean of the rows from 0 to 9. Whole reports beyond `most` characters are
    left out.
    """
    names = list(dict.fromkeys(name for report in reports for name in report.rows))
    with_overall = any(row.scale == NINE for report in reports for row in report.rows.values())
    titles = ["suite", *names, *(["overall"] if with_overall else []), "status"]
    lines = [MARKER, "### Evaluation", "", table_row(map(escaped, titles))]
    lines.append(table_row(["---", *["---:"] * (len(titles) - 2), "---"]))
    for report in reports:
        shown = [report.suite, *(_cell(report, name) for name in names)]
        shown += [_overall(report)] if with_overall else []
        lines.append(
            table_row(map(escaped, [*shown, _STATUS.get(report.comparison.exit_code, "? undecided")]))
        )
    lines += ["", *_results(reports, most // (8 * max(1, len(reports))))]
    text = "\n".join(lines) + "\n"
    for report in reports:
        whole = f"\n<details><summary>The whole report</summary>\n\n{markdown.render(report)}\n</details>\n"
        if len(text) + len(whole) + len(_CUT) > most:
            return text + _CUT
        text += whole
    return text


def _cell(report: Report, name: str) -> str:
    row = report.rows.get(name)
    if row is None or row.mean is None:
        return "—"
    change = report.comparison.rows[name].delta
    low, high = row.scale
    return _with_change(row.mean, change, 1 if isfinite(high) and high - low > 1 else 2)


def _overall(report: Report) -> str:
    rows = {name: row for name, row in report.rows.items() if row.scale == NINE and row.mean is not None}
    if not rows:
        return "—"
    compared = report.comparison.rows
    known = [change for name in rows if (change := compared[name].delta) is not None]
    # With some of the rows only, the change would be that of another mean.
    change = fmean(known) if len(known) == len(rows) else None
    return _with_change(fmean(row.mean for row in rows.values() if row.mean is not None), change, 1)


def _with_change(mean: float, change: float | None, digits: int) -> str:
    shown = decimals(mean, digits)
    if change is None:
        return shown
    return f"{shown} ({decimals(change, digits, '+')})" if half_up(change, digits) else f"{shown} (=)"


def _results(reports: Sequence[Report], longest: int) -> Iterator[str]:
    """The line that names each drop, for each run that did not pass; one line if all passed."""
    found = [line for report in reports for line in _problems(report)]
    for line in found:
        # Escaped, a line becomes longer; cases that must pass can make it very long.
        yield f"**{escaped(line if len(line) <= longest else line[:longest] + ' …')}**\n"
    if not found and any(report.baseline is not None for report in reports):
        yield "**✓ nothing regressed.**"
    elif not found:
        yield "**✓ passed; there is no baseline to compare with.**"


def _problems(report: Report) -> list[str]:
    if report.comparison.exit_code == 2:
        return [f"? {report.suite} has no baseline. Measure one: arbiter eval baseline SUITE"]
    return decision(report)


# The API ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request on GitHub, and the token that may comment on it."""

    repository: str
    number: int
    token: str = field(repr=False)
    api: str = "https://api.github.com"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.repository):
            raise ConfigurationError(
                f"GITHUB_REPOSITORY is {self.repository!r:.80}; expected owner/name, such as acme/support."
            )
        if not re.match(r"https?://[^/]", self.api):
            raise ConfigurationError(
                f"GITHUB_API_URL is {self.api!r:.80}; expected a URL, such as https://api.github.com."
            )
        # The token itself is never shown, also not by an HTTP client that refuses it.
        if not re.fullmatch(r"[!-~]+", self.token):
            raise ConfigurationError(
                "GITHUB_TOKEN has characters that no token has, such as a space or a line end. Set the token alone."
            )

    @classmethod
    def of_environment(cls, number: int) -> PullRequest:
        """The pull request with this number, by GITHUB_REPOSITORY, GITHUB_TOKEN and GITHUB_API_URL.

        Raises `ConfigurationError` with all that is missing.
        """
        missing = [name for name in ("GITHUB_TOKEN", "GITHUB_REPOSITORY") if not os.environ.get(name)]
        if missing:
            raise ConfigurationError(
                f"a comment needs {' and '.join(missing)} in the environment. In a workflow of GitHub Actions, "
                "GITHUB_REPOSITORY is set, and the step needs `env: {GITHUB_TOKEN: ${{ github.token }}}`."
            )
        api = os.environ.get("GITHUB_API_URL") or "https://api.github.com"
        token = os.environ["GITHUB_TOKEN"].strip()
        return cls(os.environ["GITHUB_REPOSITORY"], number, token, api.rstrip("/"))

    def upsert(self, text: str) -> str:
        """Replace the comment that begins with `MARKER`, or write the first one. Returns its URL.

        Raises `ConfigurationError` if GitHub refuses, and `ConnectionError` if it cannot be reached.
        """
        import httpx  # comes with langgraph

        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        issues = f"{self.api}/repos/{self.repository}/issues"
        with httpx.Client(headers=headers, timeout=_SECONDS) as client:
            before = self._comment(client, f"{issues}/{self.number}/comments")
            if before is None:
                found = self._asked(client, "POST", f"{issues}/{self.number}/comments", json={"body": text})
            else:
                found = self._asked(client, "PATCH", f"{issues}/comments/{before}", json={"body": text})
            return str(self._read(found, is_mapping).get("html_url", ""))

    def _comment(self, client: httpx.Client, url: str) -> int | None:
        """The id of the oldest comment that begins with the marker, and that this token may have written."""
        page = 1
        while True:
            found = self._asked(client, "GET", url, params={"per_page": _PAGE, "page": page})
            comments: list[dict[str, Any]] = self._read(found, is_list)
            for comment in comments:
                if str(comment.get("body") or "").startswith(MARKER) and self._may_be_own(comment):
                    return int(comment["id"])
            if len(comments) < _PAGE:
                return None
            page += 1

    def _may_be_own(self, comment: Mapping[str, Any]) -> bool:
        """False for the comment of a person, who may have copied ours, if the token is that of a job: a bot's."""
        author: Mapping[str, Any] = comment.get("user") or {}
        return not (self.token.startswith("ghs_") and author.get("type") == "User")

    def _read(self, response: httpx.Response, is_kind: Callable[[object], bool]) -> Any:
        """The JSON of an answer. Raises `ConfigurationError` for another kind, such as the page of a proxy."""
        try:
            found: Any = response.json()
        except ValueError:
            found = response.text
        if not is_kind(found):
            raise ConfigurationError(
                f"{self.api} does not answer as GitHub's API does, but with {found!r:.80}. The comment was not "
                "written. Check GITHUB_API_URL."
            )
        return found

    def _asked(self, client: httpx.Client, method: str, url: str, **options: Any) -> httpx.Response:
        import httpx

        try:
            response = client.request(method, url, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConnectionError(
                f"{self.api} could not be reached ({describe(error)[:200]}). The comment was not written."
            ) from None
        if response.is_success:
            return response
        said = f"{method} {response.request.url.path} was answered with {response.status_code}{_reason(response)}"
        if response.status_code >= 500:
            raise ConnectionError(f"GitHub failed: {said}. The comment was not written; run the job again.")
        remedy = _REMEDIES.get(response.status_code, "The comment was not written.")
        raise ConfigurationError(
            f"GitHub refused the comment on {self.repository}#{self.number}: {said}. {remedy}"
        )


_REMEDIES = {
    401: "GITHUB_TOKEN is not valid, or has expired.",
    403: (
        "GITHUB_TOKEN may not comment: give the job `permissions: {pull-requests: write}`. "
        "The token of a pull request from a fork can only read."
    ),
    404: "There is no such pull request, or GITHUB_TOKEN may not see the repository. Check --pr and GITHUB_REPOSITORY.",
}


def _reason(response: httpx.Response) -> str:
    """GitHub's own message, if there is one."""
    try:
        said: Any = response.json()["message"]
    except (ValueError, LookupError, TypeError):
        return ""
    return f" ({said!r:.200})"
