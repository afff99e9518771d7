"""Names of queues and exchanges: what a declaration may ask for, and names made by the broker."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Container

from tallymark.engine.arguments import is_routing_key
from tallymark.engine.errors import AccessRefused, InvalidCommand


def cleaned(name: str) -> str:
    """A name as it is kept: line breaks are taken out."""
    return name.replace("\r", "").replace("\n", "")


def check_new_name(kind: str, name: str) -> None:
    """Raises AccessRefused for a name that only the broker gives, InvalidCommand for one that
    readers of AMQP 0-9-1 cannot be told: deliveries say where they were published."""
    if name.startswith("amq."):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    if not is_routing_key(name):
        raise InvalidCommand(f"{kind} name {name!r:.60}, expected UTF-8 text of at most 255 bytes")


def free_name(id: int, seed: bytes, taken: Container[str]) -> str:
    """A queue name that is not taken; the id makes it unique, the seed unguessable."""
    salt = 0
    while True:
        digest = hashlib.blake2b(b"%d.%d" % (id, salt), key=seed[:64], digest_size=16)
        text = urlsafe_b64encode(digest.digest()).decode("ascii").rstrip("=")
        name = f"amq.gen-{text}"
        if name not in taken:
            return name
        salt += 1
