"""The interface between the client and a protocol: *ports*, which the client calls, and their
*owners* in the client, which the protocol calls as bytes come in.

Sessions, senders and receivers know messages, tags, credit and outcomes, no frames. An adapter
translates (`amqp10`, `amqp091`). It owns the protocol's state, a sans-I/O connection of `wire`.

    ReceiverPort     ReceiverOwner     one receiver's deliveries and credit
    SenderPort       SenderOwner       one sender's messages
    SessionPort      SessionOwner      what spans links; transactions, each of which is a `Work`
    Adapter          ConnectionOwner   the connection

Requests to declare, bind, delete, ... are answered by a result for the future that came with them.

Tags number the deliveries of a session: whole numbers that only grow, however the protocol wraps
them. Numbers of sent messages are the protocol's own. No method waits, and none raises because of
what the peer did; calls that reach a port while its link is gone do nothing. Answers may come
before the call that asks for them has returned.

Transactions [TX-17 to TX-26]. The client decides; an adapter sends it in its protocol:

    begin      select, once a session; then begin for each transaction, when it has something to do
    commit     SessionPort.commit, when all that was posted and settled in it has been sent
    rollback   stop_inflow, wait; rollback, wait; give_back, wait; resume_inflow    [TX-19, TX-19a]
    recover    stop_inflow, wait; give_back, wait; resume_inflow                    [TX-26]

From commit or rollback to its answer the client sends no settlement and no message on that session.
Credit, closing, and attaching may be asked for; where the protocol has no room for them [TX-5], the
adapter keeps them until the answer. When a session goes, its owner is called, and finds its
transactions itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NewType

from tallymark.client.arguments import ReceiverOptions, SenderOptions
from tallymark.client.errors import ClientError, NotPossible, TransactionError
from tallymark.client.outcomes import Outcome
from tallymark.client.received import MessageOwner, ReceivedMessage
from tallymark.client.topology import Request
from tallymark.client.transaction import Tag, Work
from tallymark.client.turn import Waiter, resolve
from tallymark.wire.line import MonotonicMs

Number = NewType("Number", int)
"""Number of a sent message, the protocol's own."""

# Ports: what a protocol does for the client


class LinkPort(ABC):
    """The protocol's end of one receiver or sender."""

    @abstractmethod
    def close(self) -> None:
        """Begin to detach; LinkOwner.detached follows. What a receiver has neither settled nor
        ignored goes back to the broker; what is settled in a transaction stays in it."""


class ReceiverPort(LinkPort):
    """The protocol's end of one receiver."""

    @property
    @abstractmethod
    def credit(self) -> int:
        """Messages the peer may still send."""

    @property
    @abstractmethod
    def delivery_count(self) -> int:
        """The link's sequence number [FC-1]; for display."""

    @abstractmethod
    def grant(self, credit: int) -> None:
        """Set the credit to `credit` messages: it replaces what the peer may still send."""

    @abstractmethod
    def drain(self) -> bool:
        """Ask the peer to use its credit or give it up; ReceiverOwner.drained follows. False: it
        has none, and nothing follows."""

    @abstractmethod
    def revoke(self) -> None:
        """Take the credit back, and call off a drain. What is on its way comes all the same."""

    @abstractmethod
    def settle(self, first: Tag, last: Tag, outcome: Outcome, work: Work | None = None) -> None:
        """Settle in two steps (mode second); ReceiverOwner.answered follows [FC-12]. In a
        transaction there is one step, and nothing follows but its end."""


