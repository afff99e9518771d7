"""Odd requests, made of the OpenAPI document by schemathesis: each is answered as the document
says, none ends in an error of ours, and none gets in without a login.

The same requests each time: they are made of the document and of nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.long import long, sized
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

PROGRAM = Path(sys.executable).parent / "schemathesis"
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "ignored_auth",
)  # fmt: skip
"""Not those that compare what is refused with the document: it names fields, not their values."""
ANSWERS_503 = "^/api/health/checks/"
"""Paths of probes, whose 503 says that what was asked for is not so."""
PHASES = sized("fuzzing", "fuzzing", "coverage,fuzzing")
EXAMPLES = sized(1, 1, 10)
"""Requests of each operation, and as many without a login."""


@long  # 10 s of CPU; routes and their refusals have tests of their own
@pytest.mark.skipif(not PROGRAM.exists(), reason="pip install schemathesis: make test-long does")
def test_requests_made_of_the_document_are_answered_as_it_says(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", log_level="error") as broker:
        command = [
            str(PROGRAM), "run", f"{broker.url}/api/tallymark/openapi.json",
            "--auth", "guest:guest", "--phases", PHASES, "--checks", ",".join(CHECKS),
            "--exclude-path-regex", ANSWERS_503, "--generation-deterministic", "-n", str(EXAMPLES),
            "--suppress-health-check", "all", "--request-timeout", str(PATIENCE_S),
            "--no-shrink", "--continue-on-failure", "--warnings", "off", "--no-color",
        ]  # fmt: skip
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            capture_output=True,
            text=True,
            timeout=sized(8, 8, 100) * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-8000:]}{done.stderr[-2000:]}"
        assert broker.is_running
