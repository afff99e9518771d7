"""NSQ on a disk whose calls fail: nothing that was not written is answered, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallymark.wire.nsq import commands
from tests.faults.disks import make_shim
from tests.server.nsqd import Client, call
from tests.support.process import BrokerProcess

JOURNAL_FAILED = 4


@pytest.mark.parametrize("broken", ["write", "sync"])
def test_nq_d4_a_requeue_or_a_time_out_that_cannot_be_written_loses_nothing(
    tmp_path: Path, broken: str
) -> None:
    """nsqd loses a message whose write fails when it is requeued or times out. Here the broker
    stops: it answers no OK any more, and after a restart every message is there, once."""
    shim = make_shim(tmp_path / "shim")
    broker = BrokerProcess(tmp_path / "data", env=shim.env)
    with broker:
        taker = Client(broker.nsq_port, msg_timeout=1000)
        taker.ok(commands.sub("t", "c"))
        taker.ok(commands.mpub("t", [b"%d" % n for n in range(6)]))
        taker.send(commands.rdy(6))
        got = {body: id for id, _, body in (taker.message() for _ in range(6))}
        taker.send(commands.fin(got[b"0"]))
        taker.ok(commands.pub("done", b"x"))  # the FIN is on disk
        shim.fail(broken)
        taker.send(commands.rdy(0) + commands.req(got[b"1"], 0) + commands.req(got[b"2"], 5000))
        taker.send(commands.pub("t", b"never"))
        assert broker.wait() == JOURNAL_FAILED  # while 3 to 5 are held or time out
        with pytest.raises((AssertionError, ConnectionError)):
            assert taker.next() is None, "nothing is answered any more"
        assert "the broker failed and stops: [Errno 5]" in broker.log()
        shim.recover(broken)
        broker.restart()
        again = Client(broker.nsq_port)
        again.ok(commands.sub("t", "c"))
        again.send(commands.rdy(100))
        row = broker.queues()["t:c"]
        count = row["acquired"] + row["ready"] + row["deferred"]
        bodies = sorted(again.message()[2] for _ in range(count))
        # What nobody was told of may be there, if it was written with what failed to be synced.
        assert [body for body in bodies if body != b"never"] == [b"%d" % n for n in range(1, 6)]
        assert count in (5, 6)


def test_nq_20_over_http_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    shim = make_shim(tmp_path / "shim")
    with BrokerProcess(tmp_path / "data", env=shim.env) as broker:
        url = broker.nsq_http_url
        assert call(url, "GET", "/ping")[::2] == (200, b"OK")
        shim.fail("sync")
        status, _, raw = call(url, "POST", "/pub?topic=t", b"m")
        assert (status, raw) == (503, b'{"message":"EXITING"}')
        assert broker.wait() == JOURNAL_FAILED
