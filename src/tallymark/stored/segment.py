"""Segment scan: the sound blocks of a segment's bytes, and the meaning of the first unsound one.

A crash leaves a torn tail: half-written blocks of the last turns. They were never synced or
confirmed, and are cut off. Damage to synced bytes is corruption and must be reported to a human.
The two look alike at the bad block; they differ in later blocks. Each header contains the position
known to be on disk when it was packed. So one later sound header whose position is behind the bad
block proves corruption [design 4].

    0000000007-5eed5a17.segment   number and salt. The salt is drawn when the segment is made and
                                  stands in each of its headers: a message that contains a copy of
                                  a block is no proof of anything.
    0000000003-0badcafe.ledger    the same blocks without raw bytes, rewritten by the cleaner
    0000001e00000040.checkpoint   state at that position; two are kept
    spare-0.segment               preallocated, empty, without a number
    quarantine/                   what was found corrupt, as it was found
"""

from __future__ import annotations

from typing import Final, final

from tallymark.stored.layout import (
    ALIGN,
    CHECKPOINT,
    LOST,
    MAGIC,
    SEALED,
    STRIPPED,
    WHOLE,
    Header,
    LayoutError,
    damaged,
    has_columns,
    header_at,
    is_whole,
)

# Verdicts about the bytes behind the sound blocks of a segment.
SEAL: Final = "sealed"
"""Verdict: nothing follows. The last block is the seal, the segment is complete."""
BLANK: Final = "blank"
"""Verdict: nothing or preallocated zeros follow, after a crash between two turns."""
TORN: Final = "torn"
"""Verdict: a block follows that was being written. It was never synced and is cut off."""
CORRUPT: Final = "corrupt"
"""Verdict: bytes that had been synced are damaged."""
WAS_ON_DISK: Final = "was known on disk"
"""Words of a reason: the disk had blocks, and has them no more."""


@final
class Verdict:
    """The verdict about the bytes behind the sound blocks."""

    __slots__ = ("damaged", "kind", "reason", "resume")

    def __init__(self, kind: str, reason: str = "", resume: int = -1) -> None:
        self.kind = kind
        self.damaged: list[Header] = []
        """Sound blocks in which only bytes of messages are damaged."""
        self.reason = reason
        """Text for humans: the end of the sound blocks and the reason for the verdict."""
        self.resume = resume
        """CORRUPT: offset of the next sound block, -1 when there is none."""


def scan(
    data: bytes,
    segment: int = -1,
    salt: int = -1,
    known_synced: int = 0,
    start: int = 0,
    block: int = 0,
) -> tuple[list[Header], int, Verdict]:
    """Return the sound blocks of a segment's bytes, the offset of their end, and the verdict about
    the rest.

    segment, salt: as the file's name gives them; -1 takes those of the first sound header.
    known_synced: a position known from elsewhere (a checkpoint, a later segment) to be on disk.
    start, block: go on at this offset, where this block number or a later one is expected.
    Damage to the bytes of messages that had been synced costs these messages only, in blocks that
    have a checksum of their own for each (`Verdict.damaged`).
    Pure. Raises LayoutError for a sound header of an unknown format version.
    """
    found: list[Header] = []
    hurt: list[Header] = []
    proof = -1
    at = start
    size = len(data)
    gap = start > 0
    while at < size:
        header = header_at(data, at)
        if header is None or not has_columns(data, header):
            break
        if not _belongs(header, segment, salt):
            break
        if header.block < block or (header.block > block and not gap):
            break
        if header.version > WHOLE and damaged(data, header):
            if proof < 0:
                later = _later_headers(data, at, header.segment, header.salt, header.block)
                proof = max([known_synced, *[one.known_synced for one in later]])
            if proof <= header.segment << 32 | at:
                break
            hurt.append(header)
        segment = header.segment
        salt = header.salt
        gap = header.flags & LOST != 0
        block = header.block + 1
        found.append(header)
        at += header.length
        if header.flags & SEALED:
            break
    verdict = _judge(data, at, segment, salt, known_synced, found, block)
    verdict.damaged = hurt
    return found, at, verdict


