"""Users and permissions over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pika.exceptions import AMQPError

from tallymark.server.access.user import UsersError, hashed_user, make_user
from tallymark.server.config.settings import ConfigError, load
from tests.server.lines import until_closed
from tests.server.management import FULL, call, connect, done, get, names, refused
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

SHA256 = "rabbit_password_hashing_sha256"
SHA512 = "rabbit_password_hashing_sha512"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("users")) / "data") as running:
        done(running, "PUT", "vhosts/shop")
        yield running


def salted(digest: str, password: str, salt: bytes = b"salt") -> str:
    """As RabbitMQ makes it."""
    hashed = hashlib.new(digest, salt + password.encode()).digest()
    return base64.b64encode(salt + hashed).decode()


def may_enter(broker: BrokerProcess, user: str, password: str) -> bool:
    return call(broker, "GET", "whoami", user=f"{user}:{password}")[0] == 200


# -- users


def test_several_users_are_deleted_together_or_not_at_all(tmp_path: Path) -> None:
    """As amqpstorm's management interface does."""
    with BrokerProcess(tmp_path / "data") as broker:
        for name in ("ann", "ben", "root"):
            tags = "administrator" if name == "root" else ""
            done(broker, "PUT", f"users/{name}", {"password": name, "tags": tags})
        as_root = {"user": "root:root"}
        some = {"users": ["ann", "nobody", "guest"]}
        assert call(broker, "POST", "users/bulk-delete", some, **as_root)[0] == 204
        _, _, found = call(broker, "GET", "users", **as_root)
        assert names(found) == ["ben", "root"]
        everybody = {"users": ["ben", "root"]}
        assert call(broker, "POST", "users/bulk-delete", everybody, **as_root)[0] == 400
        assert call(broker, "POST", "users/bulk-delete", {"users": "ben"}, **as_root)[0] == 400
        assert call(broker, "POST", "users/bulk-delete", some, user="ben:ben")[0] in (401, 403)
        _, _, found = call(broker, "GET", "users", **as_root)
        assert names(found) == ["ben", "root"]


