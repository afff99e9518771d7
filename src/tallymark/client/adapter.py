"""The interface between the client and a protocol: the adapter's methods, and its calls into the
client.

Sessions, senders and receivers know messages, tags, credit and outcomes, no frames. An adapter
translates: `amqp10.py` for AMQP 1.0. It owns the protocol's state (a sans-I/O connection of `wire`)
and calls back into the client's own objects as bytes come in:

    Consumer   attached, deliver, answered, drained, detached         one receiver's deliveries
    Producer   attached, may_send, unblocked, taken_back, detached    one sender's messages
    Dispatcher opened, sent_settled, changed_by_peer, closed, ended   what spans links
               selected, inflow_stopped, given_back                   and its transactions
    Work       begun, ended, failed                                   one transaction
    Peer       opened, closed                                         the connection

Requests to declare, bind, delete, ... are answered by a result for the future that came with them.

Tags number the deliveries of a session: whole numbers that only grow, however the protocol wraps
them. Numbers of sent messages are the protocol's own. No method waits, and none raises because of
what the peer did; what an adapter is told while its link is gone, it forgets. Answers may come
before the call that asks for them has returned.

Transactions [TX-17 to TX-26]. The dispatcher decides; an adapter says it in its protocol:

    begin      select, once a session; then begin for each transaction, when it has something to do
    commit     SessionPort.commit, when all that was posted and settled in it has been said
    rollback   stop_inflow, wait; rollback, wait; give_back, wait; resume_inflow    [TX-19, TX-19a]
    recover    stop_inflow, wait; give_back, wait; resume_inflow                    [TX-26]

From commit or rollback to its answer the dispatcher says no settlement and sends no message on that
session. Credit, closing, and attaching may be asked for; where the protocol has no room for them
[TX-5], the adapter keeps them until the answer. When a session goes, its dispatcher is told, and
finds its transactions itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tallymark.client.errors import ClientError, NotPossible
from tallymark.client.outcomes import Outcome

if TYPE_CHECKING:
    from tallymark.client.consumer import Consumer
    from tallymark.client.dispatcher import Dispatcher
    from tallymark.client.options import ReceiverOptions, SenderOptions
    from tallymark.client.sender import Producer
    from tallymark.client.topology import Request
    from tallymark.client.transaction import Work
    from tallymark.client.turn import Waiter


class ReceiverPort(ABC):
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
        """Ask the peer to use its credit or give it up; Consumer.drained follows. False: it has
        none, and nothing follows."""

    @abstractmethod
    def revoke(self) -> None:
        """Take the credit back, and call off a drain. What is on its way comes all the same."""

    @abstractmethod
    def settle(self, first: int, last: int, outcome: Outcome, work: Work | None = None) -> None:
        """Settle in two steps (mode second); Consumer.answered follows [FC-12]. In a transaction
        there is one step, and nothing follows but its end."""

    @abstractmethod
    def close(self) -> None:
        """Begin to detach; Consumer.detached follows. What is neither settled nor ignored goes back
        to the broker; what is settled in a transaction stays in it."""


class SenderPort(ABC):
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
        is closed. Producer.unblocked follows, or Producer.taken_back for some of them."""

    @abstractmethod
    def send(self, messages: list[bytes], settled: bool, work: Work | None = None) -> Iterable[int]:
        """Send at most `sendable` messages; their numbers, in order. In a transaction their outcome
        (Dispatcher.sent_settled) says whether the broker holds them for it: where a protocol has no
        such answer, they are accepted as soon as they have left."""

    @abstractmethod
    def withdraw(self, number: int) -> bool:
        """Take a message back, if none of it has left; True: it will not be sent, and credit and
        delivery-count are as if it never had been [FC-A13]. Also takes back the rest of one that
        left in part; the peer forgets such a message."""

    @abstractmethod
    def idle(self) -> None:
        """Return unused credit to a receiver that drains: all waiting messages were sent."""

    @abstractmethod
    def close(self) -> None:
        """Begin to detach; Producer.detached follows."""


