"""Readers of what others wrote, each as a function of any bytes: it returns, or refuses them by the
one error that its callers expect. Anything else is a finding.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from tallymark.bridge.filters.errors import FilterError
from tallymark.bridge.filters.fields import Fields
from tallymark.bridge.filters.parser import Parser
from tallymark.engine.message import Payload
from tallymark.journal.cleaner import stripped
from tallymark.journal.recovery import JournalCorrupt
from tallymark.journal.unpacking import Unpacker
from tallymark.journal.verify import verify
from tallymark.server.config.settings import ConfigError, load
from tallymark.stored.layout import ALIGN, HEADER, LayoutError, crc32c, header_at, is_whole
from tests.journal.builders import TIME, Disk, all_shown, entering, settling
from tests.support.nsq_traffic import LIMITS as NSQ_LIMITS
from tests.wire.amqp091 import test_fuzz as amqp091_cases
from tests.wire.amqp10 import test_codec_fuzz as values_cases
from tests.wire.amqp10 import test_connection_fuzz as amqp10_cases
from tests.wire.nsq import test_fuzz as nsq_cases

Target = Callable[[bytes], None]
SHARED_MEMORY: Final = Path("/dev/shm")
SEGMENT: Final = 1 << 16
LARGEST_SEGMENT: Final = (1 << 31) - 1
"""Number of a segment whose positions are still positive; its file's name has the same number."""
LENGTH: Final = Struct("<I")
LENGTH_AT, RAW_AT = 20, 36
"""Offsets in a block's header: its length, and that of its bodies."""


def halves(data: bytes) -> list[bytes]:
    """Return the bytes in two pieces; where they are cut depends on them."""
    cut = sum(data) % (len(data) + 1)
    return [data[:cut], data[cut:]]


def amqp091(data: bytes) -> None:
    """Bytes behind a handshake, whole and in pieces."""
    raw = amqp091_cases.START + data
    amqp091_cases.run_case(raw, [amqp091_cases.START, *halves(data)])


def amqp10(data: bytes) -> None:
    """Bytes from the header of the protocol on; the first bit says for which side."""
    is_server = bool(data) and not data[0] & 1
    amqp10_cases.run_case(data[1:], halves(data[1:]), is_server)


def values(data: bytes) -> None:
    """One value, composite or message of AMQP 1.0: what is read can be written and read again."""
    values_cases.check(data)


def nsq(data: bytes) -> None:
    """A connection's bytes from the magic on."""
    nsq_cases.run_case(NSQ_LIMITS, data, halves(data))


def filters(data: bytes) -> None:
    """An SQL filter, or a selector."""
    text = data[1:].decode("utf-8", "replace")
    with suppress(FilterError):
        Parser(text, Fields(), sql=bool(sum(data[:1]) & 1)).parse()


def mended(data: bytes) -> bytes:
    """Return a block with right checksums, wherever its header says that it ends."""
    if len(data) < HEADER:
        return data
    length, raw_bytes = LENGTH.unpack_from(data, LENGTH_AT)[0], LENGTH.unpack_from(data, RAW_AT)[0]
    end = length - (raw_bytes + 7 & ~7)
    head = data[: HEADER - 8] + LENGTH.pack(crc32c(data[HEADER : max(end, HEADER)]))
    return head + LENGTH.pack(crc32c(head)) + data[HEADER:]


def block(data: bytes) -> None:
    """A block of the journal with right checksums: its rows may say anything."""
    data = mended(data)
    with suppress(LayoutError):
        header = header_at(data, 0)
        if header is None or not is_whole(data, header):
            return
        payloads: dict[int, Payload] = {}
        all_shown(Unpacker(payloads, True).records(data, header))
        if header.segment > LARGEST_SEGMENT:
            return
        again = stripped(data[: header.raw_at], header)
        assert len(again) % ALIGN == 0 or len(data) % ALIGN
        assert header_at(again, 0) is not None


def journal(data: bytes) -> None:
    """A segment with these bytes over its own from some place on: recovery gives records or says
    that it is corrupt, and `journal verify` always has an answer: what it finds afterwards (damaged
    bodies, which are no reason not to start) it has found before."""
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="tallymark-fuzz-", dir=parent))
    try:
        for path in sample().iterdir():
            shutil.copy(path, folder / path.name)
        victim = max(folder.glob("0*.segment"))
        at = int.from_bytes(data[:2], "little")
        raw = bytearray(victim.read_bytes())
        raw[at : at + len(data) - 2] = data[2:]
        victim.write_bytes(raw)
        problems = verify(folder).problems
        with suppress(JournalCorrupt):
            disk = Disk(folder, segment_bytes=SEGMENT)
            found = disk.start()
            try:
                disk.journal.commit(entering(1000), TIME)
                disk.wait()
            finally:
                disk.journal.close()
            assert len(found) < 100
            assert set(verify(folder).problems) <= set(problems)
    finally:
        shutil.rmtree(folder)


_SAMPLES: list[Path] = []


def sample() -> Path:
    """Return a folder with a small journal, made once for this process."""
    if not _SAMPLES:
        folder = Path(tempfile.mkdtemp(prefix="tallymark-sample-"))
        disk = Disk(folder, segment_bytes=SEGMENT)
        disk.start()
        for turn in (entering(1, 2), settling(1), entering(3, 1), settling(2)):
            disk.journal.commit(turn, TIME)
            disk.wait()
        disk.journal.close(clean=False)
        _SAMPLES.append(folder)
    return _SAMPLES[0]


def configuration(data: bytes) -> None:
    """A configuration file."""
    handle, name = tempfile.mkstemp(suffix=".toml")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        with suppress(ConfigError):
            load(Path(name), {}, {})
    finally:
        os.unlink(name)


TARGETS: Final[dict[str, Target]] = {
    one.__name__: one
    for one in (amqp091, amqp10, values, nsq, filters, block, journal, configuration)
}
