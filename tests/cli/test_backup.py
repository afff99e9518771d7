"""A backup that is taken while a broker is at work, and what a broker finds in it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pika

from tallymark.stored.layout import HEADER
from tests.cli.test_commands import run
from tests.journal.builders import Disk, make_newer
from tests.support.patience import until
from tests.support.process import BrokerProcess

PARTS = (
    "ready", "acquired", "deferred", "staged", "dead_letter_pending", "quarantined", "settled",
    "dead_lettered", "dropped",
)  # fmt: skip


class Traffic(threading.Thread):
    """Publishes with confirms, and settles every third message, until told to stop."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.confirmed = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        durable = pika.BasicProperties(delivery_mode=2)
        with pika.BlockingConnection(pika.ConnectionParameters(port=self.port)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            channel.confirm_delivery()
            while not self.is_over.is_set():
                channel.basic_publish("", "orders", bytes(30_000), durable)
                self.confirmed += 1
                if self.confirmed % 3 == 0:
                    method, _, _ = channel.basic_get("orders")
                    assert method is not None
                    channel.basic_ack(method.delivery_tag)


def test_all_that_was_confirmed_before_a_backup_began_is_in_it(tmp_path: Path) -> None:
    data, backup, restored = (tmp_path / name for name in ("data", "backup", "restored"))
    with BrokerProcess(data, checkpoint_every="4MiB") as broker:
        traffic = Traffic(broker.amqp_port)
        traffic.start()
        until(lambda: traffic.confirmed >= 100)
        before = traffic.confirmed
        said = run("backup", str(backup), "--data-dir", str(data), "--json").stdout
        after = traffic.confirmed
        traffic.is_over.set()
        traffic.join()
    assert run("restore", str(backup), "--data-dir", str(restored)).stdout.startswith(str(backup))
    assert json.loads((backup / "backup.json").read_text()) == json.loads(said)
    assert "sound" in run("journal", "verify", str(restored)).stdout.splitlines()
    with BrokerProcess(restored) as broker:
        (queue,) = json.loads(run("queues", "--json", url=broker.url).stdout)
        assert before <= queue["entered"] <= after + 1, "one may be under way"
        assert queue["entered"] == sum(
            sum(queue[part].values()) if isinstance(queue[part], dict) else queue[part]
            for part in PARTS
        )
        assert 0 < queue["settled"] <= queue["entered"] // 3


def test_what_is_no_backup_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = run("restore", str(tmp_path), "--data-dir", str(tmp_path / "data"), code=1)
    assert done.stderr == f"tallymark: {tmp_path} is no backup: there is no backup.json in it\n"
    done = run("backup", str(tmp_path / "to"), "--data-dir", str(tmp_path), code=1)
    assert done.stderr == f"tallymark: {tmp_path}: no journal in the folder\n"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with BrokerProcess(tmp_path / "data"):
        pass
    done = run("backup", str(tmp_path / "full"), "--data-dir", str(tmp_path / "data"), code=1)
    assert done.stderr == f"tallymark: {tmp_path / 'full'}: expected a new or an empty folder\n"


def test_a_folder_of_a_newer_version_is_refused_in_words(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "data")
    disk.start()
    disk.journal.close()
    segment = disk.segments()[-1]
    make_newer(segment, segment.stat().st_size - HEADER)
    refused = run("backup", str(tmp_path / "copy"), "--data-dir", str(disk.folder), code=1)
    assert "is not understood: block of format version 3" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
