"""Arguments of every public call are checked where they come in: a wrong type or value is refused
by the call that was given it, which shows it and says what was expected, and nothing happens."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Any

import pytest

import tallymark.client
from tallymark.client import (
    ACCEPTED,
    Accepted,
    Backoff,
    Connection,
    Message,
    Modified,
    ReceivedMessage,
    Receiver,
    Rejected,
    Released,
    Sender,
    Session,
    Transaction,
    connect,
    filters,
)
from tallymark.client.arguments import ReceiverOptions, SenderOptions, check_timeout
from tallymark.client.outcomes import named_outcome
from tests.support.amqp10_client import connected
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual

A_MAPPING = {1: "x"}
LONE = "\ud800"
"""Half of a surrogate pair: text that has no UTF-8."""


def keywords(**wrong: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in wrong.items() for value in values]


CONNECT = keywords(
    url=(5, [], [5], None, "q", b"amqp://h"),
    sasl=("MD5", 1),
    ssl=("yes", True),
    timeout=("5", None, 0, -1, float("nan"), True),
    reconnect=("always", 1, 0),
    container_id=(5, b"x", LONE),
    hostname=(5,),
    properties=("x", [("a", 1)], A_MAPPING),
    idle_timeout_ms=("5", -1, 1.5, True, 1 << 32),
    max_frame_size=("5", 511, 1 << 32, None),
    session_window=("5", 0, 1 << 31),
    max_message_size=("5", -1, 1 << 63),
    on_event=("print", 5),
    trace=("print", 5),
    opener=("open", 5),
)
RECEIVER = keywords(
    address=(5, b"q", LONE),
    credit=("5", 0, -1, 1.5, True, 1 << 31),
    credit_mode=("Auto", None),
    credit_on=("arrival", None),
    rcv_mode=(1, "third"),
    snd_mode=(1, "none"),
    browse=("yes", 1, None),
    dynamic=("yes", 1),
    durable=("yes", 1),
    exclusive=("yes", 1),
    filter=("x", ["x"], A_MAPPING),
    capabilities=("queue", [1], 5, iter(("queue",))),
    properties=("x", 5, A_MAPPING),
    max_unsettled_age=("locks", 0, -1, 1.5, True),
    release_overdue=("no", None),
    stall_warning_ms=("5", -1, 1.5, None),
    name=(5, b"n"),
)
SENDER = keywords(
    address=(5, b"q"),
    settle_mode=(1, "no"),
    rcv_mode=(1, "third"),
    dynamic=("yes", 1),
    durable=("yes", 1),
    capabilities=("queue", [1], 5),
    properties=("x", 5, A_MAPPING),
    name=(5, b"n"),
)
DECLARE_QUEUE = keywords(
    name=(5, "", "x" * 256, b"q", LONE),
    type=(5, b"x"),
    durable=("yes", 1, None),
    exclusive=("yes", 1),
    auto_delete=("yes", 1),
    arguments=("x", ["x"], A_MAPPING),
    restore=("yes", 1, None),
)
DECLARE_EXCHANGE = keywords(
    name=(5, "", "x" * 256, None),
    type=(5, None, ""),
    durable=("yes", 1),
    auto_delete=("yes", 1),
    internal=("yes", 1),
    arguments=("x", A_MAPPING),
    restore=("yes", 1),
)
BINDING = keywords(
    queue=(5, "", None),
    exchange=(5, "", None),
    key=(5, None, "x" * 256, LONE),
    arguments=("x", A_MAPPING),
)
EXCHANGE_BINDING = keywords(
    destination=(5, "", None), source=(5, "", None), key=(5, None), arguments=("x", A_MAPPING)
)
RUN = keywords(
    handler=(None, 5, "handler"),
    concurrency=("5", 0, 1.5, True, None),
    on_success=("yes", True),
    on_error=("no", None, True),
    middleware=(5, [5], "x", None),
)
SEND = keywords(
    message=(object(), {"a": object()}),
    settled=("yes", 1),
    timeout=("5", float("nan"), True),
    transaction=(True, "tx"),
)
SETTLE_MANY = keywords(
    messages=(5, None, ["x"], "ab"),
    outcome=(None, "accepted", True, Accepted, 5),
    transaction=(True, "tx"),
)
MODIFY = keywords(
    failed=("yes", 1, None),
    undeliverable_here=("no", 1),
    annotations=("x", ["x"], A_MAPPING, {"x-opt-a": object()}, {"x-opt-a": LONE}),
    transaction=(True, "tx"),
)
MESSAGE = keywords(
    kind=("text", 1),
    application_properties=("x", 5, A_MAPPING),
    annotations=("x", 5),
    delivery_annotations=("x", 5),
    footer=("x", 5),
    expires_at=("tomorrow", 5),
    creation_time=("now", 5),
)
BACKOFF = keywords(
    initial_ms=("5", -1, 1.5, True),
    factor=("2", 0.5, float("nan")),
    max_ms=("5", 0, 1.5),
    jitter=("0", 2, -1),
    attempts=("5", 0, 1.5, True),
)

Call = Callable[..., Any]

INTERNAL: set[str] = {
    "answered",  # of a message: called by its receiver
    "end_staged",
    "locked_until_ms",
    "ask",  # of a connection: called by its sessions
    "line_closed",
    "may_send",
    "start",
    "present",
}

TABLE: dict[str, tuple[list[tuple[str, Any]], dict[str, Any]]] = {
    "Session.receiver": (RECEIVER, {"address": "q"}),
    "Session.sender": (SENDER, {"address": "q"}),
    "Session.on_error": (keywords(callback=(None, 5)), {}),
    "Session.transaction": (keywords(explicit=("yes", 1, None)), {}),
    "Session.declare_queue": (DECLARE_QUEUE, {}),
    "Session.declare_exchange": (DECLARE_EXCHANGE, {"name": "e"}),
    "Session.bind_queue": (
        [*BINDING, *keywords(restore=("yes", 1))],
        {"queue": "q", "exchange": "e"},
    ),
    "Session.unbind_queue": (BINDING, {"queue": "q", "exchange": "e"}),
    "Session.bind_exchange": (
        [*EXCHANGE_BINDING, *keywords(restore=("yes", 1))],
        {"destination": "d", "source": "e"},
    ),
    "Session.unbind_exchange": (EXCHANGE_BINDING, {"destination": "d", "source": "e"}),
    "Session.queue_state": (keywords(name=(5, "", None)), {}),
    "Session.purge_queue": (keywords(name=(5, "", None)), {}),
    "Session.delete_queue": (
        keywords(name=(5, "", None), if_unused=("yes", 1), if_empty=("yes", 1)),
        {"name": "q"},
    ),
    "Session.delete_exchange": (
        keywords(name=(5, "", None), if_unused=("yes", 1)),
        {"name": "e"},
    ),
    "Receiver.receive": (keywords(timeout=("5", float("nan"), True)), {}),
    "Receiver.receive_batch": (
        keywords(n=("5", 0, 1.5, True, None), timeout=("5", float("nan"), True)),
        {"n": 1, "timeout": 1},
    ),
    "Receiver.run": (RUN, {"handler": print}),
    "Receiver.settle_many": (SETTLE_MANY, {"messages": [], "outcome": ACCEPTED}),
    "Receiver.on_delivery_state_changed": (keywords(callback=(5, "print")), {}),
    "Receiver.issue_credit": (keywords(n=("5", 0, 1.5, True, None)), {}),
    "Receiver.unsettled_messages": (keywords(most=("5", -1, 1.5, None)), {}),
    "Sender.send": (SEND, {"message": "x"}),
    "Sender.send_batch": (
        [
            *keywords(messages=(5, None, "text", b"bytes", Message(), [object()])),
            *[row for row in SEND if row[0] != "message"],
        ],
        {"messages": ["x"]},
    ),
    "ReceivedMessage.accept": (keywords(transaction=(True, "tx")), {}),
    "ReceivedMessage.reject": (
        keywords(reason=(5, b"x", ["x"], True), transaction=(True, "tx")),
        {},
    ),
    "ReceivedMessage.release": (keywords(transaction=(True, "tx")), {}),
    "ReceivedMessage.modify": (MODIFY, {}),
    "ReceivedMessage.settle_nowait": (
        [row for row in SETTLE_MANY if row[0] != "messages"],
        {"outcome": ACCEPTED},
    ),
    "ReceivedMessage.replace": (MESSAGE, {}),
    "Connection.ready": (keywords(timeout=("5", float("nan"), True)), {}),
    "Message": (MESSAGE, {}),
    "Message.parse": (keywords(data=("text", 5, None)), {}),
    "Backoff": (BACKOFF, {}),
    "connect": (CONNECT, {}),
    "filters.sql": (keywords(expression=(5, None, b"x", LONE)), {}),
    "filters.selector": (keywords(expression=(5, None, b"x")), {}),
    "filters.application_properties": (keywords(values=(5, "x", None)), {}),
    "filters.stream_offset": (keywords(start=(-1, None, 1.5, True, b"first")), {}),
}
"""By call: arguments with wrong values, and the right ones of those that have no default."""

WITHOUT_ARGUMENTS = {
    "close",
    "commit",
    "drain",
    "encode",
    "ignore",
    "recover",
    "resume",
    "rollback",
    "session",
    "settlement",
    "stop",
}


def wrong_with(call: Call, arguments: dict[str, Any]) -> str | None:
    """Return what is wrong with the way in which the call takes these, if anything is. A coroutine
    is begun, and goes no further than its first wait."""
    try:
        result = call(**arguments)
        if inspect.iscoroutine(result):
            try:
                result.send(None)
            finally:
                result.close()
    except (TypeError, ValueError) as error:
        says_why = "expected" in str(error) or "no AMQP type for" in str(error)
        return None if says_why else f"does not say what was expected: {error!r}"
    except StopIteration:
        return "was accepted"
    except Exception as error:
        return f"raised {error!r}"
    return "was accepted"


def accepted_wrongly(owner: object, prefix: str) -> list[str]:
    """Try every row of the table for the calls of an object; return those that are not refused."""
    found = []
    for name, (rows, good) in TABLE.items():
        if name.startswith(prefix):
            call = getattr(owner, name[len(prefix) :])
            for argument, value in rows:
                wrong = wrong_with(call, good | {argument: value})
                if wrong is not None:
                    found.append(f"{name}({argument}={value!r}) {wrong}")
    return found


def test_every_public_call_is_in_the_table() -> None:
    for kind in (Connection, Message, ReceivedMessage, Receiver, Sender, Session, Transaction):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in WITHOUT_ARGUMENTS or name in INTERNAL:
                continue
            names = (name, f"{kind.__name__}.{name}", f"ReceivedMessage.{name}", f"Message.{name}")
            assert any(name in TABLE for name in names), names
    for name in tallymark.client.__all__:
        if inspect.isfunction(getattr(tallymark.client, name)):
            assert name in TABLE
    for name, value in inspect.getmembers(filters, inspect.isfunction):
        if value.__module__ == filters.__name__ and not name.startswith("_"):
            assert f"filters.{name}" in TABLE or name == "properties"  # which takes any value


def test_connect_message_backoff_and_filters() -> None:
    found = []
    calls: dict[str, Call] = {
        "connect": connect,
        "Message": Message,
        "Backoff": Backoff,
        "Message.parse": Message.parse,
        **{name: getattr(filters, name[8:]) for name in TABLE if name.startswith("filters.")},
    }
    for name, call in calls.items():
        for argument, value in TABLE[name][0]:
            wrong = wrong_with(call, TABLE[name][1] | {argument: value})
            if wrong is not None:
                found.append(f"{name}({argument}={value!r}) {wrong}")
    assert found == []


class Word(StrEnum):
    PLAIN = "PLAIN"
    AUTO = "auto"
    FIRST = "first"
    SETTLED = "settled"
    DATA = "data"
    REJECT = "reject"


class Limit(IntEnum):
    MINUTE = 60_000


def test_members_of_enums_are_the_text_or_number_that_they_are() -> None:
    connect("amqp://h", sasl=Word.PLAIN)  # type: ignore[arg-type]
    assert Message(b"x", kind=Word.DATA).encode() == Message(b"x", kind="data").encode()  # type: ignore[arg-type]
    names: dict[str, Any] = {"address": "q", "name": "n"}
    ReceiverOptions(
        credit_mode=Word.AUTO,  # type: ignore[arg-type]
        rcv_mode=Word.FIRST,  # type: ignore[arg-type]
        max_unsettled_age=Limit.MINUTE,
        **names,
    )
    SenderOptions(settle_mode=Word.SETTLED, **names)  # type: ignore[arg-type]
    assert isinstance(named_outcome(Word.REJECT), Rejected)  # type: ignore[arg-type]


def test_seconds_may_be_of_any_real_type() -> None:
    """As numpy's, which come out of tables."""
    for seconds in (2, 2.5, Fraction(5, 2), Limit.MINUTE):
        check_timeout("timeout", seconds)  # type: ignore[arg-type]
        connect("amqp://h", timeout=seconds)  # type: ignore[arg-type]


