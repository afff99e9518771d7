"""Sender link: the sending end, on either side of the connection, with its credit [FC-3, FC-5]."""

from __future__ import annotations

from array import array
from typing import final

from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.composites import Fields
from tallymark.wire.amqp10.ends import SessionEnd
from tallymark.wire.amqp10.events import CreditReceived, DeliveriesWithdrawn
from tallymark.wire.amqp10.frames import TAG_MAX
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outbox import Drained, Outbox, Run
from tallymark.wire.amqp10.outcomes import DeliveryState, encoded_state
from tallymark.wire.amqp10.performatives import Attach, Flow, Transfer
from tallymark.wire.amqp10.sending import TransferForm
from tallymark.wire.amqp10.serial import MASK, Serial, add, diff
from tallymark.wire.amqp10.states import LinkState


@final
class SenderLink(Link):
    __slots__ = (
        "_drain",
        "_drain_count",
        "_form",
        "_form_key",
        "_initial_count",
        "_more",
        "_outbox",
        "_queued",
        "_remaining",
        "available",
        "credit",
        "delivery_count",
        "flow_properties",
        "is_draining",
        "max_message_size",
    )

    def __init__(self, session: SessionEnd, outbox: Outbox, name: str) -> None:
        super().__init__(session, name, True)
        self._outbox = outbox
        self.credit = 0
        """Count of deliveries that may be handed over now."""
        self.delivery_count = Serial(0)
        """Count of deliveries that have left, and of credit given up: a serial number."""
        self.is_draining = False
        """True while the receiver waits for `drained`."""
        self.flow_properties: Fields | None = None
        """Properties of the last flow that had any, for an owner who answers the attach later."""
        self.available = 0
        """Count of available deliveries for our flows: a hint, set by the owner."""
        self.max_message_size = 0
        """Largest message that the receiver accepts, bytes; 0: no limit. Not checked here."""
        self._remaining = 0  # credit, with that for deliveries which have not left yet
        self._queued = 0  # those deliveries
        self._drain = 0  # number of the drain behind which credit is given up, 0: none
        self._drain_count = 0
        self._initial_count = Serial(0)  # what a receiver means that does not know ours yet
        self._form: TransferForm | None = None
        self._more: TransferForm | None = None
        self._form_key: tuple[bool, int, bytes] = (False, 0, b"")

    def _fill(self, attach: Attach) -> None:
        if attach.initial_delivery_count is None:
            attach.initial_delivery_count = Serial(0)
        self.delivery_count = attach.initial_delivery_count
        self._initial_count = attach.initial_delivery_count

    def _adopt(self, attach: Attach) -> None:
        self.max_message_size = attach.max_message_size or 0

    def _let_go(self) -> None:
        self.credit = 0
        self.is_draining = False
        self._drain = 0
        self._remaining = 0
        self._queued = 0
        self._outbox.withdraw(self)

    def _drop(self) -> None:
        pass

    # Sending

    def send(
        self,
        message: bytes,
        *,
        tag: bytes | None = None,
        settled: bool = False,
        state: DeliveryState | None = None,
        message_format: int = 0,
        beyond_credit: bool = False,
    ) -> int:
        """Send one message; see `send_run`."""
        return self.send_run(
            message,
            array("I", (0, len(message))),
            0,
            1,
            settled=settled,
            tags=None if tag is None else [tag],
            state=state,
            message_format=message_format,
            beyond_credit=beyond_credit,
        )

    def send_run(
        self,
        raw: bytes,
        cuts: array[int],
        lo: int,
        hi: int,
        *,
        settled: bool,
        front: bytes = b"",
        skip: int = 0,
        tags: list[bytes] | None = None,
        state: DeliveryState | None = None,
        message_format: int = 0,
        beyond_credit: bool = False,
    ) -> int:
        """Send messages lo..hi-1: front + raw[cuts[i] + skip:cuts[i + 1]], as far as the peer's
        session window goes; the rest leaves when it opens. Returns the number of the first.

        `tags`: one for each; where there are none the number makes one, see frames.text_tag.
        `beyond_credit`: they were decided on while there was credit, which the receiver may have
        taken back since: those that it has are withdrawn at once, DeliveriesWithdrawn. On a link
        that is not attached any more all are, without an event. ValueError: more than `credit`
        otherwise.
        """
        count = hi - lo
        if count > self.credit and not beyond_credit:
            raise ValueError(f"{count} deliveries on a link with a credit of {self.credit}")
        if count <= 0 or (tags is not None and len(tags) != count):
            raise ValueError(f"{count} deliveries, with {'no' if tags is None else len(tags)} tags")
        if tags is not None:
            for tag in tags:
                if len(tag) > TAG_MAX:
                    raise ValueError(f"delivery-tag of {len(tag)} bytes, at most {TAG_MAX} fit")
        if self.state is not LinkState.ATTACHED:
            return self._outbox.skip(count)
        form = self._form_for(settled, message_format, state)
        more = self._more
        assert more is not None
        number = self._outbox.numbers.take(count)
        if count > self.credit:
            self._withdraw_last(add(number, count - 1), count - self.credit)
            hi = lo + self.credit
            if lo == hi:
                return number
        self._queued += hi - lo
        self._recount()
        self._outbox.dispatch(Run(self, form, more, number, raw, cuts, lo, hi, front, skip, tags))
        return number

    def _withdraw_last(self, last: Serial, count: int) -> None:
        first = add(last, 1 - count)
        self._outbox.numbers.withdraw(first, count)
        self.session.emit(DeliveriesWithdrawn(self, first, last))

    def _form_for(
        self, settled: bool, message_format: int, state: DeliveryState | None
    ) -> TransferForm:
        key = (settled, message_format, encoded_state(state))
        form = self._form
        if form is None or key != self._form_key:
            channel = self.session.channel
            handle = self.handle
            form = TransferForm(channel, handle, message_format, settled, key[2])
            self._form = form
            self._more = TransferForm(channel, handle, message_format, settled, key[2], more=True)
            self._form_key = key
        return form

    def _recount(self) -> None:
        credit = self._remaining - self._queued
        self.credit = credit if credit > 0 and not self._drain else 0

    def count_sent(self, count: int) -> None:
        """Count deliveries that have left completely."""
        self.delivery_count = add(self.delivery_count, count)
        self._remaining -= count
        self._queued -= count

    def cancel(self, number: Serial) -> bool:
        """Withdraw a delivery that waits for the peer's window, or the rest of one: delivery-count
        and credit are then as if it had never existed [FC-A13]. False: it has left."""
        if not self._outbox.cancel(self, number):
            return False
        self._queued -= 1
        self._recount()
        return True

    # Credit

    def receive_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            count = flow.delivery_count
            if count is None:
                count = self._initial_count
            # A count that is ahead of ours is no reason to have more credit than can be said.
            self._remaining = min(diff(count, self.delivery_count) + flow.link_credit, MASK)
        self._drain = 0
        if flow.properties is not None:
            self.flow_properties = flow.properties
        if self._queued > self._remaining:
            self._withdraw_surplus()
        self._recount()
        self.is_draining = flow.drain
        if flow.echo and not flow.drain:
            self.flow()
        self.session.emit(CreditReceived(self, self.credit, flow.drain, flow.properties))

    def _withdraw_surplus(self) -> None:
        """Withdraw deliveries for which the receiver took back the credit while they waited for its
        window."""
        surplus = self._queued - (self._remaining if self._remaining > 0 else 0)
        for first, last in self._outbox.withdraw_newest(self, surplus):
            self._queued -= diff(last, first) + 1
            self.session.emit(DeliveriesWithdrawn(self, first, last))

    def drained(self) -> None:
        """Give up the remaining credit, and say so behind the last delivery, when all available
        ones were sent [FC-5]. Does nothing unless the receiver asked."""
        if self.is_draining:
            self.is_draining = False
            self._drain_count += 1
            self._drain = self._drain_count
            self.credit = 0
            self._outbox.dispatch(Drained(self, self._drain))

    def give_up(self, drain: int) -> None:
        """Give up the credit once everything before this drain has left. A later flow of the
        receiver cancels the drain."""
        if drain == self._drain:
            self._drain = 0
            if self._remaining > 0:
                self.delivery_count = add(self.delivery_count, self._remaining)
                self._remaining = 0
            self._send_flow(False, True, None)

    def flow(self, echo: bool = False, properties: Fields | None = None) -> None:
        """Send the state of the link to the receiver; `echo` asks for its answer."""
        if self.state is LinkState.ATTACHED:
            self._send_flow(echo, False, properties)

    def _send_flow(self, echo: bool, drain: bool, properties: Fields | None) -> None:
        flow = Flow(
            handle=self.handle,
            delivery_count=self.delivery_count,
            link_credit=self._remaining if self._remaining > 0 else 0,
            available=self.available,
            drain=drain,
            echo=echo,
            properties=properties,
        )
        self.session.write_flow(flow)

    def receive_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self.fail(errors.NOT_ALLOWED, "transfer to the sender of a link")
