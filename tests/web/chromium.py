"""A real Chromium, driven on a thread of its own: playwright keeps an event loop, which async tests would meet."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

T = TypeVar("T")
NO_BROWSER = "not tested in a browser: "
PATHS = ("chromium", "chromium-browser")
_UNANSWERED = re.compile(r"console: (Failed to load resource: net::ERR_|htmx: htmx:error: Failed to fetch )")
_AXE = """async (rules) => {
  const found = await axe.run(document, {resultTypes: ["violations"], ...(rules ? {runOnly: rules} : {})});
  return found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.target.join(" ")).join(", ")}`);
}"""


def missing() -> str | None:
    """The reason why there is no browser to test with; None if there is one."""
    if not any(map(shutil.which, PATHS)):
        return "there is no chromium: apt-get install chromium"
    lacking = [name for name in ("axe_playwright_python", "playwright") if find_spec(name) is None]
    return f"there is no {lacking[0]}: pip install 'arbiteros[test]'" if lacking else None


class Chromium:
    """The browser. `run` calls a function with it on its thread and returns the result."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._playwright, self._browser = self._thread.submit(_launch).result()

    def close(self) -> None:
        self._thread.submit(self._browser.close).result()
        self._thread.submit(self._playwright.stop).result()
        self._thread.shutdown()

    def run(self, visit: Callable[[Tab], T], **options: Any) -> T:
        """The result of `visit` with a new tab. Fails if the tab asked elsewhere, or had a dialog or an error."""

        def inside() -> T:
            with _tab(self._browser, options) as tab:
                return visit(tab)

        return self._thread.submit(inside).result()


def _launch() -> Any:
    from playwright.sync_api import sync_playwright

    playwright = sync_playwright().start()
    path = next(filter(None, map(shutil.which, PATHS)))
    # No name but that of the viewer has an address, so that nothing can be fetched from elsewhere.
    rules = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
    browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu", rules])
    return playwright, browser


class Tab:
    """A tab with a context of its own, and what happened in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.troubles: list[str] = []
        self.requests: list[str] = []
        page.on("request", self._asked)
        page.on("dialog", self._met)
        page.on("pageerror", self._failed)
        page.on("console", self._said)

    def _asked(self, request: Any) -> None:
        self.requests.append(request.url)
        if (
            urlsplit(request.url).scheme not in ("file", "data")
            and urlsplit(request.url).hostname != "127.0.0.1"
        ):
            self.troubles.append(f"request: {request.url}")

    def _met(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _failed(self, error: Any) -> None:
        self.troubles.append(f"error: {error}")

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"console: {message.text}")

    def forgive_unanswered(self) -> None:
        """Drop the lines about requests that no server answered: while the viewer is away, they are expected."""
        self.troubles[:] = [each for each in self.troubles if not _UNANSWERED.match(each)]

    def axe(self, rules: list[str] | None = None) -> list[str]:
        """The findings of axe-core on the page, in short; by default by all of its rules."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(
                files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
            )
        found: list[str] = self.page.evaluate(_AXE, rules)
        return found


@contextmanager
def _tab(browser: Any, options: dict[str, Any]) -> Generator[Tab]:
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)
    try:
        tab = Tab(context.new_page())
        yield tab
        assert not tab.troubles, tab.troubles
    finally:
        context.close()


@contextmanager
def chromium() -> Generator[Chromium]:
    """The browser. Without one the test is skipped, or fails with ARBITER_REQUIRE_CHROMIUM=1."""
    reason = missing()
    if reason is not None:
        if os.environ.get("ARBITER_REQUIRE_CHROMIUM") == "1":
            pytest.fail(reason)
        pytest.skip(NO_BROWSER + reason)
    browser = Chromium()
    try:
        yield browser
    finally:
        browser.close()
