"""Import and export of definitions as one document.

The layout is RabbitMQ's. Users, virtual hosts, permissions, policies, queues that are nobody's own,
exchanges and bindings; no messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tallymark.bridge.identity import BROKER, PRODUCT, VERSION
from tallymark.engine.broker import Broker
from tallymark.engine.errors import BrokerError
from tallymark.engine.exchange import Exchange
from tallymark.engine.quotas import Limits, Quotas
from tallymark.engine.session import Connection
from tallymark.engine.vhost import VirtualHost
from tallymark.server.access.user import (
    GUEST_USER,
    User,
    UsersError,
    in_place_of,
    limited,
    make_user,
)
from tallymark.server.definitions.plan import (
    LIMITS,
    OPERATOR_POLICY,
    OWN,
    VHOST_LIMITS,
    Metadata,
    NewBinding,
    NewQueue,
    Plan,
    Planning,
)
from tallymark.server.http.state import plain
from tallymark.server.json_texts import unmarked
from tallymark.server.logs import log_of
from tallymark.server.management.topics import topic_permission_rows
from tallymark.server.management.users import permission_rows, user_row
from tallymark.server.management.vhosts import make_vhost, metadata_of
from tallymark.server.node import Node
from tallymark.server.parts import cut

ADMINISTRATION: Final = "definitions"

log = log_of("http")


class DefinitionsRefused(Exception):
    """Definitions were not taken: nothing has changed. The text names everything wrong."""


@dataclass(slots=True)
class Imported:
    """Result of importing definitions."""

    counts: dict[str, int]
    unsupported: list[str]
    failed: list[str] = field(default_factory=list)
    """Definitions that passed the check beforehand and were refused nevertheless; all others took
    effect."""


# -- export


def export_all(node: Node, users: Mapping[str, User]) -> dict[str, Any]:
    """Everything, as RabbitMQ's GET /api/definitions."""
    vhosts = list(node.broker.vhosts.values())
    names = [vhost.name for vhost in vhosts]
    limits = node.broker.quotas
    whole: dict[str, Any] = {
        **_about(),
        "users": [
            {**user_row(user), "limits": limits.users.get(user.name, {})} for user in users.values()
        ],
        "vhosts": [_vhost(vhost) for vhost in vhosts],
        "permissions": [row for user in users.values() for row in permission_rows(user, names)],
        "topic_permissions": [
            row for user in users.values() for row in topic_permission_rows(user, names)
        ],
        "global_parameters": [],
    }
    for section in ("parameters", "policies", "queues", "exchanges", "bindings"):
        whole[section] = []
    for vhost in vhosts:
        for section, rows in _sections(vhost, limits).items():
            whole[section] += [{**row, "vhost": vhost.name} for row in rows]
    return whole


def export_vhost(vhost: VirtualHost, limits: Quotas) -> dict[str, Any]:
    """Return the definitions of one virtual host, as RabbitMQ 4 has them; its entries do not name
    it."""
    return {
        **_about(),
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": vhost.name,
        "explanation": f"Definitions of virtual host '{vhost.name}'",
        "description": vhost.topology.description,
        "metadata": metadata_of(vhost),
        "limits": limits.vhosts.get(vhost.name, {}),
        **_sections(vhost, limits),
    }


def _vhost(vhost: VirtualHost) -> dict[str, Any]:
    said = {name: value for name, value in metadata_of(vhost).items() if value}
    return {"name": vhost.name, **said, **({"metadata": said} if said else {})}


def _about() -> dict[str, Any]:
    return {
        "rabbit_version": VERSION,
        "rabbitmq_version": VERSION,
        "product_name": PRODUCT,
        "product_version": VERSION,
        **BROKER,
    }


