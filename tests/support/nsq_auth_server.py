"""An auth server as nsqd asks one, in a thread of its own.

with AuthServer({"ttl": 3600, "authorizations": [...]}) as server:
    ... auth_http_address=server.address ...
    assert server.asked[-1]["secret"] == ["sesame"]
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.support.patience import PATIENCE_S


class AuthServer:
    """Answers everybody alike."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.answer = answer or {}
        """{}: 403."""
        self.asked: list[dict[str, list[str]]] = []
        """The parameters of every request."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(parse_qs(urlsplit(self.path).query, keep_blank_values=True))
                body = json.dumps(owner.answer).encode()
                self.send_response(200 if owner.answer else 403)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join(PATIENCE_S)
        self._server.server_close()