class SenderPort(LinkPort):
    """The protocol's end of one sender."""

    max_message_size: int
    """Bytes; 0: no limit."""

    @property
    @abstractmethod
    def sendable(self) -> int:
        """Messages that may leave now: the receiver's credit, 0 while the session is blocked."""

    @property
    @abstractmethod
    def is_blocked(self) -> bool:
        """Return whether messages that were handed over have not left, because the session's window
        is closed. SenderOwner.unblocked follows, or SenderOwner.requeue for some."""

    @abstractmethod
    def send(
        self, messages: list[bytes], settled: bool, work: Work | None = None
    ) -> Iterable[Number]:
        """Send at most `sendable` messages; return their numbers, in order. In a transaction their
        outcome (SessionOwner.outcomes_received) says whether the broker holds them for it: where a
        protocol has no such answer, they are accepted as soon as they have left."""

    @abstractmethod
    def withdraw(self, number: Number) -> bool:
        """Take a message back, if none of it has left; True: it will not be sent, and credit and
        delivery-count are as if it never had been [FC-A13]. Also takes back the rest of one that
        left in part; the peer forgets such a message."""

    @abstractmethod
    def idle(self) -> None:
        """Return unused credit to a receiver that drains: all waiting messages were sent."""


class SessionPort(ABC):
    """The protocol's end of one session."""

    @abstractmethod
    def add_receiver(self, owner: ReceiverOwner, options: ReceiverOptions) -> ReceiverPort:
        """Begin to attach; ReceiverOwner.attached or ReceiverOwner.detached follows."""

    @abstractmethod
    def add_sender(self, owner: SenderOwner, options: SenderOptions) -> SenderPort:
        """Begin to attach; SenderOwner.attached or SenderOwner.detached follows."""

    @abstractmethod
    def settle(self, first: Tag, last: Tag, outcome: Outcome, work: Work | None = None) -> None:
        """Settle for good the deliveries first..last, of whichever receivers [FC-11]; in a
        transaction, if it is committed."""

    @abstractmethod
    def close(self) -> None:
        """Begin to end the session; SessionOwner.closed follows."""

    can_annotate: bool = True
    """An outcome may change the annotations of a message."""

    # Transactions; a protocol without has none of these

    has_several: bool = False
    """Transactions of one session may be open side by side. Otherwise one follows the other, and
    all that is settled and sent on the session is in the present one."""

    def select(self) -> None:
        """Transactions are wanted on this session, the first time [TX-1, TX-11];
        SessionOwner.selected follows. Raises NotPossible where that is known already.

        Where this makes a session transactional for good, what is settled and sent outside of a
        transaction (work None) has to take effect at once all the same."""
        raise NotPossible("no transactions over this protocol")

    def begin(self, work: Work) -> None:
        """Begin a transaction; Work.begun follows, or Work.failed."""
        raise NotImplementedError

    def commit(self, work: Work) -> None:
        """End the transaction: everything done in it takes effect, or nothing; Work.ended
        follows."""
        raise NotImplementedError

    def rollback(self, work: Work) -> None:
        """End the transaction without effect: what was sent in it is never published. What was
        settled in it and counts as delivered to us all the same is given back with `give_back`.
        Work.ended follows."""
        raise NotImplementedError

    def stop_inflow(self) -> None:
        """Stop deliveries: SessionOwner.inflow_stopped follows once the last one is in. From then
        until `resume_inflow` there is none, also of receivers that are attached meanwhile [TX-19
        step 1, TX-D3]. All credit is gone then; the client grants none before."""
        raise NotImplementedError

    def resume_inflow(self) -> None:
        """Let deliveries come again; credit is granted anew after this."""
        raise NotImplementedError

    def give_back(self, ranges: list[tuple[Tag, Tag]]) -> None:
        """Give all unsettled deliveries back to the broker, to their old places, ascending [TX-8,
        TX-19a], but not those settled in an open transaction. `ranges`: those deliveries as far
        as the client knows, ascending, without ignored ones. SessionOwner.given_back follows."""
        raise NotImplementedError


