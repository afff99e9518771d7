"""Class tx: publishes and settlements of a channel wait for tx.commit, or are undone
[TX-1 to TX-7].

The engine stages them (engine/transactions.py). This module handles the other consequences of a
publish: messages that no queue takes are returned at the commit, and direct replies are sent at it.

tx.commit-ok means that all of the transaction is on disk. If messages were published, the client
may use the channel only after that answer, as with RabbitMQ [TX-5]. A commit of settlements alone,
which RabbitMQ answers at once, delays the later output of the connection instead.
"""

from __future__ import annotations

from array import array
from typing import final

from tallymark.bridge.amqp091.channel import Channel, Publish
from tallymark.bridge.amqp091.content import return_messages
from tallymark.bridge.amqp091.publish import (
    CLASS_ID,
    METHOD_ID,
    Stretch,
    answer,
    payload_of,
    plain,
    routed,
)
from tallymark.bridge.bridge import Bridge, Waiter
from tallymark.bridge.direct_reply import reply_keys
from tallymark.engine.errors import PreconditionFailed, ResourceExhausted, RolledBack
from tallymark.engine.message import Payload
from tallymark.engine.staging import StagedRun, Transaction
from tallymark.engine.topology import Targets
from tallymark.engine.traffic import RETURNED
from tallymark.stored.annotations import Annotations
from tallymark.units import Tag
from tallymark.wire.amqp091.kernel import PublishReceived
from tallymark.wire.amqp091.methods import (
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)


@final
class Request:
    """Actions at the commit for messages of one publish frame besides publishing them. Where the
    frame alone determines them, the Publish is used instead: then runs may grow."""

    __slots__ = ("cuts", "known", "raw", "reply_keys")

    def __init__(
        self, known: Publish, reply_keys: list[str], raw: bytes | None, cuts: array[int]
    ) -> None:
        self.known = known
        self.reply_keys = reply_keys
        """Reply keys of the clients that get the messages as direct replies."""
        self.raw = raw
        """Messages in the form in which they are returned, if that is not the stored form."""
        self.cuts = cuts


@final
class CommitWait(Waiter):
    """A channel whose commit is being written to disk."""

    __slots__ = ("channel",)

    def __init__(self, owner: Bridge, channel: Channel) -> None:
        super().__init__(owner)
        self.channel = channel

    def durable(self) -> None:
        """Answer the commit, which is on disk."""
        channel = self.channel
        if not channel.session.closed:
            channel.committing = False
            channel.send(TxCommitOk())


# -- methods


def select(channel: Channel, method: TxSelect) -> None:
    """Start a transaction; a second select changes nothing [TX-1]."""
    if channel.session.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = channel.client.broker.transactions.begin(channel.session)
    channel.send(TxSelectOk())


def commit(channel: Channel, method: TxCommit) -> None:
    """Commit all of the transaction or nothing [TX-5, TX-D1]; the next one begins at once."""
    transaction = _transaction(channel)
    client = channel.client
    broker = client.broker
    try:
        runs = broker.transactions.commit(transaction)
    except RolledBack as error:
        raise PreconditionFailed(f"partial tx completion refused: {error}") from None
    for run in runs:
        _carry_out(channel, run)
    channel.transaction = broker.transactions.begin(channel.session)
    if not transaction.is_stored:
        channel.send(TxCommitOk())
    elif transaction.runs:
        channel.committing = True
        broker.await_durable(CommitWait(client.owner, channel))
    else:
        client.gate.shut_for(broker)
        channel.send(TxCommitOk())


def rollback(channel: Channel, method: TxRollback) -> None:
    """Roll back: nothing is redelivered, settled deliveries are unsettled again [TX-6]."""
    transactions = channel.client.broker.transactions
    transactions.rollback(_transaction(channel))
    channel.transaction = transactions.begin(channel.session)
    channel.send(TxRollbackOk())


