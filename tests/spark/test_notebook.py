"""The session for notebooks in docs/spark.md, run as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.rig import PATIENCE_S, ROOT, publish, python_path
from tests.support.long import long
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark


def session() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/spark.md").read_text(), re.S)
    (found,) = [block for block in blocks if "build_session" in block]
    return found


def check(said: str, folder: Path) -> None:
    assert re.search(r"\| *orders\| *false\| *99\|", said), said
    assert "|line 4" in said
    assert re.search(r"\| *settled\| *accepted\| *batch\| *99\|", said), said
    files = [path for path in (folder / "lake").iterdir() if path.suffix == ".parquet"]
    assert sum(pq.read_table(path).num_rows for path in files) == 99
    assert "End-to-end latency" in (folder / "report.html").read_text()


def test_the_session_works_in_one_that_is_there(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its folder is given in full: a session that is there has the one it was started in."""
    text = session()
    assert len(text.splitlines()) <= 20
    with BrokerProcess(tmp_path / "tallymark-data") as broker:
        publish(broker, "orders", 0, 99)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TALLYMARK_URL", broker.url)
        exec(text.replace('"lake', f'"{tmp_path}/lake'), {})
    check(capsys.readouterr().out, tmp_path)


@long(ci=False)  # a JVM of its own; what it runs is found wrong by the test above
def test_the_session_works_as_printed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "tallymark-data") as broker:
        publish(broker, "orders", 0, 99)
        done = subprocess.run(
            [sys.executable, "-c", session()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": python_path(), "TALLYMARK_URL": broker.url},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    check(done.stdout, tmp_path)
