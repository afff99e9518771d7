"""What the tests of nsqd's HTTP interface share."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def call(
    base: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (small letters) and body."""
    request = urllib.request.Request(f"{base}{path}", data=body, method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            raw, status, found = response.read(), response.status, response.headers
    except urllib.error.HTTPError as error:
        with error:
            raw, status, found = error.read(), error.code, error.headers
    return status, {name.lower(): value for name, value in found.items()}, raw


def post(base: str, path: str, body: bytes = b"") -> bytes:
    """Something that succeeds; returns the answer's body."""
    status, _, raw = call(base, "POST", path, body)
    assert status == 200, (path, status, raw)
    return raw


def refused(base: str, path: str, body: bytes = b"", method: str = "POST") -> tuple[int, str]:
    """Status and code of a refusal."""
    status, headers, raw = call(base, method, path, body)
    assert status >= 400, (path, status, raw)
    assert headers["content-type"] == "application/json; charset=utf-8"
    answer = json.loads(raw)
    assert list(answer) == ["message"]
    return status, answer["message"]


def stats(base: str, query: str = "") -> dict[str, Any]:
    """/stats as JSON."""
    status, headers, raw = call(base, "GET", f"/stats?format=json{query}")
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    found: dict[str, Any] = json.loads(raw)
    return found


def topic(base: str, name: str) -> dict[str, Any]:
    """The row of one topic."""
    (row,) = stats(base, f"&topic={name}")["topics"]
    return dict(row)


def channel(base: str, of: str, name: str) -> dict[str, Any]:
    """The row of one channel."""
    (row,) = (
        topic(base, of)["channels"]
        if not name
        else [one for one in topic(base, of)["channels"] if one["channel_name"] == name]
    )
    return dict(row)
