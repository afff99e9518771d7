"""The client against Apache Qpid Proton as the side that listens: its C++ examples without a
broker, and a listener of python-qpid-proton's reactive API. Where they are not, this is skipped."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tallymark.client import (
    ACCEPTED,
    Accepted,
    Message,
    MessageModified,
    MessageRejected,
    Modified,
    Released,
    connect,
)
from tests.support.amqp10_client import outcome_of
from tests.support.patience import PATIENCE_S
from tests.support.proton_broker import CannotBeHad
from tests.support.proton_examples import ProtonExamples


def over_sockets(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return wrapper


# -- the examples


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ProtonExamples:
    try:
        return ProtonExamples(tmp_path_factory.mktemp("listeners"))
    except CannotBeHad as reason:
        pytest.skip(f"Proton's examples cannot be had: {reason}")


def port_of(line: str) -> int:
    """listening on 1234"""
    return int(line.rpartition(" ")[2])


@over_sockets
async def test_direct_recv(examples: ProtonExamples) -> None:
    """It gives credit for ten at a time, and closes the connection after the last message."""
    with examples.start("direct_recv", "-a", "127.0.0.1:0/examples", "-m", "30") as listener:
        (line,) = listener.lines(1)
        async with connect(f"amqp://127.0.0.1:{port_of(line)}") as connection:
            async with connection.session() as session, session.sender("examples") as sender:
                sends = [sender.send(Message({"sequence": i}, message_id=i)) for i in range(1, 30)]
                assert await asyncio.gather(*sends) == [Accepted()] * 29
        assert await asyncio.to_thread(listener.lines, 29) == [
            f'{{"sequence"={i}}}' for i in range(1, 30)
        ]


@over_sockets
async def test_direct_send(examples: ProtonExamples) -> None:
    with examples.start("direct_send", "-a", "127.0.0.1:0/examples", "-m", "30") as listener:
        (line,) = listener.lines(1)
        async with connect(f"amqp://127.0.0.1:{port_of(line)}") as connection:
            async with connection.session() as session:
                async with session.receiver("examples", credit=4) as receiver:
                    for i in range(1, 30):
                        async with await receiver.receive(timeout=PATIENCE_S) as message:
                            assert message.body == {"sequence": i}
                    last = await receiver.receive(timeout=PATIENCE_S)
                    assert last.body == {"sequence": 30}
                    await last.accept()
                    assert await asyncio.to_thread(listener.lines, 1) == ["all messages confirmed"]


# -- a listener in Python


class Listener:
    """Sends five messages, and answers drains. Of a link from "taken" it takes back the first one.
    Whoever sends to it has numbers rejected and all else modified."""

    def __init__(self) -> None:
        proton = pytest.importorskip("proton", reason="python-qpid-proton is not built")
        handlers = pytest.importorskip("proton.handlers")
        reactor = pytest.importorskip("proton.reactor")
        port: queue.Queue[int] = queue.Queue()

        class Handler(handlers.MessagingHandler):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(prefetch=3, auto_accept=False)
                self.sent: list[Any] = []

            def on_start(self, event: Any) -> None:
                self.acceptor = event.container.listen("127.0.0.1:0")
                port.put(self.acceptor._selectable._delegate.getsockname()[1])

            def on_link_opening(self, event: Any) -> None:
                event.link.source.copy(event.link.remote_source)
                event.link.target.copy(event.link.remote_target)

            def on_link_flow(self, event: Any) -> None:
                link = event.link
                if not link.is_sender:
                    return
                while link.credit and len(self.sent) < 5:
                    self.sent.append(link.send(proton.Message(body=len(self.sent) + 1)))
                    if link.source.address == "taken" and len(self.sent) == 1:
                        event.container.schedule(0.2, self)
                if link.drain_mode:
                    link.drained()

            def on_timer_task(self, event: Any) -> None:
                self.sent[0].update(proton.Delivery.RELEASED)
                self.sent[0].settle()

            def on_message(self, event: Any) -> None:
                delivery = event.delivery
                if isinstance(event.message.body, int):
                    delivery.local.condition = proton.Condition("app:no", "numbers are not taken")
                    delivery.update(proton.Delivery.REJECTED)
                else:
                    delivery.local.failed = True
                    delivery.update(proton.Delivery.MODIFIED)
                delivery.settle()

            def on_disconnected(self, event: Any) -> None:
                self.acceptor.close()

            def on_connection_closing(self, event: Any) -> None:
                self.acceptor.close()

        self._thread = threading.Thread(target=reactor.Container(Handler()).run)
        self._thread.start()
        self.url = f"amqp://127.0.0.1:{port.get(timeout=PATIENCE_S)}"

    def join(self) -> None:
        """It ends with the connection."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.join()


@over_sockets
async def test_fc_24_a_batch_that_is_not_full_is_drained(listener: Listener) -> None:
    async with connect(listener.url) as connection, connection.session() as session:
        async with session.receiver("five", credit_mode="manual") as receiver:
            batch = await receiver.receive_batch(10, timeout=0.3)
            assert [message.body for message in batch] == [1, 2, 3, 4, 5]
            assert receiver.credit == 0
            assert await receiver.drain() == 0
            await receiver.settle_many(batch, ACCEPTED)


@over_sockets
async def test_fc_18_a_message_that_is_taken_back_frees_its_slot(listener: Listener) -> None:
    changed: list[tuple[object, object]] = []
    async with connect(listener.url) as connection, connection.session() as session:
        async with session.receiver("taken", credit=1) as receiver:
            receiver.on_delivery_state_changed(lambda *told: changed.append(told))
            first = await receiver.receive(timeout=PATIENCE_S)
            second = await receiver.receive(timeout=PATIENCE_S)  # there is room for it now
            assert changed == [(first, Released())]
            assert first.settled
            await first.accept()  # too late, and no error
            assert second.body == 2
            await second.accept()


@over_sockets
async def test_outcomes_of_sends(listener: Listener) -> None:
    async with connect(listener.url) as connection, connection.session() as session:
        async with session.sender("anything") as sender:
            with pytest.raises(MessageRejected, match="numbers are not taken") as rejected:
                await sender.send(7)
            assert rejected.value.condition == "app:no"
            with pytest.raises(MessageModified) as modified:
                await sender.send("text")
            assert modified.value.outcome == Modified(
                delivery_failed=True, undeliverable_here=False
            )
            results = [await outcome_of(sender.send(i)) for i in range(10)]
            assert {type(result) for result in results} == {MessageRejected}
