"""Brokers to attack: with TLS, users, and limits that an attack of seconds can reach."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from tests.siege.attack import Target
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

GUEST: Final = "guest:guest"
MIB: Final = 1 << 20
MAX_MEMORY: Final = 64 * MIB
SETTINGS: Final[dict[str, str]] = {
    "max_connections": "500",
    "max_memory": "64MiB",
    "max_message_size": "16MiB",
    "handshake_timeout_ms": "2000",
    "http_header_timeout": "2s",
    "http_body_timeout": "2s",
    "http_answer_timeout": "5s",
    "segment_size": "16MiB",
}


def provided(folder: Path, *, is_forked: bool = True) -> BrokerProcess:
    """A broker with a listener for each port that is attacked. Not started."""
    made = Authority(folder).sign("localhost")
    return BrokerProcess(
        folder / "data", is_forked=is_forked,
        amqps_port="0", amqps_cert=str(made.cert), amqps_key=str(made.key),
        nsq_tls_cert=str(made.cert), nsq_tls_key=str(made.key), log_level="info", **SETTINGS,
    )  # fmt: skip


def target_of(broker: BrokerProcess) -> Target:
    names = ("amqp", "amqps", "http", "nsq", "nsq_http", "nsq_https")
    return Target({name: int(broker.ready[name][1]) for name in names})


def call(
    port: int, method: str, path: str, body: object = None, seconds: float = PATIENCE_S
) -> bytes:
    """One request by the administrator. Raises HTTPError, OSError: no answer for so long."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(GUEST.encode()).decode())
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=seconds) as response:
        found: bytes = response.read()
    return found


def set_up(target: Target) -> None:
    """The administrator, the attacker, and the virtual host that is attacked."""
    port = target.ports["http"]
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    name, password = target.administrator.split(":")
    for user, secret, tags in (
        (name, password, "administrator"),
        (target.user, target.password, "monitoring,policymaker"),
        (target.other, target.password, ""),
    ):
        call(port, "PUT", f"/api/users/{user}", {"password": secret, "tags": tags})
        call(port, "PUT", f"/api/permissions/%2F/{user}", everything)
    renew(target)


def renew(target: Target, seconds: float = PATIENCE_S) -> None:
    """Whatever an attack left in its virtual host is gone."""
    port, everything = target.ports["http"], dict.fromkeys(("configure", "write", "read"), ".*")
    try:
        call(port, "DELETE", f"/api/vhosts/{target.vhost}", seconds=seconds)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
    call(port, "PUT", f"/api/vhosts/{target.vhost}", {}, seconds)
    for user in (target.user, target.administrator.split(":")[0]):
        call(port, "PUT", f"/api/permissions/{target.vhost}/{user}", everything, seconds)


def unbalanced(broker: BrokerProcess) -> list[str]:
    """Queues whose account does not add up [LC-5]."""
    _, answer = broker.http("GET", "/api/tallymark/queues")
    parts = (
        "ready", "acquired", "deferred", "staged", "dead_letter_pending", "quarantined", "settled",
        "dead_lettered",
    )  # fmt: skip
    return [
        f"{row['vhost']} {row['name']}: {row}"
        for row in answer["queues"]
        if row["entered"] != sum(row[part] for part in parts) + sum(row["dropped"].values())
    ]


def faults(broker: BrokerProcess) -> list[str]:
    """Lines of the log that only a bug of the broker writes."""
    words = ("connection.broken", "Traceback", "never retrieved", "Unhandled")
    return [line for line in broker.log().splitlines() if any(word in line for word in words)]
