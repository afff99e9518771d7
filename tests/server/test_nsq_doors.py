"""Who gets in by the NSQ listener and nsqd's HTTP interface, and what they may do there."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import ERROR
from tests.server.nsqd import Client
from tests.support import forked
from tests.support.certificates import Authority, Certificate
from tests.support.process import BrokerDied, BrokerProcess


@contextmanager
def nsqd(folder: Path, *flags: str) -> Iterator[dict[str, Any]]:
    """`tallymark nsqd` with its flags, on free ports; its ready line."""
    command = [
        sys.executable, "-m", "tallymark", "nsqd", "-tcp-address=127.0.0.1:0",
        "-http-address=127.0.0.1:0", f"-data-path={folder}", *flags,
    ]  # fmt: skip
    with (folder / "stderr").open("wb") as log:
        process = forked.popen(command, os.environ, log)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise BrokerDied(f"{process.wait(60)}: {(folder / 'stderr').read_text()}")
        yield json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def http(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Authority(tmp_path_factory.mktemp("certificates")).sign("localhost")


def refuses_plain_clients(nsq_port: int, http_port: int) -> None:
    """Commands and requests outside of TLS: nsqd's own words."""
    for command, verb in (
        (commands.pub("t", b"x"), "PUB"), (commands.sub("t", "c"), "SUB"),
    ):  # fmt: skip
        with Client(nsq_port) as client:
            client.send(command)
            kind, data = client.next()
            text = f"E_INVALID cannot {verb} in current state (TLS required)"
            assert (kind, data.decode()) == (ERROR, text)
    for method, path in (("POST", "/pub?topic=t"), ("GET", "/stats"), ("GET", "/ping")):
        status, raw = http(http_port, method, path, b"x" if method == "POST" else None)
        assert (status, json.loads(raw)["message"]) == (403, "TLS_REQUIRED")


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_for_client_certificates_demands_tls_as_in_nsqd(
    tmp_path: Path, certificate: Certificate, policy: str
) -> None:
    tls = (f"-tls-cert={certificate.cert}", f"-tls-key={certificate.key}")
    flags = (*tls, "-https-address=127.0.0.1:0", f"-tls-client-auth-policy={policy}")
    with nsqd(tmp_path, *flags) as ready:
        refuses_plain_clients(ready["nsq"][1], ready["nsq_http"][1])
    with BrokerProcess(
        tmp_path / "data", nsq_tls_cert=str(certificate.cert), nsq_tls_key=str(certificate.key),
        nsq_tls_client_auth_policy=policy,
    ) as broker:  # fmt: skip
        refuses_plain_clients(broker.nsq_port, broker.nsq_http_port)


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_for_client_certificates_needs_a_certificate_to_start(
    tmp_path: Path, policy: str
) -> None:
    text = "nsq_tls_client_auth_policy without nsq_tls_cert: nobody could connect"
    with (
        pytest.raises(BrokerDied, match=text),
        nsqd(tmp_path, f"-tls-client-auth-policy={policy}"),
    ):
        pass
    with pytest.raises(BrokerDied, match=text):
        BrokerProcess(tmp_path / "data", nsq_tls_client_auth_policy=policy).start()
