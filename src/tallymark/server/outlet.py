"""Outlet: the way of a bridge's output to its client's socket, and the bytes that wait on it.

What happens with every message is in functions: of a class that interpreted classes extend, what is
compiled looks up each method by its name.
"""

from __future__ import annotations

import asyncio

from mypy_extensions import mypyc_attr

from tallymark.bridge.bridge import Bridge
from tallymark.server.buffers import Buffers
from tallymark.server.turns import Turns


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlet:
    """One client's outlet, a part of `Client`."""

    transport: asyncio.Transport
    bridge: Bridge

    def __init__(self, turns: Turns, buffers: Buffers) -> None:
        self._turns = turns
        self._buffers = buffers
        self.writes_plainly = True
        """True where output goes to the socket unchanged, so that `put` need not be called."""
        self.is_full = False
        """True while the socket's send buffer is full."""
        self.is_over = False
        """True once all output was written: further input is read and discarded."""
        self.sent_bytes = 0
        self.encoded_bytes = 0
        """Bytes of input that are not decoded yet."""
        self.weight = self.input_weight = 0
        """Bytes of memory that are counted for it [buffers]."""

    def put(self, output: list[bytes]) -> None:
        """Write these pieces of output."""
        write(self, output)

    def limit_output(self) -> None:
        """Set how many bytes may wait in the socket's buffer [SC-D6]."""
        if not self.transport.is_closing():
            high = self._buffers.high_water
            low = min(self._turns.config.low_water, high // 2)
            self.transport.set_write_buffer_limits(high, low)

    def unsent(self) -> int:
        """Bytes that wait in its socket's buffer."""
        return self.transport.get_write_buffer_size()

    def output_bytes(self) -> int:
        """See buffers.py."""
        return self.transport.get_write_buffer_size() + self.bridge.output_bytes

    def input_bytes(self) -> int:
        """See buffers.py."""
        return 0 if self.is_over else self.bridge.line.unprocessed_bytes() + self.encoded_bytes

    def shut(self) -> None:
        """Send the end of the stream."""
        if self.transport.can_write_eof():
            self.transport.write_eof()


def write(outlet: Outlet, output: list[bytes]) -> None:
    """Hand output to the socket, unchanged."""
    for piece in output:
        outlet.sent_bytes += len(piece)
    transport = outlet.transport
    if not transport.is_closing() and not outlet.is_over:
        transport.writelines(output)


def room_of(outlet: Outlet, buffers: Buffers) -> int:
    """Return the bytes that fit in the socket's buffer; at least 1, since a full socket reports
    itself by pause_writing."""
    size: int = outlet.transport.get_write_buffer_size()
    room = buffers.high_water - size
    return room if room > 1 else 1


def weigh(outlet: Outlet, bridge: Bridge, buffers: Buffers) -> None:
    """Count what waits for the socket and for the bridge, as `Outlet.output_bytes` and
    `input_bytes` do."""
    input_bytes = 0 if outlet.is_over else bridge.line.unprocessed_bytes() + outlet.encoded_bytes
    unsent: int = outlet.transport.get_write_buffer_size()
    weight = input_bytes + unsent + bridge.output_bytes
    if input_bytes != outlet.input_weight or weight != outlet.weight:
        buffers.change(input_bytes - outlet.input_weight, weight - outlet.weight)
        outlet.input_weight = input_bytes
        outlet.weight = weight
