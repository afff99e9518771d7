"""Apache Qpid Proton's example programs in C++ and C, unchanged, against the broker over sockets.

They are compiled where Debian's packages are (tests/support/proton_examples.py says which), and
skipped elsewhere. Most know no password, so the broker here lets clients in that give no name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.patience import until
from tests.support.process import BrokerProcess
from tests.support.proton_broker import CannotBeHad
from tests.support.proton_examples import ProtonExamples

names = itertools.count()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ProtonExamples:
    try:
        return ProtonExamples(tmp_path_factory.mktemp("examples"))
    except CannotBeHad as reason:
        pytest.skip(f"Proton's examples cannot be had: {reason}")


@pytest.fixture(scope="module")
def open_broker(
    examples: ProtonExamples, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cpp") / "data", anonymous_user="guest") as process:
        yield process


@pytest.fixture
def queue(open_broker: BrokerProcess) -> str:
    name = f"cpp{next(names)}"
    open_broker.http("PUT", f"/api/queues/%2F/{name}", {"durable": True})
    return name


@pytest.fixture
def host(open_broker: BrokerProcess) -> str:
    return f"127.0.0.1:{open_broker.amqp_port}"


def depth(broker: BrokerProcess, queue: str) -> tuple[int, int]:
    """(ready, acquired)"""
    row = broker.queues()[queue]
    return row["ready"], row["acquired"]


def sequence(first: int, last: int) -> list[str]:
    return [f'{{"sequence"={i}}}' for i in range(first, last + 1)]


def test_simple_send_and_simple_recv(
    examples: ProtonExamples, open_broker: BrokerProcess, host: str, queue: str
) -> None:
    url = f"{host}/{queue}"
    assert examples.run("simple_send", "-a", url, "-m", "500") == ["all messages confirmed"]
    assert depth(open_broker, queue) == (500, 0)
    # It takes ten messages ahead, and gives back those it does not want.
    assert examples.run("simple_recv", "-a", url, "-m", "100") == sequence(1, 100)
    assert depth(open_broker, queue) == (400, 0)
    url = f"{host}//queues/{queue}"  # the long form of the address
    assert examples.run("simple_recv", "-a", url, "-m", "2") == sequence(101, 102)


def test_one_connection_for_both_ways(examples: ProtonExamples, host: str, queue: str) -> None:
    assert examples.run("helloworld", f"//{host}", queue) == ["Hello World!"]
    lines = examples.run("reconnect_client", f"amqp://{host}", queue, "20")
    assert [line for line in lines if line.startswith("{")] == sequence(1, 20)


def test_threads(examples: ProtonExamples, host: str, queue: str) -> None:
    lines = examples.run("multithreaded_client", f"//{host}", queue, "50")
    assert lines[-1] == "50 messages sent and received"
    assert [line for line in lines if line.startswith("received")] == [
        f'received "{i}"' for i in range(1, 51)
    ]
    lines = examples.run("multithreaded_client_flow_control", f"//{host}", queue, "20", "3")
    assert lines[-1] == "60 messages sent and received"


def test_client_and_server(
    examples: ProtonExamples, open_broker: BrokerProcess, host: str, queue: str
) -> None:
    """The client's answers come to a dynamic node, where the server opens a link."""
    examples.binary("client")
    with examples.start("server", f"//{host}", queue) as server:
        assert server.lines(1) == [f"Server connected to //{host}"]
        assert examples.run("client", "-a", f"{host}/{queue}") == [
            "Twas brillig, and the slithy toves => TWAS BRILLIG, AND THE SLITHY TOVES",
            "Did gire and gymble in the wabe. => DID GIRE AND GYMBLE IN THE WABE.",
            "All mimsy were the borogroves, => ALL MIMSY WERE THE BOROGROVES,",
            "And the mome raths outgrabe. => AND THE MOME RATHS OUTGRABE.",
        ]
        assert len(server.lines(4)) == 4
    assert not [name for name in open_broker.queues() if name.startswith("amq.gen-")]


def test_scheduled_send_and_queue_browser(
    examples: ProtonExamples, open_broker: BrokerProcess, host: str, queue: str
) -> None:
    sent = examples.run("scheduled_send", "-a", f"{host}/{queue}", "-i", "0.05", "-t", "0.5")
    assert set(sent) == {"send"}
    # What it sent last it does not wait for.
    assert len(sent) - 1 <= depth(open_broker, queue)[0] <= len(sent)
    for _ in range(2):
        with examples.start("queue_browser", f"//{host}", queue) as browser:
            assert browser.lines(len(sent) - 1) == ["ping"] * (len(sent) - 1)
    assert depth(open_broker, queue)[0] >= len(sent) - 1


def test_selectors(
    examples: ProtonExamples, open_broker: BrokerProcess, host: str, queue: str
) -> None:
    lines = examples.run("colour_send", "-a", f"{host}/{queue}", "-m", "10")
    assert lines == ["all messages confirmed"]
    with examples.start("selected_recv", f"//{host}", queue) as selected:
        assert selected.lines(5) == [f"green {i}" for i in (1, 3, 5, 7, 9)]
        until(lambda: depth(open_broker, queue) == (5, 0))


def test_logins(examples: ProtonExamples, host: str) -> None:
    with_name = ("-a", host, "-i", "-m", "PLAIN", "-u", "guest", "-p")
    assert examples.run("simple_connect", *with_name, "guest") == []
    assert "amqp:unauthorized-access" in examples.fails("simple_connect", *with_name, "wrong")
    assert examples.run("simple_connect", "-a", host, "-m", "ANONYMOUS") == []


def test_what_is_not_there(examples: ProtonExamples, host: str) -> None:
    said = examples.fails("simple_send", "-a", f"{host}/nothing", "-m", "1")
    assert said.strip() == "amqp:not-found: no queue 'nothing' in vhost '/'"


def test_send_abort_and_receive_in_c(
    examples: ProtonExamples, open_broker: BrokerProcess, host: str, queue: str
) -> None:
    where = (*host.split(":"), queue)
    lines = examples.run("c/send-abort", *where, "5")
    assert lines == ["5 messages started and aborted"]
    assert depth(open_broker, queue) == (0, 0)
    lines = examples.run("c/send", *where, "300")
    assert lines == ["300 messages sent and acknowledged"]
    lines = examples.run("c/receive", *where, "300")
    assert lines[-1] == "300 messages received"
    assert lines[:-1] == sequence(1, 300)
    assert depth(open_broker, queue) == (0, 0)
