"""Clients: connections and sessions come and go."""

from __future__ import annotations

from typing import final

from tallymark.engine import records
from tallymark.engine.consumers import Consumers
from tallymark.engine.delivery import TURN_BYTES
from tallymark.engine.publishing import Publishing
from tallymark.engine.quotas import Quotas
from tallymark.engine.registry import Registry
from tallymark.engine.session import (
    Connection,
    Session,
)
from tallymark.engine.settlement import Settlement
from tallymark.engine.state import State
from tallymark.engine.transactions import Transactions


@final
class Clients:
    """The commands by which connections and sessions are opened and closed."""

    __slots__ = (
        "_agenda", "_connections", "_consumers", "_publishing", "_quotas", "_registry",
        "_settlement", "_state", "_transactions",
    )  # fmt: skip

    def __init__(
        self,
        state: State,
        quotas: Quotas,
        consumers: Consumers,
        registry: Registry,
        settlement: Settlement,
        transactions: Transactions,
        publishing: Publishing,
    ) -> None:
        self._agenda = state.agenda
        self._connections = state.connections
        self._state = state
        self._quotas = quotas
        self._consumers = consumers
        self._registry = registry
        self._settlement = settlement
        self._transactions = transactions
        self._publishing = publishing

    def open_connection(self, vhost: str, user: str, name: str) -> Connection:
        """Open a connection. Raises NotFound if the virtual host does not exist, NotAllowed above a
        limit."""
        self._state.vhost(vhost)
        self._quotas.enter(vhost, user)
        connection = Connection(self._state.owner_ids(), vhost, user, name)
        connection.allowance = connection.room = TURN_BYTES
        self._connections[connection.id] = connection
        return connection

    def close_connection(self, connection: Connection, lost: bool) -> None:
        """End a connection: its sessions close, its exclusive queues are deleted. A second call has
        no effect."""
        for session in list(connection.sessions):
            self.close_session(session, lost)
        for queue in list(connection.exclusive_queues):
            self._registry.delete_queue(connection, queue.name, False, False)
        if self._connections.pop(connection.id, None) is not None:
            self._quotas.leave(connection.vhost, connection.user)
        self._publishing.forget(connection)

    def open_session(self, connection: Connection) -> Session:
        """Open a session. Raises NotAllowed above a limit."""
        self._quotas.begin(connection.user)
        session = Session(self._state.owner_ids(), connection)
        connection.sessions.append(session)
        return session

    def close_session(self, session: Session, lost: bool) -> None:
        """End a session: its consumers stop, its transactions are rolled back, unsettled messages
        return to their old positions.

        lost: the peer vanished without a closing handshake. Repeating is no error.
        """
        if session.closed:
            return
        session.closed = True
        self._quotas.end(session.connection.user)
        self._state.deadlines.forget(session)
        session.connection.sessions.remove(session)
        consumers = list(session.consumers.values())
        for consumer in consumers:
            self._consumers.remove(consumer)
        reason = records.RETURNED_BY_LOSS if lost else records.RETURNED_BY_CLOSE
        self._transactions.close_session(session, lost)
        self._settlement.return_all(session, reason)
        for consumer in consumers:
            self._registry.end_if_unused(consumer.queue)

    def wake(self, connection: Connection) -> None:
        """Resume deliveries to a connection that can take output again (`paused` is false now)."""
        for session in connection.sessions:
            self._agenda.mark_session(session)
