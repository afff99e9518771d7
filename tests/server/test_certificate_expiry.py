"""When certificates expire, and the health check that asks for it."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.server.access.expiry import NoCertificate, expires_at, not_after
from tests.server.management import call, get, refused
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(Path(tmp_path_factory.mktemp("authority")))


def told_by_openssl(cert: Path) -> datetime:
    """Return what `openssl x509 -enddate` says: `notAfter=Nov 23 20:31:05 2026 GMT`."""
    done = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", cert],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    text = done.stdout.strip().removeprefix("notAfter=")
    return datetime.strptime(text, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)


def test_the_end_is_what_openssl_says(authority: Authority) -> None:
    for one in (authority.own, authority.sign("leaf")):
        assert expires_at(one.cert) == told_by_openssl(one.cert)


def test_a_year_behind_2049_is_written_in_four_digits(tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "20000", "-subj",
         "/CN=long", "-keyout", tmp_path / "key", "-out", tmp_path / "cert"],
        capture_output=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    expiry = expires_at(tmp_path / "cert")
    assert expiry.year > 2049
    assert expiry == told_by_openssl(tmp_path / "cert")


@pytest.mark.parametrize(
    "text",
    ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"],
)
def test_what_is_no_certificate_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cert"
    path.write_text(text)
    with pytest.raises(NoCertificate, match=str(path)):
        expires_at(path)
    with pytest.raises(NoCertificate, match="nosuch"):
        expires_at(tmp_path / "nosuch")


@given(st.binary(max_size=80))
def test_any_bytes_are_a_time_or_refused(data: bytes) -> None:
    for der in (data, b"\x30" + bytes([len(data)]) + data):
        try:
            assert not_after(der).tzinfo is UTC
        except (ValueError, IndexError):
            continue


def test_a_certificate_cut_anywhere_is_refused(authority: Authority) -> None:
    der = ssl.PEM_cert_to_DER_cert(authority.own.cert.read_text())
    for size in range(len(der)):
        with pytest.raises((ValueError, IndexError)):
            not_after(der[:size])


def test_the_health_check(tmp_path: Path, authority: Authority) -> None:
    made = authority.sign("server")
    path = "health/checks/certificate-expiration"
    with BrokerProcess(
        tmp_path / "data", https_cert=str(made.cert), https_key=str(made.key), https_port="0"
    ) as broker:
        assert get(broker, f"{path}/0/days") == {"status": "ok"}
        status, _, found = call(broker, "GET", f"{path}/1/weeks")
        assert (status, found["status"]) == (503, "failed")
        (row,) = found["expired"]
        assert (row["setting"], row["certfile"]) == ("https_cert", str(made.cert))
        assert row["certfile_expires_on"] == told_by_openssl(made.cert).isoformat()
        for wrong in ("x/days", "-1/days", "1/eons", "9" * 30 + "/days"):
            assert refused(broker, "GET", f"{path}/{wrong}")[:2] == (400, "bad_request"), wrong
        assert call(broker, "GET", f"{path}/{'9' * 20}/years")[0] == 503
        made.cert.unlink()
        status, _, found = call(broker, "GET", f"{path}/0/days")
        assert (status, found["expired"][0]["certfile"]) == (503, str(made.cert))
