"""URL of the database, as it may be seen. Without psycopg, which a configuration does not need."""

from __future__ import annotations

import re
from typing import Final

_PASSWORDS: Final = re.compile(r"([?&](?:ssl)?password=)[^&]*")
"""Passwords among the parameters of a URL."""


def shown(url: str) -> str:
    """Return a URL without its passwords, for logs and messages."""
    url = _PASSWORDS.sub(r"\1...", url)
    head, at, rest = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    if not at or not slashes:
        return url
    return f"{scheme}://{user.partition(':')[0]}@{rest}"
