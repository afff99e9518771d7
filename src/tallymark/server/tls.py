"""TLS of listeners: a context from a certificate, a key and who may sign those of clients."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

VERSIONS: Final = {
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
"""Words of the configuration. Older ones are spoken by nobody who can do otherwise [RFC 8996]."""


class TlsRefused(Exception):
    """The certificate cannot be used; the text says why."""


def server_context(
    names: tuple[str, str, str],
    cert: Path,
    key: Path | None,
    ca: Path | None,
    verify: ssl.VerifyMode,
    oldest: str,
) -> ssl.SSLContext:
    """Return a listener's TLS context.

    names: of the settings that cert, key and ca come from, for the text of a refusal. key: None
    where it stands in the certificate's file. ca: of those that may sign a client's certificate;
    None: the system's, where clients must show one. oldest: a word of VERSIONS.

    Raises TlsRefused.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version = VERSIONS[oldest]
        context.load_cert_chain(cert, key)
        if ca is not None:
            context.load_verify_locations(ca)
        elif verify != ssl.CERT_NONE:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        pairs = zip(names, (cert, key, ca), strict=True)
        given = ", ".join(f"{name} {value}" for name, value in pairs)
        raise TlsRefused(f"{given}: {error}") from None
    context.verify_mode = verify
    return context


def renew(context: ssl.SSLContext, cert: Path, key: Path | None, ca: Path | None) -> None:
    """Have handshakes from now on use what these files hold; connections that are open go on. Who
    could sign clients' certificates before still can, until the next start.

    Raises OSError: try the files on a context of their own first (`server_context`).
    """
    context.load_cert_chain(cert, key)
    if ca is not None:
        context.load_verify_locations(ca)


def common_name(certificate: object) -> str:
    """Return the common name in a peer's certificate as ssl's getpeercert gives it; empty: it
    showed none."""
    subject: object = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    if isinstance(subject, tuple):
        for part in subject:
            for name, value in part:
                if name == "commonName":
                    return str(value)
    return ""
