"""A local Spark session with the settings our pipelines want."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.spark import register
from tallymark.spark.home import use_compiled
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
    "spark.driver.memory": "1g",
}
ON_THIS_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings of a driver whose executors are on this machine: no other machine can reach it."""
LOOPBACK: Final = "127.0.0.1"

MASTER_PORT: Final = 7077
MASTER_S: Final = 5.0
"""Seconds for which a standalone master may take to accept a connection."""
_KNOWN_MASTER: Final = re.compile(
    r"local|local\[(\*|\d+)(,\s*\d+)?\]|local-cluster\[.+\]|spark://.+|k8s://.+|yarn"
)

DEEP_STACK: Final = "-Xss32m"
"""Stack size of Java's threads: when a query is stopped in the middle of foreachBatch, a regular
expression searches its error, one step deeper for each letter; with a MiB it ended in a
StackOverflowError, printed at length. Unused pages cost nothing."""
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


class SparkDidNotStart(RuntimeError):
    """No session could be had; the text is one line for people."""


def local_master(master: str) -> str:
    """`local[N]` with retries: `local[2]` becomes `local[2,4]`; any other master as it is.

    >>> local_master("local[*]"), local_master("local"), local_master("spark://h:7077")
    ('local[*,4]', 'local[1,4]', 'spark://h:7077')
    """
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    found = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{found[1]},{TASK_FAILURES}]" if found else master


def check_master(master: str) -> str | None:
    """The address under which executors reach this machine: loopback for `local`, for a standalone
    master that of the connection to it, and None where only Spark can say.

    Raises ValueError for what is no master's address, and SparkDidNotStart for a standalone master
    that cannot be reached: Spark itself would try for a minute and end in a Java trace."""
    if _KNOWN_MASTER.fullmatch(master) is None:
        raise ValueError(
            f"master {master!r}: expected local[N], spark://host:port, k8s://... or yarn"
        )
    if master.startswith("local"):
        return LOOPBACK
    if not master.startswith("spark://"):
        return None
    reason: object = None
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.partition(":")
        if port and not port.isdigit():
            raise ValueError(f"master {master!r}: port {port!r} is no number")
        try:
            with socket.create_connection((host, int(port or MASTER_PORT)), MASTER_S) as reached:
                return str(reached.getsockname()[0])
        except (OSError, OverflowError) as error:
            reason = error
    raise SparkDidNotStart(f"cannot reach the Spark master {master}: {reason}")


def hush(spark: SparkSession | None = None) -> None:
    """Silence the JVM's log: aborted work would fill the screen with traces."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    # A JVM or a session that is already gone raises these: its log is silent anyway.
    with suppress(Py4JError, OSError, AttributeError):
        if spark is None:
            spark = SparkSession.getActiveSession()
        if spark is not None:
            spark.sparkContext.setLogLevel("OFF")


def stop_session(spark: SparkSession) -> None:
    """Stop without a word."""
    hush(spark)
    spark.stop()


def build_session(
    master: str = "local[*]",
    app: str = "tallymark",
    *,
    brief: bool = False,
    verbose: bool = False,
    silent: bool = False,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """A session with Java found, our source registered and the console quiet.

    brief: for runs of a minute or so: the JVM compiles fast rather than well, which halves the
    processor time of a short run (13 instead of 30 s for a reconciliation) and would cost a long
    one dearly.
    verbose: let Java and Spark write their warnings on stderr; otherwise only errors appear.
    silent: not even its errors, for commands that tell the reason of a failure themselves.
    settings: Spark settings that override ours.
    Raises JavaNotFound, SparkDidNotStart, and ValueError for a master that is none.
    """
    address = check_master(master)
    use_java(verbose)
    if address == LOOPBACK:
        use_compiled()
    from pyspark.sql import SparkSession

    # Workers must be this very Python: the one on PATH may lack the package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if address is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", address)
        if address != LOOPBACK:
            # Not what this machine calls itself: that need not mean anything to others.
            os.environ.setdefault("SPARK_LOCAL_HOSTNAME", address)
    builder = SparkSession.builder.master(local_master(master)).appName(app)
    ours = {**SETTINGS, **ON_THIS_MACHINE} if address == LOOPBACK else SETTINGS
    for name, value in {**ours, **(settings or {})}.items():
        builder = builder.config(name, value)
    level = "warn" if verbose else "fatal" if silent else "error"
    java_options = f"-Dlog4j2.configurationFile=file:{_logging_file(level)} {DEEP_STACK}"
    if brief:
        java_options += f" {FAST_COMPILER}"
    builder = builder.config("spark.driver.extraJavaOptions", java_options)
    # Without a handler, logging prints py4j's tracebacks of a failed start on stderr.
    logging.getLogger(None if silent else "py4j").addHandler(logging.NullHandler())
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # of Java, of py4j or of PySpark: they have no base in common
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = next((line for line in lines if "Exception: " in line), (lines or ["?"])[0])
        raise SparkDidNotStart(f"Spark did not start on master {master!r}: {said}") from error
    register(spark)
    return spark


def _logging_file(level: str) -> Path:
    # Given as a file because Spark prints its greeting and a dozen warnings before any log level
    # can be set from Python.
    text = LOGGING.format(level=level)
    path = cache_folder() / f"log4j2-{level}.properties"
    if not path.exists() or path.read_text() != text:
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(text)
        aside.replace(path)
    return path
