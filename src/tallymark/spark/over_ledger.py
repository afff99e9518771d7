"""Parts shared by the commands over the ledger: a session, the rows, and errors in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.spark import ledger
from tallymark.spark.client import BrokerRefused, BrokerUnreachable, Endpoint
from tallymark.spark.ledger import LedgerIncomplete
from tallymark.spark.reconcile import RETRY_MS, asked, read_ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def over_ledger(
    data_dir: Path,
    url: str | None,
    user: str | None,
    password: str | None,
    master: str,
    what: str,
    work: Callable[[DataFrame, datetime], None],
) -> int:
    """Call `work` with the ledger's rows up to a checkpoint and the time of that: the newest one,
    or one that the broker at `url` writes now. what: the command's name, for its messages.

    Returns 0, or 1 with the reason on stderr. Raises ValueError, FileNotFoundError and the like
    for arguments that cannot be right, and whatever `work` raises of its own.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tallymark.spark.java import JavaNotFound
    from tallymark.spark.land import cause
    from tallymark.spark.session import (
        SparkDidNotStart,
        build_session,
        check_master,
        stop_session,
    )

    endpoint = None
    if url is not None:
        endpoint = Endpoint.from_url(url, user=user, password=password, retry_ms=RETRY_MS)
    try:
        # Report wrong arguments before Spark takes its seconds to start.
        ledger.journal_folder(data_dir)
        check_master(master)
        upto = None if endpoint is None else asked(endpoint, data_dir)
        state = ledger.find_checkpoint(data_dir, upto)
        spark = build_session(master, f"tallymark {what}", brief=True, silent=True)
        try:
            work(read_ledger(spark, data_dir, state.number), ledger.time_of(state))
        finally:
            stop_session(spark)
    except (
        BrokerRefused, BrokerUnreachable, JavaNotFound, LedgerIncomplete, SparkDidNotStart
    ) as error:  # fmt: skip
        print(f"tallymark: {error}", file=sys.stderr)
        return 1
    except (PySparkException, Py4JError) as error:
        print(f"tallymark: {what} over {data_dir} failed: {cause(error)}", file=sys.stderr)
        return 1
    return 0
