"""Registration with nsqlookupd, over real sockets and with a pure broker behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.broker import Broker
from tallymark.server.nsq.lookupd import Announced, Lookupd, Pace, split_address
from tests.support.nsqlookupd import FakeLookupd
from tests.support.patience import PATIENCE_S

ABOUT = Announced(
    version="1.3.0", tcp_port=4150, http_port=4151, hostname="box", broadcast_address="box.example"
)
HASTY = Pace(ping_s=0.02, answer_s=5.0, first_retry_s=0.01, last_retry_s=0.05)
PATIENT = Pace(ping_s=60.0, answer_s=5.0, first_retry_s=0.01, last_retry_s=0.05)


def no_bytes(payload: object) -> bytes:
    raise AssertionError("nothing is in the journal only")


def made_topics() -> Topics:
    broker = Broker(no_bytes)
    broker.registry.add_vhost("/")
    return Topics(broker, "/", 10)


def run(test: Callable[[Topics, FakeLookupd], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with FakeLookupd() as lookupd:
            await test(made_topics(), lookupd)

    asyncio.run(whole())


def started(topics: Topics, *addresses: str, pace: Pace = PATIENT) -> Lookupd:
    lookupd = Lookupd(topics, ABOUT, asyncio.get_running_loop(), pace)
    lookupd.set_addresses(addresses)
    return lookupd


def test_what_there_is_and_what_comes_and_goes_is_registered() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        topics.channel("old", "c1")
        topics.channel("old", "c2")
        topics.topic("bare")
        lookupd = started(topics, fake.address)
        await fake.until(lambda: fake.topics() == {"old", "bare"})
        await fake.until(lambda: fake.channels("old") == {"c1", "c2"})
        (producer,) = fake.producers
        assert producer.info == {
            "version": "1.3.0", "tcp_port": 4150, "http_port": 4151, "hostname": "box",
            "broadcast_address": "box.example",
        }  # fmt: skip
        assert set(producer.commands) == {
            "IDENTIFY", "REGISTER old c1", "REGISTER old c2", "REGISTER bare",
        }  # fmt: skip
        topics.topic("new")
        topics.channel("new", "c")
        await fake.until(lambda: fake.channels("new") == {"c"})
        topics.delete_channel("new", "c")
        await fake.until(lambda: fake.channels("new") == set())
        assert "new" in fake.topics()
        topics.delete_topic("old")
        await fake.until(lambda: fake.topics() == {"new", "bare"})
        assert fake.connections == 1
        lookupd.close()
        await fake.until(lambda: fake.producers == [])

    run(test)


def test_a_ping_is_sent_again_and_again() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        lookupd = started(topics, fake.address, pace=HASTY)
        await fake.until(lambda: bool(fake.producers) and fake.producers[0].pings >= 3)
        assert fake.connections == 1
        lookupd.close()

    run(test)


def test_who_was_away_is_told_everything_anew() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        topics.topic("a")
        lookupd = started(topics, fake.address)
        await fake.until(lambda: fake.topics() == {"a"})
        await fake.stop()
        topics.topic("b")
        topics.delete_topic("a")
        await fake.start()
        await fake.until(lambda: fake.topics() == {"b"})
        assert fake.connections >= 2
        fake.hang_up()
        await fake.until(lambda: fake.producers == [])
        await fake.until(lambda: fake.topics() == {"b"})
        lookupd.close()

    run(test)


def test_one_that_is_down_does_not_keep_others_from_being_told() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        other = FakeLookupd()
        await other.start()
        await other.stop()
        lookupd = started(topics, other.address, fake.address)
        topics.topic("t")
        await fake.until(lambda: fake.topics() == {"t"})
        await other.start()
        await other.until(lambda: other.topics() == {"t"})
        lookupd.close()
        await other.stop()

    run(test)


@pytest.mark.parametrize("host", ["lookup..example", "x" * 64 + ".example"])
def test_a_host_that_can_be_none_is_told_and_tried_again(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt ended with an error that nobody heard of."""

    async def test(topics: Topics, fake: FakeLookupd) -> None:
        loop = asyncio.get_running_loop()
        connects = loop.create_connection
        tried_again = asyncio.Event()
        attempts: list[str] = []

        async def counted(factory: object, host: str, port: int) -> object:
            attempts.append(host)
            if len(attempts) > 1:
                tried_again.set()
            return await connects(factory, host, port)  # type: ignore[arg-type, type-var]

        monkeypatch.setattr(loop, "create_connection", counted)
        lookupd = started(topics, f"{host}:4160", pace=HASTY)
        await asyncio.wait_for(tried_again.wait(), PATIENCE_S)
        assert attempts == [host, host]
        lookupd.close()

    run(test)


def test_silence_and_refusals_end_in_a_new_connection() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        fake.silent = True
        lookupd = started(
            topics, fake.address, pace=Pace(answer_s=0.05, first_retry_s=0.01, last_retry_s=0.01)
        )
        await fake.until(lambda: fake.connections >= 2)
        fake.silent = False
        fake.answers["REGISTER"] = b"E_BAD_TOPIC no"
        topics.topic("t")
        before = fake.connections
        await fake.until(lambda: fake.connections >= before + 2)
        fake.answers.clear()
        await fake.until(lambda: fake.topics() == {"t"})
        lookupd.close()

    run(test)


def test_nonsense_for_an_answer_ends_in_a_new_connection() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        fake.answers["IDENTIFY"] = b"{nonsense"
        lookupd = started(topics, fake.address)
        await fake.until(lambda: fake.connections >= 2)
        fake.answers.clear()
        topics.topic("t")
        await fake.until(lambda: fake.topics() == {"t"})
        lookupd.close()

    run(test)


def test_addresses_can_be_changed_while_running() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        topics.topic("t")
        async with FakeLookupd() as other:
            lookupd = started(topics, fake.address)
            await fake.until(lambda: fake.topics() == {"t"})
            with pytest.raises(ValueError, match="expected HOST:PORT"):
                lookupd.set_addresses([other.address, "nowhere"])
            assert lookupd.addresses == [fake.address]
            lookupd.set_addresses([other.address])
            assert lookupd.addresses == [other.address]
            await other.until(lambda: other.topics() == {"t"})
            await fake.until(lambda: fake.producers == [])
            lookupd.close()

    run(test)


def test_after_the_end_nothing_is_kept_for_it() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        lookupd = started(topics, fake.address)
        lookupd.close()
        topics.topic("t")
        assert topics.changed == []

    run(test)


def test_an_ephemeral_topic_is_registered_like_any_other() -> None:
    async def test(topics: Topics, fake: FakeLookupd) -> None:
        lookupd = started(topics, fake.address)
        topics.channel("t#ephemeral", "c#ephemeral")
        await fake.until(lambda: fake.channels("t#ephemeral") == {"c#ephemeral"})
        topics.delete_channel("t#ephemeral", "c#ephemeral")  # and the topic goes with it [NQ-10]
        await fake.until(lambda: fake.topics() == set())
        lookupd.close()

    run(test)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x", "::1:4160", "h:65536"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("host.example:4160") == ("host.example", 4160)
    assert split_address("[::1]:4160") == ("::1", 4160)
