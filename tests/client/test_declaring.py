"""Declaring, binding, purging, deleting: over both protocols against a broker of ours, and in
memory where a broker has to misbehave."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest

from tallymark.client import (
    Backoff,
    ClientError,
    ConnectionLost,
    LinkRefused,
    NotPossible,
    QueueState,
    RequestRefused,
    Session,
    SessionClosed,
    TimedOut,
    connect,
)
from tallymark.client.events import ConnectionChange, ConnectionChanged, EventCallback
from tallymark.client.events import Event as ClientEvent
from tallymark.client.topology import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Topology,
    Unbind,
)
from tallymark.wire.amqp091.methods import (
    ChannelClose,
    ChannelOpen,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
)
from tallymark.wire.amqp10.events import Event, LinkRequested, TransfersReceived
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Attach, Begin, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import Properties, Sections, Value, encode_message
from tests.support.amqp091_peer import Peer091, session091
from tests.support.amqp10_client import Events, session_of
from tests.support.amqp10_peer import Peer
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess
from tests.support.virtual_loop import quiet, virtual

SOON = Backoff(initial_ms=100, jitter=0)
names = (f"d{number}" for number in itertools.count())
schemes = pytest.mark.parametrize("scheme", ["amqp", "amqp091"])


def over_sockets(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return wrapper


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("declaring") / "data") as running:
        yield running


def url_of(broker: BrokerProcess, scheme: str) -> str:
    return f"{scheme}://guest:guest@127.0.0.1:{broker.amqp_port}"


@asynccontextmanager
async def session_on(
    broker: BrokerProcess, scheme: str, **options: object
) -> AsyncIterator[Session]:
    async with connect(url_of(broker, scheme), **options) as connection:  # type: ignore[arg-type]
        async with connection.session() as session:
            yield session


async def refused(call: Awaitable[object]) -> tuple[int, str]:
    with pytest.raises(RequestRefused) as raised:
        await call
    assert raised.value.is_remote
    return raised.value.code, raised.value.condition


# Both protocols


@schemes
@over_sockets
async def test_a_queue_is_declared_used_purged_and_deleted(
    broker: BrokerProcess, scheme: str
) -> None:
    name = next(names)
    async with session_on(broker, scheme) as session:
        assert await session.declare_queue(name) == QueueState(name, 0, 0)
        async with session.sender(f"/queues/{name}") as sender:
            await sender.send_batch([b"1", b"2", b"3"])
        assert await session.declare_queue(name) == QueueState(name, 3, 0)
        async with session.receiver(f"/queues/{name}", credit=1):
            assert (await session.queue_state(name)).consumer_count == 1
        assert await session.purge_queue(name) == 3
        assert await session.queue_state(name) == QueueState(name, 0, 0)
        async with session.sender(f"/queues/{name}") as sender:
            await sender.send(b"4")
        assert await session.delete_queue(name) == 1
        assert await refused(session.queue_state(name)) == (404, "amqp:not-found")
        assert await session.delete_queue(name) == 0  # there is none


@schemes
@over_sockets
async def test_type_and_arguments_arrive(broker: BrokerProcess, scheme: str) -> None:
    name = next(names)
    arguments = {
        "x-max-length": 1000,
        "x-dead-letter-exchange": "",
        "x-single-active-consumer": True,
    }
    async with session_on(broker, scheme) as session:
        await session.declare_queue(name, type="quorum", arguments=arguments)
        _, shown = broker.http("GET", f"/api/queues/%2F/{name}")
        assert shown["arguments"] == {**arguments, "x-queue-type": "quorum"}
        assert (shown["durable"], shown["exclusive"], shown["auto_delete"]) == (True, False, False)


@schemes
@over_sockets
async def test_exchanges_and_bindings_route(broker: BrokerProcess, scheme: str) -> None:
    queue, events, copies = next(names), next(names), next(names)
    async with session_on(broker, scheme) as session:
        await session.declare_queue(queue)
        await session.declare_exchange(events, "topic")
        await session.declare_exchange(copies, "fanout", internal=True, auto_delete=True)
        await session.bind_exchange(copies, events, "copy.#")
        await session.bind_queue(queue, copies)
        await session.bind_queue(queue, events, "new.*", arguments={"x-of": "one"})
        await session.bind_queue(queue, events, "new.*", arguments={"x-of": "other"})
        async with session.sender(f"/exchanges/{events}/copy.a") as sender:
            await sender.send(b"1")
        async with session.sender(f"/exchanges/{events}/new.a") as sender:
            await sender.send(b"2")
        assert (await session.queue_state(queue)).message_count == 2
        await session.unbind_queue(queue, events, "new.*", arguments={"x-of": "one"})
        await session.unbind_queue(queue, events, "new.*", arguments={"x-of": "none"})
        _, bindings = broker.http("GET", f"/api/exchanges/%2F/{events}/bindings/source")
        found = sorted((row["destination"], str(row["arguments"])) for row in bindings)
        assert found == sorted([(copies, "{}"), (queue, "{'x-of': 'other'}")])
        await session.unbind_exchange(copies, events, "copy.#")
        await session.delete_exchange(events)
        _, shown = broker.http("GET", f"/api/queues/%2F/{queue}/bindings")
        assert {row["source"] for row in shown} == {"", copies}
        await session.delete_exchange(events)  # there is none


@schemes
@over_sockets
async def test_a_refusal_changes_nothing_and_costs_nothing_but_the_call(
    broker: BrokerProcess, scheme: str
) -> None:
    name = next(names)
    async with session_on(broker, scheme) as session:
        await session.declare_queue(name)
        sender = await session.sender(f"/queues/{name}")
        assert await refused(session.declare_queue(name, auto_delete=True)) == (
            406,
            "amqp:precondition-failed",
        )
        assert (await refused(session.declare_queue("amq.mine")))[0] == 403
        assert (await refused(session.bind_queue(name, "not-there")))[0] == 404
        assert (await refused(session.purge_queue("not-there")))[0] == 404
        assert (await refused(session.declare_exchange("amq.topic", "fanout")))[0] == 406
        several = [session.queue_state(name), session.queue_state("not-there")] * 3
        answers = await asyncio.gather(*several, return_exceptions=True)
        assert answers[::2] == [QueueState(name)] * 3
        assert [type(answer) for answer in answers[1::2]] == [RequestRefused] * 3
        await sender.send(b"as if nothing had been")


@schemes
@over_sockets
async def test_an_exclusive_queue_is_the_connections(broker: BrokerProcess, scheme: str) -> None:
    async with session_on(broker, scheme) as session, session_on(broker, scheme) as other:
        queue = await session.declare_queue(exclusive=True)
        assert queue.name.startswith("client.gen-")
        if scheme == "amqp091":  # over AMQP 1.0 anybody may look at it, as in RabbitMQ
            assert (await refused(other.queue_state(queue.name)))[0] == 405
        assert await refused(other.declare_queue(queue.name, exclusive=True)) == (
            405,
            "amqp:resource-locked",
        )
    assert queue.name not in broker.queues()


@schemes
@over_sockets
async def test_names_that_are_none_are_refused_where_they_are_given(
    broker: BrokerProcess, scheme: str
) -> None:
    async with session_on(broker, scheme) as session:
        for call in (
            session.declare_queue(""),
            session.declare_queue("é" * 128),
            session.bind_queue("q", ""),
            session.bind_queue("q", "e", "k" * 256),
            session.delete_exchange(""),
        ):
            with pytest.raises(ValueError, match="255 bytes"):
                await call
        for error, value in ((TypeError, object()), (ValueError, 1 << 70)):
            with pytest.raises(error, match=f"declare queue 'q': .*{value}"):
                await session.declare_queue("q", arguments={"x-of": value})
        assert (await session.declare_queue(exclusive=True)).name, "the next request is answered"


@over_sockets
async def test_conditions_of_a_delete_are_those_of_amqp_0_9_1(broker: BrokerProcess) -> None:
    name = next(names)
    async with session_on(broker, "amqp091") as session:
        await session.declare_queue(name)
        async with session.sender(f"/queues/{name}") as sender:
            await sender.send(b"1")
        assert (await refused(session.delete_queue(name, if_empty=True)))[0] == 406
        async with session.receiver(f"/queues/{name}"):
            assert (await refused(session.delete_queue(name, if_unused=True)))[0] == 406
    async with session_on(broker, "amqp") as session:
        with pytest.raises(NotPossible, match="if unused or empty"):
            await session.delete_queue(name, if_empty=True)
        with pytest.raises(NotPossible, match="if unused"):
            await session.delete_exchange("amq.topic", if_unused=True)
        assert await session.delete_queue(name) == 1


# Again after a reconnect


async def cut_off(broker: BrokerProcess, restored: asyncio.Event) -> None:
    """Have the broker close every connection, and wait until ours is restored."""
    restored.clear()
    _, rows = broker.http("GET", "/api/connections")
    for row in rows:
        broker.http("DELETE", f"/api/connections/{quote(row['name'], safe='')}")
    await restored.wait()


@pytest.fixture
def restored() -> asyncio.Event:
    """Set when a connection with `on_event=tells(restored)` is restored."""
    return asyncio.Event()


def tells(restored: asyncio.Event) -> EventCallback:
    def on_event(event: ClientEvent) -> None:
        if isinstance(event, ConnectionChanged) and event.change is ConnectionChange.RESTORED:
            restored.set()

    return on_event


@schemes
@over_sockets
async def test_what_was_declared_is_declared_again_when_the_connection_comes_back(
    broker: BrokerProcess, scheme: str, restored: asyncio.Event
) -> None:
    """The exclusive queue went with the connection, the others were deleted meanwhile."""
    exchange, kept, gone = next(names), next(names), next(names)
    async with session_on(broker, scheme, reconnect=SOON, on_event=tells(restored)) as session:
        mine = await session.declare_queue(exclusive=True)
        await session.declare_exchange(exchange, "fanout")
        await session.declare_queue(kept)
        await session.declare_queue(gone)
        for queue in (mine.name, kept, gone):
            await session.bind_queue(queue, exchange)
        await session.delete_queue(gone)
        await session.declare_queue(f"{kept}-once", restore=False)
        receiver = await session.receiver(f"/queues/{mine.name}", credit=5)
        broker.http("DELETE", f"/api/exchanges/%2F/{exchange}")
        broker.http("DELETE", f"/api/queues/%2F/{kept}")
        broker.http("DELETE", f"/api/queues/%2F/{kept}-once")
        await cut_off(broker, restored)
        async with session.sender(f"/exchanges/{exchange}/any") as sender:
            await sender.send(b"hello again")
        async with await receiver.receive(timeout=PATIENCE_S) as message:
            assert bytes(message.body) == b"hello again"
        assert (await session.queue_state(kept)).message_count == 1
        found = broker.queues()
        assert gone not in found
        assert f"{kept}-once" not in found


@schemes
@over_sockets
async def test_a_receiver_comes_back_to_a_queue_that_a_later_session_declared(
    broker: BrokerProcess, scheme: str, restored: asyncio.Event
) -> None:
    """It was attached before the queue was there again, and closed for that."""
    url = url_of(broker, scheme)
    async with connect(url, reconnect=SOON, on_event=tells(restored)) as connection:
        reads, declares = await connection.session(), await connection.session()
        mine = await declares.declare_queue(exclusive=True)
        receiver = await reads.receiver(f"/queues/{mine.name}", credit=5)
        await cut_off(broker, restored)
        async with declares.sender(f"/queues/{mine.name}") as sender:
            await sender.send(b"hello again")
        async with await receiver.receive(timeout=PATIENCE_S) as message:
            assert bytes(message.body) == b"hello again"


@schemes
@over_sockets
async def test_a_binding_comes_back_whose_queue_a_later_session_declared(
    broker: BrokerProcess, scheme: str, restored: asyncio.Event
) -> None:
    """It was bound before the queue was there again, refused, and forgotten."""
    url = url_of(broker, scheme)
    errors: list[ClientError] = []
    async with connect(url, reconnect=SOON, on_event=tells(restored)) as connection:
        binds, declares = await connection.session(), await connection.session()
        binds.on_error(errors.append)
        mine = await declares.declare_queue(exclusive=True)
        await binds.bind_queue(mine.name, "amq.direct", mine.name)
        await cut_off(broker, restored)
        assert not any(isinstance(error, RequestRefused) for error in errors)
        async with binds.sender(f"/exchanges/amq.direct/{mine.name}") as sender:
            await sender.send(b"bound again")


@schemes
@over_sockets
async def test_what_is_refused_after_a_reconnect_is_told_and_forgotten(
    broker: BrokerProcess, scheme: str, restored: asyncio.Event
) -> None:
    errors: list[ClientError] = []
    changed, after = next(names), next(names)
    async with session_on(broker, scheme, reconnect=SOON, on_event=tells(restored)) as session:
        session.on_error(errors.append)
        await session.declare_queue(changed)
        await session.declare_queue(after)
        broker.http("DELETE", f"/api/queues/%2F/{changed}")
        broker.http("DELETE", f"/api/queues/%2F/{after}")
        broker.http("PUT", f"/api/queues/%2F/{changed}", {"arguments": {"x-max-length": 5}})
        await cut_off(broker, restored)
        assert after in broker.queues()
        assert [error.code for error in errors if isinstance(error, RequestRefused)] == [406]
        await cut_off(broker, restored)
        assert len([error for error in errors if isinstance(error, RequestRefused)]) == 1


@virtual
async def test_a_lock_that_outlives_the_connection_makes_the_attempt_fail() -> None:
    """The broker has not noticed yet that the old connection is gone."""
    peer = Peer091()
    events = Events()
    locked = True

    def answers(channel: int, method: object) -> bool:
        if not isinstance(method, QueueDeclare) or peer.connections == 1 or not locked:
            return False
        peer.say(channel, ChannelClose(405, "RESOURCE_LOCKED", 50, 10))
        return True

    async with session091(peer, reconnect=SOON, on_event=events.append) as session:
        queue = await session.declare_queue("mine", exclusive=True, durable=False)
        peer.answers = answers
        peer.cut_off()
        await asyncio.sleep(5)
        tried = [event for event in events.of(ConnectionChanged) if event.attempt]
        assert len(tried) > 2
        assert "resource-locked" in tried[-1].reason
        locked = False
        assert await session.queue_state("mine") == queue


# In memory


@virtual
async def test_one_request_is_under_way_at_a_time_so_that_a_refusal_takes_no_other_with_it() -> (
    None
):
    peer = Peer091()
    async with session091(peer) as session:
        calls = [session.queue_state("none"), session.declare_queue("a"), session.queue_state("a")]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in found] == [RequestRefused, QueueState, QueueState]
        assert len(peer.sent(ChannelOpen)) == 1 + 2


@virtual
async def test_an_answer_that_does_not_come_is_waited_for_so_long_and_is_in_doubt() -> None:
    peer = Peer091()
    async with session091(peer, timeout=3) as session:
        peer.answers = lambda channel, method: isinstance(method, QueueDelete)
        with pytest.raises(TimedOut, match="delete queue 'a': not answered in 3 s") as late:
            await session.delete_queue("a")
        assert late.value.in_doubt


@virtual
async def test_a_connection_that_goes_leaves_a_request_in_doubt() -> None:
    peer = Peer091()
    async with session091(peer) as session:
        peer.answers = lambda channel, method: isinstance(method, QueueDeclare)
        call = asyncio.create_task(session.declare_queue("a"))
        await quiet()
        peer.cut_off()
        with pytest.raises(ConnectionLost) as raised:
            await call
        assert raised.value.in_doubt


@virtual
async def test_a_cancelled_request_leaves_the_next_its_own_answer() -> None:
    peer = Peer091()
    async with session091(peer) as session:
        held: list[int] = []

        def answers(channel: int, method: object) -> bool:
            if isinstance(method, QueueDeclare) and method.queue == "slow":
                held.append(channel)
                return True
            return False

        peer.answers = answers
        call = asyncio.create_task(session.declare_queue("slow"))
        await quiet()
        following = asyncio.create_task(session.declare_queue("next"))
        await quiet()
        call.cancel()
        await quiet()
        peer.say(held[0], QueueDeclareOk("slow", 7, 7))
        assert await following == QueueState("next")


@virtual
async def test_a_closed_session_declares_nothing() -> None:
    peer = Peer091()
    async with session091(peer) as session:
        await session.close()
        with pytest.raises(SessionClosed):
            await session.declare_queue("a")


class ManagedPeer(Peer):
    """With a node `/management` that answers 200 to anything, or as `reply` says."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = self._asked
        self.asked: list[tuple[str, str]] = []
        self.reply: Callable[[str], tuple[int, object] | Error] = lambda path: (200, {})

    def _asked(self, event: Event) -> bool:
        if isinstance(event, LinkRequested) and isinstance(event.link, ReceiverLink):
            target = event.attach.target
            assert isinstance(target, Target)
            if target.address == "/management":
                assert dict(event.attach.properties or {}) == {"paired": True}
        if not isinstance(event, TransfersReceived):
            return False
        properties = Sections(event.data, 0, len(event.data)).properties
        assert properties is not None
        self.asked.append((str(properties.subject), str(properties.to)))
        reply = self.reply(str(properties.to))
        if isinstance(reply, Error):
            event.link.session.end(reply)
            return True
        status, body = reply
        answer = Properties(subject=str(status), correlation_id=properties.message_id)
        link = self.sending("/management")
        link.send(encode_message(properties=answer, body=Value(body)), settled=True)
        return True


