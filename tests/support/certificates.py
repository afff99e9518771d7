"""Certificates for tests: an authority, and what it signs. Made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.patience import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: Path
    key: Path


class Authority:
    """Signs certificates for `localhost` and 127.0.0.1 that hold for a day."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.own = Certificate(folder / "ca.pem", folder / "ca.key")
        _openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test ca",
            "-keyout", self.own.key, "-out", self.own.cert,
        )  # fmt: skip

    def sign(self, common_name: str) -> Certificate:
        """A certificate of that name, for servers and clients."""
        made = Certificate(self._folder / f"{common_name}.pem", self._folder / f"{common_name}.key")
        request = self._folder / f"{common_name}.csr"
        names = self._folder / f"{common_name}.ext"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl(
            "req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={common_name}",
            "-keyout", made.key, "-out", request,
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", request, "-days", "1", "-CA", self.own.cert, "-CAkey",
            self.own.key, "-CAcreateserial", "-extfile", names, "-out", made.cert,
        )  # fmt: skip
        return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(
        ["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=PATIENCE_S
    )
