"""An operator over HTTP: declares, sets policies, purges, changes users and rights, reads the
configuration again, closes connections and looks at everything, while the others work."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from tallymark.simulation.clients import FANOUT, WORKER, Clients
from tallymark.simulation.history import Violated
from tallymark.simulation.http import HttpClient, Refused
from tallymark.simulation.models.permissions import READ, WRITE
from tallymark.simulation.plan import (
    CLOSE,
    DECLARE,
    DEFINITIONS,
    GET,
    LOOK,
    POLICY,
    PURGE,
    RELOAD,
    RIGHTS,
    ManagementPlan,
)  # fmt: skip

LOOKS: Final = (
    "/api/overview", "/api/queues", "/api/connections", "/api/channels", "/api/consumers",
    "/api/exchanges", "/api/bindings", "/api/users", "/api/permissions", "/api/policies",
    "/api/nodes", "/api/vhosts", "/api/tallymark/subscriptions", "/api/tallymark/sinks",
    "/api/tallymark/status",
)  # fmt: skip
EVERYTHING: Final = ".*"
NOTHING: Final = "^$"
SALT: Final = b"sixteen bytes of"
GONE: Final = 404


def credentials(password: str) -> dict[str, str]:
    """Return what sets a password, whose hash costs little to test."""
    hashed = hashlib.scrypt(password.encode(), salt=SALT, n=2, r=1, p=1, dklen=32)
    text = base64.b64encode(SALT + hashed).decode()
    return {"password_hash": text, "hashing_algorithm": "scrypt:2:1:1"}


class Operator:
    """One operator."""

    def __init__(self, clients: Clients, plan: ManagementPlan) -> None:
        self._clients = clients
        self._plan = plan
        self._random = clients.world.random
        self._history = clients.history
        self._http = HttpClient(clients.network, clients.loop)
        self._does: dict[str, Callable[[], Awaitable[None]]] = {
            DECLARE: self._declare, POLICY: self._set_policy, PURGE: self._purge,
            RIGHTS: self._change_rights, RELOAD: self._reload, CLOSE: self._close,
            LOOK: self._look, DEFINITIONS: self._import, GET: self._get,
        }  # fmt: skip
        self._workers = {one.name for one in clients.plan.consumers if one.is_worker}

    async def prepare(self) -> None:
        """Make the worker, whose rights change."""
        if RIGHTS in self._plan.kinds:
            for name in ("guest", WORKER):
                tags = "administrator" if name == "guest" else ""
                value = {**credentials(name), "tags": tags}
                await self._ask("PUT", f"/api/users/{name}", value)
            await self._permit(EVERYTHING, EVERYTHING)

    async def work(self) -> None:
        """Do one thing after the other until told to end; leave everything as it was."""
        clients = self._clients
        while clients.is_publishing():
            kind = self._random.choice(self._plan.kinds)
            self._history.note(f"operator: {kind}")
            self._history.seen.add(f"operator: {kind}")
            await self._does[kind]()
            await clients.pause(self._plan.pause_s)
        if RIGHTS in self._plan.kinds:
            await self._permit(EVERYTHING, EVERYTHING)
        if POLICY in self._plan.kinds:
            await self._ask("DELETE", "/api/policies/%2F/p", None, GONE)
        await self._ask("DELETE", "/api/queues/%2F/extra", None, GONE)
        self._http.close()

    async def _ask(self, method: str, path: str, value: object = None, *allowed: int) -> Any:
        """Ask until there is an answer. Raises Violated: refused, and not with an allowed
        status."""
        while True:
            try:
                return await self._http.call(method, path, value)
            except Refused as error:
                if error.status not in allowed:
                    raise Violated(f"operator: {method} {path}: {error}") from error
                return None
            except OSError:
                await self._clients.pause(0.1)

    # -- what it does

    def _queue(self) -> str:
        names = [one.name for one in self._clients.plan.queues if one.is_managed]
        return self._random.choice(names) if names else ""

    async def _declare(self) -> None:
        """A queue comes and goes, with what it has."""
        if self._random.random() < 0.5:
            arguments = self._random.choice([{}, {"x-max-length": 5}, {"x-message-ttl": 100}])
            await self._ask("DELETE", "/api/queues/%2F/extra", None, GONE)
            value = {"durable": True, "arguments": arguments}
            await self._ask("PUT", "/api/queues/%2F/extra", value)
            await self._ask("POST", f"/api/bindings/%2F/e/{FANOUT}/q/extra", {})
        else:
            await self._ask("DELETE", "/api/queues/%2F/extra", None, GONE)

    async def _set_policy(self) -> None:
        queue = self._queue()
        if not queue:
            return
        if self._random.random() < 0.3:
            await self._ask("DELETE", "/api/policies/%2F/p", None, GONE)
            return
        definition = self._random.choice(
            [{"message-ttl": 50}, {"max-length": 3}, {"max-length": 3, "message-ttl": 500},
             {"max-length-bytes": 1000}]
        )  # fmt: skip
        value = {"pattern": f"^{queue}$", "definition": definition, "apply-to": "queues"}
        await self._ask("PUT", "/api/policies/%2F/p", value)

    async def _purge(self) -> None:
        queue = self._queue()
        if queue:
            await self._ask("DELETE", f"/api/queues/%2F/{queue}/contents")

    async def _permit(self, write: str, read: str) -> None:
        permissions = self._history.permissions
        for right, pattern in ((WRITE, write), (READ, read)):
            if pattern == EVERYTHING:
                permissions.gives(right)
            else:
                permissions.takes(right)
        if read == NOTHING:  # what its consumers hold is taken from them
            for line in self._clients.lines.values():
                if line.client in self._workers:
                    self._history.disconnected(line)
        value = {"configure": EVERYTHING, "write": write, "read": read}
        await self._ask("PUT", f"/api/permissions/%2F/{WORKER}", value)
        for right, pattern in ((WRITE, write), (READ, read)):
            if pattern == NOTHING:
                permissions.taken(right)

    async def _change_rights(self) -> None:
        if self._random.random() < 0.2:
            value = {**credentials("other"), "tags": ""}
            await self._ask("PUT", "/api/users/other", value)
            await self._ask("DELETE", "/api/users/other", None, GONE)
        choices = [EVERYTHING, EVERYTHING, NOTHING]
        await self._permit(self._random.choice(choices), self._random.choice(choices))

    async def _reload(self) -> None:
        await self._ask("POST", "/api/tallymark/config/reload", {})

    async def _close(self) -> None:
        found = await self._ask("GET", "/api/connections")
        names = sorted(row["name"] for row in found)
        if not names:
            return
        name = self._random.choice(names)
        for end, line in self._clients.lines.items():
            if f":{end.get_extra_info('sockname')[1]} " in f"{name} ":
                self._history.disconnected(line)
        await self._ask("DELETE", f"/api/connections/{quote(name, safe='')}", None, GONE)

    async def _look(self) -> None:
        await self._ask("GET", self._random.choice(LOOKS))

    async def _import(self) -> None:
        found = await self._ask("GET", "/api/definitions")
        found.pop("users", None)  # no rights are to come back that were taken meanwhile
        found.pop("permissions", None)
        found.pop("policies", None)
        found["queues"] = [one for one in found["queues"] if one["name"] != "extra"]
        found["bindings"] = [one for one in found["bindings"] if one["destination"] != "extra"]
        await self._ask("POST", "/api/definitions", found)

    async def _get(self) -> None:
        queue = self._random.choice([one.name for one in self._clients.plan.queues])
        value = {"count": 3, "ackmode": "ack_requeue_true", "encoding": "base64"}
        await self._ask("POST", f"/api/queues/%2F/{queue}/get", value)
