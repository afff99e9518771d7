"""All pages, in the order of the menu."""

from __future__ import annotations

from typing import Final

from tallymark.server.page import (
    admin,
    connections,
    consumers,
    deadletters,
    exchanges,
    messages,
    nsq,
    overview,
    queue,
    queues,
    streams,
)
from tallymark.server.page.view import Page

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    queues.LIST,
    queue.PAGE,
    messages.PAGE,
    deadletters.PAGE,
    deadletters.LETTERS,
    consumers.PAGE,
    connections.LIST,
    connections.ONE,
    streams.PAGE,
    exchanges.LIST,
    exchanges.ONE,
    nsq.PAGE,
    admin.POLICIES_PAGE,
    admin.USERS_PAGE,
    admin.FEATURES_PAGE,
)
