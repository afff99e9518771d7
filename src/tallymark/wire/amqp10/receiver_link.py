"""Receiver link: the receiving end, on either side of the connection, with its credit, its
deliveries and their settlement [FC-2, FC-4, FC-5, FC-10 to FC-13]."""

from __future__ import annotations

from array import array
from typing import final

from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.composites import Fields
from tallymark.wire.amqp10.ends import SessionEnd
from tallymark.wire.amqp10.events import (
    DrainFinished,
    FlowReceived,
    InflowStopped,
    SettlementReceived,
    TransfersReceived,
)
from tallymark.wire.amqp10.frames import TAG_MAX
from tallymark.wire.amqp10.in_flight import InFlight
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outcomes import DeliveryState
from tallymark.wire.amqp10.performatives import RCV_FIRST, RCV_SECOND, Attach, Flow, Transfer
from tallymark.wire.amqp10.scanning import Transfers
from tallymark.wire.amqp10.serial import Serial, add, diff
from tallymark.wire.amqp10.states import LinkState


@final
class ReceiverLink(Link):
    __slots__ = (
        "_aborted",
        "_assembly",
        "_in_flight",
        "allowance",
        "available",
        "credit",
        "delivery_count",
        "is_draining",
        "is_stopping",
        "max_message_size",
    )

    def __init__(self, session: SessionEnd, in_flight: InFlight, name: str) -> None:
        super().__init__(session, name, False)
        self._in_flight = in_flight
        self.credit = 0
        """Count of deliveries that the sender may still send."""
        self.allowance = 0
        """Credit including deliveries that the sender may have sent before it learned that credit
        was taken back. More than that closes the link [FC-4]."""
        self.delivery_count = Serial(0)
        """Sender's delivery-count, as far as known: a serial number."""
        self.is_draining = False
        self.is_stopping = False
        """True while a stop is in progress: InflowStopped follows."""
        self.available = 0
        """Sender's hint of its available deliveries."""
        self.max_message_size = session.connection.limits.max_message_size
        """Largest message accepted, bytes; 0: no limit."""
        self._assembly: Assembly | None = None
        self._aborted = 0  # deliveries counted that the sender may not have counted

    @property
    def unfinished(self) -> int:
        """Return the bytes of an incomplete delivery."""
        return 0 if self._assembly is None else self._assembly.size

    @property
    def is_receiving(self) -> bool:
        """Return whether transfers are accepted. They are also after our own orderly detach, until
        the peer's arrives [FC-A7]."""
        return self.state is LinkState.ATTACHED or self.state is LinkState.DETACH_SENT

    def _fill(self, attach: Attach) -> None:
        attach.initial_delivery_count = None
        if attach.max_message_size is None:
            attach.max_message_size = self.max_message_size or None
        self.max_message_size = attach.max_message_size or 0

    def _adopt(self, attach: Attach) -> None:
        self.delivery_count = attach.initial_delivery_count or Serial(0)

    def _let_go(self) -> None:
        self.is_draining = False
        self.is_stopping = False

    def _drop(self) -> None:
        self._drop_assembly()
        self._in_flight.remove(self)

    # Credit

    def flow(self, credit: int, echo: bool = False, properties: Fields | None = None) -> None:
        """Set the sender's credit to `credit` deliveries; `echo` asks for its answer. Cancels a
        drain. If the credit is lower than before, deliveries may exceed it that are on their way or
        that the sender sends before it knows [§2.6.7]."""
        if credit < 0:
            raise ValueError(f"credit {credit}, expected 0 or more")
        if self.state is LinkState.ATTACHED or self.state is LinkState.ATTACH_SENT:
            self.credit = credit
            if credit > self.allowance:
                self.allowance = credit
            self.is_draining = False
            self.is_stopping = False
            self._send_flow(echo, properties)

    def stop(self) -> bool:
        """Take all credit back and ask the sender for its state [amqp-1.0 §2.6.10]: InflowStopped
        follows, behind all deliveries on their way. False: there are none, and no event follows.
        `flow` cancels it."""
        if not self.is_receiving or (self.room() == 0 and self._assembly is None):
            return False
        if not self.is_stopping:
            self.flow(0, echo=True)
            self.is_stopping = True
        return True

    def _check_stopped(self, has_answered: bool = False) -> None:
        """Report the end of inflow, if a stop is in progress. A sender that knows of its credit of
        0, or has used up all credit, only sends the rest of a delivery that has begun."""
        if self.is_stopping and self._assembly is None and (has_answered or self.room() == 0):
            self.is_stopping = False
            self.session.emit(InflowStopped(self))

    def drain(self) -> bool:
        """Ask the sender to use up its credit or give it up: DrainFinished follows. False: there is
        no credit, and no event follows. Several calls send one flow [FC-A9]."""
        if self.credit == 0 or self.state is not LinkState.ATTACHED:
            return False
        if not self.is_draining:
            self.is_draining = True
            self._send_flow(False, None)
        return True

    def _send_flow(self, echo: bool, properties: Fields | None) -> None:
        flow = Flow(
            handle=self.handle,
            delivery_count=None if self.remote_attach is None else self.delivery_count,
            link_credit=self.credit,
            drain=self.is_draining,
            echo=echo,
            properties=properties,
        )
        self.session.write_flow(flow)

    def receive_flow(self, flow: Flow) -> None:
        given_up = self._adopt_count(flow)
        if flow.echo and self.state is LinkState.ATTACHED:
            self._send_flow(False, None)
        if self.is_draining and flow.drain and flow.link_credit == 0:
            self.credit = 0  # whatever its count is: the sender has no more deliveries
        if flow.link_credit is not None and flow.link_credit < self.allowance:
            self.allowance = max(flow.link_credit, self.credit)
        self._check_drained(given_up)
        self._check_stopped(flow.link_credit == 0)
        available = flow.available
        if available is not None or flow.properties is not None or given_up:
            if available is not None:
                self.available = available
            self.session.emit(FlowReceived(self.session, self, self.available, flow.properties))

    def _adopt_count(self, flow: Flow) -> int:
        """Take over the sender's delivery-count [FC-5]; return the credit that it skipped.

        In the middle of a delivery some senders count that one already.
        """
        if flow.delivery_count is None or (self._assembly is not None and not flow.drain):
            return 0
        ahead = diff(flow.delivery_count, self.delivery_count)
        if ahead <= 0:
            if -ahead <= self._aborted:
                self._uncount(-ahead)
            return 0
        self._aborted = 0
        given_up = ahead if ahead < self.credit else self.credit
        self._count(ahead)
        return given_up

    def _uncount(self, deliveries: int) -> None:
        """Correct the count: the sender does not count this many of the deliveries it aborted."""
        self.delivery_count = add(self.delivery_count, -deliveries)
        self.credit += deliveries
        self.allowance += deliveries
        self._aborted = 0

    def _check_drained(self, given_up: int) -> None:
        """Report the end of a drain when no credit is left, for whatever reason: a sender that used
        all of it need not send a flow."""
        if self.is_draining and self.credit == 0:
            self.is_draining = False
            self.session.emit(DrainFinished(self, given_up))

    def _count(self, deliveries: int) -> None:
        """Count deliveries against the credit [FC-2]."""
        if deliveries > self.allowance and self._aborted:
            self._uncount(self._aborted)
        self.delivery_count = add(self.delivery_count, deliveries)
        self.credit = self.credit - deliveries if self.credit > deliveries else 0
        self.allowance = self.allowance - deliveries if self.allowance > deliveries else 0

    # Deliveries

    def may_scan(self) -> bool:
        """Return whether runs of whole deliveries are acceptable now."""
        return self._assembly is None and self.is_receiving and self.room() > 0

    def room(self) -> int:
        """Return how many deliveries are accepted: see `allowance` and `_abort`."""
        return self.allowance + self._aborted

    def receive_run(self, run: Transfers) -> None:
        """Receive a run that credit and session window have room for."""
        count = len(run)
        shape = run.shape
        if shape.rcv_settle_mode == RCV_SECOND and self.rcv_settle_mode == RCV_FIRST:
            self._fail_second()
            return
        self._count(count)
        self.session.emit(
            TransfersReceived(
                self,
                run.first,
                run.tags,
                run.data,
                run.cuts,
                shape.settled,
                shape.state,
                shape.message_format,
                self._is_second(shape.rcv_settle_mode),
            )
        )
        self._check_drained(0)
        self._check_stopped()

    def receive_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Receive one transfer frame of any kind."""
        if self.is_receiving or self.state is LinkState.ATTACH_RCVD:
            assembly = self._assembly
            if assembly is None:
                assembly = self._begin(transfer)
                if assembly is None:
                    return
            else:
                wrong = assembly.disagreement(transfer)
                if wrong:
                    self.fail(errors.NOT_ALLOWED, wrong)
                    return
            self._go_on(assembly, transfer, payload)

    def _begin(self, transfer: Transfer) -> Assembly | None:
        """Begin a delivery with its first frame; None: there is none, or it is not accepted."""
        if self.room() <= 0:
            self.fail(errors.TRANSFER_LIMIT_EXCEEDED, "delivery without credit")
            return None
        delivery_id = transfer.delivery_id
        tag = transfer.delivery_tag
        message_format = transfer.message_format
        if delivery_id is None or tag is None or message_format is None:
            self.fail(
                errors.NOT_ALLOWED,
                "first transfer of a delivery without delivery-id, delivery-tag or message-format",
            )
            return None
        if len(tag) > TAG_MAX:
            self.fail(
                errors.NOT_ALLOWED, f"delivery-tag of {len(tag)} bytes, at most {TAG_MAX} expected"
            )
            return None
        if transfer.resume:
            self.fail(errors.NOT_IMPLEMENTED, "deliveries are not resumed")
            return None
        if not self.session.is_next_delivery(delivery_id):
            return None
        return Assembly(delivery_id, tag, message_format)

    def _go_on(self, assembly: Assembly, transfer: Transfer, payload: bytes) -> None:
        if transfer.aborted:
            self._abort()
            return
        if transfer.rcv_settle_mode == RCV_SECOND and self.rcv_settle_mode == RCV_FIRST:
            self._fail_second()
            return
        if self.max_message_size and assembly.size + len(payload) > self.max_message_size:
            self.fail(
                errors.MESSAGE_SIZE_EXCEEDED,
                f"delivery of more than {self.max_message_size} bytes",
            )
            return
        assembly.add(transfer, payload)
        if transfer.more:
            self._assembly = assembly
            self.session.connection.count_unfinished(len(payload))
            return
        self._finish(assembly, len(payload))

    def _abort(self) -> None:
        """Count an aborted delivery. Senders disagree on whether it counts [FC-2]: it does for
        proton, which would be left without credit otherwise. So it is counted, the sender is asked,
        and until it answers it may send one delivery more than it has credit for."""
        self._drop_assembly()
        self._count(1)
        self._aborted += 1  # [amqp-1.0 §2.6.7] does not say
        if self.state is LinkState.ATTACHED:
            self._send_flow(True, None)
            self.session.emit(FlowReceived(self.session, self, self.available, None))
        self._check_drained(0)
        self._check_stopped()

    def _finish(self, assembly: Assembly, last_size: int) -> None:
        if self._assembly is not None:
            self._assembly = None
            self.session.connection.count_unfinished(last_size - assembly.size)
        self._count(1)
        data = assembly.whole()
        self.session.emit(
            TransfersReceived(
                self,
                assembly.delivery_id,
                [assembly.tag],
                data,
                array("I", (0, len(data))),
                assembly.settled,
                assembly.state,
                assembly.message_format,
                self._is_second(assembly.mode),
            )
        )
        self._check_drained(0)
        self._check_stopped()

    def _is_second(self, mode: int | None) -> bool:
        return self.rcv_settle_mode == RCV_SECOND and mode != RCV_FIRST

    def _fail_second(self) -> None:
        self.fail(errors.NOT_ALLOWED, "rcv-settle-mode second on a link of mode first")

    def _drop_assembly(self) -> None:
        assembly = self._assembly
        if assembly is not None:
            self._assembly = None
            self.session.connection.count_unfinished(-assembly.size)

    # Settling

    def settle(self, first: Serial, last: Serial, state: DeliveryState) -> None:
        """Set the outcome of deliveries first..last of this link (with none of other links between
        them).

        Mode first: they are settled [FC-11]. Mode second: they are in flight from now on until the
        sender settles them, SettlementReceived [FC-12]. Does nothing on a link that is gone.
        """
        if self.is_receiving or self.state is LinkState.DETACH_RCVD:
            if self.rcv_settle_mode == RCV_FIRST:
                self.session.settle_received(first, last, state)
            else:
                self.session.settle_second(self, first, last, state)

    def settled(self, first: Serial, last: Serial, state: DeliveryState | None) -> None:
        """Handle the sender's answer to a settlement."""
        self.session.emit(SettlementReceived(self, first, last, state))

    def in_flight(self) -> list[tuple[int, int]]:
        """Return the ranges of delivery-ids that await the sender's answer."""
        return self._in_flight.of(self)


