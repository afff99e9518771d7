"""Dead letters and what else publishers and readers see of them, from frame to frame."""

from __future__ import annotations

import pytest

from tallymark.engine.queue import Queue
from tallymark.wire.amqp091.methods import (
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ExchangeDeclare,
    QueueBind,
    QueueDeclare,
)
from tallymark.wire.amqp091.properties import Properties
from tests.bridge.rig import Content, Heard, Peer, Rig


def declare(
    peer: Peer, name: str, dlx: str | None = None, key: str | None = None, **more: object
) -> None:
    """A durable queue; further arguments without `x-`, with underscores."""
    arguments = {"x-" + argument.replace("_", "-"): value for argument, value in more.items()}
    if dlx is not None:
        arguments["x-dead-letter-exchange"] = dlx
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    peer.ask(QueueDeclare(name, durable=True, arguments=arguments))


def queue(peer: Peer, name: str) -> Queue:
    return peer.rig.broker.vhosts["/"].queues[name]


def get(peer: Peer, name: str, no_ack: bool = True) -> Content | None:
    ((_, got),) = peer.ask(BasicGet(name, no_ack))
    if isinstance(got, BasicGetEmpty):
        return None
    assert isinstance(got, Content)
    return got


def refuse(peer: Peer, name: str) -> Content:
    """Take a message and reject it."""
    got = get(peer, name, no_ack=False)
    assert got is not None, name
    assert isinstance(got.method, BasicGetOk)
    assert peer.ask(BasicReject(got.method.delivery_tag, False)) == []
    return got


def deaths(content: Content | None) -> list[tuple[object, ...]]:
    """(queue, reason, count) of each."""
    assert content is not None
    found = headers(content).get("x-death")
    assert isinstance(found, list)
    return [(death["queue"], death["reason"], death["count"]) for death in found]


def headers(content: Content | None) -> dict[str, object]:
    assert content is not None
    return content.properties.headers or {}


def wait(peer: Peer, ms: int) -> None:
    peer.rig.now_ms += ms
    peer.rig.settle_down()


# -- what a reader sees


def test_dl_12_dl_14_a_dead_letter_on_the_wire() -> None:
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq")
    peer.rig.now_ms = 1_700_000_000_500
    peer.ask(peer.publish(b"body", "q", content_type="text/plain", headers={"CC": ["c"], "n": 1}))
    refuse(peer, "q")
    peer.send(BasicConsume("dlq", "ctag", no_ack=True))
    peer.rig.settle_down()
    sent = b"".join(peer.bridge.take_output())
    table = (
        b"\x02CCA\0\0\0\x06S\0\0\0\x01c"
        b"\x01nI\0\0\0\x01"
        b"\x07x-deathA\0\0\0\x6eF\0\0\0\x69"
        b"\x05countl\0\0\0\0\0\0\0\x01"
        b"\x06reasonS\0\0\0\x08rejected"
        b"\x05queueS\0\0\0\x01q"
        b"\x04timeT\0\0\0\0\x65\x53\xf1\x00"
        b"\x08exchangeS\0\0\0\0"
        b"\x0crouting-keysA\0\0\0\x0cS\0\0\0\x01qS\0\0\0\x01c"
        b"\x14x-first-death-reasonS\0\0\0\x08rejected"
        b"\x13x-first-death-queueS\0\0\0\x01q"
        b"\x16x-first-death-exchangeS\0\0\0\0"
        b"\x13x-last-death-reasonS\0\0\0\x08rejected"
        b"\x12x-last-death-queueS\0\0\0\x01q"
        b"\x15x-last-death-exchangeS\0\0\0\0"
    )
    section = b"\xa0\0\x0atext/plain" + len(table).to_bytes(4, "big") + table
    header = b"\0\x3c\0\0" + (4).to_bytes(8, "big") + section
    assert sent.endswith(
        b"\x02\0\x01" + len(header).to_bytes(4, "big") + header + b"\xce"
        b"\x03\0\x01\0\0\0\x04body\xce"
    )  # fmt: skip