def _sections(vhost: VirtualHost, limits: Quotas) -> dict[str, list[dict[str, Any]]]:
    limited = limits.vhosts.get(vhost.name)
    return {
        "parameters": [
            *([{"component": VHOST_LIMITS, "name": LIMITS, "value": limited}] if limited else []),
            *(
                {"component": OPERATOR_POLICY, "name": policy.name, "value": policy.value()}
                for policy in vhost.operator_policies.values()
            ),
        ],
        "policies": [{"name": policy.name, **policy.value()} for policy in vhost.policies.values()],
        "queues": [
            {
                "name": queue.name,
                "type": queue.settings.type,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "arguments": plain(queue.arguments),
            }
            for queue in vhost.queues.values()
            if not queue.exclusive_owner
        ],
        "exchanges": [
            {
                "name": exchange.name,
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": plain(exchange.arguments),
            }
            for exchange in vhost.exchanges.values()
            if exchange.name not in OWN
        ],
        "bindings": [
            {
                "source": one.source.name,
                "destination": one.destination(),
                "destination_type": one.kind(),
                "routing_key": one.key,
                "arguments": plain(one.arguments),
            }
            for one in vhost.topology.bindings()
            if one.queue is None or not one.queue.exclusive_owner
        ],
    }


# -- import


async def import_definitions(
    node: Node, value: object, by: str, vhost: str | None = None, at_start: bool = False
) -> Imported:
    """Make definitions real; on disk when this returns, but at_start, when it soon will be.

    by: who wants it. vhost: they are about this one alone. Users of the same names are replaced,
    their permissions and those of other users stay; policies of the same names are replaced.

    Raises:
        DefinitionsRefused: something in them is wrong; nothing has changed.
        UsersError: the users cannot be read; nothing has changed.
        OSError: they cannot be stored; nothing has changed.
    """
    plan = await _checked(node, value, vhost, at_start)
    if plan.passwords:
        hashed = {
            name: await asyncio.to_thread(make_user, name, password, False, {})
            for name, password in plan.passwords.items()
        }
        plan = await _checked(node, value, vhost, at_start)  # that took long: what is there by now?
        for name, made in hashed.items():
            plan.users[name] = msgspec.structs.replace(
                made, administrator=plan.users[name].administrator, tags=plan.users[name].tags
            )
    if plan.users or plan.permissions or plan.topic_permissions:
        await node.users.change(lambda known: _set_users(known, plan), by, keep_guest=not at_start)
    imported = Imported(plan.counts(), plan.unsupported)
    imported.failed += await _apply(node, plan)
    if plan.user_limits or plan.vhost_limits:
        imported.failed += await _limit(node, plan)
    for text in imported.unsupported:
        log.warning("definitions.unsupported", what=text)
    for text in imported.failed:
        log.error("definitions.failed", what=text)
    log.info("definitions.imported", **imported.counts)
    if not at_start:
        await node.durable()
    return imported


async def _checked(node: Node, value: object, vhost: str | None, at_start: bool) -> Plan:
    """Return the plan of definitions, against what there is now; made in parts. Raises
    DefinitionsRefused, UsersError."""
    users = node.users.current()
    if not users and not at_start:
        users = {GUEST_USER.name: GUEST_USER}
    planning = Planning(node.broker, users, vhost)
    for _ in planning.read(value):
        await _step_aside(node)
    plan = planning.plan
    if plan.problems:
        raise DefinitionsRefused("; ".join(plan.problems))
    return plan


async def load_file(node: Node, file: Path) -> None:
    """Definitions of the configuration, at a start.

    Raises:
        DefinitionsRefused: the file cannot be read, or something in it is wrong.
        UsersError.
    """
    try:
        value = msgspec.json.decode(unmarked(await asyncio.to_thread(file.read_bytes)))
    except (OSError, msgspec.MsgspecError) as error:
        raise DefinitionsRefused(f"definitions {file}: {error}") from error
    try:
        imported = await import_definitions(node, value, "definitions", at_start=True)
    except DefinitionsRefused as error:
        raise DefinitionsRefused(f"definitions {file}: {error}") from error
    if imported.failed:
        raise DefinitionsRefused(f"definitions {file}: {'; '.join(imported.failed)}")
    node.schedule()


def _set_users(known: dict[str, User], plan: Plan) -> None:
    for name, user in plan.users.items():
        known[name] = in_place_of(user, known.get(name))
    for name, vhost, permission in plan.permissions:
        given = known.get(name)
        if given is None:
            raise UsersError(f"user {name!r} was deleted meanwhile")
        known[name] = msgspec.structs.replace(given, vhosts={**given.vhosts, vhost: permission})
    for name, vhost, exchange, limit in plan.topic_permissions:
        given = known.get(name)
        if given is None:
            raise UsersError(f"user {name!r} was deleted meanwhile")
        known[name] = limited(given, vhost, {**given.topics.get(vhost, {}), exchange: limit})


