#!/usr/bin/env python3
"""The pictures of docs/page.md: a broker in trouble (tests/page/scene.py) as Chromium shows it.

`make pictures` writes docs/pictures/*.png anew; it needs Debian's Chromium. It takes a minute: a
queue is called stuck after one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.page.chromium import MISSING, PROGRAM, chromium, logged_in  # noqa: E402
from tests.page.scene import Scene  # noqa: E402
from tests.support.process import BrokerProcess  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER: Final = ROOT / "docs" / "pictures"
MOST_BYTES: Final = 150_000
PICTURES: Final = (
    ("overview", "light", "/", "stuck:"),
    ("queue", "light", "/ui/queues/%2F/jobs", "worker-1"),
    ("messages", "light", "/ui/messages?q=c-4711", "1 message found"),
    ("dead-letters", "light", "/ui/dead-letters", "37 died"),
    ("redrive", "light", "/ui/dead-letters/%2F/parked", "37 of 37 would go back"),
    ("consumers", "dark", "/ui/consumers", "near its limit"),
)
"""Name of each picture, light or dark, the page, and a text that is waited for."""


def take(page: Page, name: str, path: str, text: str) -> None:
    """Write one picture, as high as the page is."""
    from playwright.sync_api import expect

    page.goto(path)
    expect(page.get_by_role("main")).to_contain_text(text)
    file = FOLDER / f"{name}.png"
    page.screenshot(path=file, full_page=True)
    size = file.stat().st_size
    print(f"{file.relative_to(ROOT)}: {size:,} bytes")
    if size > MOST_BYTES:
        sys.exit(f"{file}: more than {MOST_BYTES:,} bytes")


def main() -> None:
    if PROGRAM is None:
        sys.exit(MISSING)
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data") as broker,
        Scene(broker),
        chromium() as browser,
    ):
        for name, scheme, path, text in PICTURES:
            page = logged_in(
                browser, broker, color_scheme=scheme, viewport={"width": 1100, "height": 600}
            )
            take(page, name, path, text)
            page.close()


if __name__ == "__main__":
    main()
