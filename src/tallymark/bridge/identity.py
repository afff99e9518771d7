"""Identity of the broker for clients of AMQP and of RabbitMQ's management interface.

One answer to all of them. Clients look at product and version and take from that what they know of
RabbitMQ: its own for AMQP 1.0 go no further with anything below 4.0, and filter by SQL from 4.2 on;
kombu reads there how `basic.qos` is meant; tools that compare versions take their oldest road with
one that they do not know. So product and version are those of what the broker behaves as, and its
own name and version stand beside them in keys of their own.
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
