"""Any bytes give events or one ConnectionFailed, at either end: no other exception, no hang, no
hidden memory, and nothing is said that the standard does not allow in its place.

Cases are real traffic with random damage, each read whole and in pieces, with equal results. The
default is quick; TALLYMARK_FUZZ_CASES=1000000 runs as many, TALLYMARK_FUZZ_SEED another selection.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.events import (
    ConnectionFailed,
    CreditReceived,
    DispositionReceived,
    Ended,
    Event,
    LinkAttached,
    LinkDetached,
    LinkRequested,
    OpenReceived,
    SaslReceived,
    SessionBegun,
    SessionUnblocked,
    TransfersReceived,
)
from tallymark.wire.amqp10.frames import (
    AMQP_HEADER,
    HEARTBEAT,
    SASL_HEADER,
    frame,
    frame_head,
    sasl_frame,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outbox import Run
from tallymark.wire.amqp10.outcomes import Accepted, Error, Modified, Released
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    decode_performative,
)
from tallymark.wire.amqp10.performatives import End as EndFrame
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sasl import (
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_sasl,
)
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.states import LinkState, SessionState, State
from tests.support.amqp10_pair import BODY, End
from tests.support.long import longer, sized

CASES = int(os.environ.get("TALLYMARK_FUZZ_CASES", sized("800", "4000", "1000000")))
SEED = os.environ.get("TALLYMARK_FUZZ_SEED", "tallymark")
WIDE = Limits(
    max_frame_size=2000,
    channel_max=3,
    handle_max=3,
    incoming_window=100_000,
    max_message_size=3000,
    max_unfinished_bytes=5000,
)
NARROW = Limits(
    max_frame_size=2000,
    channel_max=3,
    handle_max=3,
    incoming_window=3,
    max_message_size=3000,
    max_unfinished_bytes=5000,
)


class Owner(End):
    """Grants everything, gives credit, sends when it has some, settles each message by itself."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.sessions: list[Session] = []
        self.links: list[Link] = []

    def answer(self, event: Event) -> None:
        super().answer(event)
        connection = self.connection
        if isinstance(event, SaslReceived):
            self._sasl(event)
        elif isinstance(event, OpenReceived) and not connection.is_server:
            self.sessions.append(connection.begin())
        elif isinstance(event, SessionBegun):
            session = event.session
            attach = Attach("c", source=Source(address="q"), target=Target())
            self.links.append(session.attach_receiver(attach, None, 1))
            attach = Attach("p", source=Source(), target=Target(address="q"))
            self.links.append(session.attach_sender(attach))
        elif isinstance(event, (LinkRequested, LinkAttached)):
            self.links.append(event.link)
            if isinstance(event.link, ReceiverLink):
                event.link.flow(6)
        elif isinstance(event, CreditReceived):
            self._send(event.link, event.drain)
        elif isinstance(event, TransfersReceived) and not event.settled:
            for i in range(len(event)):
                delivery_id = (event.first + i) & 0xFFFFFFFF
                event.link.settle(delivery_id, delivery_id, Accepted())

    def _sasl(self, event: SaslReceived) -> None:
        if isinstance(event.frame, SaslMechanisms):
            self.connection.sasl_init("PLAIN", b"\0u\0p")
        elif isinstance(event.frame, SaslInit):
            self.connection.sasl_challenge(b"?")
        elif isinstance(event.frame, SaslChallenge):
            self.connection.sasl_response(b"!")
        elif isinstance(event.frame, SaslResponse):
            self.connection.sasl_outcome(0)
        elif isinstance(event.frame, SaslOutcome) and event.frame.code == 0:
            self.connection.open(Open("fuzz"))

    def _send(self, link: SenderLink, drain: bool) -> None:
        for size in (0, 30, 700)[: link.credit]:
            link.send(BODY + bytes(size))
        if drain:
            link.drained()


def start(is_server: bool, limits: Limits) -> Owner:
    connection = Connection(limits, is_server=is_server, mechanisms=("PLAIN",))
    owner = Owner(connection)
    if not is_server:
        connection.start(sasl=False)
        connection.open(Open("fuzz"))
    owner.take(0)
    return owner


# Traffic


def said(*performatives: Performative, channel: int = 0, payload: bytes = b"") -> bytes:
    return b"".join([frame(channel, one.encode(), payload) for one in performatives])


def attach(name: str, handle: int, role: bool) -> Attach:
    return Attach(
        name,
        handle,
        role,
        source=Source(address="q"),
        target=Target(address="q"),
        initial_delivery_count=0 if role == SENDER else None,
    )


