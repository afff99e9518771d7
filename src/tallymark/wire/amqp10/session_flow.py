"""Flow of a session [amqp-1.0 §2.5.6]: windows, numbers of deliveries, and their states.

The owner knows a delivery that we send by its *number*, see numbers.py; what waits to be sent is in
outbox.py.
"""

from __future__ import annotations

from typing import Final

from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.composites import Fields
from tallymark.wire.amqp10.ends import ConnectionEnd, LinkEnd, SessionEnd
from tallymark.wire.amqp10.events import (
    DispositionReceived,
)
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.in_flight import InFlight
from tallymark.wire.amqp10.numbers import REACH
from tallymark.wire.amqp10.outbox import Outbox, Settled
from tallymark.wire.amqp10.outcomes import DeliveryState, encoded_state, shortened
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    SENDER,
    Begin,
    Flow,
)
from tallymark.wire.amqp10.sending import disposition_frame
from tallymark.wire.amqp10.serial import Serial, add, diff
from tallymark.wire.amqp10.states import (
    SessionState,
)

AROUND_STATE: Final = 32
"""Maximum number of bytes of a disposition around its state."""


class SessionFlow(SessionEnd):
    """Base of `Session`: deliveries in both directions."""

    __slots__ = (
        "_first_received",
        "_incoming_left",
        "_is_window_held",
        "_last_received",
        "in_flight",
        "incoming_window",
        "next_incoming_id",
        "outbox",
        "remote_begin",
        "remote_outgoing_window",
    )

    def __init__(self, connection: ConnectionEnd, channel: int) -> None:
        super().__init__(connection, channel)
        self.remote_begin: Begin | None = None
        self.incoming_window = connection.limits.incoming_window
        """Transfer frames that the peer may send before we open the window again."""
        self.next_incoming_id = Serial(0)
        """Transfer-id of the next incoming transfer frame: not a delivery-id."""
        self.remote_outgoing_window = 0
        """Outgoing window announced by the peer."""
        self.outbox = Outbox(self)
        self.in_flight = InFlight()
        """Deliveries that our receivers settled in mode second and the senders have not settled
        yet."""
        self._incoming_left = 0  # transfer frames that the peer may still send
        self._is_window_held = False
        self._first_received = Serial(0)  # delivery-id
        self._last_received: Serial | None = None  # None: none came

    def fail(self, condition: str, text: str) -> None:
        """End the session because the peer broke its rules, and tell the owner."""
        raise NotImplementedError

    @property
    def is_blocked(self) -> bool:
        """True while deliveries wait for the peer's window: SessionUnblocked follows. New
        deliveries wait behind them, in order."""
        return bool(self.outbox.waiting)

    @property
    def next_delivery_id(self) -> Serial:
        """Number of the next delivery. May be set as long as there was none."""
        return self.outbox.numbers.next

    @next_delivery_id.setter
    def next_delivery_id(self, number: Serial) -> None:
        self.outbox.start_numbers(number)

    @property
    def next_outgoing_id(self) -> Serial:
        """Transfer-id of the next transfer frame that we send."""
        return self.outbox.next_id

    @property
    def remote_incoming_window(self) -> int:
        """Transfer frames that we may send now; negative if the peer has reduced its window."""
        return self.outbox.window

    # Windows

    def write(self, body: bytes) -> None:
        self.connection.write_frame(frame(self.channel, body))

    def flow(self, echo: bool = False, properties: Fields | None = None) -> None:
        """Send our windows to the peer; `echo` asks for its own."""
        self.write_flow(Flow(echo=echo, properties=properties))

    def write_flow(self, flow: Flow) -> None:
        if self.state is not SessionState.MAPPED and self.state is not SessionState.BEGIN_SENT:
            return
        if not self._is_window_held:
            self._incoming_left = self.incoming_window
        flow.next_incoming_id = None if self.remote_begin is None else self.next_incoming_id
        flow.incoming_window = self._incoming_left
        flow.next_outgoing_id = self.outbox.next_id
        flow.outgoing_window = self.connection.limits.outgoing_window
        self.write(flow.encode())

    def hold_window(self, is_held: bool) -> None:
        """Keep the incoming window closed until further notice: the peer has to stop when it has
        used it up."""
        self._is_window_held = is_held
        self._open_window()

    def _open_window(self) -> None:
        """Send a flow if half of the window is used up [FC-7]."""
        used_up = self._incoming_left <= self.incoming_window >> 1
        if used_up and not self._is_window_held and self.state is SessionState.MAPPED:
            self.flow()

    def window_left(self) -> int:
        """Return the transfer frames that the peer may still send."""
        return self._incoming_left

    def _count_frames(self, count: int) -> bool:
        """Count incoming transfer frames; False: they exceed the window."""
        if count > self._incoming_left:
            self.fail(errors.WINDOW_VIOLATION, f"transfer {count - self._incoming_left} too many")
            return False
        self._incoming_left -= count
        self.next_incoming_id = add(self.next_incoming_id, count)
        if self.remote_outgoing_window >= count:
            self.remote_outgoing_window -= count
        return True

    def is_next_delivery(self, delivery_id: Serial) -> bool:
        last = self._last_received
        if last is None:
            self._first_received = delivery_id
        elif diff(delivery_id, last) <= 0:
            self.fail(errors.INVALID_FIELD, f"delivery-id {delivery_id} behind {last}")
            return False
        elif diff(delivery_id, self._first_received) < 0 or (
            diff(delivery_id, self._first_received) > REACH
        ):
            self._first_received = add(delivery_id, -REACH)
        self._last_received = delivery_id
        return True

    # Sending

    def skip(self, count: int) -> Serial:
        """Assign numbers to deliveries that will not be sent, so that numbers keep in step with the
        owner's count. Returns the first."""
        return self.outbox.skip(count)

    # Settling

    def settle_sent(
        self, first: Serial, last: Serial, state: DeliveryState | None, settled: bool = True
    ) -> None:
        """Send a disposition about our deliveries, by numbers; it waits for those that have not
        left yet. settled=False tells the receiver that it no longer holds them, and asks for its
        answer [FC-18]."""
        encoded = self._encoded(state)
        if self.outbox.has_left(last):
            self.write_settled(first, last, encoded, settled)
        else:
            self.outbox.dispatch(Settled(first, last, encoded, settled))

    def settle_received(self, first: Serial, last: Serial, state: DeliveryState | None) -> None:
        self._write_disposition(RECEIVER, first, last, True, self._encoded(state))

    def settle_second(
        self, link: LinkEnd, first: Serial, last: Serial, state: DeliveryState | None
    ) -> None:
        encoded = self._encoded(state)
        if self.state is SessionState.MAPPED:
            self.in_flight.add(first, last, link)
            self._write_disposition(RECEIVER, first, last, False, encoded)

    def _encoded(self, state: DeliveryState | None) -> bytes:
        """Encode a state for a disposition, with less of an error's text if the peer's frames have
        no room for all of it."""
        encoded = encoded_state(state)
        excess = AROUND_STATE + len(encoded) - self.connection.max_frame_size
        return encoded if excess <= 0 else encoded_state(shortened(state, excess))

    def write_settled(self, first: Serial, last: Serial, state: bytes, settled: bool) -> None:
        ids = self.outbox.numbers.ids_of(first, last)
        if ids is not None:
            self._write_disposition(SENDER, ids[0], ids[1], settled, state)

    def _write_disposition(
        self, role: bool, first: Serial, last: Serial, settled: bool, state: bytes
    ) -> None:
        if self.state is SessionState.MAPPED:
            self.connection.write_frame(
                disposition_frame(self.channel, role, first, last, settled, state)
            )

    def receive_disposition(
        self, role: bool, first: Serial, last: Serial, settled: bool, state: DeliveryState | None
    ) -> None:
        """Handle a disposition. `role` is the peer's. Ids of deliveries that never were are cut
        off."""
        if self.state is not SessionState.MAPPED:
            return
        if diff(last, first) < 0:
            self.fail(errors.INVALID_FIELD, f"disposition of deliveries {first} to {last}")
        elif role == RECEIVER:
            self._receive_word_on_sent(first, last, settled, state)
        elif self._last_received is not None:
            self._receive_word_on_received(self._last_received, first, last, settled, state)

    def _receive_word_on_sent(
        self, first: Serial, last: Serial, settled: bool, state: DeliveryState | None
    ) -> None:
        numbers = self.outbox.numbers
        newest = add(self.outbox.next_delivery_id, -1)
        oldest = numbers.floor_id()
        if diff(last, newest) > 0:
            last = newest
        if diff(first, oldest) < 0:
            first = oldest
        if diff(last, first) >= 0:
            for low, high in numbers.ranges_of(first, last):
                self.emit(DispositionReceived(self, False, low, high, settled, state))

    def _receive_word_on_received(
        self,
        newest: Serial,
        first: Serial,
        last: Serial,
        settled: bool,
        state: DeliveryState | None,
    ) -> None:
        if diff(last, newest) > 0:
            last = newest
        if diff(first, self._first_received) < 0:
            first = self._first_received
        if diff(last, first) < 0:
            return
        if not settled:
            self.emit(DispositionReceived(self, True, first, last, False, state))
            return
        for piece in self.in_flight.take(first, last):
            link = piece.link
            if link is not None:
                link.settled(piece.first, piece.last, state)
            else:
                self.emit(DispositionReceived(self, True, piece.first, piece.last, True, state))
