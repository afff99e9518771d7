"""A journal without a disk, for tests of the engine: same blocks, same positions, no threads.

Nothing is synced until the test says so (`sync`), and `crash` gives the journal that a power
failure would leave: whatever was not synced is gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from tallymark.engine.clock import in_wall_time
from tallymark.engine.ledger import expanded
from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.journal import BytesLost
from tallymark.journal.packer import REFERENCED, STORED, Packer
from tallymark.journal.unpacking import Unpacker
from tallymark.stored.layout import CHECKPOINT, HEADER, RELOCATED, header_at, is_whole
from tallymark.stored.records import MOVED, PAYLOAD

SALT = 0x7E57


class MemoryJournal:
    """Segment after segment in memory; a segment is rolled like a file's, without a seal."""

    def __init__(self, segment_bytes: int = 64 * 1024 * 1024) -> None:
        self.segment_bytes = segment_bytes
        self.blocks: list[tuple[int, bytes]] = []
        """Position and bytes of each block."""
        self.checkpoints: list[tuple[int, bytes]] = []
        """Position and one block each, oldest first."""
        self.live: dict[int, int] = {}
        """Bytes still needed, by segment."""
        self.end = 0
        self.synced = 0
        self.accepts_payloads = True
        """A test sets this to False for a full disk."""
        self.problems: list[str] = []
        self._numbers: dict[int, int] = {}

    # -- what the engine's owner calls

    def recovered(self) -> Iterator[Record]:
        payloads: dict[int, Payload] = {}
        unpacker = Unpacker(payloads, False)
        after = 0
        if self.checkpoints:
            after, data = self.checkpoints[-1]
            yield from _records(unpacker, data)
        for position, data in self.blocks:
            if position >= after:
                yield from _records(unpacker, data)
        unpacker.apply_moves()

    def start(self) -> None:
        newest = max((position >> 32 for position, _ in self.blocks), default=self.end >> 32)
        self.end = self.synced = newest + 1 << 32

    def commit(self, records: list[Record], now_ms: int) -> int:
        packer = Packer()
        length = packer.load(records, STORED)
        offset = self.end & 0xFFFFFFFF
        if offset and offset + length + HEADER > self.segment_bytes:
            self.end = (self.end >> 32) + 1 << 32
            offset = 0
        segment = self.end >> 32
        number = self._numbers.get(segment, 0)
        self._numbers[segment] = number + 1
        block = b"".join(packer.finish(segment, offset, number, SALT, self.synced, now_ms, 0))
        self.blocks.append((self.end, block))
        self.live[segment] = self.live.get(segment, 0) + packer.raw_bytes
        self.end += length
        return self.end

    @property
    def written(self) -> int:
        return self.end

    @property
    def durable(self) -> int:
        return self.synced

    @property
    def pending_bytes(self) -> int:
        return sum(len(block) for position, block in self.blocks if position >= self.synced)

    def fetch(self, payload: Payload) -> bytes:
        for position, block in self.blocks:
            if position <= payload.position < position + len(block):
                start = payload.position - position
                return block[start : start + payload.size]
        raise BytesLost(f"no bytes at position {payload.position:#x}")

    def retain(self, position: int, size: int) -> bool:
        segment = position >> 32
        self.live[segment] = self.live.get(segment, 0) + size
        return True

    def retain_packed(self, payload: Payload) -> list[int]:
        pack = payload.pack
        assert pack is not None
        for i, position in enumerate(pack.positions):
            self.retain(position, payload.cuts[i + 1] - payload.cuts[i])
        return []

    def release(self, position: int, size: int) -> None:
        segment = position >> 32
        if self.live.get(segment, 0) < size:
            raise ValueError(f"{size} bytes released at {position:#x}, {self.live.get(segment, 0)}")
        self.live[segment] -= size

    def relocate(self, payloads: list[Payload], now_ms: int, ahead_ms: int = 0) -> int:
        records: list[Record] = []
        copies: list[Payload] = []
        for p in payloads:
            copy = Payload(
                p.format, self.fetch(p), p.cuts, p.route, p.routes, p.first_id, p.arrived_ms,
                p.persistent, p.largest_frame,
            )  # fmt: skip
            copies.append(copy)
            arrived_ms = p.arrived_ms
            records.append(
                Record(PAYLOAD, 0, p.first_id, p.count, arrived_ms, copy, flags=RELOCATED)
            )
            records.append(Record(MOVED, 0, p.first_id, p.count, now_ms, copy, other=p.position))
            self.release(p.position, p.size)
        self.commit(in_wall_time(records, ahead_ms), now_ms + ahead_ms)
        for p, copy in zip(payloads, copies, strict=True):
            p.position = copy.position
        return self.end

    def sparse(self) -> list[int]:
        return []

    def checkpoint(self, records: list[Record], now_ms: int) -> bool:
        self.sync()
        packer = Packer()
        packer.load(list(expanded(records)), REFERENCED)
        block = packer.finish(self.end >> 32, 0, 0, 0, self.end, now_ms, CHECKPOINT)
        self.checkpoints.append((self.end, b"".join(block)))
        return True

    def clean(self, now_ms: int, ledger_retention_ms: int) -> None:
        return

    def close(self, clean: bool = True) -> None:
        self.sync()

    # -- what the test calls

    def sync(self, position: int | None = None) -> None:
        """The disk has everything before position; by default everything."""
        upto = self.end if position is None else position
        assert upto <= self.end, f"position {upto:#x}, the journal ends at {self.end:#x}"
        self.synced = max(self.synced, upto)

    def crash(self) -> MemoryJournal:
        """The journal after a power failure, not yet started."""
        left = MemoryJournal(self.segment_bytes)
        left.blocks = [(at, block) for at, block in self.blocks if at + len(block) <= self.synced]
        left.checkpoints = list(self.checkpoints)
        left.end = self.end
        left._numbers = dict(self._numbers)
        return left


def _records(unpacker: Unpacker, data: bytes) -> list[Record]:
    header = header_at(data, 0)
    assert header is not None
    assert is_whole(data, header)
    return unpacker.records(data, header)
