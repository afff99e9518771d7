"""TLS of every listener: the contexts, where a configuration asks for them, and their renewal.

    amqps_*     AMQP 0-9-1 and 1.0
    https_*     the HTTP interface
    nsq_tls_*   the NSQ protocol (after IDENTIFY) and nsqd's HTTP interface

All of them are built by `server_context`, so none speaks less than TLS 1.2 [RFC 8996]. A renewal
builds new contexts and puts them in the place of the old ones: a handshake that begins later sees
the new certificate and the new list of those who may sign a client's, and no session of the old
context is resumed. Connections that are open go on.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from tallymark.server.config.kinds import TLS_VERSIONS
from tallymark.server.config.settings import Config

MODES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


class TlsRefused(Exception):
    """The certificate cannot be used; the text says why."""


class Tls:
    """The context of some listeners, which a renewal replaces."""

    __slots__ = ("context",)

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context


class Certificates:
    """Everything of one broker that is spoken inside TLS; None: that is not. Raises TlsRefused."""

    def __init__(self, config: Config) -> None:
        self.amqp = _held(amqp_context(config))
        self.http = _held(http_context(config))
        self.nsq = _held(nsq_context(config) if config.nsq else None)

    def take(self, new: Certificates) -> None:
        """Replace the contexts of the listeners that there are."""
        for old, made in ((self.amqp, new.amqp), (self.http, new.http), (self.nsq, new.nsq)):
            if old is not None and made is not None:
                old.context = made.context


def _held(context: ssl.SSLContext | None) -> Tls | None:
    return None if context is None else Tls(context)


def amqp_context(config: Config) -> ssl.SSLContext | None:
    """Return the context for AMQP; None: there is no certificate. Raises TlsRefused."""
    if config.amqps_cert is None:
        _check_none("amqps_cert", {
            "amqps_key": config.amqps_key is not None,
            "amqps_ca_file": config.amqps_ca_file is not None,
            "amqps_verify": config.amqps_verify != "none",
        })  # fmt: skip
        return None
    return server_context(
        ("amqps_cert", "amqps_key", "amqps_ca_file"),
        config.amqps_cert, config.amqps_key, config.amqps_ca_file, MODES[config.amqps_verify],
        config.amqps_min_version,
    )  # fmt: skip


def http_context(config: Config) -> ssl.SSLContext | None:
    """Return the context for the management interface; None: there is no certificate. Raises
    TlsRefused."""
    if config.https_cert is None:
        _check_none("https_cert", {
            "https_key": config.https_key is not None,
            "https_ca_file": config.https_ca_file is not None,
            "https_verify": config.https_verify != "none",
        })  # fmt: skip
        return None
    return server_context(
        ("https_cert", "https_key", "https_ca_file"),
        config.https_cert, config.https_key, config.https_ca_file, MODES[config.https_verify],
        config.https_min_version,
    )  # fmt: skip


def nsq_context(config: Config) -> ssl.SSLContext | None:
    """Return the context for NSQ and its HTTP interface; None: there is no certificate. Raises
    TlsRefused."""
    if config.nsq_tls_cert is None:
        if tls_required(config) != "false":
            name = "nsq_tls_client_auth_policy" if config.nsq_tls_client_auth_policy else ""
            name = name or "nsq_tls_required"
            raise TlsRefused(f"{name} without nsq_tls_cert: nobody could connect")
        _check_none("nsq_tls_cert", {"nsq_tls_key": config.nsq_tls_key is not None})
        return None
    verify = ssl.CERT_NONE
    if config.nsq_tls_client_auth_policy:
        verify = ssl.CERT_REQUIRED
    elif config.nsq_tls_root_ca_file is not None:
        verify = ssl.CERT_OPTIONAL
    return server_context(
        ("nsq_tls_cert", "nsq_tls_key", "nsq_tls_root_ca_file"),
        config.nsq_tls_cert, config.nsq_tls_key, config.nsq_tls_root_ca_file, verify,
        config.nsq_tls_min_version,
    )  # fmt: skip


def _check_none(cert: str, given: dict[str, bool]) -> None:
    """Check that no setting of TLS is given where there is no certificate: it would do nothing.
    Raises TlsRefused."""
    for name, is_given in given.items():
        if is_given:
            raise TlsRefused(f"{name} without {cert}, expected both: nothing would be inside TLS")


def tls_required(config: Config) -> str:
    """Return nsq_tls_required as it takes effect: a policy for client certificates makes TLS
    mandatory, as in nsqd, or clients without a certificate would come in without TLS."""
    if config.nsq_tls_client_auth_policy and config.nsq_tls_required == "false":
        return "true"
    return config.nsq_tls_required


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
    None: the system's, where clients must show one. oldest: a word of TLS_VERSIONS.

    Raises TlsRefused.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version = TLS_VERSIONS[oldest]
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
