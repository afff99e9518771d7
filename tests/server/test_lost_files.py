"""Files of the journal that are gone, or not what they are called: a start says what is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pika
import pytest

from tests.support import forked
from tests.support.patience import until
from tests.support.process import BrokerDied, BrokerProcess

SMALL = {"segment_size": "1MiB", "checkpoint_every": "1MiB"}


def channel_of(broker: BrokerProcess) -> pika.adapters.blocking_connection.BlockingChannel:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    return channel


def publish(broker: BrokerProcess, n: int, size: int = 10) -> None:
    channel = channel_of(broker)
    for _ in range(n):
        channel.basic_publish("", "q", b"x" * size, pika.BasicProperties(delivery_mode=2))
    channel.connection.close()


def accept(broker: BrokerProcess, n: int) -> None:
    channel = channel_of(broker)
    for _ in range(n):
        channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
    channel.connection.close()


def verified(folder: Path) -> tuple[int, list[str]]:
    """Exit code of `journal verify`, and the damage it names."""
    done = forked.run("journal", "verify", "--json", str(folder))
    return done.returncode, json.loads(done.stdout)["problems"]


def anchor(folder: Path) -> int:
    """Where the journal was last said to end."""
    try:
        return int(json.loads((folder / "tail.json").read_text())["position"])
    except FileNotFoundError:
        return 0


def idle(broker: BrokerProcess) -> None:
    """Return when the end of the journal was told of outside of it."""
    _, status = broker.http("GET", "/api/tallymark/status")
    end = status["journal"]["end"]
    until(lambda: anchor(broker.data_dir) >= end, what="the tail is anchored")


def refused(broker: BrokerProcess) -> str:
    """What a start says that is refused."""
    with pytest.raises(BrokerDied, match="exit code 4"):
        broker.start()
    said = broker.log().splitlines()[-1]
    assert "start with --accept-loss" in said
    return said


def test_a_loss_that_is_accepted_is_named_before_anybody_is_served(tmp_path: Path) -> None:
    """The repair is done then, and no later start would name it."""
    folder = tmp_path / "data"
    broker = BrokerProcess(folder).start()
    publish(broker, 30, 1000)
    broker.stop()
    (segment,) = folder.glob("0*.segment")
    with segment.open("r+b") as file:
        file.truncate(16_000)
    assert f"{segment.name}: bytes" in refused(broker)
    broker.flags["accept_loss"] = "true"
    with broker:
        log = broker.log()
        start = log[log.rindex("messages.lost") : log.rindex("broker.recovered")]
        assert "journal.problem" in start
        assert "segment 1 is short of bytes of live messages" in start


def test_a_newest_segment_that_vanishes_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    broker = BrokerProcess(folder).start()
    publish(broker, 20)
    broker.kill()
    broker.start()
    publish(broker, 30)
    accept(broker, 5)
    idle(broker)
    broker.kill()
    newest = sorted(folder.glob("0*.segment"))[-1]
    newest.unlink()
    for said in (refused(broker), "; ".join(verified(folder)[1])):
        assert f"segment {int(newest.name[:10])} is gone" in said
        assert "queue 'q' in vhost '/': messages 21 to 50 had entered and are gone" in said
    broker.flags["accept_loss"] = "true"
    with broker:
        assert broker.queues()["q"]["ready"] == 20
        assert "messages 21 to 50 had entered and are gone" in broker.log()
        publish(broker, 1)
    del broker.flags["accept_loss"]
    with broker:  # accepted once, not again
        assert broker.queues()["q"]["ready"] == 21
    assert verified(folder) == (0, [])


def test_a_subscription_that_was_settled_further_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    broker = BrokerProcess(folder).start()
    publish(broker, 20)
    base = "/api/tallymark/subscriptions/%2F/q/table"
    held = broker.http("POST", f"{base}/attach", {})[1]
    wanted = {"fence": held["fence"], "epoch": held["epoch"]}
    broker.http("POST", f"{base}/lease", {**wanted, "start": 0, "max_rows": 10})
    broker.kill()
    broker.start()
    assert broker.http("POST", f"{base}/settle", {**wanted, "end": 10})[1]["floor"] == 10
    idle(broker)
    broker.kill()
    sorted(folder.glob("0*.segment"))[-1].unlink()
    assert (
        "subscription 'table' on queue 'q' in vhost '/' was settled up to 10 and is now up to 0"
        in refused(broker)
    )


def test_a_checkpoint_of_another_position_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    broker = BrokerProcess(folder).start()
    publish(broker, 100)
    broker.http("POST", "/api/tallymark/ledger/checkpoint", {})
    until(lambda: bool(list(folder.glob("*.checkpoint"))), what="there is a checkpoint")
    (old,) = folder.glob("*.checkpoint")
    kept = tmp_path / "kept"
    shutil.copy(old, kept)
    accept(broker, 100)
    broker.stop()
    newest = max(folder.glob("*.checkpoint"))
    shutil.copy(kept, newest)
    code, problems = verified(folder)
    assert code == 4
    assert f"{newest.name}: describes position" in problems[0]
    with broker:  # all that the older one needs is there
        assert broker.queues()["q"]["ready"] == 0
        assert broker.queues()["q"]["settled"] == 100


def test_a_segment_that_live_messages_need_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    broker = BrokerProcess(folder, **SMALL).start()
    publish(broker, 60, 50_000)
    broker.stop()
    oldest = min(folder.glob("0*.segment"))
    aside = tmp_path / oldest.name
    shutil.move(oldest, aside)
    code, problems = verified(folder)
    assert code == 4
    assert any("queue 'q' in vhost '/': the bytes of" in problem for problem in problems)
    assert f"segment {int(oldest.name[:10])} is gone, with bytes of live messages" in refused(
        broker
    )
    shutil.move(aside, oldest)
    with broker:
        assert broker.queues()["q"]["ready"] == 60


def test_an_account_that_does_not_balance_refuses_the_start(tmp_path: Path) -> None:
    """Segments behind a checkpoint that was put back from a copy: what settled there is missing."""
    folder = tmp_path / "data"
    broker = BrokerProcess(folder, **SMALL).start()
    publish(broker, 10)
    broker.stop()
    (older,) = folder.glob("*.checkpoint")
    copied = tmp_path / "copied"
    shutil.copy(older, copied)
    broker.start()
    accept(broker, 10)
    publish(broker, 10)
    broker.stop()
    checkpoints = sorted(folder.glob("*.checkpoint"))
    first = min(folder.glob("0*.segment"))
    data = bytearray(checkpoints[-1].read_bytes())
    at = data.find(b'"entered":20')
    assert at > 0
    data[at : at + 12] = b'"entered":25'
    resum(data)
    checkpoints[-1].write_bytes(data)
    assert first.exists()
    said = refused(broker)
    assert "queue 'q' in vhost '/' does not balance: 25 messages entered" in said
    assert any("does not balance" in problem for problem in verified(folder)[1])


def resum(data: bytearray) -> None:
    """Give each block of a checkpoint the checksums of what it says now."""
    from tallymark.stored.layout import HEADER, crc32c, header_at

    at = 0
    while at < len(data):
        header = header_at(bytes(data), at)
        assert header is not None
        body = crc32c(bytes(data[at + HEADER : at + header.length]))
        data[at + 56 : at + 60] = body.to_bytes(4, "little")
        data[at + 60 : at + 64] = crc32c(bytes(data[at : at + 60])).to_bytes(4, "little")
        at += header.length