def test_dl_10_dl_11_a_dead_letter_is_shown_under_its_new_exchange_and_key() -> None:
    peer = Rig().connect()
    peer.ask(ExchangeDeclare("dlx", "fanout", durable=True))
    declare(peer, "dlq")
    peer.ask(QueueBind("dlq", "dlx", ""))
    declare(peer, "keeps", "dlx")
    declare(peer, "changes", "dlx", "other")
    sent = Properties(expiration="60000", correlation_id="c", type="t", headers={"k": "v"})
    for name, key in (("keeps", "keeps"), ("changes", "other")):
        peer.ask(
            peer.publish(
                b"x", name, expiration="60000", correlation_id="c", type="t", headers={"k": "v"}
            )
        )
        assert refuse(peer, name).properties == sent
        letter = get(peer, "dlq")
        assert letter is not None
        assert letter.method == BasicGetOk(letter.method.delivery_tag, False, "dlx", key, 0)  # type: ignore[attr-defined]
        assert letter.properties.expiration is None
        assert (letter.properties.correlation_id, letter.properties.type) == ("c", "t")
        assert headers(letter)["k"] == "v"
        assert headers(letter)["x-death"][0]["original-expiration"] == "60000"  # type: ignore[index]


def test_dl_a7_an_expiration_of_0_does_not_expire_twice() -> None:
    peer = Rig().connect()
    declare(peer, "dlq", "", "nowhere")
    declare(peer, "q", "", "dlq")
    peer.ask(peer.publish(b"x", "q", expiration="0"))
    wait(peer, 60_000)
    letter = get(peer, "dlq")
    assert deaths(letter) == [("q", "expired", 1)]
    assert letter is not None
    assert letter.properties.expiration is None
    assert headers(letter)["x-death"][0]["original-expiration"] == "0"  # type: ignore[index]


def test_dl_a7_a_ttl_of_the_queue_is_no_original_expiration() -> None:
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq", message_ttl=100)
    peer.ask(peer.publish(b"x", "q"))
    wait(peer, 200)
    (death,) = headers(get(peer, "dlq"))["x-death"]  # type: ignore[misc]
    assert "original-expiration" not in death


def test_dl_a5_keys_of_a_letter_on_its_way() -> None:
    peer = Rig().connect()
    declare(peer, "Q3")
    declare(peer, "Q2", "", "Q3", message_ttl=2500)
    declare(peer, "Q1", "", "Q2")
    cc, bcc = ["cc 1", "cc 2"], ["bcc 1", "bcc 2"]
    peer.ask(peer.publish(b"x", "Q1", expiration="0", headers={"CC": cc, "BCC": bcc}))
    wait(peer, 5000)
    letter = get(peer, "Q3")
    found = headers(letter)
    second, first = found["x-death"]  # type: ignore[misc]
    assert (second["queue"], second["routing-keys"]) == ("Q2", ["Q2"])
    assert "original-expiration" not in second
    assert (first["queue"], first["routing-keys"]) == ("Q1", ["Q1", *cc])
    assert first["original-expiration"] == "0"
    assert (found["x-first-death-queue"], found["x-last-death-queue"]) == ("Q1", "Q2")
    assert found["CC"] == cc
    assert "BCC" not in found


def test_dl_a6_a_bcc_key_leads_a_letter_and_is_never_shown() -> None:
    peer = Rig().connect()
    peer.ask(ExchangeDeclare("dlx", "direct", durable=True))
    declare(peer, "hidden")
    declare(peer, "q", "dlx")
    peer.ask(QueueBind("hidden", "dlx", "secret"))
    peer.ask(peer.publish(b"x", "q", headers={"BCC": ["secret"]}))
    refuse(peer, "q")
    letter = get(peer, "hidden")
    assert deaths(letter) == [("q", "rejected", 1)]
    assert b"secret" not in repr(headers(letter)).encode()
    assert letter is not None
    assert isinstance(letter.method, BasicGetOk)
    assert letter.method.routing_key == "q"


def test_dl_a8_letters_leave_in_the_order_they_were_refused() -> None:
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq")
    peer.ask(b"".join(peer.publish(b"m%d" % i, "q") for i in (1, 2, 3)))
    for _ in range(3):
        get(peer, "q", no_ack=False)
    peer.ask(BasicNack(2, multiple=True, requeue=True))
    assert [get(peer, "q", no_ack=False).body for _ in range(2)] == [b"m1", b"m2"]  # type: ignore[union-attr]
    peer.ask(BasicNack(5, multiple=True, requeue=False))
    assert [get(peer, "dlq").body for _ in range(3)] == [b"m3", b"m1", b"m2"]  # type: ignore[union-attr]


