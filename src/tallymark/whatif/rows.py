"""Rows of the ledger as the journal has them, and the place at which a reader is."""

from __future__ import annotations

from tallymark.spark.blocks import Block

Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]
"""A row of the ledger, as layout.ROW_DTYPE names its fields."""
(
    KIND, FLAGS, REASON, _, QUEUE, FIRST, TIME, COUNT, LO, OWNER, OTHER, PAYLOAD, AT, SIZE,
) = range(14)  # fmt: skip


class Here:
    """The place of a reader in the ledger."""

    def __init__(self) -> None:
        self.block: Block
        self.order = self.block_order = 0
        """Orders of the row and of its block, see recording.Input."""
        self.turn_order = 0
        """Order of the first row of the turn: settlements are heard there, whose rows are the last
        of a turn."""
        self.time_ms = 0
        """The latest time of all rows so far."""
        self.next: Row | None = None
        """The row behind this one in its block."""

    def blob(self, row: Row) -> bytes:
        """Return the bytes that a row of this block has beside its numbers."""
        start = self.block.header.at + row[AT]
        return self.block.data[start : start + row[SIZE]] if row[SIZE] else b""