@final
class Assembly:
    """One delivery that arrives in several frames [FC-13]."""

    __slots__ = (
        "_parts",
        "delivery_id",
        "message_format",
        "mode",
        "settled",
        "size",
        "state",
        "tag",
    )

    def __init__(self, delivery_id: Serial, tag: bytes, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = False
        self.state: DeliveryState | None = None
        self.mode: int | None = None
        """Rcv-settle-mode of the delivery, if it names one."""
        self.size = 0
        self._parts: list[bytes] = []

    def disagreement(self, transfer: Transfer) -> str:
        """Return the difference between a later frame and the first; "" if there is none."""
        if transfer.delivery_id is not None and transfer.delivery_id != self.delivery_id:
            return f"delivery-id {transfer.delivery_id} within delivery {self.delivery_id}"
        if transfer.delivery_tag is not None and transfer.delivery_tag != self.tag:
            return f"another delivery-tag within delivery {self.delivery_id}"
        if transfer.message_format is not None and transfer.message_format != self.message_format:
            return f"another message-format within delivery {self.delivery_id}"
        return ""

    def add(self, transfer: Transfer, payload: bytes) -> None:
        if transfer.settled:
            self.settled = True
        if transfer.state is not None:
            self.state = transfer.state
        if transfer.rcv_settle_mode is not None:
            self.mode = transfer.rcv_settle_mode
        self.size += len(payload)
        self._parts.append(payload)

    def whole(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