def test_dl_a9_given_back_and_then_refused() -> None:
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq")
    peer.ask(peer.publish(b"x", "q"))
    get(peer, "q", no_ack=False)
    peer.ask(BasicReject(1, True))
    refuse(peer, "q")
    assert deaths(get(peer, "dlq")) == [("q", "rejected", 1)]
    assert get(peer, "dlq") is None


def test_dl_a10_a_letter_published_again_with_its_headers_starts_anew() -> None:
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq", message_ttl=1)
    sent: dict[str, object] = {}
    for _ in range(3):
        peer.ask(peer.publish(b"x", "q", headers=sent))
        wait(peer, 10)
        sent = headers(get(peer, "dlq"))
        deaths_now = sent["x-death"]
        assert [(d["reason"], d["count"]) for d in deaths_now] == [("expired", 1)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "forged", [[{"queue": "dlq", "reason": "expired", "count": 3}], "a text", 7, [], [1]]
)
def test_dl_18_a_history_from_a_client_is_an_ordinary_header_until_the_first_death(
    forged: object,
) -> None:
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq", message_ttl=1000)
    sent = {"x-death": forged, "x-first-death-queue": "forged", "mine": 1}
    peer.ask(peer.publish(b"x", "q", headers=sent))
    peer.ask(peer.publish(b"x", "q", headers=sent))
    assert headers(get(peer, "q")) == sent
    wait(peer, 2000)
    letter = get(peer, "dlq")
    assert deaths(letter) == [("q", "expired", 1)]
    assert headers(letter)["x-first-death-queue"] == "q"
    assert headers(letter)["mine"] == 1


def test_dl_a12_a_headers_exchange_matches_the_first_death() -> None:
    peer = Rig().connect()
    peer.ask(ExchangeDeclare("dlx", "headers", durable=True))
    declare(peer, "dlq")
    wanted = {
        "x-match": "all-with-x",
        "x-first-death-reason": "expired",
        "x-first-death-queue": "Q1",
    }
    peer.ask(QueueBind("dlq", "dlx", "", arguments=wanted))
    for name in ("Q1", "Q2"):
        declare(peer, name, "dlx", message_ttl=100)
        peer.ask(peer.publish(b"refused", name))
        refuse(peer, name)
        peer.ask(peer.publish(name.encode(), name))
    wait(peer, 200)
    assert [get(peer, "dlq").body] == [b"Q1"]  # type: ignore[union-attr]
    assert get(peer, "dlq") is None


def test_a_retry_loop_over_a_waiting_queue_is_one_payload_for_its_reader() -> None:
    """Deliveries to a consumer, many at once, each with its own tag and the shared history."""
    peer = Rig().connect()
    declare(peer, "work", "", "wait")
    declare(peer, "wait", "", "work", message_ttl=1000)
    peer.ask(b"".join(peer.publish(b"%d" % i, "work", headers={"i": i}) for i in range(50)))
    peer.ask(BasicConsume("work", "ctag"))
    for round in range(1, 4):
        last = 50 * round
        peer.ask(BasicNack(last, multiple=True, requeue=False))
        peer.rig.now_ms += 2000
        heard: list[Heard] = peer.hear()
        assert len(heard) == 50
        for i, (_, content) in enumerate(heard):
            assert isinstance(content, Content)
            assert content.method == BasicDeliver("ctag", last + i + 1, False, "", "work")
            assert content.body == b"%d" % i
            assert headers(content)["i"] == i
            assert deaths(content) == [("wait", "expired", round), ("work", "rejected", round)]


@pytest.mark.parametrize("key", ["k" * 256, "\udcff"])
def test_a_key_that_no_reader_can_be_told_is_refused(key: str) -> None:
    """A letter under it could not be delivered. The refusal itself can be told."""
    peer = Rig().connect()
    arguments: dict[str, object] = {
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": key,
    }
    ((_, close),) = peer.ask(QueueDeclare("q", arguments=arguments))
    assert isinstance(close, ChannelClose)
    assert close.reply_code == 406
    assert "expected a routing key" in close.reply_text


