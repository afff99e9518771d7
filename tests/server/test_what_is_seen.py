"""Names in a virtual host: shown by no list, account or metric to who may not enter it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.management import FULL, call, connect, done, refused
from tests.support.process import BrokerProcess

PATHS = (
    "/metrics", "/metrics/per-object",
    "/api/overview", "/api/queues", "/api/exchanges", "/api/bindings", "/api/consumers",
    "/api/channels", "/api/connections", "/api/policies", "/api/operator-policies", "/api/vhosts",
    "/api/users", "/api/permissions", "/api/definitions", "/api/whoami", "/api/nodes",
    "/api/parameters", "/api/tallymark/overview", "/api/tallymark/status",
    "/api/tallymark/queues", "/api/tallymark/exchanges", "/api/tallymark/connections",
    "/api/tallymark/consumers", "/api/tallymark/slow-consumers", "/api/tallymark/subscriptions",
    "/api/tallymark/sinks", "/api/tallymark/housekeeping", "/api/tallymark/log-levels",
)  # fmt: skip
SECRET = "planted"
"""In the name of everything that is in the virtual host."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("seen")) / "data") as running:
        done(running, "PUT", f"vhosts/{SECRET}")
        for name, tags in (("ann", ""), ("mo", "monitoring")):
            done(running, "PUT", f"users/{name}", {"password": name, "tags": tags})
        done(running, "PUT", "permissions/%2F/ann", FULL)
        done(running, "PUT", "queues/%2F/mine", {"durable": True})
        done(running, "PUT", f"queues/{SECRET}/{SECRET}.q", {"durable": True})
        stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
        done(running, "PUT", f"queues/{SECRET}/{SECRET}.s", stream)
        done(running, "PUT", f"exchanges/{SECRET}/{SECRET}.x", {"type": "fanout"})
        done(running, "POST", f"bindings/{SECRET}/e/{SECRET}.x/q/{SECRET}.q", {})
        policy = {"pattern": SECRET, "definition": {"max-length": 5}}
        done(running, "PUT", f"policies/{SECRET}/{SECRET}.p", policy)
        path = f"/api/tallymark/subscriptions/{SECRET}/{SECRET}.q/{SECRET}.spark/attach"
        assert running.http("POST", path, {})[0] == 200
        connection = connect(running, virtual_host=SECRET)
        connection.channel().basic_consume(f"{SECRET}.q", lambda *_: None)
        yield running
        connection.close()


@pytest.mark.parametrize("path", PATHS)
def test_who_may_not_enter_a_virtual_host_reads_no_name_in_it(
    broker: BrokerProcess, path: str
) -> None:
    status, raw = broker.http_bytes("GET", path, user="ann:ann")
    assert status in (200, 401, 403), (status, raw)
    assert SECRET.encode() not in raw


@pytest.mark.parametrize("user", ["guest:guest", "mo:mo"])
def test_who_sees_everything_reads_all_metrics(broker: BrokerProcess, user: str) -> None:
    status, raw = broker.http_bytes("GET", "/metrics/per-object", user=user)
    assert status == 200
    for queue in (f"{SECRET}.q", f"{SECRET}.s", "mine"):
        assert f'queue="{queue}"'.encode() in raw
    assert call(broker, "GET", "overview", user=user)[0] == 200


@pytest.mark.parametrize("user", ["root:root", "mo:mo"])
@pytest.mark.parametrize("path", ["queues", "exchanges", "consumers", "subscriptions"])
def test_who_sees_everything_needs_no_permission_to(
    broker: BrokerProcess, path: str, user: str
) -> None:
    done(broker, "PUT", "users/root", {"password": "root", "tags": "administrator"})
    status, found = broker.http("GET", f"/api/tallymark/{path}", user=user)
    assert status == 200
    assert SECRET in [row["vhost"] for row in found[path]]


def test_the_machine_is_shown_to_who_watches_it(broker: BrokerProcess) -> None:
    seen = call(broker, "GET", "overview", user="mo:mo")[2]
    own = call(broker, "GET", "overview", user="ann:ann")[2]
    assert seen.keys() - own.keys() == {"node", "listeners", "contexts", "churn_rates"}
    for path in ("nodes", f"nodes/{seen['node']}"):
        assert call(broker, "GET", path, user="mo:mo")[0] == 200
        assert refused(broker, "GET", path, user="ann:ann")[:2] == (401, "not_authorised")


def test_the_own_queues_are_among_the_metrics(broker: BrokerProcess) -> None:
    raw = broker.http_bytes("GET", "/metrics/per-object", user="ann:ann")[1]
    assert b'tallymark_queue_ready{queue="mine",vhost="/"} 0.0' in raw
    assert b"tallymark_connections 1.0" in raw, "what counts the whole broker counts all"
