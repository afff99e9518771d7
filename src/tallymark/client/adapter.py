"""The seam between the client and a protocol: what an adapter does, and what it calls.

Sessions, senders and receivers know messages, tags, credit and outcomes, no frames. An adapter
translates: `amqp10.py` for AMQP 1.0. It owns the protocol's state (a sans-I/O connection of `wire`)
and calls back into the client's own objects as bytes come in:

    Consumer   attached, deliver, answered, drained, detached         one receiver's deliveries
    Producer   attached, may_send, unblocked, taken_back, detached    one sender's messages
    Dispatcher opened, sent_settled, changed_by_peer, closed, ended   what spans links
    Peer       opened, closed                                         the connection

Tags number the deliveries of a session: whole numbers that only grow, however the protocol wraps
them. Numbers of sent messages are the protocol's own. No method waits, and none raises because of
what the peer did; what an adapter is told while its link is gone, it forgets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tallymark.client.errors import ClientError
from tallymark.client.outcomes import Outcome

if TYPE_CHECKING:
    from tallymark.client.consumer import Consumer
    from tallymark.client.dispatcher import Dispatcher
    from tallymark.client.options import ReceiverOptions, SenderOptions
    from tallymark.client.producer import Producer


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
        """Let the peer send `credit` messages from now on, in the place of what it may send."""

    @abstractmethod
    def drain(self) -> bool:
        """Ask the peer to use its credit or give it up; Consumer.drained follows. False: it has
        none, and nothing follows."""

    @abstractmethod
    def revoke(self) -> None:
        """Take the credit back, and call off a drain. What is on its way comes all the same."""

    @abstractmethod
    def settle(self, first: int, last: int, outcome: Outcome) -> None:
        """Settle in two steps (mode second); Consumer.answered follows [FC-12]."""

    @abstractmethod
    def close(self) -> None:
        """Begin to detach; Consumer.detached follows."""


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
        """What was handed over has not left: the session's window is closed. Producer.unblocked
        follows, or Producer.taken_back of some."""

    @abstractmethod
    def send(self, messages: list[bytes], settled: bool) -> Iterable[int]:
        """Send at most `sendable` messages; their numbers, in order."""

    @abstractmethod
    def withdraw(self, number: int) -> bool:
        """Take a message back, if none of it has left; True: it will not be sent, and credit and
        delivery-count are as if it never had been [FC-A13]. Also takes back the rest of one that
        left in part; the peer forgets such a message."""

    @abstractmethod
    def idle(self) -> None:
        """All that waited was sent: credit that the receiver wants back (drain) is given up."""

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
    def settle(self, first: int, last: int, outcome: Outcome) -> None:
        """Settle for good the deliveries first..last, of whichever receivers [FC-11]."""

    @abstractmethod
    def close(self) -> None:
        """Begin to end the session; Dispatcher.closed follows."""


class Peer(ABC):
    """What an adapter tells the owner of the connection."""

    @abstractmethod
    def opened(self, container_id: str, properties: Mapping[str, object]) -> None:
        """Logged in and open: sessions may begin."""

    @abstractmethod
    def closed(self, error: ClientError | None) -> None:
        """Nothing more comes and nothing more will be sent; None: as asked. The last call, made
        once. Sessions and links hear of it from the owner, who may have a new connection made."""


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
        """When to call tick, monotonic ms."""

    @abstractmethod
    def begin(self, dispatcher: Dispatcher) -> SessionPort:
        """Begin a session; Dispatcher.opened or Dispatcher.closed follows. Raises NotPossible
        where the peer's limit of sessions is reached."""

    @abstractmethod
    def close(self) -> None:
        """Begin to close, in any state; Peer.closed follows."""
