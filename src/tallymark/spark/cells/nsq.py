"""Messages as an NSQ client published them, decoded many at a time.

A cell is one message as the journal keeps it: a whole command, or the part of one that holds many.

    PUB              P U B space topic newline size(4) <bytes>
    DPUB             D P U B space topic space ms newline size(4) <bytes>
    part of an MPUB  size(4) <bytes>

Which it is shows in the first byte: no message is so large that its size begins with a letter. NSQ
messages have a body and no properties. Nothing here raises because of a message's content.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from tallymark.spark import gather
from tallymark.spark.cells.amqp091 import PROPERTY_NAMES
from tallymark.spark.gather import Ints
from tallymark.spark.schema import BY_NAME

SIZE_FIRST_MAX: Final = 0x43
"""A cell whose first byte is larger begins with a command's verb."""
NEWLINE: Final = 0x0A
SIZE: Final = 4


def decode_nsq_cells(
    raw: pa.Buffer, starts: Ints, ends: Ints, wanted: frozenset[str]
) -> dict[str, pa.Array]:
    """Decode NSQ messages; see cells.decode_cells."""
    rows = len(starts)
    data = np.frombuffer(raw, np.uint8)
    if rows == 0:
        data = np.zeros(1, np.uint8)
    command = gather.u8(data, starts) > SIZE_FIRST_MAX
    newlines = np.append(np.flatnonzero(data == NEWLINE), len(data))
    line_end = newlines[np.searchsorted(newlines, starts).clip(max=len(newlines) - 1)] + 1
    sizes_at = np.where(command, line_end, starts)
    bodies_at = sizes_at + SIZE
    whole = (bodies_at <= ends) & (gather.u32(data, sizes_at) == ends - bodies_at)
    columns = {name: pa.nulls(rows, BY_NAME[name].arrow) for name in wanted & PROPERTY_NAMES}
    if "body" in wanted or "malformed" in wanted:
        columns["body"] = gather.binary(raw, bodies_at, ends - bodies_at, whole)
    columns["malformed"] = pa.array(~whole)
    return columns
