"""Names of queues and exchanges: how texts show them, which ones clients may choose, and those that
the broker makes."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Container

from tallymark.engine.errors import AccessRefused, InvalidCommand


def named(kind: str, name: str, vhost: str) -> str:
    """Return a thing's name as error texts show it: `queue 'q' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def is_routing_key(value: object) -> bool:
    """Return whether a routing key can be sent to readers: UTF-8 text of at most 255 bytes
    [amqp-0.9.1 shortstr]."""
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= 255
    except UnicodeEncodeError:
        return False


def cleaned(name: str) -> str:
    """Return a name as it is stored: without line breaks."""
    return name.replace("\r", "").replace("\n", "")


def check_new_name(kind: str, name: str) -> None:
    """Check a new name. Raises AccessRefused for a name reserved for the broker, InvalidCommand for
    one that cannot be sent to readers of AMQP 0-9-1, whose deliveries contain it."""
    if name.startswith("amq."):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    if not is_routing_key(name):
        raise InvalidCommand(f"{kind} name {name!r:.60}, expected UTF-8 text of at most 255 bytes")


def free_name(id: int, seed: bytes, taken: Container[str]) -> str:
    """Return a free queue name. The id makes it unique, the seed unguessable."""
    salt = 0
    while True:
        digest = hashlib.blake2b(b"%d.%d" % (id, salt), key=seed[:64], digest_size=16)
        text = urlsafe_b64encode(digest.digest()).decode("ascii").rstrip("=")
        name = f"amq.gen-{text}"
        if name not in taken:
            return name
        salt += 1