BEGIN = said(Begin(None, 0, 50, 50))
TO_SERVER = AMQP_HEADER + said(Open("peer", max_frame_size=600)) + BEGIN
WITH_SASL = (
    SASL_HEADER
    + sasl_frame(SaslInit("PLAIN", b"\0u\0p").encode())
    + sasl_frame(SaslResponse(b"!").encode())
    + TO_SERVER
)
TO_SERVER += said(attach("p", 0, SENDER), attach("c", 1, RECEIVER))
WITH_SASL += said(attach("p", 0, SENDER), attach("c", 1, RECEIVER))
TO_CLIENT = (
    AMQP_HEADER
    + said(Open("peer", max_frame_size=600))
    + said(Begin(0, 0, 50, 50))
    + said(attach("c", 0, SENDER), attach("p", 1, RECEIVER))
)


def flow(credit: int, **fields: object) -> bytes:
    values: dict[str, object] = {"handle": 1, "delivery_count": 0, "link_credit": credit}
    one = Flow(0, 50, 0, 50)
    for name, value in {**values, **fields}.items():
        setattr(one, name, value)
    return said(one)


def deliveries(first: int, count: int, **fields: object) -> bytes:
    found = b""
    for i in range(first, first + count):
        one = Transfer(0, i, b"%d" % i, 0, False)
        for name, value in fields.items():
            setattr(one, name, value)
        found += said(one, payload=BODY * (1 + i % 3))
    return found


def in_parts(first: int, count: int, size: int, last: Transfer) -> bytes:
    """A delivery in several frames."""
    found = said(Transfer(0, first, b"tag", 0, more=True), payload=bytes(size))
    for _ in range(count - 2):
        found += said(Transfer(0, more=True), payload=bytes(size))
    return found + said(last, payload=bytes(size))


FRAMES = [
    HEARTBEAT,
    flow(2),
    flow(5, next_incoming_id=3),
    flow(3, drain=True),
    flow(100, incoming_window=2),
    flow(1, echo=True),
    flow(0, delivery_count=1),
    flow(0, handle=0, delivery_count=6, available=3, drain=True),
    flow(0, handle=None, delivery_count=None, link_credit=None, incoming_window=1000),
    deliveries(0, 1),
    deliveries(1, 3),
    deliveries(4, 2, settled=True),
    deliveries(6, 2, state=Accepted()),
    deliveries(20, 1, message_format=77),
    in_parts(8, 2, 900, Transfer(0)),
    in_parts(9, 3, 300, Transfer(0, settled=True)),
    in_parts(10, 3, 300, Transfer(0, aborted=True)),
    said(Transfer(0, 11, b"open", 0, more=True), payload=bytes(1200)),
    said(Transfer(0, more=False), payload=bytes(1200)),
    said(Disposition(RECEIVER, 0, None, True, Accepted())),
    said(Disposition(RECEIVER, 1, None, True, Accepted())),
    said(Disposition(RECEIVER, 0, 5, False, Modified(True))),
    said(Disposition(SENDER, 0, 3, True, Accepted())),
    said(Disposition(SENDER, 2, 9, False, Released())),
    said(attach("s", 2, SENDER), attach("r", 3, RECEIVER)),
    said(Begin(None, 4294967290, 5, 5), attach("x", 0, RECEIVER), channel=1),
]
ODD = [
    said(Detach(0, True)),
    said(Detach(1, True, Error("amqp:internal-error"))),
    said(Detach(2)),
    said(EndFrame()),
    said(EndFrame(Error("amqp:internal-error")), channel=1),
    said(Close()),
    said(Open("again")),
    said(Begin(0, 0, 1, 1)),
    said(attach("p", 0, SENDER)),
    said(Attach("c", 1, SENDER)),
    flow(1, next_incoming_id=None),
    flow(1, handle=77),
    deliveries(0, 1, rcv_settle_mode=1),
    deliveries(0, 9),
    deliveries(0, 1, resume=True),
    in_parts(12, 5, 900, Transfer(0)),
    said(Disposition(RECEIVER, 3, 1, True)),
    sasl_frame(SaslInit("PLAIN").encode()),
]
"""Mostly out of place, and then something is over: taken now and then."""


def traffic(rng: random.Random, opening: bytes) -> bytes:
    """A peer's bytes: the opening, then a few frames, most of them in order."""
    parts = [opening] if rng.random() < 0.9 else [opening[: rng.randrange(len(opening))]]
    for _ in range(rng.randrange(1, 12)):
        chosen = rng.choice(ODD if rng.random() < 0.08 else FRAMES)
        parts.append(rewritten(rng, chosen) if rng.random() < 0.15 else chosen)
        if rng.random() < 0.02:
            parts.append(chosen[: rng.randrange(len(chosen))])
    return b"".join(parts)


