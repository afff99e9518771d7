"""The node: a running broker without its listeners, put together from its parts."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallymark.bridge.amqp10.settings import Watch
from tallymark.engine.broker import Broker
from tallymark.journal.journal import Journal
from tallymark.server.access.limits import StoredLimits
from tallymark.server.access.rights import Rights
from tallymark.server.access.scram import SCRAM
from tallymark.server.access.tls import Certificates
from tallymark.server.access.users import Users
from tallymark.server.alarms import Alarms
from tallymark.server.buffers import Buffers
from tallymark.server.client import Clients
from tallymark.server.config.settings import Config
from tallymark.server.deleted_queues import DeletedQueues
from tallymark.server.doors import Doors
from tallymark.server.features import Features
from tallymark.server.housekeeping import Housekeeping
from tallymark.server.pacer import Pacer
from tallymark.server.parts import Parts
from tallymark.server.samples import Samples
from tallymark.server.schedule import Schedule
from tallymark.server.settings_files import SettingsFiles
from tallymark.server.shovels import Shovels
from tallymark.server.slow.consumers import SlowConsumerWatch
from tallymark.server.turns import Turns

if TYPE_CHECKING:
    from tallymark.server.access.tokens import Tokens
    from tallymark.server.tracing.tracing import Tracing


def node_name() -> str:
    """Return the broker's name as clients and lists show it."""
    return f"tallymark@{platform.node() or 'localhost'}"


def _always() -> bool:
    """Return True: a journal in its folder only has no other leader."""
    return True


class Node(Turns):
    """A running broker. Everything here happens on the loop's thread."""

    def __init__(
        self,
        config: Config,
        features: Features,
        broker: Broker,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        tokens: Tokens | None = None,
    ) -> None:
        """tokens: checks those of OAuth 2; None: only passwords are taken."""
        super().__init__(config, broker, journal, loop)
        self.features = features
        self.users = Users(config.data_dir, tokens)
        self.watch = Watch()
        broker.registry.observers.append(self.watch.observe)
        self.deleted_queues = DeletedQueues(broker.queues.values())
        broker.registry.observers.append(self.deleted_queues.observe)
        self.tasks = Schedule(loop)
        self.doors = Doors(config.max_connections)
        self.buffers = Buffers(self)
        self.parts = Parts()
        self.samples = Samples()
        self.pacer = Pacer(self)
        self.alarms = Alarms(self)
        self.clients = Clients(self, self.doors, self.buffers, self.pacer, self.alarms)
        self.served = self.clients
        self.housekeeping = Housekeeping(self, self.buffers, self.alarms)
        self.upkeep = self.housekeeping
        self.limits = StoredLimits(config.data_dir, broker.quotas, self.pacer.look_again)
        self.rights = Rights(self, self.clients, self.users, self.limits, self.tasks)
        self.settings_files = SettingsFiles(config.data_dir, journal)
        self.slow_consumers = SlowConsumerWatch(self)
        self.read_config: Callable[[], Config] | None = None
        """Function that reads the configuration again. Raises ConfigError. None: this broker was
        not started from one."""
        self.shovels = Shovels(loop, node_name())
        self.tracing: Tracing | None = None
        """Traces of messages, where the configuration asks for them."""
        self.is_leading: Callable[[], bool] = _always
        """Function that returns whether this broker leads its journal, for all that is known."""
        self.certificates: Certificates | None = None
        """Certificates of its listeners."""

    def mechanisms(self) -> tuple[str, ...]:
        """SASL mechanisms that AMQP clients may use now."""
        allowed = self.config.sasl_mechanisms
        if SCRAM in allowed and not self.users.offers_scram():
            return tuple(name for name in allowed if name != SCRAM)
        return allowed

    async def goodbye(self) -> None:
        """Have every client go, and wait until all they did is on disk."""
        await self.clients.goodbye()
        if not self.failed.done():
            await self.durable()
