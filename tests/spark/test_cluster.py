"""A standalone cluster of Spark's own daemons, as docs/spark.md prints it: a master, two workers, a
job given to spark-submit, and a command."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tallymark.spark.session import LOOPBACK, check_master
from tests.spark.rig import ROOT, lost_and_doubled, parquet_ids, python_path
from tests.support.long import long
from tests.support.ports import reserved
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

DEFAULTS = """\
spark.cores.max 2
spark.scheduler.minRegisteredResourcesRatio 1.0
spark.scheduler.maxRegisteredResourcesWaitingTime 1h
"""
"""An executor of each worker is there before the first task is given to one of them."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Twelve JVMs are started, which live for some seconds: code is compiled fast rather than well."""


def blocks() -> tuple[str, str, str]:
    """What the section prints: the shell's words that start the cluster, the job, and the shell's
    words that use the cluster and stop it."""
    text = (ROOT / "docs" / "spark.md").read_text()
    section = text[text.index("## On a cluster\n") : text.index("## Speed\n")]
    start, job, use = re.findall(r"```(?:sh|python)\n(.*?)```", section, re.S)
    return start, job, use


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell in a session of its own, whose processes end with the test."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": python_path(),
        "SPARK_CONF_DIR": str(conf),
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
        "SPARK_MASTER_WEBUI_PORT": "0",
        "SPARK_WORKER_WEBUI_PORT": "0",
    }
    process = subprocess.Popen(
        ["bash", "-e"], cwd=tmp_path, env=environment, start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@long(ci=False)
@pytest.mark.timeout(36_000)
def test_what_the_documentation_prints_works_on_a_cluster_of_two_workers(
    shell: subprocess.Popen[str], tmp_path: Path
) -> None:
    start, job, use = blocks()
    (tmp_path / "job.py").write_text(job)
    with BrokerProcess(tmp_path / "tallymark-data") as broker:
        words = f"export TALLYMARK_URL={broker.url}\n{start}{use}"
        assert "7077" in words
        words = words.replace("7077", str(reserved()))
        said, complained = shell.communicate(words)
        assert shell.returncode == 0, (said, complained[-5000:])
        queues = broker.queues()
    assert re.search(r"\|orders\|20\d\d-\d\d-\d\d\|10000\|", said), said
    assert "5,000 rows" in said, said
    assert re.search(r"\blarge\b.* 5,000 .* 0\s", said), "the account"
    for name, first in (("orders", 0), ("large", 5000)):
        expected = list(range(first, 10_000))
        row = queues[name]
        assert (row["entered"], row["settled"]) == (len(expected),) * 2
        ids = parquet_ids(tmp_path / "lake" / name, "order")
        assert lost_and_doubled(ids, expected) == ([], [])
    # Both workers had a part in the two that move messages; the account has fewer tasks to give.
    for number in (1, 2):
        logs = sorted((tmp_path / f"worker{number}").glob("app-*/*/stderr"))
        assert len(logs) == 3, logs
        assert all("Finished task" in log.read_text() for log in logs[:2]), logs
    accounts = (tmp_path / f"worker{number}" for number in (1, 2))
    told = [log.read_text() for one in accounts for log in sorted(one.glob("app-*/*/stderr"))[2:]]
    assert any("Finished task" in text for text in told)


def test_the_driver_listens_where_its_executors_can_reach_it() -> None:
    for master in ("local[2]", "local-cluster[2,1,1024]"):
        assert check_master(master) == LOOPBACK
    for master in ("yarn", "k8s://https://h:1"):
        assert check_master(master) is None, "Spark knows better"
    with socket.create_server((LOOPBACK, 0)) as server:
        assert check_master(f"spark://127.0.0.1:{server.getsockname()[1]}") == LOOPBACK
    own = own_address()
    if own is not None:
        with socket.create_server((own, 0)) as server:
            assert check_master(f"spark://{own}:{server.getsockname()[1]}") == own


def own_address() -> str | None:
    """An address of this machine that others reach it by; None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        found = str(asked.getsockname()[0])
    return None if found == LOOPBACK else found
