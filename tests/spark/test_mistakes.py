"""What a user gets wrong is told in one line, before Spark starts, with the right exit code."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from tallymark.spark import ledger, ledger_files
from tallymark.spark.account import Beyond, Reconciliation
from tallymark.spark.client import BrokerUnreachable, Client, Endpoint
from tallymark.spark.land import CannotLand, preflight, trigger_arguments
from tallymark.spark.options import SourceOptions
from tallymark.spark.reconcile_table import show
from tallymark.spark.session import SparkDidNotStart, check_master
from tests.spark.rig import publish
from tests.support import forked
from tests.support.http_server import HttpServer
from tests.support.patience import until
from tests.support.process import BrokerProcess

NOBODY = "http://127.0.0.1:1"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    nowhere = {"JAVA_HOME": "/nowhere", "PATH": "/nowhere", "TALLYMARK_URL": None}
    return forked.run(*arguments, env=nowhere)


def said(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line on stderr."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tallymark: ")
    return lines[0]


def land(broker: BrokerProcess, to: Path, *more: str, queue: str = "q") -> list[str]:
    return [
        "pipeline", "land", "--queue", queue, "--subscription", "lake", "--to", str(to),
        "--url", broker.url, *more,
    ]  # fmt: skip


def options(broker: BrokerProcess, queue: str) -> SourceOptions:
    given = {"url": broker.url, "queue": queue, "subscription": "lake"}
    return SourceOptions.parse(given).for_stream()


def checkpoint(to: Path, start: int, epoch: int, name: str = "lake") -> None:
    """As Spark leaves it after one committed batch."""
    offset = {"subscription": name, "epoch": epoch, "seq": start}
    for kind, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1\n{}")):
        folder = to / "_checkpoint" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "0").write_text(text)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--trigger", "0s"], "--trigger '0s'"),
        (["--trigger", "soon"], "--trigger 'soon'"),
        (["--max-rows", "0"], "--max-rows 0"),
        (["--partitions", "0"], "--partitions 0"),
        (["--to", "hdfs://nn/lake"], "--to 'hdfs:/nn/lake': expected a folder"),
        (["--url", "ftp://x"], "expected http"),
        (["--master", "nonsense"], "master 'nonsense'"),
    ],
)
def test_wrong_arguments_of_a_landing(wrong: list[str], named: str, tmp_path: Path) -> None:
    done = run(
        "pipeline", "land", "--queue", "q", "--subscription", "s", "--to", str(tmp_path), *wrong
    )
    assert named in said(done, 2)


def test_a_period_of_nothing_is_no_trigger() -> None:
    with pytest.raises(ValueError, match="expected available-now or a period"):
        trigger_arguments("0m")


def test_unknown_queue_and_wrong_password_are_told_and_nothing_is_made(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    assert "no queue 'nowhere'" in said(run(*land(broker, tmp_path, queue="nowhere")), 1)
    assert "user 'guest'" in said(run(*land(broker, tmp_path, "--user", "guest:no")), 1)
    assert "lake" not in {
        row["name"]
        for row in broker.http("GET", "/api/tallymark/subscriptions")[1]["subscriptions"]
    }


def test_a_broker_that_is_down_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokerUnreachable):
        Client(Endpoint.from_url(NOBODY, retry_ms=100)).patient("GET", "/api/tallymark/status")
    assert capsys.readouterr().err.startswith(f"tallymark: cannot reach {NOBODY}")


def test_a_fresh_table_on_a_used_subscription_is_warned_about(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "used", 0, 10)
    wanted = options(broker, "used")
    assert preflight(wanted, tmp_path) is None, "nobody was there before"
    path = "/api/tallymark/subscriptions/%2F/used/lake"
    attached = broker.http("POST", f"{path}/attach", {})[1]
    epoch, fence = attached["epoch"], attached["fence"]
    body = {"fence": fence, "epoch": epoch}
    broker.http("POST", f"{path}/lease", {**body, "start": attached["next"], "max_rows": 10})
    floor = broker.http("POST", f"{path}/settle", {**body, "end": attached["next"] + 10})[1][
        "floor"
    ]
    warning = preflight(wanted, tmp_path)
    assert warning is not None
    assert "already settled 10 messages" in warning

    checkpoint(tmp_path / "own", floor, epoch)
    assert preflight(wanted, tmp_path / "own") is None
    checkpoint(tmp_path / "old", floor - 5, epoch)
    with pytest.raises(CannotLand, match="another checkpoint moved this subscription on"):
        preflight(wanted, tmp_path / "old")
    checkpoint(tmp_path / "gone", floor, epoch + 1000)
    with pytest.raises(CannotLand, match="begin with a new folder"):
        preflight(wanted, tmp_path / "gone")
    checkpoint(tmp_path / "other", floor, epoch, "warehouse")
    with pytest.raises(CannotLand, match="belongs to subscription 'warehouse'"):
        preflight(wanted, tmp_path / "other")


def test_a_master_that_nobody_answers_for_is_told() -> None:
    with pytest.raises(SparkDidNotStart, match="cannot reach the Spark master"):
        check_master("spark://127.0.0.1:1")
    for master in ("local", "local[*]", "local[2,4]", "yarn", "k8s://https://h:1"):
        check_master(master)


def test_a_schema_in_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    command = ("pipeline", "land", "--queue", "q", "--subscription", "lake", "--url", NOBODY)
    file = tmp_path / "schema"
    for text in (None, b"\xff"):
        if text is not None:
            file.write_bytes(text)
        line = said(run(*command, "--to", str(tmp_path / "t"), "--schema", f"@{file}"), 2)
        assert f"schema '@{file}' cannot be read: " in line


@pytest.mark.parametrize(
    ("begun", "more", "kinds"),
    [
        ("_spark_metadata", ("--schema", "id bigint"), "as Parquet, not as Parquet with a schema"),
        ("_delta_log", (), "as a Delta table, not as Parquet:"),
        ("batch=3", (), "as Parquet with a schema, not as Parquet:"),
    ],
)
def test_a_folder_in_which_a_table_of_another_kind_was_begun(
    tmp_path: Path, begun: str, more: tuple[str, ...], kinds: str
) -> None:
    (tmp_path / begun).mkdir()
    command = ("pipeline", "land", "--queue", "q", "--subscription", "lake", "--url", NOBODY)
    assert f"was begun {kinds}" in said(run(*command, "--to", str(tmp_path), *more), 2)


def test_a_folder_without_a_journal(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        assert "no journal here" in said(run("pipeline", "reconcile", "--data-dir", str(folder)), 2)


def test_no_checkpoint_yet_names_the_broker_that_uses_the_folder(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as fresh:
        assert ledger_files.checkpoints(fresh.data_dir) == [], "else this test shows nothing"
        assert ledger.user_of(fresh.data_dir) == fresh.pid
        line = said(run("pipeline", "reconcile", "--data-dir", str(fresh.data_dir)), 1)
        assert f"no checkpoint yet; a broker (pid {fresh.pid}) is using this folder" in line
        assert "add --url http://" in line
    assert ledger.user_of(tmp_path / "data") is None


def test_the_wrong_brokers_folder_is_told(broker: BrokerProcess, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as other:
        line = said(
            run("pipeline", "reconcile", "--data-dir", str(other.data_dir), "--url", broker.url), 1
        )
    assert "this is not its data folder" in line


def test_what_the_journal_holds_past_the_checkpoint(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        publish(broker, "q", 0, 5)
        broker.http("POST", "/api/tallymark/ledger/checkpoint", {})
        until(
            lambda: bool(ledger_files.checkpoints(broker.data_dir)), what="the checkpoint written"
        )
        state = ledger_files.find_checkpoint(broker.data_dir, None)
        publish(broker, "q", 5, 5)
        found = ledger.beyond(broker.data_dir, state.number)
        assert found is not None
        assert found[0] >= 1
        assert found[1] >= ledger.time_of(state)
    state = ledger_files.find_checkpoint(tmp_path / "data", None)
    assert ledger.beyond(tmp_path / "data", state.number) is None, "the stop wrote a checkpoint"


def test_an_account_says_what_it_is_of() -> None:
    out = io.StringIO()
    outcome = Reconciliation(
        64, [], source="checkpoint", as_of="2026-01-02T03:04:05Z",
        beyond=Beyond(2, "2026-01-02T03:05:00Z"),
    )  # fmt: skip
    show(outcome, console=Console(file=out, width=60), present="use --url http://h:1")
    text = out.getvalue()
    assert "as of the checkpoint of 2026-01-02 03:04:05 UTC, journal position 0x40" in text
    assert re.search(r"goes on 2 blocks past .*until 2026-01-02 03:05:00 UTC; use --url", text)


def test_a_demo_that_cannot_begin(tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    full = tmp_path / "full"
    full.mkdir()
    shutil.copy(__file__, full)
    assert "is empty" in said(run("demo", "--input", str(tmp_path / "empty.log")), 2)
    assert "new or an empty folder" in said(run("demo", "--out", str(full)), 2)
    (tmp_path / "file").touch()
    said(run("demo", "--out", str(tmp_path / "file")), 2)


class Refusing(HttpServer):
    """A broker that knows no such user."""

    def respond(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        return 401, {}, json.dumps({"error": "unauthorized", "reason": "who?"}).encode()


def test_rows_of_the_ledger_where_the_broker_refuses(tmp_path: Path) -> None:
    (tmp_path / "0000000001-00000001.segment").touch()
    with Refusing() as broker:
        done = run(
            "pipeline", "ledger", "--rows", "--data-dir", str(tmp_path),
            "--to", str(tmp_path / "table"), "--url", f"http://{broker.address}",
        )  # fmt: skip
    assert "who? (HTTP 401, unauthorized)" in said(done, 1)