def _belongs(header: Header, segment: int, salt: int) -> bool:
    return segment in (-1, header.segment) and salt in (-1, header.salt)


def _judge(
    data: bytes,
    at: int,
    segment: int,
    salt: int,
    known_synced: int,
    found: list[Header],
    block: int,
) -> Verdict:
    rest = len(data) - at
    blank = data.count(0, at) == rest
    if found and found[-1].flags & SEALED:
        if blank:
            return Verdict(SEAL)
        return Verdict(CORRUPT, f"{rest} bytes behind the seal at offset {at}")
    if found and found[-1].flags & STRIPPED:
        return Verdict(CORRUPT, f"no sound block at offset {at} of a ledger")
    later = _later_headers(data, at, segment, salt, block)
    if segment < 0 and later:
        segment = later[0].segment
    proof = known_synced if segment >= 0 else 0
    resume = -1
    for header in later:
        proof = max(proof, header.known_synced)
        if resume < 0 and is_whole(data, header):
            resume = header.at
    if proof > segment << 32 | at:
        reason = f"no sound block at offset {at}, though position {proof:#x} {WAS_ON_DISK}"
        return Verdict(CORRUPT, reason, resume)
    if blank:
        return Verdict(BLANK)
    return Verdict(TORN, f"block at offset {at} was being written")


def _later_headers(data: bytes, at: int, segment: int, salt: int, block: int) -> list[Header]:
    """Return sound headers behind a bad block that can only be this segment's own."""
    found: list[Header] = []
    at = data.find(MAGIC, at + 1)
    while at >= 0:
        if at % ALIGN == 0:
            header = known_header(data, at)
            if header is not None and _belongs(header, segment, salt) and header.block > block:
                found.append(header)
        at = data.find(MAGIC, at + 1)
    return found


def known_header(data: bytes, at: int) -> Header | None:
    """Return the header at an offset; None if there is no sound one of a version this program
    reads. A message's bytes may look like a header of any version."""
    try:
        return header_at(data, at)
    except LayoutError:
        return None


def segment_name(number: int, salt: int) -> str:
    return f"{number:010d}-{salt:08x}.segment"


def ledger_name(number: int, salt: int) -> str:
    return f"{number:010d}-{salt:08x}.ledger"


def checkpoint_name(position: int) -> str:
    return f"{position:016x}.checkpoint"


def spare_name(number: int) -> str:
    return f"spare-{number}.segment"


def parsed_name(name: str) -> tuple[int, int] | None:
    """Return number and salt from a segment's or ledger's file name; None for any other name."""
    stem, _, suffix = name.partition(".")
    number, _, salt = stem.partition("-")
    if suffix not in ("segment", "ledger") or len(number) != 10 or len(salt) != 8:
        return None
    try:
        return int(number), int(salt, 16)
    except ValueError:
        return None


def parsed_checkpoint(name: str) -> int | None:
    """Return the position from a checkpoint's file name; None for any other name."""
    stem, _, suffix = name.partition(".")
    if suffix != "checkpoint" or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def is_spare(name: str) -> bool:
    """Return whether this is the name of a spare."""
    digits = name.removeprefix("spare-").removesuffix(".segment")
    return digits.isascii() and digits.isdigit() and name == spare_name(int(digits))


def is_unfinished(name: str) -> bool:
    """Return whether this is the name of a segment, ledger, checkpoint or spare that was not
    complete. Other files are of somebody else, or written anew by whoever needs them."""
    whole = name.removesuffix(".tmp")
    return whole != name and (
        parsed_name(whole) is not None or parsed_checkpoint(whole) is not None or is_spare(whole)
    )


def is_sound_checkpoint(data: bytes) -> bool:
    """Return whether a checkpoint is complete: all blocks are there, including the seal."""
    headers, length, verdict = scan(data, salt=0)
    return (
        verdict.kind == SEAL
        and length == len(data)
        and all(header.flags & CHECKPOINT for header in headers)
    )
