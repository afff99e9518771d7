"""Claims: the broker's own counters for every queue at one position of the journal, asked of a
running broker or read from a checkpoint, and whether that broker and that folder belong together.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from tallymark.spark import ledger, ledger_files
from tallymark.spark.account import Claim
from tallymark.spark.client import (
    BrokerRefused,
    BrokerUnreachable,
    Client,
    Endpoint,
    api_path,
)
from tallymark.spark.ledger_files import LedgerFile, LedgerIncomplete, LedgerLetGo, checkpoints
from tallymark.stored import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
ASK_AGAIN: Final = 5
RETRY_MS: Final = 5_000
WRITTEN_S: Final = 5.0
"""Seconds within which a requested checkpoint has to be in the folder."""
TOLD: Final = (records.COUNTERS, records.DEFINITION)


def ask_broker(endpoint: Endpoint) -> tuple[int, list[Claim]]:
    """Let a running broker write a checkpoint: its position, and its claim for every queue there.

    Raises BrokerRefused, BrokerUnreachable.
    """
    client = Client(endpoint)
    try:
        answer = client.call("POST", api_path("ledger", "checkpoint"), {})
    finally:
        client.close()
    return int(answer["position"]), [
        Claim(int(q["id"]), str(q["vhost"]), str(q["name"]), q) for q in answer["queues"]
    ]


def claims_of(checkpoint: LedgerFile) -> list[Claim]:
    """Return the claims of a checkpoint's file."""
    part = ledger.LedgerPart(checkpoint, ledger.CHECKPOINT, checkpoint.number)
    found = [
        (int(row["kind"]), int(row["queue"]), block.blob(row).decode())
        for block in ledger.blocks_of(part)
        for row in block.rows[np.isin(block.rows["kind"], TOLD)]
    ]
    return _claims(
        [(id, text) for kind, id, text in found if kind == records.COUNTERS],
        [text for kind, _, text in found if kind == records.DEFINITION],
    )


def claims_of_checkpoint(ledger_rows: DataFrame) -> tuple[int, list[Claim]]:
    """Return the claims of the checkpoint that was read with the ledger, from its COUNTERS rows,
    and their position."""
    state = ledger_rows.where("source = 'checkpoint'").select(
        "position", "kind", "queue_id", "blob"
    )
    rows = state.where("kind in ('counters', 'definition')").collect()
    claims = _claims(
        [(row.queue_id, row.blob) for row in rows if row.kind == "counters"],
        [row.blob for row in rows if row.kind == "definition"],
    )
    return (int(rows[0].position) if rows else 0), claims


def _claims(counters: list[tuple[int, str]], definitions: list[str]) -> list[Claim]:
    names = {}
    for text in definitions:
        said = json.loads(text)
        if said.get("op") == "queue":
            names[int(said["id"])] = (str(said["vhost"]), str(said["name"]))
    unknown = {id: ("", f"(id {id})") for id, _ in counters}
    return [Claim(id, *(unknown | names)[id], json.loads(text)) for id, text in counters]


def kept(attempt: Callable[[], T]) -> T:
    """Make an attempt over the ledger, and another where a running broker let go of a file before
    it was read: the files that are left are a whole ledger, of a shorter time. Raises as the last
    attempt does."""
    for _ in range(ASK_AGAIN - 1):
        try:
            return attempt()
        except LedgerLetGo:
            continue
        except Exception as error:  # of a process of Spark that read it there is only the text
            if LedgerLetGo.__name__ not in str(error):
                raise
    return attempt()


def asked(endpoint: Endpoint, data_dir: Path) -> int:
    """The position of a checkpoint that the broker at `endpoint` has just written into this folder.

    Raises LedgerIncomplete (also where it uses another folder), BrokerRefused, BrokerUnreachable.
    """
    check_broker(endpoint, data_dir)
    return ask_until_written(endpoint, data_dir)[0]


def ask_until_written(endpoint: Endpoint, data_dir: Path) -> tuple[int, list[Claim]]:
    """A claim whose checkpoint is in the data folder. The broker writes checkpoints beside its
    other work, one at a time: when one was being written already, it has to be asked again."""
    for _ in range(ASK_AGAIN):
        position, claims = ask_broker(endpoint)
        deadline = time.monotonic() + WRITTEN_S
        while time.monotonic() < deadline:
            if any(file.number == position for file in checkpoints(data_dir)):
                return position, claims
            time.sleep(0.02)
    raise LedgerIncomplete(
        f"{data_dir}: no checkpoint at position {position:#x}, the one the broker at {endpoint} "
        "spoke of: is this its data folder?"
    )


def endpoint_of(url: str | None, user: str | None, password: str | None) -> Endpoint | None:
    if url is None:
        return None
    return Endpoint.from_url(url, user=user, password=password, retry_ms=RETRY_MS)


def check_broker(endpoint: Endpoint, data_dir: Path) -> None:
    """Check that this broker answers and uses this folder.

    Raises LedgerIncomplete, BrokerRefused, BrokerUnreachable.
    """
    client = Client(endpoint)
    try:
        pid = int(client.patient("GET", api_path("status"))["broker"]["pid"])
    finally:
        client.close()
    using = ledger.user_of(data_dir)
    if using and using != pid:
        raise LedgerIncomplete(
            f"{data_dir} is in use by a broker of pid {using}, and the one at {endpoint} has pid "
            f"{pid}: this is not its data folder"
        )
    ask_until_written(endpoint, data_dir)


def check_checkpoint(data_dir: Path, user: str | None, password: str | None) -> str:
    """Check that there is a checkpoint whose claims can stand for the broker's; return advice on
    how to reconcile the present state instead. Raises LedgerIncomplete."""
    using = ledger.user_of(data_dir)
    if using is None:
        present = "start the broker and use --url"
    else:
        url = _default_url(using, user, password) or "http://HOST:PORT of its HTTP interface"
        present = f"use --url {url}"
    try:
        ledger_files.find_checkpoint(data_dir, None)
    except LedgerIncomplete:
        if checkpoints(data_dir):
            raise
        if using is None:
            raise LedgerIncomplete(
                f"{data_dir}: no checkpoint yet: start the broker on this folder and add --url, or "
                "let it stop cleanly, which writes one"
            ) from None
        who = f"a broker (pid {using})" if using else "a broker"
        raise LedgerIncomplete(
            f"{data_dir}: no checkpoint yet; {who} is using this folder: "
            f"{present.replace('use', 'add', 1)}"
        ) from None
    return present


def _default_url(pid: int, user: str | None, password: str | None) -> str | None:
    """The address that a broker has by default, if the one of this pid answers there."""
    endpoint = Endpoint(retry_ms=0, timeout_ms=2_000)
    if user is not None and password is not None:
        endpoint = replace(endpoint, user=user, password=password)
    client = Client(endpoint)
    try:
        found = client.call("GET", api_path("status"))["broker"]["pid"]
    except (BrokerRefused, BrokerUnreachable, KeyError, TypeError, ValueError):
        return None
    finally:
        client.close()
    return str(endpoint) if pid in (0, found) else None
