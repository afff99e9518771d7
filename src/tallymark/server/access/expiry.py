"""Certificates' time of expiry, read from the files as they are on disk now.

A certificate is DER inside of PEM; its validity is the fifth field of what is signed, behind an
optional version [RFC 5280 §4.1]. Python's ssl shows that of a peer alone.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tallymark.server.config.settings import Config

SEQUENCE: Final = 0x30
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
BEGIN: Final = "-----BEGIN CERTIFICATE-----"
END: Final = "-----END CERTIFICATE-----"
BEFORE_VALIDITY: Final = 3
"""Fields in front of the validity: serial number, signature algorithm, issuer."""


class NoCertificate(Exception):
    """The file cannot be read, or has no certificate in it; the text says why."""


def certificate_files(config: Config) -> dict[str, Path]:
    """Return the certificate of each kind of listener inside TLS, by the setting's name."""
    named = {
        "amqps_cert": config.amqps_cert,
        "https_cert": config.https_cert,
        "nsq_tls_cert": config.nsq_tls_cert if config.nsq else None,
    }
    return {name: path for name, path in named.items() if path is not None}


def expires_at(path: Path) -> datetime:
    """Return when the first certificate in a PEM file expires. May block. Raises NoCertificate."""
    try:
        text = path.read_text("ascii")
        begin = text.index(BEGIN)
        der = ssl.PEM_cert_to_DER_cert(text[begin : text.index(END, begin) + len(END)])
        return not_after(der)
    except (OSError, ValueError, IndexError) as error:
        raise NoCertificate(f"{path}: {error}") from error


def not_after(der: bytes) -> datetime:
    """Return the end of a certificate's validity. Raises ValueError, IndexError: it is none."""
    certificate = _inside(_Reader(der), SEQUENCE)
    signed = _inside(certificate, SEQUENCE)
    if signed.tag() == VERSION:
        signed.take()
    for _ in range(BEFORE_VALIDITY):
        signed.take()
    validity = _inside(signed, SEQUENCE)
    validity.take()
    tag, value = validity.take()
    if tag not in (UTC_TIME, GENERALIZED_TIME):
        raise ValueError(f"tag {tag:#x} in a validity, expected a time")
    text = value.decode("ascii")
    if tag == UTC_TIME:  # years 1950 to 2049 [RFC 5280 §4.1.2.5.1]
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


class _Reader:
    """Elements of DER, one behind the other [X.690]."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def tag(self) -> int:
        """Return the tag of the next element."""
        return self._data[self._at]

    def take(self) -> tuple[int, bytes]:
        """Return the next element's tag and contents. Raises ValueError, IndexError."""
        tag, length = self._data[self._at], self._data[self._at + 1]
        start = self._at + 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(self._data[start : start + size], "big")
            start += size
        self._at = start + length
        if self._at > len(self._data):
            raise ValueError(f"an element of {length} bytes, {len(self._data) - start} are there")
        return tag, self._data[start : self._at]


def _inside(outer: _Reader, expected: int) -> _Reader:
    tag, value = outer.take()
    if tag != expected:
        raise ValueError(f"tag {tag:#x}, expected {expected:#x}")
    return _Reader(value)
