"""A local Spark session with the settings our pipelines want."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.spark import register
from tallymark.spark.java import cache_folder, use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_FAILURES: Final = 4
"""`local[N]` gives a task one try; `local[N,4]` gives it four, as a cluster does."""

SETTINGS: Final = {
    # A handful of partitions: the default of 200 costs seconds per shuffle on one machine.
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Dates of arrival, and with them the folders of a table, are those of UTC everywhere.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
}

FAST_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

LOGGING: Final = """\
# PySpark counts as a shell, and a shell announces every root level but WARN.
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.filter.errors.type = ThresholdFilter
appender.stderr.filter.errors.level = {level}
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex{{3}}
"""


def local_master(master: str) -> str:
    """`local[N]` with retries: `local[2]` becomes `local[2,4]`; any other master as it is.

    >>> local_master("local[*]"), local_master("local"), local_master("spark://h:7077")
    ('local[*,4]', 'local[1,4]', 'spark://h:7077')
    """
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    found = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{found[1]},{TASK_FAILURES}]" if found else master


def build_session(
    master: str = "local[*]",
    app: str = "tallymark",
    *,
    brief: bool = False,
    verbose: bool = False,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """A session with Java found, our source registered and the console quiet.

    brief: for runs of a minute or so: the JVM compiles fast rather than well, which halves the
    processor time of a short run (13 instead of 30 s for a reconciliation) and would cost a long
    one dearly.
    verbose: let Spark log its warnings on stderr; otherwise only its errors appear.
    settings: Spark settings that override ours.
    Raises JavaNotFound.
    """
    use_java()
    from pyspark.sql import SparkSession

    # Workers must be this very Python: the one on PATH may lack the package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(local_master(master)).appName(app)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    java_options = f"-Dlog4j2.configurationFile=file:{_logging_file(verbose)}"
    if brief:
        java_options += f" {FAST_COMPILER}"
    builder = builder.config("spark.driver.extraJavaOptions", java_options)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _logging_file(verbose: bool) -> Path:
    # Given as a file because Spark prints its greeting and a dozen warnings before any log level
    # can be set from Python.
    level = "warn" if verbose else "error"
    text = LOGGING.format(level=level)
    path = cache_folder() / f"log4j2-{level}.properties"
    if not path.exists() or path.read_text() != text:
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(text)
        aside.replace(path)
    return path
