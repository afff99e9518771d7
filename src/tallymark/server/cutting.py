"""Cutting: the end of a connection whose peer does not read.

A socket that is closed while its peer takes nothing keeps what was not sent, up to some MiB, and
offers it again for two minutes; all that time the peer is not told. A cut one lets go of it, and
the peer is told by a reset. What the peer has received and not read yet stays there for it. A peer
that has taken everything sees an end as any other.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""The option SO_LINGER: closed with a reset, and nothing is sent any more."""


def cut(transport: asyncio.WriteTransport) -> None:
    """Close a connection at once; what waits to be sent is let go of."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is not None and transport.get_write_buffer_size():
        with suppress(OSError):  # it is closed already
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()
