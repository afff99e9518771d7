"""Attaching links: addresses are resolved to queues, exchanges and the broker's own nodes.

A link is refused in the standard's way: by an attach without a terminus, followed by a detach with
the error [amqp-1.0 §2.6.3]. The session continues.

No state of a link outlives it: a terminus is never durable, and unsettled deliveries of an earlier
link are not resumed [amqp-1.0 §2.6.13].
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp10.client import Delayed, Session
from tallymark.bridge.amqp10.consume import OutgoingLink
from tallymark.bridge.amqp10.dispositions import outcome_of
from tallymark.bridge.amqp10.errors import error_of
from tallymark.bridge.amqp10.management_link import LinkPair, RequestLink, ResponseLink
from tallymark.bridge.amqp10.publish import IncomingLink
from tallymark.bridge.amqp10.replies import VOLATILE_QUEUE, ReplyLink, ReplyRecipient
from tallymark.bridge.amqp10.streams import start_of_source
from tallymark.bridge.amqp10.tx import attach as attach_coordinator
from tallymark.bridge.direct_reply import PSEUDO_QUEUE
from tallymark.bridge.filters import FilterError, filters_of
from tallymark.bridge.operations import Operations, refuse_breaks
from tallymark.bridge.permissions import EXCHANGE, QUEUE, READ, WRITE, check_keys
from tallymark.engine.arguments import check_consumer_arguments, consumer_priority
from tallymark.engine.errors import (
    BrokerError,
    NotFound,
    PreconditionFailed,
)
from tallymark.engine.names import named
from tallymark.engine.queue import Queue
from tallymark.engine.session import RELEASES
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10 import performatives as amqp
from tallymark.wire.amqp10.ends import LinkEnd as WireLink
from tallymark.wire.amqp10.events import CreditReceived
from tallymark.wire.amqp10.outcomes import Error, Released
from tallymark.wire.amqp10.performatives import Attach, Coordinator, Source
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.states import LinkState
from tallymark.wire.conversion.addresses import (
    MANAGEMENT,
    BadAddress,
    Target,
    queue_address,
    queue_of,
    target_of,
)

OUTCOMES: Final = (
    "amqp:accepted:list",
    "amqp:rejected:list",
    "amqp:released:list",
    "amqp:modified:list",
)
REJECTED: Final = OUTCOMES[1]
LIFETIME: Final = "lifetime-policy"
ARGUMENTS: Final = {
    "rabbitmq:priority": "x-priority",
    "rabbitmq:consumer-timeout": "x-consumer-timeout",
}
"""Link properties that stand for arguments of a consumer."""
EXCLUSIVE: Final = "tallymark:exclusive"
"""Link property for exclusive consumption of the queue, as in basic.consume
[amqp-0.9.1 basic.consume.exclusive]. Durable subscriptions to topics use it [SC-1]."""


class AttachRefused(Exception):
    """A link is refused; `error` is sent to the client."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.error = Error(condition, text)


class MustWait(Exception):
    """The queue was declared for this attach. The attach is handled again once the declaration is
    on disk."""


@final
class LateAttach(Delayed):
    """An attach that waits for the declaration of its queue."""

    __slots__ = ("_attach", "_link", "_session")

    def __init__(self, session: Session, link: WireLink, attach: Attach) -> None:
        super().__init__(session.client)
        self._session = session
        self._link = link
        self._attach = attach

    def say(self) -> None:
        if not self._session.engine.closed and self._link.state is LinkState.ATTACH_RCVD:
            answer(self._session, self._link, self._attach)


def answer(session: Session, link: WireLink, attach: Attach) -> None:
    """Grant or refuse a client's attach."""
    try:
        if isinstance(link, SenderLink):
            _attach_source(session, link, attach)
        else:
            assert isinstance(link, ReceiverLink), link
            _attach_target(session, link, attach)
    except MustWait:
        session.client.broker.await_durable(LateAttach(session, link, attach))
    except BrokerError as error:
        if isinstance(error, NotFound):  # perhaps removed just now: told when the disk knows
            session.client.owner.gate.shut_for(session.client.broker)
        link.refuse(error_of(error))
    except AttachRefused as refusal:
        link.refuse(refusal.error)
    except BadAddress as bad:
        link.refuse(Error(errors.INVALID_FIELD, str(bad)))
    except FilterError as wrong:
        link.refuse(Error(wrong.condition, wrong.text))


# -- publishing links


