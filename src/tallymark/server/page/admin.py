"""Policies, users with their permissions, virtual hosts' limits, and feature flags: to look at."""

from __future__ import annotations

import json
from typing import Final

from tallymark.engine.policies import Policy
from tallymark.server.access.user import Permission, TopicPermission, User
from tallymark.server.features import FLAGS
from tallymark.server.http.state import plain
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Page, View, administrators

Placed = tuple[str, Policy, bool]
"""Virtual host, policy, and whether it is an operator's."""
Granted = tuple[str, str, Permission]
"""User, virtual host, permission."""
Limited = tuple[str, str, str, TopicPermission]
"""User, virtual host, exchange, permission."""

POLICIES: Final[tuple[Column[Placed], ...]] = (
    Column("name", "Policy", lambda one: one[1].name),
    Column("vhost", "Virtual host", lambda one: one[0]),
    Column("pattern", "Names that match", lambda one: one[1].pattern),
    Column("apply_to", "Of", lambda one: one[1].apply_to),
    Column("priority", "Priority", lambda one: one[1].priority, "number"),
    Column("definition", "Says", lambda one: _definition(one[1])),
    Column("operator", "Operator's", lambda one: one[2], "flag"),
)
USERS: Final[tuple[Column[User], ...]] = (
    Column("name", "User", lambda one: one.name),
    Column("tags", "Tags", lambda one: ", ".join(one.all_tags)),
    Column("vhosts", "Virtual hosts", lambda one: ", ".join(sorted(one.vhosts)) or "none"),
)
PERMISSIONS: Final[tuple[Column[Granted], ...]] = (
    Column("user", "User", lambda one: one[0]),
    Column("vhost", "Virtual host", lambda one: "every one" if one[1] == "*" else one[1]),
    Column("configure", "May configure", lambda one: one[2].configure or "nothing"),
    Column("write", "May write", lambda one: one[2].write or "nothing"),
    Column("read", "May read", lambda one: one[2].read or "nothing"),
)

TOPICS: Final[tuple[Column[Limited], ...]] = (
    Column("user", "User", lambda one: one[0]),
    Column("vhost", "Virtual host", lambda one: one[1]),
    Column("exchange", "Exchange", lambda one: one[2]),
    Column("write", "May publish with", lambda one: one[3].write or "nothing"),
    Column("read", "May bind with", lambda one: one[3].read or "nothing"),
)


def _definition(policy: Policy) -> str:
    return json.dumps(plain(policy.definition), ensure_ascii=False)[1:-1].replace('"', "")


async def show_policies(view: View) -> Context:
    every = [
        (vhost.name, policy, is_operator)
        for vhost in view.routes.vhosts(view.request)
        for is_operator, table in ((False, vhost.policies), (True, vhost.operator_policies))
        for policy in table.values()
    ]
    table = await table_of(
        view, "Policies", every, POLICIES, "name",
        lambda one: f"{one[1].name} {one[1].pattern} {_definition(one[1])}",
        "Search by name, pattern or what it says", "There is no policy.",
    )  # fmt: skip
    intro = (
        "They give settings to all queues and exchanges whose names match. Where several match, "
        "the one with the highest priority counts."
    )
    return {"table": table, "intro": intro}


async def show_users(view: View) -> Context:
    users = view.routes.users()
    granted = [
        (user.name, vhost, permission)
        for user in users.values()
        for vhost, permission in user.vhosts.items()
    ]
    limited = [
        (user.name, vhost, exchange, permission)
        for user in users.values()
        for vhost, exchanges in user.topics.items()
        for exchange, permission in exchanges.items()
    ]
    return {
        "users": await table_of(
            view, "Users", users.values(), USERS, "name", lambda one: one.name
        ),
        "permissions": await table_of(
            view, "Permissions", granted, PERMISSIONS, "user", empty="Nobody has one.", prefix="p"
        ),
        "topics": await table_of(
            view, "Topic permissions", limited, TOPICS, "user",
            empty="Nobody's routing keys are limited.", prefix="t",
        ),
    }  # fmt: skip


FEATURES: Final[tuple[Column[str], ...]] = (
    Column("name", "Feature flag", lambda name: name),
    Column("help", "What it brings", lambda name: FLAGS[name].help, is_sortable=False),
)


async def show_features(view: View) -> Context:
    enabled = view.node.features.enabled
    columns: tuple[Column[str], ...] = (
        *FEATURES, Column("enabled", "Enabled", lambda name: name in enabled, "flag"),
    )  # fmt: skip
    table = await table_of(view, "Feature flags", FLAGS, columns, "name")
    intro = "Enabled for good with: tallymark feature enable NAME"
    return {"table": table, "intro": intro}


POLICIES_PAGE: Final = Page("/ui/policies", "Policies", "list.html", show_policies, nav="Policies")
USERS_PAGE: Final = Page(
    "/ui/users", "Users and permissions", "users.html", show_users, nav="Users",
    is_for=administrators,
)  # fmt: skip
FEATURES_PAGE: Final = Page(
    "/ui/features", "Feature flags", "list.html", show_features, nav="Feature flags"
)
