"""What an import of definitions would do, as it is checked before anything is done."""

from __future__ import annotations

from typing import Any

from tallymark.server.definitions.plan import Plan, Planning
from tests.support.engine_rig import Rig

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def plan(value: dict[str, Any]) -> Plan:
    planning = Planning(Rig().broker, {}, None)
    for _ in planning.read(value):
        pass
    return planning.plan


def test_a_user_whose_name_none_can_have_here_is_named_and_the_rest_is_imported() -> None:
    """RabbitMQ has users with a colon in their names. One of them refused the whole import."""
    found = plan(
        {
            "users": [
                {"name": "a:b", "password_hash": "", "tags": [], "limits": {"max-channels": 3}},
                {"name": "c", "password_hash": "", "tags": []},
            ],
            "permissions": [{"user": who, "vhost": "/", **ALL} for who in ("a:b", "c")],
            "topic_permissions": [
                {"user": who, "vhost": "/", "exchange": "amq.topic", "write": ".*", "read": ".*"}
                for who in ("a:b", "c")
            ],
            "queues": [{"name": "q", "vhost": "/", "durable": True}],
        }
    )
    assert found.problems == []
    assert found.unsupported == [
        "user 'a:b': names with ':' are not offered",
        "permissions of user 'a:b' in vhost '/'",
        "permissions of user 'a:b' in vhost '/'",
    ]
    assert list(found.users) == ["c"]
    assert [who for who, _, _ in found.permissions] == ["c"]
    assert [who for who, _, _, _ in found.topic_permissions] == ["c"]
    assert (found.user_limits, list(found.queues)) == ({}, [("/", "q")])


def test_what_is_wrong_with_the_permissions_of_such_a_user_is_wrong() -> None:
    users = [{"name": "a:b", "password_hash": ""}]
    rights = [{"user": "a:b", "vhost": "/", **ALL, "read": "("}]
    assert len(plan({"users": users, "permissions": rights}).problems) == 1
    assert plan({"users": [{"name": ""}]}).problems != []