@virtual
async def test_the_pair_of_links_is_attached_once_in_a_session_of_its_own() -> None:
    peer = ManagedPeer()
    async with session_of(peer) as session:
        await session.declare_queue("a/b")
        await session.bind_queue("a/b", "e", "k")
        await session.unbind_queue("a/b", "e", "k")
        await session.purge_queue("a/b")
        assert peer.asked == [
            ("PUT", "/queues/a%2Fb"),
            ("POST", "/bindings"),
            ("DELETE", "/bindings/src=e;dstq=a%2Fb;key=k;args="),
            ("DELETE", "/queues/a%2Fb/messages"),
        ]
        assert len(peer.sent(Begin)) == 2
        attaches = peer.sent(Attach)
        assert len(attaches) == 2
        assert len({attach.name for attach in attaches}) == 1


@virtual
async def test_a_broker_without_management_says_so() -> None:
    peer = Peer()
    peer.refusal = Error("amqp:not-found", "no such node")
    async with session_of(peer) as session:
        for _ in range(2):
            with pytest.raises(NotPossible, match=r"/management.*no such node"):
                await session.declare_queue("a")
        with pytest.raises(LinkRefused):
            await session.receiver("a")


@virtual
async def test_a_session_ended_in_answer_to_a_request_refuses_that_one_alone() -> None:
    """As RabbitMQ does where a permission is missing."""
    peer = ManagedPeer()
    denied = Error("amqp:unauthorized-access", "configure access refused")
    peer.reply = lambda path: denied if path == "/queues/secret" else (200, {"message_count": 3})
    async with session_of(peer) as session:
        calls = [
            session.declare_queue("secret"),
            session.queue_state("a"),
            session.queue_state("b"),
        ]
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, RequestRefused)
        assert (first.code, first.text) == (403, "configure access refused")
        assert (second, third) == (QueueState("a", 3), QueueState("b", 3))


