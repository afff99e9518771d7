"""What the tests of the management interface share."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pika
from pika.exceptions import AMQPError

from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

FULL = {"configure": ".*", "write": ".*", "read": ".*"}


def call(
    broker: BrokerProcess,
    method: str,
    path: str,
    body: object = None,
    user: str = "guest:guest",
    **headers: str,
) -> tuple[int, dict[str, str], Any]:
    """Status, headers (small letters) and what is in the body."""
    request = urllib.request.Request(f"{broker.url}/api/{path}", method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    if body is not None:
        request.data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            raw, status, found = response.read(), response.status, response.headers
    except urllib.error.HTTPError as error:
        with error:
            raw, status, found = error.read(), error.code, error.headers
    return (
        status,
        {name.lower(): value for name, value in found.items()},
        json.loads(raw) if raw else None,
    )


def get(broker: BrokerProcess, path: str, user: str = "guest:guest") -> Any:
    """What a GET answers, which is 200."""
    status, _, found = call(broker, "GET", path, user=user)
    assert status == 200, (path, status, found)
    return found


def done(broker: BrokerProcess, method: str, path: str, body: object = None) -> int:
    """Do something that succeeds, as guest; returns the status, 201 or 204."""
    status, _, found = call(broker, method, path, body)
    assert status in (201, 204), (path, status, found)
    assert found is None
    return status


def refused(
    broker: BrokerProcess, method: str, path: str, body: object = None, user: str = "guest:guest"
) -> tuple[int, str, str]:
    """Status, error and reason."""
    status, _, found = call(broker, method, path, body, user)
    assert status >= 400, (path, status, found)
    return status, found["error"], found["reason"]


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


def connect(broker: BrokerProcess, user: str = "guest", **rest: Any) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, rest.pop("password", user))
    return pika.BlockingConnection(
        pika.ConnectionParameters(port=broker.amqp_port, credentials=credentials, **rest)
    )


def is_gone(connection: pika.BlockingConnection) -> bool:
    """Whether the broker closed it; processes what has come."""
    if connection.is_open:
        with suppress(AMQPError):
            connection.process_data_events(0.01)
    return bool(connection.is_closed)


def eventually(claim: Callable[[], bool], connection: pika.BlockingConnection) -> None:
    """The claim comes true while the connection looks at what arrives, or when it is closed."""

    def look() -> None:
        if connection.is_open:
            with suppress(AMQPError):
                connection.process_data_events(0.1)

    until(claim, look)