class SessionPort(ABC):
    """The protocol's end of one session."""

    @abstractmethod
    def add_receiver(self, consumer: Consumer, options: ReceiverOptions) -> ReceiverPort:
        """Begin to attach; Consumer.attached or Consumer.detached follows."""

    @abstractmethod
    def add_sender(self, producer: Producer, options: SenderOptions) -> SenderPort:
        """Begin to attach; Producer.attached or Producer.detached follows."""

    @abstractmethod
    def settle(self, first: int, last: int, outcome: Outcome, work: Work | None = None) -> None:
        """Settle for good the deliveries first..last, of whichever receivers [FC-11]; in a
        transaction, if it is committed."""

    @abstractmethod
    def close(self) -> None:
        """Begin to end the session; Dispatcher.closed follows."""

    can_annotate: bool = True
    """An outcome may change the annotations of a message."""

    # Transactions; a protocol without has none of these

    has_several: bool = False
    """Transactions of one session may be open side by side. Otherwise one follows the other, and
    all that is settled and sent on the session is in the present one."""

    def select(self) -> None:
        """Transactions are wanted on this session, the first time [TX-1, TX-11];
        Dispatcher.selected follows. Raises NotPossible where that is known already.

        Where this makes a session transactional for good, what is settled and sent outside of a
        transaction (work None) has to take effect at once all the same."""
        raise NotPossible("no transactions over this protocol")

    def begin(self, work: Work) -> None:
        """Begin a transaction; Work.begun follows, or Work.failed."""
        raise NotImplementedError

    def commit(self, work: Work) -> None:
        """End it, all or nothing; Work.ended follows."""
        raise NotImplementedError

    def rollback(self, work: Work) -> None:
        """End it: what was sent in it never was. Of what was settled in it, whatever the broker
        still takes for delivered to us is given back with `give_back`. Work.ended follows."""
        raise NotImplementedError

    def stop_inflow(self) -> None:
        """No more deliveries: Dispatcher.inflow_stopped follows once the last one is in. From then
        until `resume_inflow` there is none, also of receivers that are attached meanwhile [TX-19
        step 1, TX-D3]. All credit is gone then; the dispatcher grants none before."""
        raise NotImplementedError

    def resume_inflow(self) -> None:
        """Go on; credit is granted anew after this."""
        raise NotImplementedError

    def give_back(self, ranges: list[tuple[int, int]]) -> None:
        """Give all unsettled deliveries back to the broker, to their old places, ascending [TX-8,
        TX-19a], but not those settled in an open transaction. `ranges`: those deliveries as far
        as the client knows, ascending, without ignored ones. Dispatcher.given_back follows."""
        raise NotImplementedError


class ManagementPort(ABC):
    """The protocol's way to declare and delete queues, exchanges and bindings."""

    @abstractmethod
    def ask(self, request: Request, waiter: Waiter) -> None:
        """Have it done, behind what was asked before. The waiter's result is the queue that the
        answer tells of (None: of none), or a ClientError: RequestRefused, or NotPossible.
        Where the connection goes first, there is none."""


class Peer(ABC):
    """Callbacks through which an adapter reports to the owner of the connection."""

    @abstractmethod
    def opened(self, container_id: str, properties: Mapping[str, object]) -> None:
        """Logged in and open: sessions may begin."""

    @abstractmethod
    def closed(self, error: ClientError | None) -> None:
        """The connection is closed in both directions; None: as asked. The last call, made once.
        Sessions and links hear of it from the owner, who may have a new connection made."""


class Adapter(ABC):
    """One protocol's end of one connection: bytes in and out, time as data, no I/O."""

    @abstractmethod
    def start(self, now_ms: int) -> None:
        """The transport is there."""

    @abstractmethod
    def receive(self, data: bytes, now_ms: int) -> None: ...

    @abstractmethod
    def receive_end(self, reason: str, now_ms: int) -> None:
        """No more bytes come: the peer closed its side (""), or why the transport broke."""

    @abstractmethod
    def take_output(self, now_ms: int) -> list[bytes]: ...

    @abstractmethod
    def tick(self, now_ms: int) -> None: ...

    @abstractmethod
    def next_deadline(self) -> int | None:
        """Return when to call tick next; monotonic milliseconds."""

    @abstractmethod
    def begin(self, dispatcher: Dispatcher) -> SessionPort:
        """Begin a session; Dispatcher.opened or Dispatcher.closed follows. Raises NotPossible
        where the peer's limit of sessions is reached."""

    @abstractmethod
    def manage(self) -> ManagementPort:
        """Make a port for requests; one a connection is enough."""

    @abstractmethod
    def close(self) -> None:
        """Begin to close, in any state; Peer.closed follows."""