def test_the_frame_size_depends_on_the_protocol() -> None:
    connect("amqp://h", max_frame_size=512)
    connect("amqp091://h", max_frame_size=4096)
    connect("amqp091://h", max_frame_size=0)  # no limit
    for url, size in (("amqp://h", 0), ("amqp091://h", 4095), (["amqp091://h", "amqp://h"], 0)):
        with pytest.raises(ValueError, match=f"max_frame_size={size}, expected"):
            connect(url, max_frame_size=size)


@virtual
async def test_calls_of_a_connection_a_session_a_sender_and_a_receiver() -> None:
    peer = Peer()
    async with connected(peer) as connection, connection.session() as session:
        async with session.sender("q") as sender, session.receiver("q") as receiver:
            await quiet()
            sent = len(peer.frames)
            found = accepted_wrongly(connection, "Connection.")
            found += accepted_wrongly(session, "Session.")
            found += accepted_wrongly(sender, "Sender.")
            found += accepted_wrongly(receiver, "Receiver.")
            assert found == []
            await quiet()
            assert len(peer.frames) == sent  # nothing has happened
            assert sender.waiting == 0


@virtual
async def test_calls_of_a_received_message() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with connected(peer) as connection, connection.session() as session:
        async with session.receiver("q") as receiver:
            message = await receiver.receive()
            assert accepted_wrongly(message, "ReceivedMessage.") == []
            assert not message.settled
            await message.accept()


@virtual
async def test_outcomes_by_name() -> None:
    """As `run(on_success=...)` and `on_error` name them."""
    peer = Peer()
    peer.put("q", *[b"%d" % n for n in range(5)])
    async with connected(peer) as connection, connection.session() as session:
        async with session.receiver("q", credit=5) as receiver:
            for name, kind in (
                ("accept", Accepted),
                ("release", Released),
                ("reject", Rejected),
                ("modify", Modified),
            ):
                message = await receiver.receive()
                await receiver.settle_many([message], name)  # type: ignore[arg-type]
                assert type(message.outcome) is kind
                if isinstance(message.outcome, Modified):
                    assert message.outcome.delivery_failed
            message = await receiver.receive()
            message.settle_nowait("accept")
            assert message.outcome is ACCEPTED