def test_further_keys_of_any_bytes_are_told_in_the_history() -> None:
    """CC takes strings no routing key may be: they match nothing and harm nobody."""
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq")
    odd = ["k" * 300, "\udcff"]
    peer.ask(peer.publish(b"x", "q", headers={"CC": odd}, expiration="315360000000"))
    refuse(peer, "q")
    (death,) = headers(get(peer, "dlq"))["x-death"]  # type: ignore[misc]
    assert death["routing-keys"] == ["q", *odd]
    assert death["original-expiration"] == "315360000000"


# -- counts


@pytest.mark.parametrize("counts", ["returns", "failures"])
def test_dl_5_a_reject_counts_as_a_failure_and_a_nack_as_the_queue_reads_it(counts: str) -> None:
    peer = Rig().connect()
    declare(peer, "q", queue_type="quorum", delivery_limit_counts=counts)
    peer.ask(peer.publish(b"x", "q"))
    assert headers(get(peer, "q", no_ack=False)) == {}
    peer.ask(BasicNack(1, requeue=True))
    nacked = int(counts == "returns")
    counted = {"x-delivery-count": nacked} if nacked else {}
    assert headers(get(peer, "q", no_ack=False)) == counted | {"x-acquired-count": 1}
    peer.ask(BasicReject(2, True))
    got = get(peer, "q", no_ack=False)
    assert headers(got) == {"x-delivery-count": 1 + nacked, "x-acquired-count": 2}
    assert got is not None
    assert got.method == BasicGetOk(3, True, "", "q", 0)


@pytest.mark.parametrize("refusal", [BasicReject(2, False), BasicNack(2, requeue=False)])
def test_dl_5_counts_survive_dead_lettering(refusal: BasicReject | BasicNack) -> None:
    """The refusal itself shows in the letter, where it counts."""
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq", queue_type="quorum")
    peer.ask(peer.publish(b"x", "q"))
    get(peer, "q", no_ack=False)
    peer.ask(BasicReject(1, True))
    get(peer, "q", no_ack=False)
    peer.ask(refusal)
    letter = get(peer, "dlq")
    assert deaths(letter) == [("q", "rejected", 1)]
    assert headers(letter)["x-acquired-count"] == 2
    assert headers(letter)["x-delivery-count"] == (2 if isinstance(refusal, BasicReject) else 1)
    assert letter is not None
    assert isinstance(letter.method, BasicGetOk)
    assert not letter.method.redelivered, "never handed out in this queue"


def test_a_classic_queue_shows_no_counts() -> None:
    peer = Rig().connect()
    declare(peer, "dlq")
    declare(peer, "q", "", "dlq")
    peer.ask(peer.publish(b"x", "q"))
    get(peer, "q", no_ack=False)
    peer.ask(BasicReject(1, True))
    assert headers(refuse(peer, "q")) == {}
    assert [name for name in headers(get(peer, "dlq")) if name.endswith("-count")] == []


# -- what is known of a publish


def test_dl_10_dl_11_expiration_and_further_keys_are_kept_beside_the_message() -> None:
    peer = Rig().connect()
    for name in ("q", "c", "b"):
        declare(peer, name)
    more: dict[str, object] = {"CC": ["c", "gone"], "BCC": ["b"]}
    peer.send(peer.publish(b"x", "q", expiration="60000", headers=more))
    for name in ("q", "c", "b"):
        (piece,) = queue(peer, name).slices()
        known = piece.annotations
        assert known is not None
        assert (known.ttl_ms, known.more_keys, known.bcc) == (60_000, ("c", "gone", "b"), ("b",))
        assert (known.route, known.deaths, known.form) == (None, (), 0)


@pytest.mark.parametrize("properties", [{}, {"user_id": "guest"}, {"headers": {"CC": []}}])
def test_nothing_is_kept_beside_an_ordinary_message(properties: dict[str, object]) -> None:
    peer = Rig().connect()
    declare(peer, "q")
    peer.send(peer.publish(b"x", "q", **properties))
    (piece,) = queue(peer, "q").slices()
    assert piece.annotations is None


def test_publishes_that_say_the_same_share_what_is_known_of_them() -> None:
    peer = Rig().connect()
    declare(peer, "q")
    for i, expiration in enumerate(["60000", "60000", "060000", "5000", "60000"]):
        peer.ask(peer.publish(b"x", "q", expiration=expiration, message_id=f"{i}"))
    known = [piece.annotations for piece in queue(peer, "q").slices()]
    assert known[0] is known[1] is known[2]
    assert known[3] is not None
    assert known[3] is not known[2]
    assert [one.ttl_ms for one in known if one is not None] == [60_000] * 3 + [5000, 60_000]


