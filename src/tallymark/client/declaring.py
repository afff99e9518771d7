"""Declarations of a session: declare, bind, purge and delete; see docs/client.md, "Declaring"."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tallymark.client.topology import (
    AskForQueue,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    PurgeQueue,
    QueueState,
    Request,
    Unbind,
)

if TYPE_CHECKING:
    from tallymark.client.connection import Connection
    from tallymark.client.dispatcher import Dispatcher

Arguments = Mapping[str, object]
NO_ARGUMENTS: Final[Arguments] = {}
QUEUE_TYPE: Final = "x-queue-type"
EXCLUSIVE_NAME: Final = "client.gen-"
"""Prefix of generated names. The client generates them, so that they are the same after a
reconnect."""


class Declaring:
    """The part of a session that declares. What it has declared and not deleted is declared again
    when its connection comes back (unless `restore=False`), before its senders and receivers are
    attached; what the broker refuses then is told to `on_error` and forgotten. A session that is
    closed leaves all of it as it is.

    Every call raises RequestRefused where the broker does not want it (and nothing was changed),
    NotPossible where it cannot be asked for that, ValueError for names that are none, TimedOut, and
    Closed, `in_doubt` where the connection went before the answer.
    """

    connection: Connection
    _dispatcher: Dispatcher

    async def declare_queue(
        self,
        name: str | None = None,
        *,
        type: str | None = None,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        restore: bool = True,
    ) -> QueueState:
        """Make a queue, or see that it is there as described. Returns its name and counts.

        name: None: the client makes one up.
        type: "classic", "quorum" or "stream" (`x-queue-type`); None: as the broker likes.
        exclusive: for this connection alone, and deleted with it.
        auto_delete: deleted when its last consumer goes.
        arguments: `x-message-ttl`, `x-max-length`, `x-dead-letter-exchange`, ...
        """
        described = dict(arguments or NO_ARGUMENTS)
        if type is not None:
            described[QUEUE_TYPE] = type
        request = DeclareQueue(
            f"{EXCLUSIVE_NAME}{uuid.uuid4().hex}" if name is None else name,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=described,
        )
        return await self._ask_for_state(request, restore)

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
        restore: bool = True,
    ) -> None:
        """Make an exchange, or see that it is there as described.

        type: "direct", "fanout", "topic", "headers", or another one that the broker has.
        auto_delete: deleted when the last thing that is bound to it goes.
        internal: only other exchanges publish to it.
        """
        request = DeclareExchange(
            name,
            type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(arguments or NO_ARGUMENTS),
        )
        await self._ask(request, restore)

    async def bind_queue(
        self,
        queue: str,
        exchange: str,
        key: str = "",
        *,
        arguments: Arguments | None = None,
        restore: bool = True,
    ) -> None:
        """Bind the queue to the exchange with `key`. Does nothing where that is so already."""
        table = dict(arguments or NO_ARGUMENTS)
        await self._ask(Bind(exchange, queue, False, key, table), restore)

    async def unbind_queue(
        self, queue: str, exchange: str, key: str = "", *, arguments: Arguments | None = None
    ) -> None:
        """Undo `bind_queue`. Does nothing where there is no such binding."""
        await self._ask(Unbind(exchange, queue, False, key, dict(arguments or NO_ARGUMENTS)))

    async def bind_exchange(
        self,
        destination: str,
        source: str,
        key: str = "",
        *,
        arguments: Arguments | None = None,
        restore: bool = True,
    ) -> None:
        """Bind an exchange to the exchange `source` with `key`."""
        table = dict(arguments or NO_ARGUMENTS)
        await self._ask(Bind(source, destination, True, key, table), restore)

    async def unbind_exchange(
        self, destination: str, source: str, key: str = "", *, arguments: Arguments | None = None
    ) -> None:
        """Undo `bind_exchange`."""
        await self._ask(Unbind(source, destination, True, key, dict(arguments or NO_ARGUMENTS)))

    async def queue_state(self, name: str) -> QueueState:
        """Return the number of ready messages and of consumers of a queue, which is not declared.
        Raises RequestRefused, 404, if it does not exist."""
        return await self._ask_for_state(AskForQueue(name))

    async def purge_queue(self, name: str) -> int:
        """Drop all messages that are ready in a queue. Returns how many they were."""
        return (await self._ask_for_state(PurgeQueue(name))).message_count

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue, its messages and its bindings. Returns how many messages were ready. Does
        nothing where there is none.

        if_unused, if_empty: only without consumers, without messages; over AMQP 0-9-1 alone, else
            NotPossible.
        """
        request = DeleteQueue(name, if_unused=if_unused, if_empty=if_empty)
        return (await self._ask_for_state(request)).message_count

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings. Does nothing where there is none.

        if_unused: only without bindings; over AMQP 0-9-1 alone, else NotPossible.
        """
        await self._ask(DeleteExchange(name, if_unused=if_unused))

    async def _ask(self, request: Request, restore: bool = True) -> QueueState | None:
        dispatcher = self._dispatcher
        if dispatcher.error is not None:
            raise dispatcher.error.again()
        answer = await self.connection.ask(request)
        dispatcher.topology.record(request, restore)
        return answer

    async def _ask_for_state(self, request: Request, restore: bool = True) -> QueueState:
        answer = await self._ask(request, restore)
        assert answer is not None, request
        return answer