def frames_in(raw: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, channel, where the body begins, the frame."""
    pos = 0
    while pos < len(raw):
        size, offset, kind, channel = frame_head(raw, pos)
        yield kind, channel, offset, raw[pos : pos + size]
        pos += size
    assert pos == len(raw)


def rewritten(rng: random.Random, raw: bytes) -> bytes:
    """Frames still, with another body, type or channel in one of them."""
    frames = [one[3] for one in frames_in(raw)]
    at = rng.randrange(len(frames))
    chosen = bytearray(frames[at])
    what = rng.randrange(6)
    if what == 0:
        chosen[5] = rng.choice((0, 1, 2))
    elif what == 1:
        chosen[7] = rng.choice((0, 1, 2, 3, 9))
    elif what == 2:
        chosen.clear()
    elif what == 3 and len(chosen) > 20:
        chosen[rng.randrange(8, 20)] ^= 1 << rng.randrange(8)  # the fields that matter
    else:
        chosen[8:] = damaged(rng, bytes(chosen[8:]), 0)
    if chosen:
        chosen[:4] = len(chosen).to_bytes(4, "big")
    frames[at] = bytes(chosen)
    return b"".join(frames)


def damaged(rng: random.Random, raw: bytes, first: int) -> bytes:
    """The same with one to four bytes or pieces from `first` on changed, lost, doubled or new."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        if len(data) <= first + 1:
            break
        at = rng.randrange(first, len(data))
        size = rng.choice((1, 1, 2, 4, 8, 30))
        what = rng.randrange(6)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.choice((0, 1, 2, 0x40, 0x43, 0x45, 0x52, 0x53, 0x70, 0xA0, 0xC0, 0xFF))
        elif what == 2:
            del data[at : at + size]
        elif what == 3:
            data[at:at] = rng.randbytes(size)
        elif what == 4:
            data[at:at] = data[at : at + size]
        else:
            data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x08"))
    return bytes(data)


def damaged_traffic(rng: random.Random, opening: bytes) -> bytes:
    """Half of it framed as it should be; the opening is mostly left alone."""
    raw = traffic(rng, opening)
    if rng.random() < 0.5:
        return raw
    return damaged(rng, raw, len(opening) if rng.random() < 0.9 and len(raw) > len(opening) else 0)


def pieces(rng: random.Random, raw: bytes) -> list[bytes]:
    if rng.random() < 0.1:
        return [raw[i : i + 1] for i in range(len(raw))]
    cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(1, 6)))
    return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


# Promises


def flatten(events: list[Event]) -> list[object]:
    """Events as values, stretches taken apart."""
    found: list[object] = []
    for event in events:
        if isinstance(event, TransfersReceived):
            for i, tag in enumerate(event.tags):
                data = event.data[event.cuts[i] : event.cuts[i + 1]]
                delivery_id = (event.first + i) & 0xFFFFFFFF
                rest = (event.settled, event.state, event.message_format, event.is_second)
                found.append(("transfer", event.link.name, delivery_id, tag, data, rest))
        elif isinstance(event, DispositionReceived):
            for i in range((event.last - event.first) % 2**32 + 1):
                number = (event.first + i) & 0xFFFFFFFF
                found.append(("disposition", number, event.by_sender, event.settled, event.state))
        else:
            names = [name for name in dir(event) if not name.startswith("_")]
            found.append((type(event).__name__, *[_plain(event, name) for name in names]))
    return found


def _plain(event: Event, name: str) -> object:
    value = getattr(event, name)
    if isinstance(value, Session):
        return value.channel
    return (value.name, value.is_sender) if isinstance(value, Link) else value


def check(owner: Owner, received: int, limits: Limits) -> None:
    """What a connection says, sends and keeps, whatever it was told."""
    events = owner.events
    failed = [i for i, event in enumerate(events) if isinstance(event, ConnectionFailed)]
    assert len(failed) <= 1
    for i in failed:
        assert all(isinstance(event, Ended) for event in events[i + 1 :])
    ends = [i for i, event in enumerate(events) if isinstance(event, Ended)]
    assert ends in ([], [len(events) - 1])
    connection = owner.connection
    assert connection.line.inbox.waiting + len(connection.line.inbox.data) <= received
    links = [link for session in connection.sessions for link in session.links]
    unfinished = [link.unfinished for link in links if isinstance(link, ReceiverLink)]
    assert connection.line.unfinished == sum(unfinished)
    assert connection.line.unfinished <= limits.max_unfinished_bytes or failed
    if connection.state is not State.OPENED:
        assert connection.sessions == []
    for session in connection.sessions:
        assert session.state is not SessionState.UNMAPPED
        _check_session(session)
    for link in owner.links:
        if link not in links:
            assert link.state is LinkState.DETACHED
    _check_written(bytes(owner.written), connection.max_frame_size)


