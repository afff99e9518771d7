"""A ledger without a disk: what a broker of engine_rig.py did, as blocks that a reader is given."""

from __future__ import annotations

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.packer import STORED, Packer
from tallymark.spark.blocks import Block, block_at
from tallymark.stored.layout import header_at
from tests.support.engine_rig import MemoryLog


class BlockLog(MemoryLog):
    """A log that keeps its blocks as the journal writes them, end to end."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    @property
    def end(self) -> int:
        return len(self.bytes)

    def commit(self, block: list[Record]) -> int:
        packer = Packer()
        packer.load(block, STORED)
        time_ms = max(record.time_ms for record in block)
        parts = packer.finish(0, len(self.bytes), self._count, 0, self.synced, time_ms, 0)
        self.bytes += b"".join(parts)
        self._count += 1
        self.blocks.append(block)
        return self.end

    def fetch(self, payload: Payload) -> bytes:
        return bytes(self.bytes[payload.position : payload.position + payload.size])

    def read(self) -> list[Block]:
        """The blocks so far."""
        data = bytes(self.bytes)
        found, at = [], 0
        while at < len(data):
            header = header_at(data, at)
            assert header is not None
            found.append(block_at(data, header))
            at += header.length
        return found
