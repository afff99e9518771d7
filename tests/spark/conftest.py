"""One Spark session and one broker for all tests of a process: each costs seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.spark.rig import python_path
from tests.support.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


if find_spec("pyspark") is None:  # the extra `spark` is not installed
    collect_ignore_glob = ["test_*.py"]


SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For tables of some rows: Java that is made and compiled for a query is not worth it there, nor is
a plan that is looked at again."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tallymark.spark.session import build_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path())
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("SPARK_HOME", raising=False)
        session = build_session("local[2]", "tallymark tests", brief=True, settings=SMALL)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Clients are silent while Spark works: without heartbeats, for as long as it takes.
    with BrokerProcess(tmp_path_factory.mktemp("spark") / "data", heartbeat_s="0") as process:
        yield process
