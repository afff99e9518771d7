"""The Spark session in the README, run as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.rig import PATIENCE_S, ROOT, publish, python_path
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark


def test_the_session_in_the_readme_works_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (session,) = [block for block in blocks if "build_session" in block]
    assert len(session.splitlines()) <= 20
    with BrokerProcess(tmp_path / "tallymark-data") as broker:
        publish(broker, "orders", 0, 99)
        done = subprocess.run(
            [sys.executable, "-c", session],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": python_path(), "TALLYMARK_URL": broker.url},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"\| *orders\| *false\| *99\|", done.stdout), done.stdout
    assert "|line 4" in done.stdout
    assert re.search(r"\| *settled\| *accepted\| *batch\| *99\|", done.stdout), done.stdout
    files = [path for path in (tmp_path / "lake").iterdir() if path.suffix == ".parquet"]
    assert sum(pq.read_table(path).num_rows for path in files) == 99
    assert "End-to-end latency" in (tmp_path / "report.html").read_text()