def _attach_target(session: Session, link: ReceiverLink, attach: Attach) -> None:
    target = attach.target
    if isinstance(target, Coordinator):
        attach_coordinator(session, link, attach)
        return
    if not isinstance(target, amqp.Target):
        raise AttachRefused(errors.INVALID_FIELD, "attach of a sender without a target")
    address = target.address
    client = session.client
    where: Target | None = None
    queue: Queue | None = None
    if address == MANAGEMENT and not target.dynamic:
        _attach_requests(session, link, attach)
        return
    if target.dynamic:
        client.access.check(EXCHANGE, "", WRITE)
        queue = _make_node(session, False)
        address = queue_address(queue.name)
        where = Target("", queue.name, True)
    elif address is not None:
        where = target_of(address)
        queue = _find_target(session, where)
    link.answer(
        Attach(
            source=attach.source,
            target=amqp.Target(
                address=address,
                dynamic=target.dynamic,
                dynamic_node_properties=_lifetime(target.dynamic),
                expiry_policy=amqp.EXPIRE_LINK_DETACH,
                capabilities=target.capabilities,
            ),
            max_message_size=client.settings.limits.max_message_size or None,
        )
    )
    end = IncomingLink(session, link, where, queue)
    end.is_dynamic = target.dynamic
    source = attach.source
    end.can_reject = source is None or not source.outcomes or REJECTED in source.outcomes
    session.enter(link, end)
    end.grant()


def _find_target(session: Session, where: Target) -> Queue | None:
    """Check that the address refers to something that exists, and return its queue if it names one.
    Raises BrokerError, MustWait."""
    client = session.client
    client.access.check(EXCHANGE, where.exchange, WRITE)
    found_exchange = client.vhost.exchanges.get(where.exchange)
    check_keys(client.access, found_exchange, (where.key,), WRITE)
    if where.is_reply:
        if client.settings.replies.find(where.key) is None:
            raise NotFound(f"no {named(QUEUE, where.key, client.vhost.name)}")
        return None
    if where.is_queue:
        # Another connection's exclusive queue as well: replies go there, as over AMQP 0-9-1.
        found = client.vhost.queues.get(where.key)
        return found if found is not None else _find_queue(session, where.key)
    client.vhost.published_to(where.exchange)
    return None


def _attach_requests(session: Session, link: ReceiverLink, attach: Attach) -> None:
    pair = _pair(session, link)
    if pair.incoming is not None:
        raise PreconditionFailed(f"link '{link.name}' to {MANAGEMENT} has this half already")
    link.answer(
        Attach(
            source=attach.source,
            target=attach.target,
            max_message_size=session.client.settings.limits.max_message_size or None,
            properties=attach.properties,
        )
    )
    session.enter(link, RequestLink(pair, link))
    pair.grant()


# -- consuming links


def _attach_source(session: Session, link: SenderLink, attach: Attach) -> None:
    source = attach.source
    if source is None:
        raise AttachRefused(errors.INVALID_FIELD, "attach of a receiver without a source")
    if source.dynamic:
        if VOLATILE_QUEUE in source.capabilities:
            _attach_replies(session, link, attach, source)
        else:
            _attach_node(session, link, attach, source)
        return
    if source.address == MANAGEMENT:
        _attach_responses(session, link, attach)
        return
    if source.address is None:
        raise AttachRefused(errors.INVALID_FIELD, "source has no address and is not dynamic")
    name = queue_of(source.address)
    if name == PSEUDO_QUEUE:
        _attach_replies(session, link, attach, source)
        return
    session.client.access.check(QUEUE, name, READ)
    _attach_queue(session, link, attach, source, _find_queue(session, name))


def _attach_node(session: Session, link: SenderLink, attach: Attach, source: Source) -> None:
    """Attach a link to a queue that is made for it, and goes with it: at once where the link is
    refused."""
    queue = _make_node(session, True)
    try:
        _attach_queue(session, link, attach, source, queue)
    except (BrokerError, AttachRefused, FilterError):
        client = session.client
        client.broker.registry.delete_queue(client.connection, queue.name, False, False)
        raise


