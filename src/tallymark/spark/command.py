"""The frame of the commands `tallymark pipeline ...`: a Spark session, and errors in one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from tallymark.spark.client import BrokerRefused, BrokerUnreachable, CannotRun
from tallymark.spark.java import JavaNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ERROR_LINE: Final = re.compile(
    r"(?:tallymark\.(?:\w+\.)+(\w+)|"
    r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Refused|Fenced|Unreachable))): (.+)"
)
"""An exception of ours, whatever it is called, or one that is called so."""
_WRAPPINGS: Final = (
    "StreamingQueryException", "SparkException", "Exception", "Py4JJavaError", "PythonException",
)  # fmt: skip
_CAUSED_BY: Final = re.compile("^(Caused by)?: ")
"""Prefixes of causes in error messages of Java and py4j."""


def command(
    run: Callable[[SparkSession], int],
    title: str,
    doing: str,
    master: str,
    *,
    prepare: Callable[[], None] = lambda: None,
    brief: bool = False,
    starting: AbstractContextManager[Any] | None = None,
) -> int:
    """Call `run` with a session, and return its exit code, or 1 with the reason on stderr.

    title: the session's name. doing: the beginning of a failure's text, as "landing orders".
    prepare: checks what can be checked before Spark takes its seconds to start; it may raise what
    `run` may, and ValueError and the like for arguments that cannot be right, which are passed on.
    brief: see build_session. starting: held while the session is made.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tallymark.spark.session import (
        SparkDidNotStart,
        build_session,
        check_master,
        stop_session,
    )

    try:
        check_master(master)
        prepare()
        with starting or nullcontext():
            spark = build_session(master, title, brief=brief, silent=True)
        try:
            return run(spark)
        finally:
            stop_session(spark)
    except (
        BrokerRefused, BrokerUnreachable, CannotRun, JavaNotFound, SparkDidNotStart
    ) as error:  # fmt: skip
        print(f"tallymark: {error}", file=sys.stderr)
    except (PySparkException, Py4JError) as error:
        print(f"tallymark: {doing} failed: {cause(error)}", file=sys.stderr)
    return 1


def cause(error: BaseException) -> str:
    """The line that matters of an error that crossed two processes and three languages."""
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        found = _ERROR_LINE.match(_CAUSED_BY.sub("", line))
        name = (found[1] or found[2]) if found else ""
        if found and name not in _WRAPPINGS:
            return f"{name}: {found[3]}"
    return lines[0] if lines else type(error).__name__
