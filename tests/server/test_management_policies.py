"""Policies and operator policies over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.management import FULL, call, done, get, names, refused
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("policies")) / "data") as running:
        done(running, "PUT", "vhosts/shop")
        yield running


def policy(limit: int = 5, **rest: Any) -> dict[str, Any]:
    return {"pattern": "^lim", "definition": {"max-length": limit}, **rest}


def test_a_policy_is_set_shown_in_effect_and_deleted(broker: BrokerProcess) -> None:
    for name in ("limited", "free"):
        done(broker, "PUT", f"queues/shop/{name}")
    path = "policies/shop/len"
    body = policy(priority=2, **{"apply-to": "queues"})
    assert done(broker, "PUT", path, body) == 201
    assert get(broker, path) == {"vhost": "shop", "name": "len", **body}
    assert get(broker, "policies") == get(broker, "policies/shop") == [get(broker, path)]
    assert get(broker, "policies/%2F") == []
    row = get(broker, "queues/shop/limited")
    assert (row["policy"], row["effective_policy_definition"]) == ("len", {"max-length": 5})
    assert get(broker, "queues/shop/free")["policy"] is None
    assert done(broker, "PUT", path, policy(7)) == 204
    assert get(broker, "queues/shop/limited")["effective_policy_definition"] == {"max-length": 7}
    assert done(broker, "DELETE", path) == 204
    assert get(broker, "queues/shop/limited")["effective_policy_definition"] == {}
    assert refused(broker, "GET", path)[:2] == (404, "not_found")
    assert refused(broker, "DELETE", path)[:2] == (404, "not_found")


def test_the_tighter_of_policy_and_operator_policy_is_in_effect(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/shop/limit2")
    done(broker, "PUT", "policies/shop/user", policy(10))
    assert done(broker, "PUT", "operator-policies/shop/op", policy(8)) == 201
    row = get(broker, "queues/shop/limit2")
    assert (row["policy"], row["operator_policy"]) == ("user", "op")
    assert row["effective_policy_definition"] == {"max-length": 8}
    assert names(get(broker, "operator-policies")) == ["op"]
    assert names(get(broker, "policies")) == ["user"]
    done(broker, "DELETE", "operator-policies/shop/op")
    done(broker, "DELETE", "policies/shop/user")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"pattern": "("}, "pattern should be regular expression"),
        ({"definition": {"max-length": "x"}}, "is not a valid maximum length"),
        ({"definition": {"nosuch": 1}}, "are not recognised policy settings"),
        ({"definition": {}}, "no policy provided"),
        ({"definition": None}, "definition must be a dictionary"),
        ({"priority": "high"}, "priority should be a number"),
        ({"apply-to": "cats"}, "apply-to 'cats' unrecognised"),
        ({"aply-to": "queues"}, "Unrecognised terms [aply-to] in policy, expected pattern"),
        ({"apply_to": None, "x": 1}, "Unrecognised terms [apply_to, x] in policy"),
    ],
)
def test_a_bad_policy_is_refused_and_the_old_one_stays(
    broker: BrokerProcess, body: dict[str, Any], reason: str
) -> None:
    done(broker, "PUT", "policies/shop/good", policy())
    before = get(broker, "policies")
    for name in ("good", "new"):
        status, error, text = refused(broker, "PUT", f"policies/shop/{name}", {**policy(), **body})
        assert (status, error) == (400, "bad_request")
        assert reason in text
    assert get(broker, "policies") == before
    done(broker, "DELETE", "policies/shop/good")


def test_a_policy_may_be_put_as_it_is_shown(broker: BrokerProcess) -> None:
    done(broker, "PUT", "policies/shop/one", policy(priority=None))
    shown = get(broker, "policies/shop/one")
    assert done(broker, "PUT", "policies/shop/one", shown) == 204
    assert get(broker, "policies/shop/one") == shown
    done(broker, "DELETE", "policies/shop/one")


def test_keys_without_effect_are_named(broker: BrokerProcess) -> None:
    body = {"pattern": "", "definition": {"ha-mode": "all", "max-length": 5}}
    status, headers, _ = call(broker, "PUT", "policies/shop/mirrors", body)
    assert (status, headers["x-without-effect"]) == (201, "ha-mode")
    assert get(broker, "policies/shop/mirrors")["definition"] == body["definition"]
    done(broker, "DELETE", "policies/shop/mirrors")
    assert "x-without-effect" not in call(broker, "PUT", "policies/shop/p", policy())[1]
    done(broker, "DELETE", "policies/shop/p")


def test_policymakers_set_policies_where_they_have_access(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/pat", {"password": "pat", "tags": "policymaker"})
    done(broker, "PUT", "users/max", {"password": "max", "tags": "monitoring"})
    for user in ("pat", "max"):
        done(broker, "PUT", f"permissions/shop/{user}", FULL)
    assert call(broker, "PUT", "policies/shop/p", policy(), "pat:pat")[0] == 201
    assert refused(broker, "PUT", "policies/%2F/p", policy(), "pat:pat")[0] == 401
    assert refused(broker, "PUT", "policies/shop/p", policy(1), "max:max")[0] == 401
    assert refused(broker, "DELETE", "policies/shop/p", user="max:max")[0] == 401
    assert get(broker, "policies/shop/p", "max:max")["definition"] == {"max-length": 5}
    assert call(broker, "DELETE", "policies/shop/p", user="pat:pat")[0] == 204


def test_policies_outlive_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "queues/%2F/limited", {"durable": True})
        done(broker, "PUT", "policies/%2F/p", policy())
        done(broker, "PUT", "operator-policies/%2F/o", policy(3))
        broker.kill()
        broker.restart()
        row = get(broker, "queues/%2F/limited")
        assert (row["policy"], row["operator_policy"]) == ("p", "o")
        assert row["effective_policy_definition"] == {"max-length": 3}
        done(broker, "DELETE", "policies/%2F/p")
        broker.kill()
        broker.restart()
        assert get(broker, "queues/%2F/limited")["policy"] is None