def _attach_queue(
    session: Session, link: SenderLink, attach: Attach, source: Source, queue: Queue
) -> None:
    client = session.client
    broker = client.broker
    is_stream = queue.settings.is_stream
    filter, supported = filters_of(source.filter, broker.clock, is_stream)
    arguments: dict[str, object] = {}
    for name, argument in ARGUMENTS.items():
        if attach.properties and name in attach.properties:
            arguments[argument] = attach.properties[name]
    check_consumer_arguments(named(QUEUE, queue.name, queue.vhost), arguments)
    tag = link.name
    while tag in session.engine.consumers:
        tag = f"{tag} ({link.remote_handle})"
    browses = source.distribution_mode == amqp.COPY or is_stream
    exclusive = _is_exclusive(attach, browses)
    settled = attach.snd_settle_mode == amqp.SND_SETTLED
    if is_stream:
        start = start_of_source(source.filter, supported, queue)
        consumer = broker.consuming.read(session.engine, queue, tag, start, settled, filter)
    elif browses:
        consumer = broker.consuming.browse(session.engine, queue, tag, filter)
    else:
        consumer = broker.consuming.consume(
            session.engine, queue, tag, settled, exclusive, consumer_priority(arguments),
            arguments, filter,
        )  # fmt: skip
    consumer.arguments = arguments
    consumer.on_timeout = RELEASES
    broker.consuming.grant(consumer, 0, False)
    default = source.default_outcome if outcome_of(source.default_outcome) else Released()
    link.answer(
        Attach(
            source=Source(
                address=queue_address(queue.name) if source.dynamic else source.address,
                expiry_policy=amqp.EXPIRE_LINK_DETACH,
                dynamic=source.dynamic,
                dynamic_node_properties=_lifetime(source.dynamic),
                distribution_mode=amqp.COPY if browses else amqp.MOVE,
                filter=supported or None,
                default_outcome=default,
                outcomes=tuple([one for one in source.outcomes if one in OUTCOMES]) or OUTCOMES,
                capabilities=source.capabilities,
            ),
            target=attach.target,
        )
    )
    end = OutgoingLink(session, link, consumer, settled, source.dynamic)
    if default is not None:
        end.default_outcome = default
    consumer.handle = end
    link.available = end.available
    session.enter(link, end)
    if link.credit or link.is_draining:  # granted before the answer
        end.granted(CreditReceived(link, link.credit, link.is_draining, link.flow_properties))


def _is_exclusive(attach: Attach, browses: bool) -> bool:
    wanted = False if attach.properties is None else attach.properties.get(EXCLUSIVE, False)
    if not isinstance(wanted, bool):
        text = f"link property {EXCLUSIVE} is {wanted!r}, expected true or false"
        raise AttachRefused(errors.INVALID_FIELD, text)
    if wanted and browses:
        text = f"link property {EXCLUSIVE} on a link that takes nothing, expected one that does"
        raise AttachRefused(errors.NOT_ALLOWED, text)
    return wanted


def _attach_replies(session: Session, link: SenderLink, attach: Attach, source: Source) -> None:
    """Attach a link for direct replies."""
    if attach.snd_settle_mode == amqp.SND_UNSETTLED:
        raise PreconditionFailed("direct replies are sent settled, expected that settle mode")
    recipient = ReplyRecipient(session.client.settings.random_name())
    link.answer(
        Attach(
            source=Source(
                address=recipient.address,
                expiry_policy=amqp.EXPIRE_LINK_DETACH,
                dynamic=source.dynamic,
                dynamic_node_properties=_lifetime(source.dynamic),
                capabilities=source.capabilities,
            ),
            target=attach.target,
        )
    )
    session.enter(link, ReplyLink(session, link, recipient))


def _attach_responses(session: Session, link: SenderLink, attach: Attach) -> None:
    pair = _pair(session, link)
    if pair.outgoing is not None:
        raise PreconditionFailed(f"link '{link.name}' to {MANAGEMENT} has this half already")
    link.answer(Attach(source=attach.source, target=attach.target, properties=attach.properties))
    session.enter(link, ResponseLink(pair, link))
    pair.flush()


# -- nodes


def _find_queue(session: Session, name: str) -> Queue:
    """Return the queue. Raises NotFound, ResourceLocked, AccessRefused, InvalidCommand; MustWait:
    it is being declared."""
    client = session.client
    if name not in client.vhost.queues and _creates(session, name):
        refuse_breaks(name)
        _operations(session).declare_queue(name, True, False, False, {})
        raise MustWait
    return client.vhost.queue(name, client.connection.id)


def _creates(session: Session, name: str) -> bool:
    """Return whether an attach declares a queue of that name, by configuration or policy."""
    rule = session.client.settings.auto_create
    return (rule is not None and rule.matches(name)) or session.client.vhost.policy_table.creates(
        name
    )


def _make_node(session: Session, is_read: bool) -> Queue:
    """Declare a queue for a dynamic terminus: exclusive to the connection, deleted with the link.
    Where the link does not read it, its readers come and go, and it stays."""
    return _operations(session).declare_queue("", False, True, is_read, {}).queue


def _operations(session: Session) -> Operations:
    client = session.client
    return Operations(client.broker, client.connection, client.access)


def _lifetime(dynamic: bool) -> dict[object, object] | None:
    return {LIFETIME: amqp.DELETE_ON_CLOSE} if dynamic else None


def _pair(session: Session, link: WireLink) -> LinkPair:
    """Return the pair of which one half is attached, or a new one."""
    for end in session.ends:
        if isinstance(end, (RequestLink, ResponseLink)) and end.pair.name == link.name:
            return end.pair
    return LinkPair(session, link.name)
