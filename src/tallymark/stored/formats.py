"""Formats of stored messages: the wire format in which each was published, by number."""

from typing import Final

AMQP091: Final = 1
"""Payload.format of AMQP 0-9-1 frames."""
NSQ: Final = 2
"""Payload.format of NSQ messages."""
AMQP10: Final = 3
"""Payload.format of AMQP 1.0 sections."""

NEWEST: Final = AMQP10
"""Highest number of this version. A number is never used for something else."""