def test_publishes_that_name_other_keys_share_nothing() -> None:
    peer = Rig().connect()
    for name in ("q", "a", "b"):
        declare(peer, name)
    tables: list[dict[str, object]] = [
        {"CC": ["a"]}, {"CC": ["b"]}, {"BCC": ["b"]}, {"CC": ["a"], "BCC": ["b"]},
        {"CC": ["a", "b"]}, {"CC": ["b", "a"]},
    ]  # fmt: skip
    for table in tables:
        peer.ask(peer.publish(b"x", "q", headers=table))
    found = [
        (piece.annotations.more_keys, piece.annotations.bcc)
        for piece in queue(peer, "q").slices()
        if piece.annotations is not None
    ]
    assert found == [
        (("a",), ()), (("b",), ()), (("b",), ("b",)), (("a", "b"), ("b",)), (("a", "b"), ()),
        (("b", "a"), ()),
    ]  # fmt: skip


@pytest.mark.parametrize("shares_a_queue", [False, True])
def test_what_is_known_goes_with_every_piece_of_a_stretch(shares_a_queue: bool) -> None:
    """Pieces of several sets of queues are grouped, or where sets overlap are parts of one."""
    peer = Rig().connect()
    for name in ("q", "p"):
        declare(peer, name)
        peer.ask(QueueBind(name, "amq.topic", name))
    if shares_a_queue:
        declare(peer, "all")
        peer.ask(QueueBind("all", "amq.topic", "#"))
    peer.send(
        b"".join(
            peer.publish(b"x", key, exchange="amq.topic", expiration="60000")
            for key in ("q", "p", "q", "p")
        )
    )
    for name in ("q", "p", "all") if shares_a_queue else ("q", "p"):
        pieces = list(queue(peer, name).slices())
        assert sum(map(len, pieces)) == (4 if name == "all" else 2)
        for piece in pieces:
            assert piece.annotations is not None
            assert piece.annotations.ttl_ms == 60_000


def test_pieces_of_a_stretch_before_a_refused_one_keep_what_is_known() -> None:
    peer = Rig().connect()
    declare(peer, "q")
    peer.send(
        peer.publish(b"1", "q", expiration="60000")
        + peer.publish(b"2", "q", exchange="missing", expiration="60000")
    )
    (piece,) = queue(peer, "q").slices()
    assert len(piece) == 1
    assert piece.annotations is not None
    assert piece.annotations.ttl_ms == 60_000


@pytest.mark.parametrize(
    ("how", "counts", "uncounted", "times"),
    [
        (BasicRecover(True), "", False, 4),
        (BasicRecoverAsync(True), "", False, 4),
        (BasicRecover(True), "returns", False, 4),
        (BasicRecover(True), "failures", False, 12),
        (BasicRecover(True), "", True, 12),
        (BasicRecoverAsync(True), "returns", True, 12),
        (BasicNack(0, True, True), "", False, 4),
        (BasicNack(0, True, True), "", True, 4),
    ],
)
def test_dl_5_recover_counts_as_nack_does_unless_the_client_says_that_it_rolls_back(
    how: BasicRecover | BasicRecoverAsync | BasicNack, counts: str, uncounted: bool, times: int
) -> None:
    """What a client had not looked at comes again with the rest: ours says that this is no failure
    of theirs. RabbitMQ 3.10 makes four deliveries with a limit of three, and buries the message."""
    peer = Rig().connect(capabilities={"uncounted_recover": True} if uncounted else {})
    more: dict[str, object] = {"delivery_limit_counts": counts} if counts else {}
    declare(peer, "q", "", "dead", delivery_limit=3, **more)
    declare(peer, "dead")
    peer.ask(peer.publish(b"one"), peer.publish(b"two"))
    heard = peer.ask(BasicConsume("q", "c", no_wait=True))
    seen = 0
    while seen < 12 and any(isinstance(one, Content) for _, one in heard):
        seen += 1
        heard = peer.ask(how)
    assert seen == times
    assert queue(peer, "dead").ready == (2 if times == 4 else 0)
