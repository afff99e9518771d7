"""A SPARK_HOME from which Spark's Python processes import PySpark as it was compiled.

Spark has them import it from `python/lib/pyspark.zip`, in which nothing is compiled: each process
that is not forked from another compiles what it imports, for most of a second of CPU out of the
ten seconds that a streaming query's process has to connect (starting.py). Here the zip is a folder
with a link to the package that pip installed, whose modules were compiled then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Final

from tallymark.spark.java import cache_folder

LINKED: Final = ("bin", "conf", "jars", "sbin")
"""Folders that Spark looks for in its home, beside Python's modules."""
PYTHON: Final = Path("python/lib")
ZIP: Final = "pyspark.zip"


def use_compiled() -> None:
    """Set SPARK_HOME to such a folder, made in the cache, where PySpark was installed by pip and no
    SPARK_HOME was given. To be called before the first session is built."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (installed / PYTHON / ZIP).exists():
        return
    named = f"spark-{pyspark.__version__}-{zlib.crc32(os.fsencode(installed)):08x}"
    with contextlib.suppress(OSError):  # no such folder can be made: then it is the zip
        os.environ["SPARK_HOME"] = str(_made(cache_folder() / named, installed))


def _made(home: Path, installed: Path) -> Path:
    """Make the folder if it is not there; return it."""
    if home.exists():
        return home
    # Another process may be making the same one: made aside, then renamed.
    aside = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        link_all(aside, installed)
        aside.chmod(0o755)
        aside.rename(home)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not home.exists():
            raise
    return home


def link_all(home: Path, installed: Path) -> None:
    """Fill an empty folder with links to an installed PySpark."""
    for name in LINKED:
        (home / name).symlink_to(installed / name)
    (home / PYTHON / ZIP).mkdir(parents=True)
    (home / PYTHON / ZIP / installed.name).symlink_to(installed)
    for other in (installed / PYTHON).glob("py4j-*.zip"):
        (home / PYTHON / other.name).symlink_to(other)
