"""Forge one record of a journal, with its checksums made right again: only the account can tell.

python -m bench.forge DIR
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tallymark.stored import records, segment
from tallymark.stored.layout import HEADER, ROW, WHOLE, Header, crc32c


@dataclass(frozen=True, slots=True)
class Forged:
    """A row that says of one message less than is true."""

    file: str
    queue_id: int
    sequence: int
    """Of the message that was settled, and of which no row says so any more."""


def forge(folder: Path, share: float = 0.5) -> Forged:
    """Change one row of the journal so that it settles one message less, and make the checksums
    of its block right again. share: how far into the day."""
    files = sorted(p for p in folder.iterdir() if segment.parsed_name(p.name))
    found = [(path, at) for path in files for at in _settlements(path)]
    path, (header_at, row_at) = found[int(len(found) * share)]
    data = bytearray(path.read_bytes())
    count = int.from_bytes(data[row_at + 24 : row_at + 28], "little")
    first = int.from_bytes(data[row_at + 8 : row_at + 16], "little")
    data[row_at + 24 : row_at + 28] = (count - 1).to_bytes(4, "little")
    name = segment.parsed_name(path.name)
    assert name is not None
    header = next(h for h in segment.scan(path.read_bytes(), *name)[0] if h.at == header_at)
    sums_end = header.length if header.version == WHOLE else header.raw_at
    header.body_crc = crc32c(bytes(data[header_at + HEADER : header_at + sums_end]))
    data[header_at : header_at + HEADER] = header.encoded()
    path.write_bytes(data)
    queue_id = int.from_bytes(data[row_at + 4 : row_at + 8], "little")
    return Forged(path.name, queue_id, first + count - 1)


def _settlements(path: Path) -> list[tuple[int, int]]:
    """Where rows that settle two messages or more lie: of their block, and of themselves."""
    name = segment.parsed_name(path.name)
    assert name is not None
    data = path.read_bytes()
    return [
        (header.at, at)
        for header in segment.scan(data, *name)[0]
        for at in _rows_at(header)
        if data[at] == records.SETTLED and int.from_bytes(data[at + 24 : at + 28], "little") > 1
    ]


def _rows_at(header: Header) -> range:
    first = header.at + HEADER
    return range(first, first + ROW * header.rows, ROW)


if __name__ == "__main__":
    print(forge(Path(sys.argv[1])))