async def _limit(node: Node, plan: Plan) -> list[str]:
    """Set the limits of a plan; those of other users and virtual hosts stay. Return what failed."""

    def change(vhosts: Limits, users: Limits) -> None:
        vhosts.update(plan.vhost_limits)
        users.update(plan.user_limits)

    try:
        await node.limits.change(change)
    except OSError as error:
        return [f"limits: {error}"]
    return []


async def _apply(node: Node, plan: Plan) -> list[str]:
    """Apply all of the plan but its users, a part at a time. Returns what was refused in spite of
    the plan: others may have changed something meanwhile."""
    broker = node.broker
    failed: list[str] = []

    def attempt(what: str, do: Callable[..., object], *arguments: object) -> None:
        try:
            do(*arguments)
        except BrokerError as error:
            failed.append(f"{what}: {error}")

    for name in plan.vhosts:
        if name not in broker.vhosts:
            make_vhost(node, name)
    for name, type in plan.default_types.items():
        attempt(f"vhost '{name}'", _set_default_type, broker, name, type)
    for name, said in plan.metadata.items():
        attempt(f"vhost '{name}'", _describe, broker, name, said)
    for vhost_name, policy, operator in plan.policies:
        attempt(f"policy '{policy.name}'", broker.registry.set_policy, vhost_name, policy, operator)
    for queues in cut(plan.queues.values()):
        await _step_aside(node)
        connections: dict[str, Connection] = {}
        for queue in queues:
            what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            attempt(what, _declare, broker, connections, queue)
        for connection in connections.values():
            broker.clients.close_connection(connection, False)
    for exchanges in cut(plan.exchanges.items()):
        await _step_aside(node)
        for (vhost_name, name), new in exchanges:
            what = f"exchange '{name}' in vhost '{vhost_name}'"
            attempt(what, _declare_exchange, broker, vhost_name, new)
    for bindings in cut(plan.bindings):
        await _step_aside(node)
        for one in bindings:
            what = f"binding from '{one.source}' to '{one.destination}' in vhost '{one.vhost}'"
            attempt(what, _bind, broker, one)
    return failed


async def _step_aside(node: Node) -> None:
    """Let others have their turn, and see what was done so far take effect."""
    node.schedule()
    await node.parts.turn()
    node.tell_time()


def _set_default_type(broker: Broker, vhost: str, type: str) -> None:
    broker.registry.set_default_queue_type(broker.vhost(vhost), type)


def _describe(broker: Broker, name: str, said: Metadata) -> None:
    vhost = broker.vhost(name)
    there = vhost.topology
    description = there.description if said.description is None else said.description
    tags = there.tags if said.tags is None else said.tags
    broker.registry.describe_vhost(vhost, description, tags)
    if said.is_protected is not None:
        broker.registry.protect_vhost(vhost, said.is_protected)


def _declare(broker: Broker, connections: dict[str, Connection], queue: NewQueue) -> None:
    """Declare a queue on a connection of its virtual host, which is opened if it is not among
    these. Raises BrokerError."""
    vhost = broker.vhost(queue.vhost)
    connection = connections.get(queue.vhost)
    if connection is None:
        connection = broker.clients.open_connection(queue.vhost, "", ADMINISTRATION)
        connections[queue.vhost] = connection
    arguments = queue.arguments
    if not queue.is_typed:
        arguments = vhost.with_type(queue.name, queue.durable, False, queue.auto_delete, arguments)
    broker.registry.declare_queue(
        connection, queue.name, queue.durable, False, queue.auto_delete, arguments, False
    )


def _declare_exchange(broker: Broker, vhost: str, new: Exchange) -> None:
    broker.vhost(vhost).declare_exchange(
        new.name, new.type, new.durable, new.auto_delete, new.internal, new.arguments, False
    )


def _bind(broker: Broker, new: NewBinding) -> None:
    vhost = broker.vhost(new.vhost)
    if new.to_queue:
        vhost.bind_queue(new.destination, new.source, new.key, new.arguments, 0)
    else:
        vhost.bind_exchange(new.destination, new.source, new.key, new.arguments)
