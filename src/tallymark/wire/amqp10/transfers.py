"""Assembly: one delivery that arrives in several frames [FC-13]."""

from __future__ import annotations

from typing import final

from tallymark.wire.amqp10.outcomes import DeliveryState
from tallymark.wire.amqp10.performatives import Transfer


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
