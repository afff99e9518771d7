"""All pages, in the order of the menu."""

from __future__ import annotations

from typing import Final

from tallymark.server.page import overview, queues
from tallymark.server.page.view import Page

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    queues.LIST,
)
