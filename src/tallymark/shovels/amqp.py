"""Source and target over AMQP: 0-9-1 (RabbitMQ, LavinMQ, Tallymark) and 1.0 (any peer).

Each batch is put with confirms (0-9-1) or unsettled (1.0), and settled at the source when all of it
was accepted. What no queue is bound for comes back, and what a full queue refuses: these are not
settled, and tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Final, final
from urllib.parse import quote

from tallymark.client import (
    Accepted,
    BatchNotAccepted,
    ClientError,
    Connection,
    Message,
    Receiver,
    Sender,
    Session,
    connect,
)
from tallymark.shovels.ends import Batch, PartlyPut, ShovelFailed, Source, Target
from tallymark.shovels.parcel import Parcel, Stamp
from tallymark.wire.conversion.addresses import EXCHANGES

PATIENCE_S: Final = 1.0
"""Seconds that a source waits for a message before it says that there is none."""
BATCH_BYTES: Final = 4 << 20
"""A batch ends with the message that passes this."""
Connects = Callable[[str], AbstractAsyncContextManager[Connection]]


class _End:
    """A connection with one session."""

    def __init__(self, url: str, side: str, connects: Connects) -> None:
        self._url = url
        self._connects = connects
        self._side = side
        self._open = AsyncExitStack()

    async def _session(self) -> Session:
        connection: Connection = await self._open.enter_async_context(self._connects(self._url))
        return await self._open.enter_async_context(connection.session())

    def _failure(self, error: Exception) -> ShovelFailed:
        may_pass = error.may_retry if isinstance(error, ClientError) else False
        return ShovelFailed(f"{self._side}: {error}", may_pass)

    async def close(self) -> None:
        stack, self._open = self._open, AsyncExitStack()
        with suppress(ClientError):  # of a connection that is gone already
            await stack.aclose()


@final
class AmqpSource(_End, Source):
    def __init__(self, url: str, address: str, window: int, connects: Connects = connect) -> None:
        """window: most messages that are taken and not settled; connects: makes a connection to a
        broker's URL."""
        super().__init__(url, f"source {address}", connects)
        self._address = address
        self._window = window
        self._receiver: Receiver | None = None

    async def open(self) -> None:
        try:
            session = await self._session()
            receiver = session.receiver(self._address, credit=self._window)
            self._receiver = await self._open.enter_async_context(receiver)
        except (ClientError, ValueError) as error:
            raise self._failure(error) from error

    async def begin(self, known: int | None) -> None:
        """Do nothing: its messages have no numbers."""

    async def take(self, most: int) -> Batch | None:
        receiver = self._receiver
        assert receiver is not None
        try:
            found = await receiver.receive_batch(1, PATIENCE_S)
            size = 0
            while found and len(found) < most and receiver.buffered and size < BATCH_BYTES:
                size += len(found[-1].encode())
                found += await receiver.receive_batch(1, 0)
        except ClientError as error:
            raise self._failure(error) from error
        if not found:
            return None
        return Batch([Parcel(one, not one.first_acquirer) for one in found], held=found)

    async def settle(self, batch: Batch) -> None:
        receiver = self._receiver
        assert receiver is not None
        try:
            await receiver.settle_many(batch.held, "accept")
        except ClientError as error:
            raise self._failure(error) from error

    async def settle_some(self, batch: Batch, put: Sequence[int]) -> None:
        await self.settle(Batch([], held=[batch.held[place] for place in put]))

    async def close(self) -> None:
        self._receiver = None
        await super().close()


@final
class AmqpTarget(_End, Target):
    def __init__(
        self,
        url: str,
        address: str | None,
        exchange: str,
        stamp: Stamp,
        connects: Connects = connect,
    ) -> None:
        """address: where all messages go; None: to `exchange`, each with its own routing key."""
        super().__init__(url, f"target {address or EXCHANGES + exchange}", connects)
        self._address = address
        self._exchange = exchange
        self._stamp = stamp
        self._sender: Sender | None = None

    async def open(self, origin: str) -> None:
        try:
            session = await self._session()
            self._sender = await self._open.enter_async_context(session.sender(self._address))
        except (ClientError, ValueError) as error:
            raise self._failure(error) from error

    async def put(self, batch: Batch) -> None:
        sender = self._sender
        assert sender is not None
        try:
            await sender.send_batch(await self._addressed(batch.parcels))
        except BatchNotAccepted as error:
            found = self._failure(error)
            put = [place for place, one in enumerate(error.outcomes) if isinstance(one, Accepted)]
            if put:
                found = PartlyPut(str(found), put, found.may_pass)
            raise found from error
        except (ClientError, ValueError) as error:
            raise self._failure(error) from error

    async def _addressed(self, parcels: Sequence[Parcel]) -> list[Message]:
        found = await self._stamp.put_on_all(parcels)
        if self._address is not None:
            return found
        return [
            message.replace(to=exchange_address(self._exchange, parcel.key))
            for message, parcel in zip(found, parcels, strict=True)
        ]

    async def close(self) -> None:
        self._sender = None
        await super().close()


def exchange_address(exchange: str, key: str) -> str:
    """
    >>> exchange_address("amq.topic", "a/b")
    '/exchanges/amq.topic/a%2Fb'
    """
    return EXCHANGES + _quoted(exchange) + ("/" + _quoted(key) if key else "")


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")