@virtual
async def test_an_answer_that_is_none_is_an_error_of_its_request() -> None:
    peer = ManagedPeer()
    peer.reply = lambda path: (500, None) if path == "/queues/a" else (200, [1, 2])
    async with session_of(peer) as session:
        with pytest.raises(RequestRefused, match="declare queue 'a' answered with 500"):
            await session.declare_queue("a")
        assert await session.declare_queue("b") == QueueState("b")


# What is remembered


def test_topology_keeps_what_is_declared_and_forgets_what_goes() -> None:
    topology = Topology()
    queue, exchange = DeclareQueue("q"), DeclareExchange("e")
    for request in (
        queue,
        exchange,
        Bind("e", "q", key="1"),
        Bind("e", "q", key="2"),
        Bind("e", "q", key="2", arguments={"a": 1}),
        Bind("e", "q", to_exchange=True),
        Bind("other", "q"),
        queue,
    ):
        topology.record(request)
    assert len(list(topology)) == 7
    topology.record(Unbind("e", "q", key="1"))
    topology.record(Unbind("e", "q", key="2"))
    assert [str(one) for one in topology] == [
        "declare queue 'q'",
        "declare exchange 'e'",
        "bind 'q' to 'e'",
        "bind 'q' to 'e'",
        "bind 'q' to 'other'",
    ]
    topology.record(DeleteQueue("q"))
    assert list(topology) == [exchange, Bind("e", "q", to_exchange=True)]
    topology.record(DeleteExchange("e"))
    assert not list(topology)
    topology.record(queue)
    topology.record(queue, restore=False)
    assert not list(topology)