def _check_session(session: Session) -> None:
    handles = [link.handle for link in session.links if link.handle >= 0]
    assert len(handles) == len(set(handles))
    for link in session.links:
        assert link.state is not LinkState.DETACHED
        if isinstance(link, ReceiverLink):
            assert 0 <= link.credit <= link.allowance
            assert link.unfinished <= link.max_message_size
        elif isinstance(link, SenderLink):
            runs = [
                one for one in session.outbox.waiting if isinstance(one, Run) and one.link is link
            ]
            assert link._queued == sum(run.hi - run.lo for run in runs)
            assert link.credit >= 0
    for entry in session.in_flight._entries:
        assert entry.link in session.links
    assert session._incoming_left >= 0


def _check_written(raw: bytes, most: int) -> None:
    """Every frame is whole, small enough, and where it may be."""
    while raw.startswith(b"AMQP"):
        raw = raw[8:]
        while raw[5:6] == b"\x01" and not raw.startswith(b"AMQP"):
            size, offset, _, _ = frame_head(raw, 0)
            decode_sasl(raw, offset, size)
            raw = raw[size:]
    begun: dict[int, set[int]] = {}
    is_open = False
    for kind, channel, offset, whole in frames_in(raw):
        assert kind == 0
        if len(whole) == offset:
            assert is_open
            continue
        one, at = decode_performative(whole, offset, len(whole))
        assert at == len(whole) or isinstance(one, Transfer)
        if isinstance(one, Open):
            assert not is_open
            is_open = True
            continue
        assert is_open
        assert len(whole) <= most
        if isinstance(one, Close):
            is_open = False
        elif isinstance(one, Begin):
            assert channel not in begun
            begun[channel] = set()
        elif isinstance(one, EndFrame):
            del begun[channel]
        elif isinstance(one, Attach):
            assert one.handle not in begun[channel]
            begun[channel].add(one.handle)
        elif isinstance(one, Detach):
            begun[channel].remove(one.handle)
        elif isinstance(one, Transfer) or (isinstance(one, Flow) and one.handle is not None):
            assert one.handle in begun[channel]
        else:
            assert channel in begun


def feed(owner: Owner, chunks: list[bytes], limits: Limits) -> None:
    for chunk in chunks:
        owner.give(chunk, 0)
        owner.take(0)
    check(owner, sum(map(len, chunks)), limits)


def run_case(raw: bytes, chunks: list[bytes], is_server: bool) -> None:
    whole = start(is_server, WIDE)
    feed(whole, [raw], WIDE)
    parts = start(is_server, WIDE)
    feed(parts, chunks, WIDE)
    assert flatten(parts.events) == flatten(whole.events)
    assert bytes(parts.written) == bytes(whole.written)
    narrow = start(is_server, NARROW)  # says more, so only the promises
    feed(narrow, chunks, NARROW)
    for owner in (whole, parts, narrow):
        owner.connection.receive_eof()
        owner.read()
        owner.take(0)
        check(owner, len(raw), WIDE)
        if owner.connection.state in (State.CLOSE_SENT, State.DISCARDING):
            continue
        if not isinstance(owner.events[-1], Ended):
            assert owner.connection.wants_data
            raise AssertionError(f"still there at the end of file: {owner.events[-1]}")


@longer
@pytest.mark.parametrize("opening", ["server", "server with SASL", "client"])
def test_damaged_traffic(opening: str) -> None:
    first = {"server": TO_SERVER, "server with SASL": WITH_SASL, "client": TO_CLIENT}[opening]
    for number in range(CASES if opening != "server with SASL" else CASES // 5):
        rng = random.Random(f"{SEED}:{opening}:{number}")
        raw = damaged_traffic(rng, first)
        chunks = pieces(rng, raw)
        try:
            run_case(raw, chunks, opening != "client")
        except BaseException as error:
            error.add_note(f"case {SEED}:{opening}:{number}, bytes {raw!r}")
            raise


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", TO_SERVER, TO_CLIENT, WITH_SASL]),
    st.lists(st.integers(0, 200), max_size=4),
)
def test_any_bytes(noise: bytes, opening: bytes, cuts: list[int]) -> None:
    raw = opening + noise
    ends = sorted(min(cut, len(raw)) for cut in cuts)
    chunks = [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]
    run_case(raw, chunks, opening is not TO_CLIENT)


def test_undamaged_traffic_gets_somewhere() -> None:
    """That the cases above are not all over before anything happens."""
    kinds: set[type[Event]] = set()
    opened = 0
    for number in range(200):
        rng = random.Random(f"{SEED}:plain:{number}")
        owner = start(True, WIDE)
        feed(owner, [traffic(rng, TO_SERVER)], WIDE)
        kinds |= {type(event) for event in owner.events}
        opened += owner.connection.state is State.OPENED
    assert opened > 50
    assert {TransfersReceived, DispositionReceived, CreditReceived, LinkDetached} <= kinds
    assert SessionUnblocked in kinds