class ManagementPort(ABC):
    """The protocol's way to declare and delete queues, exchanges and bindings, one request after
    the other: each sees what the one before it did."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Request, Waiter]] = deque()
        """Requests to carry out; the first one may be under way."""

    def ask(self, request: Request, waiter: Waiter) -> None:
        """Carry out a request, after those asked before. The waiter's result is the queue that the
        answer describes (None: it describes none), or a ClientError: RequestRefused or NotPossible,
        or TypeError or ValueError for arguments that the protocol has no form for. Where the
        connection goes first, the owner calls `lost`."""
        self._waiting.append((request, waiter))
        self._go_on()

    def lost(self, error: ClientError) -> None:
        """Give all requests an error, in doubt: the connection is gone."""
        for _, waiter in self._waiting:
            resolve(waiter, error.copied(in_doubt=True))

    @abstractmethod
    def _go_on(self) -> None:
        """Begin the first request, where none is under way."""

    @property
    def _first(self) -> Request:
        return self._waiting[0][0]

    def _cannot_send(self, error: TypeError | ValueError) -> None:
        """End the first request, whose arguments cannot be encoded."""
        kind = TypeError if isinstance(error, TypeError) else ValueError
        self._answer(kind(f"{self._first}: {error}"))

    def _answer(self, result: object) -> None:
        """End the first request."""
        _, waiter = self._waiting.popleft()
        resolve(waiter, result)


# Owners: what a protocol reports to the client


class LinkOwner(ABC):
    """The client's end of one receiver or sender, for as long as it lives; the port behind it may
    be replaced."""

    error: ClientError | None
    """Reason why it is closed; None: it is not."""
    ending: ClientError | None
    """Set once the application closes it."""

    @property
    @abstractmethod
    def is_attached(self) -> bool:
        """Return whether it has a port that the peer has attached."""

    @abstractmethod
    def detached(self, error: ClientError) -> None:
        """The link is gone, and only the link: by the peer, or as the application asked."""

    # Called by the session

    @abstractmethod
    async def attach(self) -> None:
        """Attach it, for the first time or again. Raises as `Session.receiver`."""

    @abstractmethod
    def close(self, error: ClientError) -> None:
        """Close it for good: the session or the connection is gone, or the peer has answered."""

    @abstractmethod
    def suspend(self, error: ClientError) -> None:
        """Let the link go and wait for a reconnect."""


class ReceiverOwner(LinkOwner, MessageOwner):
    """The client's end of one receiver."""

    port: ReceiverPort | None

    @abstractmethod
    def attached(
        self, port: ReceiverPort, address: str, mode: str, filter: Mapping[str, object]
    ) -> None:
        """The peer has attached. mode: "first" or "second"; filter: those in effect."""

    @abstractmethod
    def deliver(self, messages: list[ReceivedMessage]) -> None:
        """Add deliveries to the buffer, in the order of their tags, which is the session's."""

    @abstractmethod
    def answered(self, first: Tag, last: Tag, state: Outcome | None) -> None:
        """The sender's answer to settlements in two steps [FC-12]. state None: settled as asked."""

    @abstractmethod
    def drained(self, given_up: int) -> None:
        """The peer answered a drain: it gave up so much credit."""

    @property
    @abstractmethod
    def stream_offset(self) -> int | None:
        """Offset at which it goes on in its stream; None: it was sent nothing, or reads a queue."""

    # Called by the session

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Return whether it is closed, and everything buffered was read."""

    @abstractmethod
    def evaluate(self) -> None:
        """Decide about credit, at most once per turn [FC-17]."""

    @abstractmethod
    def resumed(self) -> None:
        """Delivery goes on after a stop: let readers look at the buffer."""

    @abstractmethod
    def changed_by_peer(self, first: Tag, last: Tag, state: Outcome | None) -> None:
        """The sender has settled these by itself [FC-18]."""

    @abstractmethod
    def stop_inflow(self) -> None:
        """Take back all credit, and end a drain."""

    @abstractmethod
    def recall(self, mark: Tag, error: ClientError) -> list[Tag]:
        """Take the deliveries up to the mark out of the buffer and from the application. Return
        their tags, in any order, which have to be given back to the broker."""

    @abstractmethod
    def resume_inflow(self) -> None:
        """Grant credit again."""


class SenderOwner(LinkOwner):
    """The client's end of one sender."""

    @abstractmethod
    def attached(self, port: SenderPort, address: str | None) -> None:
        """The peer has attached."""

    @abstractmethod
    def may_send(self) -> None:
        """There may be credit, or room in the transport's buffer."""

    @abstractmethod
    def unblocked(self) -> None:
        """All messages handed to the adapter have left."""

    @abstractmethod
    def requeue(self, low: Number, high: Number) -> None:
        """Queue messages low..high (numbers) again: the receiver took its credit back before they
        had left."""

    # Called by the session

    @abstractmethod
    def send_waiting(self) -> None:
        """Look again whether waiting messages may leave, if there are any."""

    @abstractmethod
    def fail_posted(self, work: Work, error: ClientError) -> None:
        """Fail the messages that wait to be sent in a transaction: they never will be."""


