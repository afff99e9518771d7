"""The audit log: who was refused, and who changed what others may do.

A category of its own, `audit`, in the same stream as the other logs. It has no level: nothing
switches it off, neither the configuration nor anybody over HTTP. Its events:

    login.refused      a name that was tried, never the password
    token.refused      why a token of OAuth 2 is worth nothing, and nothing of the token
    access.refused     a user, and the exchange, queue or virtual host it was kept from
    request.refused    the same over HTTP
    request.turned_away    what a web page or a foreign name asked for (http/guard.py)
    request.done       a change over HTTP of users, permissions, policies, limits, virtual hosts,
                       definitions, queues, exchanges, bindings, connections, logs or the
                       configuration, and by whom; over NSQ's HTTP of topics, channels or options
    user.added, user.changed, user.deleted    whoever did it, also `tallymark user`
    config.reloaded, policy.set    what the configuration brought
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tallymark.bridge.permissions import CONFIGURE, READ, WRITE, Access
from tallymark.server.logs import AUDIT as log

if TYPE_CHECKING:
    from tallymark.server.access.user import User

OPERATIONS: Final = {CONFIGURE: "configure", WRITE: "write", READ: "read"}
BY_FILE: Final = "users.json"
"""Author of a change of users that was read from the file and not made through this broker."""
READING: Final = ("GET", "HEAD", "OPTIONS")
"""Methods of HTTP that change nothing."""
CHANGES: Final = (
    "/api/users", "/api/permissions", "/api/topic-permissions", "/api/policies",
    "/api/operator-policies", "/api/parameters", "/api/global-parameters", "/api/vhosts",
    "/api/definitions", "/api/connections", "/api/user-limits", "/api/vhost-limits",
    "/api/queues", "/api/exchanges", "/api/bindings", "/api/tallymark/quarantine",
    "/api/tallymark/log-levels", "/api/tallymark/config", "/api/tallymark/features",
    "/api/feature-flags", "/api/all-configuration",
)  # fmt: skip
"""Path prefixes of audited HTTP requests; those that only read are not audited."""
DELETED: Final = ("/api/tallymark/subscriptions", "/api/tallymark/sinks")
"""Path prefixes of HTTP requests that are audited where they delete. The others are a program's
everyday work."""
MESSAGES: Final = re.compile(r"/api/(exchanges/.*/publish|queues/.*/get)/?", re.DOTALL)
"""Paths at which a POST publishes or gets messages, which is not audited."""
CHANGES_OF_NSQ: Final = ("/topic/", "/channel/", "/config/")
"""Path prefixes of audited requests to NSQ's HTTP interface."""
LONGEST: Final = 200


def login_refused(protocol: str, peer: str, user: str, mechanism: str, reason: str = "") -> None:
    log.warning(
        "login.refused", protocol=protocol, peer=peer, user=_name(user),
        mechanism=mechanism[:LONGEST], reason=reason or "user and password do not match",
    )  # fmt: skip


def _name(user: str) -> str:
    """Return a name that was tried as the log shows it: some clients send a token as the name."""
    return "(a token)" if user.startswith("ey") and user.count(".") >= 2 else user[:LONGEST]


def token_refused(peer: str, reason: str) -> None:
    log.warning("token.refused", peer=peer, reason=reason)


def access_refused(access: Access, kind: str, name: str, operation: int) -> None:
    """Log a refusal; called by `Access.on_denied`, once for each answer."""
    log.warning(
        "access.refused", user=access.user, vhost=access.vhost, kind=kind, name=name,
        operation=OPERATIONS.get(operation, "enter"), peer=access.peer,
    )  # fmt: skip


def request_refused(
    interface: str, peer: str, user: str, method: str, path: str, reason: str
) -> None:
    log.warning(
        "request.refused", interface=interface, peer=peer, user=user, method=method, path=path,
        reason=reason,
    )  # fmt: skip


def request_turned_away(interface: str, peer: str, method: str, path: str, reason: str) -> None:
    log.warning(
        "request.turned_away", interface=interface, peer=peer, method=method, path=path[:LONGEST],
        reason=reason,
    )  # fmt: skip


def request_done(interface: str, peer: str, user: str, method: str, path: str, status: int) -> None:
    """path: whole, since its end says what was done, behind names of up to 255 letters each."""
    log.info(
        "request.done", interface=interface, peer=peer, user=user, method=method, path=path,
        status=status,
    )  # fmt: skip


def is_change(method: str, path: str) -> bool:
    """Return whether an HTTP request belongs in the audit log."""
    if method == "DELETE" and path.startswith(DELETED):
        return True
    if method == "POST" and MESSAGES.fullmatch(path):
        return False
    return method not in READING and path.startswith(CHANGES)


def is_change_of_nsq(method: str, path: str) -> bool:
    """Return whether a request to NSQ's HTTP interface belongs in the audit log."""
    return method not in READING and path.startswith(CHANGES_OF_NSQ)


def users_changed(before: dict[str, User], after: dict[str, User], by: str) -> None:
    """Log one event per changed user, with the changed fields and without secrets."""
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        values: dict[str, object] = {}
        if old == new:
            continue
        if new is None:
            log.info("user.deleted", user=name, by=by)
        elif old is None:
            values |= {"tags": new.all_tags, "vhosts": _rights(new)}
            if new.topics:
                values["topics"] = _limits(new)
            log.info("user.added", user=name, by=by, **values)
        else:
            if (old.hash, old.algorithm) != (new.hash, new.algorithm):
                values["password"] = "changed"
            if old.all_tags != new.all_tags:
                values["tags"] = new.all_tags
            if old.vhosts != new.vhosts:
                values["vhosts"] = _rights(new)
            if old.topics != new.topics:
                values["topics"] = _limits(new)
            log.info("user.changed", user=name, by=by, **values)


def _rights(user: User) -> dict[str, list[str]]:
    return {name: [p.configure, p.write, p.read] for name, p in user.vhosts.items()}


def _limits(user: User) -> dict[str, dict[str, list[str]]]:
    return {
        vhost: {exchange: [one.write, one.read] for exchange, one in exchanges.items()}
        for vhost, exchanges in user.topics.items()
    }
