"""A browser without a screen: cookies, forms and live pages over plain HTTP."""

from __future__ import annotations

import http.client
import json
import re
from html import unescape
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


class Answer:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.cookies = [
            value for name, value in response.getheaders() if name.lower() == "set-cookie"
        ]
        self.body = response.read()

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def to(self) -> str:
        """Where a redirect leads."""
        return self.headers.get("location", "")

    def form_token(self) -> str:
        found = TOKEN.search(self.text)
        assert found is not None, self.text
        return unescape(found[1])


class Browser:
    """One browser. cookie: of its session, once it has logged in."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.cookie = ""
        self._token = ""

    def send(
        self, method: str, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> Answer:
        sent = {"Accept": "text/html", "Cookie": self.cookie}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = None
        if form is not None:
            body = urlencode(form)
            sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._broker.http_port, timeout=PATIENCE_S
        )
        try:
            connection.request(
                method, path, body, {name: value for name, value in sent.items() if value}
            )
            answer = Answer(connection.getresponse())
        finally:
            connection.close()
        for cookie in answer.cookies:
            self.cookie = cookie.partition(";")[0]
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, **headers)

    def login(self, user: str = "guest", password: str = "guest") -> Answer:
        return self.send("POST", "/ui/login", {"name": user, "password": password})

    def act(self, path: str, action: str, **fields: str) -> Answer:
        """Send a form of a page, with the token that the page has."""
        token = self.get(path).form_token()
        return self.send("POST", path, {"form_token": token, "action": action, **fields})

    def live(self, path: str) -> Live:
        return Live(self._broker, self.cookie, path)


class Live:
    """The stream of one live page."""

    def __init__(self, broker: BrokerProcess, cookie: str, path: str) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", broker.http_port, timeout=PATIENCE_S
        )
        self._connection.request("GET", f"/ui/live?{urlencode({'at': path})}", None, {
            "Accept": "text/event-stream", "Cookie": cookie,
        })  # fmt: skip
        self.response = self._connection.getresponse()
        self.status = self.response.status

    def next(self) -> tuple[str, str]:
        """Return the kind and text of the next event; ("", "") at the end of the stream."""
        kind = text = ""
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            kind, text = (value, text) if name == "event" else (kind, json.loads(value))
        return kind, text

    def until(self, wanted: str) -> str:
        """Return the first update that has a text in it."""
        while True:
            kind, text = self.next()
            assert kind == "live", (kind, text)
            if wanted in text:
                return text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.response.close()
        self._connection.close()
