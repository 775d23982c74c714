"""A real headless Chromium, and the live page in it.

with a_browser() as browser, opened(browser, served) as page: page.text("#steps .figures")
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.serving import Served

WAIT_MS = 180_000.0
"""For anything: a busy machine is no failure."""

expect.set_options(timeout=WAIT_MS)


@contextlib.contextmanager
def a_browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    found = shutil.which("chromium")
    if found is None:
        pytest.fail(
            "the live page is tested in Chromium, which isn't here: apt-get install chromium"
        )
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Opened:
    """The page, looked at once."""

    page: Page
    errors: list[str] = field(default_factory=list[str])
    """What its console complained of."""
    asked: list[str] = field(default_factory=list[str])
    """Addresses that it asked for."""
    told: list[str] = field(default_factory=list[str])
    """Referrers that it gave away."""

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def looked(self) -> int:
        """How often it has asked for everything that was due."""
        return int(self.page.locator("body").get_attribute("data-looked") or 0)

    def look_again(self) -> None:
        """Wait until it has asked once more, from start to end."""
        for number in (self.looked() + 1, self.looked() + 2):
            self.page.locator(f"body[data-looked='{number}']").wait_for(timeout=WAIT_MS)


@contextlib.contextmanager
def opened(browser: Browser, served: Served, behind: str = "", **context: Any) -> Iterator[Opened]:
    """The page of a served book, with all its panels; `behind` goes after the #."""
    size: Any = {"width": 1360, "height": 900}
    page = browser.new_page(viewport=size, **context)
    page.set_default_timeout(WAIT_MS)
    found = Opened(page)
    page.on(
        "console", lambda each: found.errors.append(each.text) if each.type == "error" else None
    )
    page.on("pageerror", lambda each: found.errors.append(str(each)))
    page.on("request", lambda each: found.asked.append(each.url))
    page.on("request", lambda each: found.told.append(each.headers.get("referer", "")))
    try:
        page.goto(f"{served.url}/?token={served.token}{behind}")
        page.locator("body[data-looked]").wait_for(timeout=WAIT_MS)
        yield found
    finally:
        page.close()
