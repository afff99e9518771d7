"""An auth server as nsqd asks one, in a thread of its own.

with AuthServer({"ttl": 3600, "authorizations": [...]}) as server:
    ... auth_http_address=server.address ...
    assert server.asked[-1]["secret"] == ["sesame"]
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import HttpServer


class AuthServer(HttpServer):
    """Answers everybody alike."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.answer = answer or {}
        """{}: 403."""
        self.asked: list[dict[str, list[str]]] = []
        """The parameters of every request."""
        super().__init__()

    def respond(self, path: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(parse_qs(urlsplit(path).query, keep_blank_values=True))
        return 200 if self.answer else 403, {}, json.dumps(self.answer).encode()
