"""The Spark session in the README, run as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.rig import ROOT, publish
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark


def test_the_session_in_the_readme_works_as_printed(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (session,) = [block for block in blocks if "build_session" in block]
    assert len(session.splitlines()) <= 22, "twenty lines and a blank one or two"
    with BrokerProcess(tmp_path / "tallymark-data") as broker:
        publish(broker, "orders", 0, 99)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TALLYMARK_URL", broker.url)
        exec(compile(session, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert re.search(r"\| *orders\| *false\| *99\|", said), said
    assert "|line 4" in said
    assert re.search(r"\| *settled\| *accepted\| *batch\| *99\|", said), said
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 99
    assert "End-to-end latency" in (tmp_path / "report.html").read_text()