class SessionOwner(ABC):
    """The client's end of one session, for as long as it lives; the port may be replaced."""

    consumers: Sequence[ReceiverOwner]
    producers: Sequence[SenderOwner]
    highest_tag: Tag
    """Highest tag of the deliveries that have arrived; -1: none yet on this port [TX-22]."""

    @abstractmethod
    def opened(self, port: SessionPort) -> None:
        """The session has begun."""

    @abstractmethod
    def closed(self, error: ClientError, by_peer: bool) -> None:
        """The session is gone, and all its links."""

    @abstractmethod
    def ended(self) -> None:
        """The peer has heard that the application ended it."""

    @abstractmethod
    def outcomes_received(self, low: Number, high: Number, outcome: Outcome | None) -> None:
        """The receiver has decided about sent messages low..high (numbers); None: settled without
        an outcome, which is taken for accepted."""

    @abstractmethod
    def changed_by_peer(self, first: Tag, last: Tag, state: Outcome | None) -> None:
        """The sender has settled deliveries, or given them another outcome, unasked [FC-18]."""

    @abstractmethod
    def selected(self, error: ClientError | None) -> None:
        """The session takes transactions, or why not."""

    @abstractmethod
    def transactions_lost(self, error: TransactionError) -> None:
        """The broker has rolled back the open transactions by itself, and can begin others."""

    @abstractmethod
    def inflow_stopped(self) -> None:
        """The last delivery has arrived."""

    @abstractmethod
    def given_back(self) -> None:
        """The broker has taken the deliveries back; later deliveries are new."""


class ConnectionOwner(ABC):
    """Callbacks through which an adapter reports to the owner of the connection."""

    @abstractmethod
    def opened(self, container_id: str, properties: Mapping[str, object]) -> None:
        """Logged in and open: sessions may begin."""

    @abstractmethod
    def closed(self, error: ClientError | None) -> None:
        """The connection is closed in both directions; None: as asked. The last call, made once.
        Sessions and links hear of it from the owner, who may have a new connection made."""


# The whole


class Adapter(ABC):
    """One protocol's end of one connection: bytes in and out, time as data, no I/O."""

    @abstractmethod
    def start(self, now_ms: MonotonicMs) -> None:
        """Begin: the transport is connected."""

    @abstractmethod
    def receive(self, data: bytes, now_ms: MonotonicMs) -> None: ...

    @abstractmethod
    def receive_end(self, reason: str, now_ms: MonotonicMs) -> None:
        """No more bytes come: the peer closed its side (""), or why the transport broke."""

    @abstractmethod
    def take_output(self, now_ms: MonotonicMs) -> list[bytes]: ...

    @abstractmethod
    def tick(self, now_ms: MonotonicMs) -> None: ...

    @abstractmethod
    def next_deadline(self) -> MonotonicMs | None:
        """Return when to call tick next; monotonic milliseconds."""

    @abstractmethod
    def begin(self, owner: SessionOwner) -> SessionPort:
        """Begin a session; SessionOwner.opened or SessionOwner.closed follows. Raises NotPossible
        where the peer's limit of sessions is reached."""

    @abstractmethod
    def manage(self) -> ManagementPort:
        """Return a port for requests; a connection needs only one."""

    @abstractmethod
    def close(self) -> None:
        """Begin to close, in any state; ConnectionOwner.closed follows."""
