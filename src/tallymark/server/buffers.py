"""Memory that connections take beside the messages in queues, and its limits.

    output      what a client has not read yet, what waits for the disk, answers to readers of HTTP
    input       frames and contents that are not complete

Both count towards max_memory: while they take much, bodies leave memory earlier and clients are
handed less at a time. Output and the bodies that cannot leave memory set the memory alarm. Input
does not: the alarm pauses publishers, and input of a connection that is not read never becomes
complete. It has a limit of its own over all connections, above which the connection that holds most
of it is closed.

A connection is weighed when it was read from or written to, and all of them are when the sum is
too high, since a socket's buffer empties without telling. Input changes only when something is
read, so that its sum is always true.
"""

from __future__ import annotations

from typing import Final, Protocol

from tallymark.server.clock import now_ms
from tallymark.server.logs import log_of
from tallymark.server.turns import Turns

SCARCE: Final = 64 * 1024
"""Bytes that may wait in a socket's buffer while connections take too much in all."""
RECOUNT_MS: Final = 100
"""Milliseconds between two counts of all connections."""
MIB: Final = 1 << 20

log = log_of("server")


class Weighed(Protocol):
    """A connection."""

    peer: str
    weight: int
    input_weight: int

    def output_bytes(self) -> int:
        """Bytes that wait to be read by the client."""

    def input_bytes(self) -> int:
        """Bytes of frames and contents that are still incomplete."""

    def limit_output(self) -> None:
        """Take over how much may wait in the socket's buffer."""

    def too_much(self, reason: str) -> None:
        """Close the connection: it holds most of the input that is not complete."""


class Buffers:
    """The sums over all connections of a node."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.total = 0
        """Bytes of output and input."""
        self.input = 0
        self._members: dict[Weighed, None] = {}
        self.is_scarce = False
        """True while connections use too much memory together: each may then buffer less."""
        self._recounted_ms = -RECOUNT_MS
        self.most = self.input_limit = self.high_water = 0
        self.limits_changed()

    def limits_changed(self) -> None:
        """Take over the configuration, and how scarce memory is."""
        config = self._turns.config
        self.most = config.max_memory // 2
        """Bytes of output and input that are not too many."""
        self.input_limit = max(self.most, config.max_message_size + MIB)
        """Bytes of incomplete input over all connections: the largest message always fits."""
        usual = config.write_high_water
        self.high_water = min(SCARCE, usual) if self.is_scarce else usual
        """Bytes that may wait in a socket's buffer before nothing more is taken for it."""

    def enter(self, one: Weighed) -> None:
        """Count a new connection from now on."""
        self._members[one] = None

    def weigh(self, one: Weighed) -> None:
        """Count a connection again, after it was read from or written to."""
        self.count(one, one.input_bytes(), one.output_bytes())

    def count(self, one: Weighed, input_bytes: int, output_bytes: int) -> None:
        """Set the bytes that a connection's input and output take now."""
        weight = input_bytes + output_bytes
        self.change(input_bytes - one.input_weight, weight - one.weight)
        one.input_weight = input_bytes
        one.weight = weight

    def change(self, input_bytes: int, weight: int) -> None:
        """Add to the sums what a connection takes more than before, or less."""
        self.input += input_bytes
        self.total += weight

    def forget(self, one: Weighed) -> None:
        """Remove a connection from the sums."""
        self._members.pop(one, None)
        self.input -= one.input_weight
        self.total -= one.weight
        one.weight = one.input_weight = 0

    def look(self) -> int:
        """Return the sum, counted anew where it is more than `most`: then clients are handed less
        until it is half of that. Close who holds most of the input where that is too much.

        To be called where `total` is above `most`, or memory is scarce: else it changes nothing,
        since the input alone may be as much."""
        limit = self.most
        if self.input > self.input_limit:
            self._shed()
        if self.total <= limit and not self.is_scarce:
            return self.total
        now = now_ms()
        if now - self._recounted_ms >= RECOUNT_MS:
            self._recounted_ms = now
            for one in self._members:
                self.weigh(one)
            is_scarce = self.total > (limit // 2 if self.is_scarce else limit)
            if is_scarce != self.is_scarce:
                self.is_scarce = is_scarce
                self.limits_changed()
                for one in list(self._members):
                    one.limit_output()
        return self.total

    def _shed(self) -> None:
        for one in sorted(self._members, key=lambda one: -one.input_weight):
            if self.input <= self.input_limit:
                return
            reason = (
                f"{self.input} bytes of incomplete messages on all connections, "
                f"{self.input_limit} allowed: this one has {one.input_weight}"
            )
            log.warning("input.shed", peer=one.peer, reason=reason)
            one.too_much(reason)
            self.weigh(one)
