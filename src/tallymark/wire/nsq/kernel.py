r"""The hot loops: stretches of commands in, runs of message frames out. Pure functions.

Nothing here judges the peer. What a scan does not recognise it leaves to the connection, which
reads command by command.

How a message is stored (payload format 2). A stretch of messages is stored as it was received, so
that nothing is copied per message; the cell of a message tells by its first byte which it is:

    PUB   | PUB topic\n       | size (4) | body |     the whole command; \r\n also occurs
    DPUB  | DPUB topic 500\n  | size (4) | body |     the whole command
    MPUB                      | size (4) | body |     as it stands in the body of the MPUB; also
                                                      what arrives by HTTP

A size begins lower than `D` and `P`: limits.CELL_SIZE_MAX sees to that. Sizes are big-endian.
"""

from __future__ import annotations

import re
import sys
from array import array
from struct import Struct
from typing import Final

ATTEMPTS_MAX: Final = 65_535
"""Highest number of attempts on the wire; it stays there instead of wrapping to 0 [NQ-D7]."""

RUN_BYTES: Final = 16_384
"""Maximum size of a run of FINs, TOUCHes or REQs: each may be refused, and a client has a share of
work at a time."""
_FINS: Final = re.compile(rb"(?:FIN [0-9a-f]{16}\n)++")
_TOUCHES: Final = re.compile(rb"(?:TOUCH [0-9a-f]{16}\n)++")
_SIZE_FIRST_MAX: Final = 0x43  # a cell that begins higher begins with a verb
_HEX: Final = re.compile(rb"[0-9a-f]*")
_MIDDLE: Final = Struct(">IqH")  # frame type, timestamp, attempts
_SIZE: Final = Struct(">I")


def scan_publishes(data: bytes, pos: int, end: int, line: bytes, most: int) -> array[int]:
    """Return the cuts of the longest stretch of complete commands at data[pos:end] that begin with
    `line`.

    `line` is a command line with its newline, `most` the largest body. Cuts are relative to `pos`;
    a lone 0: there is none. A command that begins like the one before costs one comparison.
    """
    startswith = data.startswith
    start = pos
    cuts = [0]
    line_size = len(line)
    last_size = -1
    while True:
        if not startswith(line, pos):
            break
        body = pos + line_size + 4
        if body > end:
            break
        size: int = int.from_bytes(data[body - 4 : body], "big")
        if not 0 < size <= most:
            break
        after = body + size
        if after > end:
            break
        cuts.append(after - start)
        if size == last_size:
            unit = data[pos:body]
            unit_size = after - pos
            pos = after
            while startswith(unit, pos):
                pos += unit_size
                if pos > end:
                    return array("I", cuts)
                cuts.append(pos - start)
        else:
            last_size = size
            pos = after
    return array("I", cuts)


def cut_messages(data: bytes, pos: int, end: int, count: int, most: int) -> array[int]:
    """Return the cuts of the messages of an MPUB at data[pos:end], relative to `pos`: of `count`
    messages, or of as many as are well-formed. The bytes behind the last cut show the error."""
    startswith = data.startswith
    start = pos
    cuts = [0]
    left = count
    while left > 0:
        body = pos + 4
        if body > end:
            break
        size: int = int.from_bytes(data[pos:body], "big")
        if not 0 < size <= most:
            break
        unit = data[pos:body]
        unit_size = size + 4
        while left > 0 and startswith(unit, pos):
            pos += unit_size
            if pos > end:
                return array("I", cuts)
            cuts.append(pos - start)
            left -= 1
    return array("I", cuts)


def scan_fins(data: bytes, pos: int) -> int:
    """Return the end of the run of well-formed FINs that begins at `pos`; `pos`: there is none."""
    found = _FINS.match(data, pos, pos + RUN_BYTES)
    return pos if found is None else found.end()


def scan_touches(data: bytes, pos: int) -> int:
    """Return the end of the run of well-formed TOUCHes that begins at `pos`; `pos`: there is
    none."""
    found = _TOUCHES.match(data, pos, pos + RUN_BYTES)
    return pos if found is None else found.end()


def ids_of(run: bytes, verb: bytes) -> array[int]:
    """Return the ids in a run that scan_fins or scan_touches found. verb: the verb with the space
    behind it."""
    return unpack_ids(run.replace(verb, b"").replace(b"\n", b""))