def _transaction(channel: Channel) -> Transaction:
    transaction = channel.transaction
    if transaction is None:
        raise PreconditionFailed("channel is not transactional")
    return transaction


# -- publishes


def publish(channel: Channel, event: PublishReceived) -> None:
    """Stage a stretch of publishes.

    Raises:
        BrokerError, WireError: one of them was refused; those before it are held, it and those
        after it are not.
    """
    channel.check_idle(CLASS_ID, METHOD_ID)
    client = channel.client
    known = plain(client, event)
    if known is not None:
        targets = known.targets
        assert targets is not None, known.route.exchange
        handle = known if known.mandatory else None
        _stage(channel, targets, payload_of(client, event, known), handle, None)
        return
    stretch, failure = routed(channel, event)
    if stretch.publishes:
        _stage_stretch(channel, stretch)
    if failure is not None:
        raise failure


def _stage_stretch(channel: Channel, stretch: Stretch) -> None:
    """Stage the routed messages, one publish frame at a time; the engine joins runs."""
    client = channel.client
    bounds = stretch.bounds
    start = 0
    for k in range(1, len(stretch.publishes) + 1):
        known, targets = stretch.publishes[start], stretch.targets[start]
        if k < len(stretch.publishes) and (
            stretch.publishes[k] is known and stretch.targets[k] is targets
        ):
            continue
        payload = stretch.payload(client, list(range(start, k)))
        keys = reply_keys(known.route.exchange, (known.route.key, *stretch.more_keys))
        handle: object = None
        if keys or (known.mandatory and stretch.returned_raw is not stretch.raw):
            cuts = stretch.returned_cuts
            lo, hi = bounds[start], bounds[k]
            base = cuts[lo]
            raw = stretch.returned_raw[base : cuts[hi]]
            handle = Request(known, keys, raw, array("I", [c - base for c in cuts[lo : hi + 1]]))
        elif known.mandatory:
            handle = known
        _stage(channel, targets, payload, handle, stretch.annotations)
        start = k


def _stage(
    channel: Channel,
    targets: Targets,
    payload: Payload,
    handle: object,
    annotations: Annotations | None,
) -> None:
    transaction = _transaction(channel)
    try:
        channel.client.broker.publishing.stage(
            transaction, channel.session, targets, payload, annotations, handle
        )
    except ResourceExhausted as error:
        raise PreconditionFailed(str(error)) from None


def _carry_out(channel: Channel, run: StagedRun) -> None:
    """Carry out the actions of a committed run besides publishing."""
    handle = run.handle
    payload = run.payload
    assert payload is not None, run.count
    keys: list[str] = []
    raw: bytes | None = None
    cuts = payload.cuts
    if isinstance(handle, Request):
        known = handle.known
        keys = handle.reply_keys
        raw = handle.raw
        cuts = handle.cuts
    else:
        assert isinstance(handle, Publish), handle
        known = handle
    goes_back = known.mandatory and not run.reached
    if not keys and not goes_back:
        return
    channel.client.broker.store.load(payload)
    stored = payload.raw
    assert stored is not None, payload.position
    for key in keys:
        answer(channel, known, key, stored, payload.cuts, 0, run.count, payload.largest_frame)
    if goes_back:
        if raw is None:
            raw = stored
        channel.client.broker.traffic.nowhere(run.count, RETURNED)
        return_messages(channel, known.route, raw, cuts, 0, run.count, known.size)


# -- settlements


def settle(channel: Channel, first: int, last: int, multiple: bool, outcome: int) -> None:
    """Stage a settlement of deliveries; multiple: of all up to `last`. Raises
    PreconditionFailed."""
    transactions = channel.client.broker.transactions
    transaction = _transaction(channel)
    session = channel.session
    try:
        if multiple:
            transactions.settle_up_to(transaction, session, Tag(last), outcome)
        else:
            transactions.settle(transaction, session, Tag(first), Tag(last), outcome)
    except ResourceExhausted as error:
        raise PreconditionFailed(str(error)) from None
