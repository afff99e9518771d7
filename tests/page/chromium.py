"""Debian's Chromium without a screen, driven by Playwright: for tests and the docs' pictures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROGRAM = shutil.which("chromium")
MISSING = "needs Debian's Chromium: apt-get install chromium"
ARGUMENTS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 400, "height": 800}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser for as long as the block."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def logged_in(browser: Browser, broker: BrokerProcess, **options: Any) -> Page:
    """Return a window on the overview. options: of Playwright's `new_page`."""
    page = browser.new_page(base_url=broker.url, **{"viewport": WIDE, **options})
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto("/")
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill("guest")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("/")
    return page
