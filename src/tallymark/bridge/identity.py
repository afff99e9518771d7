"""Identity of the broker for clients of AMQP and of RabbitMQ's management interface.

All of them get the same identity. Clients derive RabbitMQ's features from product and version.
RabbitMQ's own clients for AMQP 1.0 stop at anything below 4.0, and filter by SQL from 4.2 on; kombu
derives the meaning of `basic.qos`; tools that compare versions use their oldest method with a
version they do not know. So product and version are those of the RabbitMQ release whose behaviour
the broker has; its own name and version have keys of their own.
"""

from __future__ import annotations

from typing import Final

from tallymark import __version__

PRODUCT: Final = "RabbitMQ"
VERSION: Final = "4.2.0"
BROKER: Final[dict[str, object]] = {"broker_name": "Tallymark", "broker_version": __version__}
"""Keys with the broker's own name and version."""
COPYRIGHT: Final = "Copyright the Tallymark authors"
INFORMATION: Final = "Licensed under the Apache License 2.0"


def server_identity(platform: str) -> dict[str, object]:
    """Return the identity as properties of a connection, for AMQP 0-9-1 and 1.0 alike. platform:
    the broker's platform, such as "Python 3.11.2"."""
    return {
        "product": PRODUCT,
        "version": VERSION,
        "platform": platform,
        "copyright": COPYRIGHT,
        "information": INFORMATION,
        **BROKER,
    }