def scan_requeues(data: bytes, pos: int, end: int, suffix: bytes) -> bytes:
    """Return the hex digits of the ids of consecutive `REQ <id><suffix>`; suffix: space, delay,
    newline.

    The first is known to be well-formed; commands are all of its length.
    """
    startswith = data.startswith
    found: list[bytes] = []
    step = 20 + len(suffix)
    while pos + step <= end and startswith(b"REQ ", pos) and startswith(suffix, pos + 20):
        found.append(data[pos + 4 : pos + 20])
        pos += step
    digits = b"".join(found)
    whole = _HEX.match(digits)
    assert whole is not None  # it matches nothing as well
    return digits[: whole.end() // 16 * 16]


def is_id(digits: bytes) -> bool:
    """Return whether the digits are one of our message ids: 16 lower-case hex digits."""
    return len(digits) == 16 and _HEX.fullmatch(digits) is not None


def unpack_ids(digits: bytes) -> array[int]:
    """Return array('Q') of ids written without separators, 16 hex digits each."""
    ids = array("Q", bytes.fromhex(digits.decode("ascii")))
    if sys.byteorder == "little":
        ids.byteswap()
    return ids


def head_of(raw: bytes, cut: int) -> int:
    """Return the bytes of the cell at `cut` before its body."""
    if raw[cut] > _SIZE_FIRST_MAX:
        return raw.index(b"\n", cut) + 5 - cut
    return 4


def body_of(raw: bytes, cut: int, after: int) -> bytes:
    """Return the body of the cell raw[cut:after]."""
    return raw[cut + head_of(raw, cut) : after]


def body_sizes(raw: bytes, cuts: array[int], lo: int, hi: int) -> list[int]:
    """Return the sizes of the bodies of cells lo..hi-1."""
    return [cuts[i + 1] - cuts[i] - head_of(raw, cuts[i]) for i in range(lo, hi)]


def make_cells(bodies: list[bytes]) -> tuple[bytes, array[int]]:
    """Make cells for bodies that did not arrive as commands: (raw, cuts)."""
    parts: list[bytes] = []
    cuts = [0]
    total = 0
    pack = _SIZE.pack
    for body in bodies:
        parts += (pack(len(body)), body)
        total += 4 + len(body)
        cuts.append(total)
    return b"".join(parts), array("I", cuts)


def encode_messages(
    raw: bytes,
    cuts: array[int],
    lo: int,
    hi: int,
    first_id: int,
    timestamp_ns: int,
    attempts: int,
) -> bytes:
    """Encode message frames of cells lo..hi-1, whose ids count up from `first_id`.

    The cells may be of any kind, and mixed. `attempts` is as the client shall see it.
    """
    out: list[bytes] = []
    pack = _SIZE.pack
    middle = _MIDDLE.pack(2, timestamp_ns, min(attempts, ATTEMPTS_MAX))
    digits = _hex_ids(first_id, hi - lo)
    line = b""
    head = 4
    size = -1
    prefix = b""
    digit = 0
    start = cuts[lo]
    for cut in cuts[lo + 1 : hi + 1]:
        if line:
            if not raw.startswith(line, start):
                head = head_of(raw, start)
                line = raw[start : start + head - 4]
        elif raw[start] > _SIZE_FIRST_MAX:
            head = head_of(raw, start)
            line = raw[start : start + head - 4]
        body = start + head
        if cut - body != size:
            size = cut - body
            prefix = pack(size + 30) + middle
        out += (prefix, digits[digit : digit + 16], raw[body:cut])
        digit += 16
        start = cut
    return b"".join(out)


def encode_bodies(bodies: list[bytes], first_id: int, timestamp_ns: int, attempts: int) -> bytes:
    """Encode message frames of bodies published by other protocols, with ids counting up from
    `first_id`."""
    out: list[bytes] = []
    pack = _SIZE.pack
    middle = _MIDDLE.pack(2, timestamp_ns, min(attempts, ATTEMPTS_MAX))
    digits = _hex_ids(first_id, len(bodies))
    digit = 0
    for body in bodies:
        out += (pack(len(body) + 30), middle, digits[digit : digit + 16], body)
        digit += 16
    return b"".join(out)


def _hex_ids(first: int, count: int) -> bytes:
    """Return the digits of `count` ids without separators."""
    if count == 1:
        return b"%016x" % first
    ids = array("Q", range(first, first + count))
    if sys.byteorder == "little":
        ids.byteswap()
    return ids.tobytes().hex().encode("ascii")