def test_the_old_health_check_takes_the_nodes_name(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        (node,) = get(broker, "nodes")
        assert get(broker, f"healthchecks/node/{node['name']}") == {"status": "ok"}
        assert call(broker, "GET", "healthchecks/node/rabbit@elsewhere")[0] == 404


def test_the_first_user_locks_nobody_out(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert get(broker, "users")[0]["tags"] == ["administrator"]
        assert get(broker, "users")[0]["password_hash"] == ""
        done(broker, "PUT", "users/ann", {"password": "secret", "tags": "management"})
        assert may_enter(broker, "guest", "guest")
        assert may_enter(broker, "ann", "secret")
        assert names(get(broker, "users")) == ["ann", "guest"]
        broker.kill()
        broker.restart()
        assert may_enter(broker, "ann", "secret")
        done(broker, "PUT", "users/root", {"password": "root", "tags": "administrator"})
        done(broker, "DELETE", "users/guest")
        assert not may_enter(broker, "guest", "guest")
        status, _, _ = call(broker, "DELETE", "users/ann", user="root:root")
        assert status == 204
        found = refused(broker, "DELETE", "users/root", user="root:root")
        assert found == (400, "bad_request", "no user would be left, expected at least one")
        assert may_enter(broker, "root", "root")


def test_a_user_is_made_changed_and_deleted(broker: BrokerProcess) -> None:
    path = "users/bob"
    assert done(broker, "PUT", path, {"password": "one", "tags": "a, b,administrator"}) == 201
    assert get(broker, path)["tags"] == ["administrator", "a", "b"]
    assert get(broker, "whoami", "bob:one") == {"name": "bob", "tags": ["administrator", "a", "b"]}
    done(broker, "PUT", "permissions/shop/bob", FULL)
    assert done(broker, "PUT", path, {"tags": ["monitoring"]}) == 204
    row = get(broker, path)
    assert (row["tags"], row["password_hash"]) == (["monitoring"], "")
    assert not may_enter(broker, "bob", "one"), "no password, no login, as in RabbitMQ"
    assert get(broker, "permissions/shop/bob")["read"] == ".*"
    done(broker, "PUT", path, {"password": "two", "tags": ""})
    assert (may_enter(broker, "bob", "one"), may_enter(broker, "bob", "two")) == (False, True)
    done(broker, "PUT", path, {"password_hash": "", "tags": ""})
    assert not may_enter(broker, "bob", "two")
    assert not may_enter(broker, "bob", "")
    assert done(broker, "DELETE", path) == 204
    assert refused(broker, "GET", path)[:2] == (404, "not_found")
    assert refused(broker, "DELETE", path)[:2] == (404, "not_found")


def test_a_changed_password_keeps_the_permissions(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/kim", {"password": "one", "tags": ""})
    done(broker, "PUT", "permissions/shop/kim", FULL)
    done(broker, "PUT", "users/kim", {"password": "two", "tags": ""})
    assert get(broker, "permissions/shop/kim")["read"] == ".*"


@pytest.mark.parametrize(
    ("algorithm", "password_hash", "password"),
    [
        # made by RabbitMQ 3.10.8
        (SHA256, "MC9JyMp5T4yPNMpqZG0AzzFuh0BE2HipIbXFZ2wVJgC596TE", "secret"),
        (SHA256, "vsQcOOCqZcVih4qZNJ02C4Q/6ovCc6xgQo2BRyO1qG9uSgTU", "hunter2"),
        # by the formula, and let in by RabbitMQ 3.10.8
        (
            SHA512,
            "30pM2S2BzbCcSH3cLMkYYTVsWm7ZxX4uwMNZe+GiasG5ayIPDijC9MKLuNhJwZ64g58ORjiPL5QezMetGI6"
            "ZRUCYvHI=",
            "sha512",
        ),
        (SHA256, salted("sha256", "grün"), "grün"),
    ],
)
def test_hashes_of_rabbitmq_let_in_and_are_shown_again(
    broker: BrokerProcess, algorithm: str, password_hash: str, password: str
) -> None:
    body = {"password_hash": password_hash, "hashing_algorithm": algorithm, "tags": ""}
    done(broker, "PUT", "users/from", body)
    done(broker, "PUT", "permissions/%2F/from", FULL)
    assert may_enter(broker, "from", password)
    assert not may_enter(broker, "from", password + "x")
    assert not may_enter(broker, "from", password_hash)
    row = get(broker, "users/from")
    assert (row["password_hash"], row["hashing_algorithm"]) == (password_hash, algorithm)
    connect(broker, "from", password=password).close()
    done(broker, "DELETE", "users/from")


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_the_hash_of_an_empty_password_lets_nobody_in(
    broker: BrokerProcess, algorithm: str
) -> None:
    body = {
        "password_hash": salted(algorithm, ""),
        "hashing_algorithm": f"rabbit_password_hashing_{algorithm}",
        "tags": "administrator",
    }
    done(broker, "PUT", "users/blank", body)
    done(broker, "PUT", "permissions/%2F/blank", FULL)
    assert not may_enter(broker, "blank", "")
    with pytest.raises(AMQPError):
        connect(broker, "blank", password="").close()
    done(broker, "DELETE", "users/blank")


def test_a_scrypt_hash_is_shown_and_taken_again(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/here", {"password": "secret", "tags": ""})
    row = get(broker, "users/here")
    assert row["hashing_algorithm"].startswith("scrypt:")
    copy = {key: row[key] for key in ("password_hash", "hashing_algorithm", "tags")}
    done(broker, "PUT", "users/there", copy)
    assert may_enter(broker, "there", "secret")
    assert not may_enter(broker, "there", "other")


@pytest.mark.parametrize(
    ("password_hash", "algorithm", "text"),
    [
        (
            salted("md5", "x"),
            "rabbit_password_hashing_md5",
            "of kind 'rabbit_password_hashing_md5'",
        ),
        (salted("sha256", "x"), SHA512, "of 36 bytes, expected 68"),
        (salted("sha256", "x")[:-4], SHA256, "of 33 bytes, expected 36"),
        ("???", SHA256, "no base64"),
        (salted("sha256", "x"), "scrypt:1", "of kind"),
        (salted("sha256", "x", b"s" * 16), "scrypt:16384:8:-1", "expected numbers"),
        (salted("sha256", "x", b"s" * 16), "scrypt:16383:8:1", "a power of 2"),
        (salted("sha256", "x", b"s" * 16), "scrypt:2097152:8:1", "expected a cost of 2 to 2^20"),
        (salted("sha256", "x", b"s" * 16), "scrypt:16384:99:1", "block 1 to 32"),
        (salted("sha256", "x", b"s" * 16), "scrypt:65536:1:1", "below 2^16 with block 1"),
    ],
)
def test_hashes_that_cannot_be_checked_are_refused(
    broker: BrokerProcess, password_hash: str, algorithm: str, text: str
) -> None:
    with pytest.raises(UsersError) as why:
        hashed_user("bad", password_hash, algorithm)
    assert text in str(why.value)
    body = {"password_hash": password_hash, "hashing_algorithm": algorithm, "tags": ""}
    assert text in refused(broker, "PUT", "users/bad", body)[2]
    assert "bad" not in names(get(broker, "users"))


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("users/new", {"password": "x"}, "tags is missing"),
        (
            "users/new",
            {"password": "x", "password_hash": salted("sha256", "y"), "tags": ""},
            "both_password_and_password_hash_are_provided",
        ),
        ("users/new", {"password": "x", "tags": 5}, "tags is 5, expected a list"),
        ("users/new", {"password": "", "tags": ""}, "expected a password that is not empty"),
        ("users/new", {"password": 5, "tags": ""}, "password is a number, expected text"),
        ("users/a%3Ab", {"password": "x", "tags": ""}, "expected a name without ':'"),
    ],
)
def test_users_that_are_refused(broker: BrokerProcess, path: str, body: Any, reason: str) -> None:
    before = get(broker, "users")
    status, error, text = refused(broker, "PUT", path, body)
    assert (status, error) == (400, "bad_request")
    assert reason in text
    assert get(broker, "users") == before


def test_a_guest_with_the_password_everybody_knows_gets_in_from_loopback_only(
    tmp_path: Path,
) -> None:
    import asyncio

    from tallymark.server.access import users

    users.save(tmp_path, {"guest": make_user("guest", "guest", True, {})})
    who = users.Users(tmp_path)

    def enters(peer: str) -> bool:
        return asyncio.run(who.check("guest", "guest", peer)) is not None

    assert enters("127.0.0.1")
    assert not enters("192.0.2.7")
    users.save(tmp_path, {"guest": make_user("guest", "better", True, {})})
    assert asyncio.run(who.check("guest", "better", "192.0.2.7")) is not None


def test_what_only_administrators_do(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/low", {"password": "low", "tags": "management,policymaker"})
    done(broker, "PUT", "permissions/shop/low", FULL)
    before = get(broker, "users")
    for method, path, body in (
        ("PUT", "users/low", {"password": "low", "tags": "administrator"}),
        ("PUT", "users/other", {"password": "x", "tags": ""}),
        ("DELETE", "users/guest", None),
        ("PUT", "permissions/%2F/low", FULL),
        ("DELETE", "permissions/shop/low", None),
        ("PUT", "vhosts/more", None),
        ("DELETE", "vhosts/shop", None),
        ("GET", "definitions", None),
        ("GET", "definitions/shop", None),
        ("POST", "definitions", {"vhosts": [{"name": "more"}]}),
        ("PUT", "operator-policies/shop/p", {"pattern": "", "definition": {"max-length": 1}}),
        ("DELETE", "operator-policies/shop/p", None),
    ):
        found = refused(broker, method, path, body, "low:low")
        assert found[:2] == (401, "not_authorised"), (method, path, found)
    assert get(broker, "users") == before
    assert names(get(broker, "vhosts")) == ["/", "shop"]


# -- permissions


def test_permissions(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/pam", {"password": "pam", "tags": ""})
    rule = {"configure": "^pam", "write": "^pam|^out$", "read": ""}
    assert done(broker, "PUT", "permissions/shop/pam", rule) == 201
    assert done(broker, "PUT", "permissions/shop/pam", rule) == 204
    row = {"user": "pam", "vhost": "shop", **rule}
    assert get(broker, "permissions/shop/pam") == row
    assert get(broker, "users/pam/permissions") == [row]
    assert row in get(broker, "permissions")
    assert row in get(broker, "vhosts/shop/permissions")
    assert row not in get(broker, "vhosts/%2F/permissions")
    assert call(broker, "PUT", "queues/shop/pam1", {}, "pam:pam")[0] == 201
    assert refused(broker, "PUT", "queues/shop/other", {}, "pam:pam")[0] == 401
    for name in rule:
        without = {key: value for key, value in rule.items() if key != name}
        assert refused(broker, "PUT", "permissions/shop/pam", without)[2].startswith(name)
    assert "'['" in refused(broker, "PUT", "permissions/shop/pam", {**rule, "read": "["})[2]
    assert get(broker, "permissions/shop/pam") == row
    assert done(broker, "DELETE", "permissions/shop/pam") == 204
    assert refused(broker, "GET", "permissions/shop/pam")[:2] == (404, "not_found")
    assert refused(broker, "DELETE", "permissions/shop/pam")[:2] == (404, "not_found")
    assert refused(broker, "PUT", "queues/shop/pam2", {}, "pam:pam")[0] == 401
    assert refused(broker, "PUT", "permissions/shop/nobody", rule)[0] == 404
    assert refused(broker, "PUT", "permissions/nowhere/pam", rule)[0] == 404


def test_a_permission_for_every_virtual_host_becomes_one_for_each(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "vhosts/shop")
        assert len(get(broker, "users/guest/permissions")) == 2
        done(broker, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(broker, "DELETE", "permissions/shop/guest")
        assert [row["vhost"] for row in get(broker, "users/guest/permissions")] == ["/"]
        stored = json.loads((broker.data_dir / "users.json").read_text())
        assert list(stored[0]["vhosts"]) == ["/"]
        assert refused(broker, "PUT", "queues/shop/q", {})[0] == 401
        assert done(broker, "PUT", "vhosts/new") == 201
        assert done(broker, "PUT", "queues/new/q") == 201, "who makes it may use it"


def test_no_virtual_host_has_the_name_that_permissions_take_for_all(tmp_path: Path) -> None:
    """Rights in it were rights everywhere, and with its end everybody lost those for all."""
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "users/bob", {"password": "bob", "tags": ""})
        status, _, reason = refused(broker, "PUT", "vhosts/*")
        assert (status, reason) == (400, "vhost '*', expected a name: permissions take it for all")
        imported = {
            "vhosts": [{"name": "*"}], "permissions": [{"user": "bob", "vhost": "*", **FULL}]
        }  # fmt: skip
        assert "permissions take it for all" in refused(broker, "POST", "definitions", imported)[2]
        assert names(get(broker, "vhosts")) == ["/"]
        assert refused(broker, "PUT", "queues/%2F/q", {}, "bob:bob")[0] == 401
    with pytest.raises(ConfigError, match=r"^vhosts has vhost '\*', expected a name"):
        load(None, {"TALLYMARK_VHOSTS": "/,*"}, {})


def test_a_virtual_host_that_ends_while_a_body_comes_gets_no_permission(tmp_path: Path) -> None:
    """The permission waited for a later virtual host of that name."""
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "users/bob", {"password": "bob", "tags": ""})
        done(broker, "PUT", "vhosts/short", {})
        body = json.dumps(FULL).encode()
        address = ("127.0.0.1", broker.http_port)
        with socket.create_connection(address, timeout=PATIENCE_S) as late:
            late.sendall(
                b"PUT /api/permissions/short/bob HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Authorization: Basic " + base64.b64encode(b"guest:guest") + b"\r\n"
                b"Expect: 100-continue\r\nConnection: close\r\n"
                b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n"
            )
            assert late.recv(4096).startswith(b"HTTP/1.1 100 ")
            done(broker, "DELETE", "vhosts/short")
            late.sendall(body)
            assert until_closed(late).startswith(b"HTTP/1.1 404 ")
        done(broker, "PUT", "vhosts/short", {})
        assert refused(broker, "GET", "permissions/short/bob")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "auth/hash_password", {"password": "s/ü secret"}),
        ("GET", "auth/hash_password/s%2F%C3%BC%20secret", None),
    ],
)
def test_a_password_is_hashed_for_a_user(
    broker: BrokerProcess, method: str, path: str, body: object
) -> None:
    status, _, found = call(broker, method, path, body)
    assert status == 200
    assert call(broker, method, path, body)[2] != found  # with a salt of its own
    done(broker, "PUT", "users/hashed", {"password_hash": found["ok"], "tags": ""})
    user = hashed_user("hashed", found["ok"], SHA256)
    assert user.accepts("s/ü secret")
    assert not user.accepts("s/ü secre")
    assert refused(broker, method, path, body, "hashed:x")[0] == 401
    done(broker, "DELETE", "users/hashed")


@pytest.mark.parametrize("body", [None, {}, {"password": ""}, {"password": 5}, {"password": None}])
def test_a_password_that_is_none_is_not_hashed(broker: BrokerProcess, body: object) -> None:
    assert refused(broker, "POST", "auth/hash_password", body)[:2] == (400, "bad_request")


def test_only_an_administrator_has_passwords_hashed(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/mo", {"password": "mo", "tags": "monitoring"})
    body = {"password": "x"}
    for method, path in (("POST", "auth/hash_password"), ("GET", "auth/hash_password/x")):
        assert refused(broker, method, path, body, "mo:mo")[:2] == (401, "not_authorised")
    done(broker, "DELETE", "users/mo")


def test_a_refusal_tells_no_more_of_a_value_than_fits_a_line(broker: BrokerProcess) -> None:
    body = {"password_hash": ["x" * 5000], "tags": ""}
    _, _, reason = refused(broker, "PUT", "users/long", body)
    assert reason == "password_hash is a list, expected text"
    _, _, reason = refused(broker, "PUT", "permissions/%2F/guest", {"configure": ["x" * 5000]})
    assert reason == f"configure is ['{'x' * 198}..., expected text"
