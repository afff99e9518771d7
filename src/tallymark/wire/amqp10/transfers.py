"""Transfers in progress: deliveries that wait for the peer's session window, and one that arrives
in parts.

What a session sends in order stands in one queue: runs of deliveries, and the frames that may not
overtake them. A run leaves as far as the window goes, a large message frame by frame.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, final

from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.outcomes import Accepted, DeliveryState
from tallymark.wire.amqp10.performatives import Transfer
from tallymark.wire.amqp10.sending import (
    ACCEPTED,
    TransferForm,
    encode_tagged_transfers,
    encode_transfers,
    sized,
    text_tag,
    transfer_more,
)
from tallymark.wire.amqp10.serial import add

if TYPE_CHECKING:
    from tallymark.wire.amqp10.outbox import Outbox
    from tallymark.wire.amqp10.sender_link import SenderLink

WORST_MORE: Final = 32
"""Maximum number of bytes around the payload of a delivery's second or later frame."""


class Waiting:
    """Base of the items that wait to be sent."""

    __slots__ = ()

    def leave(self, outbox: Outbox) -> bool:
        """Send as much as the window allows; return whether that was all."""
        raise NotImplementedError


@final
class Run(Waiting):
    """Deliveries lo..hi-1 of `raw` on one link, equal except for tags and bytes."""

    __slots__ = (
        "_body",
        "_sent",
        "cuts",
        "form",
        "front",
        "hi",
        "is_aborted",
        "link",
        "lo",
        "more",
        "number",
        "raw",
        "skip",
        "tags",
    )

    def __init__(
        self,
        link: SenderLink,
        form: TransferForm,
        more: TransferForm,
        number: int,
        raw: bytes,
        cuts: array[int],
        lo: int,
        hi: int,
        front: bytes,
        skip: int,
        tags: list[bytes] | None,
    ) -> None:
        self.link = link
        self.form = form
        self.more = more
        """Form of transfers that are the first frame of several."""
        self.number = number
        """Number of message `lo`, the first that has not left completely."""
        self.raw = raw
        self.cuts = cuts
        self.lo = lo
        self.hi = hi
        self.front = front
        self.skip = skip
        self.tags = tags
        """Delivery-tags, tags[0] being that of message `lo`; None: tags are made from the
        numbers."""
        self.is_aborted = False
        """True if the rest of message `lo`, part of which has left, is to be aborted."""
        self._body = b""
        self._sent = 0

    @property
    def has_begun(self) -> bool:
        """Return whether a part of message `lo` has left."""
        return self._sent > 0

    def leave(self, outbox: Outbox) -> bool:
        while self.lo < self.hi:
            if outbox.window <= 0:
                return False
            if self.is_aborted:
                self._send_abort(outbox)
            elif self._sent or not self._send_whole(outbox):
                self._send_part(outbox)
            if self.link.is_gone():
                return True
        return True

    def _send_whole(self, outbox: Outbox) -> bool:
        """Send as many deliveries as fit a frame each; return whether there was one."""
        lo = self.lo
        most = outbox.window
        hi = self.hi if self.hi - lo <= most else lo + most
        limit = outbox.session.connection.max_frame_size
        delivery_id = outbox.numbers.id_of(self.number)
        if self.tags is None:
            frames, at = encode_transfers(
                self.form,
                delivery_id,
                self.number,
                self.raw,
                self.cuts,
                lo,
                hi,
                self.front,
                self.skip,
                limit,
            )
        else:
            frames, at = encode_tagged_transfers(
                self.form,
                delivery_id,
                self.tags,
                self.raw,
                self.cuts,
                lo,
                hi,
                self.front,
                self.skip,
                limit,
            )
        count = at - lo
        if not count:
            return False
        outbox.write_transfers(frames, count)
        outbox.note_begun(add(delivery_id, count - 1))
        self._done(count)
        return True

    def _send_part(self, outbox: Outbox) -> None:
        limit = outbox.session.connection.max_frame_size
        link = self.link
        if not self._sent:
            start = self.cuts[self.lo] + self.skip
            self._body = self.front + self.raw[start : self.cuts[self.lo + 1]]
            number: int = text_tag(self.number)
            tag = number.to_bytes(4, "big") if self.tags is None else self.tags[0]
            delivery_id = outbox.numbers.id_of(self.number)
            front = self.more.front(delivery_id, tag)
            room = limit - 4 - len(front)
            if room <= 0:
                outbox.session.connection.fail_frame_size(4 + len(front) + 1)
                return
            outbox.note_begun(delivery_id)
            is_last = False
        else:
            room = limit - WORST_MORE
            is_last = self._sent + room >= len(self._body)
            front = transfer_more(outbox.session.channel, link.handle, not is_last)
        outbox.write_transfers(sized(front, self._body[self._sent : self._sent + room]), 1)
        self._sent += room
        if is_last:
            self._done(1)

    def _send_abort(self, outbox: Outbox) -> None:
        front = transfer_more(outbox.session.channel, self.link.handle, False, aborted=True)
        outbox.write_transfers(sized(front, b""), 1)
        self._advance(1)

    def _done(self, count: int) -> None:
        self.link.count_sent(count)
        self._advance(count)

    def _advance(self, count: int) -> None:
        self.lo += count
        self.number = add(self.number, count)
        self._sent = 0
        self._body = b""
        self.is_aborted = False
        if self.tags is not None:
            self.tags = self.tags[count:]

    def split(self, at: int) -> Run:
        """Remove message `at`, of which nothing has left: this run ends before it, and the returned
        one contains the messages behind it."""
        behind = Run(
            self.link,
            self.form,
            self.more,
            add(self.number, at + 1 - self.lo),
            self.raw,
            self.cuts,
            at + 1,
            self.hi,
            self.front,
            self.skip,
            None if self.tags is None else self.tags[at + 1 - self.lo :],
        )
        if self.tags is not None:
            self.tags = self.tags[: at - self.lo]
        self.hi = at
        return behind


@final
class Drained(Waiting):
    """A drain, which gives up a link's unused credit behind its earlier deliveries [FC-5]."""

    __slots__ = ("link",)

    def __init__(self, link: SenderLink) -> None:
        self.link = link

    def leave(self, outbox: Outbox) -> bool:
        self.link.give_up(self)
        return True


@final
class Settled(Waiting):
    """A disposition of deliveries that have not left yet."""

    __slots__ = ("first", "last", "settled", "state")

    def __init__(self, first: int, last: int, state: bytes, settled: bool) -> None:
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state

    def leave(self, outbox: Outbox) -> bool:
        outbox.session.write_settled(self.first, self.last, self.state, self.settled)
        return True


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

    def __init__(self, delivery_id: int, tag: bytes, message_format: int) -> None:
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


def encoded_state(state: DeliveryState | None) -> bytes:
    """Encode a delivery state for frames; b"" for none."""
    if state is None:
        return b""
    if type(state) is Accepted:
        return ACCEPTED
    return encode(state)
