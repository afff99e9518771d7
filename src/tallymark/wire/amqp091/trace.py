"""A line for each method, for people to read. Credentials and bodies are in none of them."""

from __future__ import annotations

from typing import Final

from tallymark.wire.amqp091.layouts import layout_of
from tallymark.wire.amqp091.methods import Method

SECRET: Final = frozenset(("response", "challenge", "new_secret"))
SHOWN_MAX: Final = 200
"""Maximum number of characters of one value."""


def line(sent: bool, channel: int, method: Method, content: int = -1) -> str:
    """`-> [1] basic.ack delivery_tag=7`; fields that are empty are left out. content: bytes of the
    body that belongs to it, -1: none does."""
    layout = layout_of(method)
    words = ["->" if sent else "<-", f"[{channel}]", layout.name]
    for name, _ in layout.fields:
        if name != "-":
            value: object = getattr(method, name)
            if name in SECRET:
                words.append(f"{name.rstrip('_')}=...")
            elif value is not False and value != "" and value != {}:
                words.append(f"{name.rstrip('_')}={_shown(value)}")
    if content >= 0:
        words.append(f"+{content}")
    return " ".join(words)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
