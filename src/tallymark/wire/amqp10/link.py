"""Links [amqp-1.0 §2.6]: a `SenderLink` sends, a `ReceiverLink` receives, a `Link` is either."""

from tallymark.wire.amqp10.link_end import NO_HANDLE, Link
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sender_link import SenderLink

__all__ = ["NO_HANDLE", "Link", "ReceiverLink", "SenderLink"]
