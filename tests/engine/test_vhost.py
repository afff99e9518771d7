"""Declarations, bindings and their rules, as clients of RabbitMQ 3.10 know them."""

from __future__ import annotations

from itertools import count

import pytest

from tallymark.engine.clock import Clock
from tallymark.engine.errors import (
    AccessRefused,
    BrokerError,
    InvalidCommand,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from tallymark.engine.ledger import Ledger
from tallymark.engine.queue import Queue
from tallymark.engine.topology import PREDECLARED
from tallymark.engine.vhost import VirtualHost
from tests.support.engine_rig import Rig

ME, OTHER = 1, 2


class Host:
    """A virtual host with short calls for tests."""

    def __init__(self) -> None:
        self.ledger = Ledger(Clock())
        ids = count(1)
        self.vhost = VirtualHost("/", Clock(), self.ledger, lambda: next(ids))

    def queue(
        self,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        owner: int = ME,
        passive: bool = False,
        **arguments: object,
    ) -> Queue:
        renamed = {name.replace("_", "-"): value for name, value in arguments.items()}
        return self.vhost.declare_queue(
            name, durable, exclusive, auto_delete, renamed, owner, passive
        )

    def exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        **arguments: object,
    ) -> None:
        renamed = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.vhost.declare_exchange(name, type, durable, auto_delete, internal, renamed, passive)

    def bind(self, queue: str, exchange: str, key: str = "") -> None:
        self.vhost.bind_queue(queue, exchange, key, {}, ME)

    def link(self, destination: str, source: str, key: str = "") -> None:
        self.vhost.bind_exchange(destination, source, key, {})

    def routed(self, exchange: str, *keys: str) -> list[str]:
        targets = self.vhost.route(exchange, list(keys) or [""], None)
        return [queue.name for queue in targets.queues]


@pytest.fixture
def host() -> Host:
    return Host()


def refusal(error: type[BrokerError], command: object, *args: object) -> str:
    assert callable(command)
    with pytest.raises(error) as refused:
        command(*args)
    assert type(refused.value) is error
    return str(refused.value)


LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the "
    "original declaration."
)

# -- exchanges


def test_predeclared_exchanges(host: Host) -> None:
    for name, type, internal in PREDECLARED:
        exchange = host.vhost.exchange(name)
        assert (exchange.type, exchange.internal) == (type, internal)
        assert exchange.durable
    host.exchange("amq.topic", "topic", durable=True)
    assert host.ledger.rows == []


def test_reserved_names(host: Host) -> None:
    assert refusal(AccessRefused, host.exchange, "amq.foo") == (
        "exchange name 'amq.foo' contains reserved prefix 'amq.*'"
    )
    assert refusal(AccessRefused, host.queue, "amq.foo") == (
        "queue name 'amq.foo' contains reserved prefix 'amq.*'"
    )
    assert refusal(AccessRefused, host.vhost.delete_exchange, "amq.topic", False) == (
        "deletion of system exchange 'amq.topic' in vhost '/' not allowed"
    )


def test_default_exchange_is_not_to_be_touched(host: Host) -> None:
    host.queue("q")
    host.exchange("x")
    text = "operation not permitted on the default exchange"
    for call in (
        lambda: host.exchange(""),
        lambda: host.vhost.declare_exchange("", "direct", False, False, False, {}, True),
        lambda: host.vhost.delete_exchange("", False),
        lambda: host.bind("q", ""),
        lambda: host.vhost.unbind_queue("q", "", "q", {}, ME),
        lambda: host.link("x", ""),
        lambda: host.link("", "x"),
        lambda: host.vhost.unbind_exchange("", "x", "", {}),
    ):
        assert refusal(AccessRefused, call) == text


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"type": "fanout"}, "'type' for {}: received 'fanout' but current is 'direct'"),
        ({"durable": True}, "'durable' for {}: received 'true' but current is 'false'"),
        ({"auto_delete": True}, "'auto_delete' for {}: received 'true' but current is 'false'"),
        ({"internal": True}, "'internal' for {}: received 'true' but current is 'false'"),
        (
            {"alternate_exchange": "a"},
            "'alternate-exchange' for {}: received the value 'a' of type 'longstr' "
            "but current is none",
        ),
    ],
)
def test_redeclaring_an_exchange(host: Host, changed: dict[str, object], text: str) -> None:
    host.exchange("e")
    host.exchange("e", other="ignored")
    with pytest.raises(PreconditionFailed) as refused:
        host.exchange("e", **changed)  # type: ignore[arg-type]
    assert str(refused.value) == "inequivalent arg " + text.format("exchange 'e' in vhost '/'")


def test_unknown_exchange_type(host: Host) -> None:
    text = refusal(InvalidCommand, host.exchange, "e", "foo")
    assert text == "unknown exchange type 'foo'"


def test_passive_declarations(host: Host) -> None:
    host.exchange("e")
    host.exchange("e", "ignored", passive=True)
    host.queue("q", durable=True)
    assert host.queue("q", passive=True).durable
    assert refusal(NotFound, lambda: host.exchange("no", passive=True)) == (
        "no exchange 'no' in vhost '/'"
    )
    assert refusal(NotFound, lambda: host.queue("no", passive=True)) == (
        "no queue 'no' in vhost '/'"
    )
    assert refusal(NotFound, lambda: host.queue("", passive=True)) == "no queue '' in vhost '/'"


def test_deleting_exchanges(host: Host) -> None:
    host.vhost.delete_exchange("never", False)
    host.exchange("e")
    host.exchange("upstream", "fanout")
    host.queue("q")
    host.link("e", "upstream")
    host.bind("q", "e")
    assert refusal(PreconditionFailed, host.vhost.delete_exchange, "e", True) == (
        "exchange 'e' in vhost '/' in use"
    )
    host.vhost.unbind_queue("q", "e", "", {}, ME)
    host.vhost.delete_exchange("e", True)
    assert "e" not in host.vhost.exchanges
    assert host.vhost.exchange("upstream").bindings == {}
    assert refusal(NotFound, host.routed, "e") == "no exchange 'e' in vhost '/'"


# -- queues


def test_line_breaks_are_taken_out_of_declared_names(host: Host) -> None:
    assert host.queue("a\r\nb\t\0").name == "ab\t\0"
    host.exchange("x\n")
    host.vhost.delete_exchange("\rx", False)
    assert "x" not in host.vhost.exchanges


def test_server_named_queues_differ_and_depend_on_the_seed() -> None:
    names = set()
    for seed in (b"", b"one", b"two" * 100):
        host = Host()
        host.vhost.name_seed = seed
        first, second = host.queue(""), host.queue("", exclusive=True)
        names |= {first.name, second.name}
        assert host.queue(first.name) is first
    assert len(names) == 6
    assert all(name.startswith("amq.gen-") and len(name) == 30 for name in names)


def test_redeclaring_a_queue(host: Host) -> None:
    queue = host.queue("q", durable=True, x_max_length=5)
    assert host.queue("q", durable=True, x_max_length=5) is queue
    for call, text in (
        (lambda: host.queue("q"), "'durable' for {}: received 'false' but current is 'true'"),
        (
            lambda: host.queue("q", durable=True, auto_delete=True),
            "'auto_delete' for {}: received 'true' but current is 'false'",
        ),
        (
            lambda: host.queue("q", durable=True, x_max_length=6),
            "'x-max-length' for {}: received '6' but current is '5'",
        ),
    ):
        expected = "inequivalent arg " + text.format("queue 'q' in vhost '/'")
        assert refusal(PreconditionFailed, call) == expected


def test_bad_arguments_leave_no_queue(host: Host) -> None:
    refusal(PreconditionFailed, lambda: host.queue("q", x_message_ttl=-1))
    assert refusal(PreconditionFailed, lambda: host.queue("q", x_queue_type="quorum")) == (
        "invalid property 'non-durable' for queue 'q' in vhost '/'"
    )
    assert (
        refusal(
            PreconditionFailed,
            lambda: host.queue("q", durable=True, exclusive=True, x_queue_type="quorum"),
        )
        == "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"
    )
    assert (
        refusal(
            PreconditionFailed,
            lambda: host.queue("q", durable=True, auto_delete=True, x_queue_type="quorum"),
        )
        == "invalid property 'auto-delete' for queue 'q' in vhost '/'"
    )
    assert host.vhost.queues == {}
    assert host.vhost.generation == 1


def test_exclusive_queues_are_one_connections_own(host: Host) -> None:
    queue = host.queue("q", durable=True, exclusive=True)
    assert not queue.durable
    assert host.queue("q", exclusive=True) is queue
    assert host.vhost.queues_of(ME) == [queue]
    for call in (
        lambda: host.queue("q", exclusive=True, owner=OTHER),
        lambda: host.queue("q", owner=OTHER),
        lambda: host.queue("q", owner=ME),
        lambda: host.queue("q", owner=OTHER, passive=True),
        lambda: host.vhost.queue("q", OTHER),
        lambda: host.vhost.bind_queue("q", "amq.direct", "k", {}, OTHER),
        lambda: host.vhost.delete_queue("q", False, False, OTHER),
    ):
        assert refusal(ResourceLocked, call) == LOCKED
    host.bind("q", "amq.direct", "k")
    assert (
        refusal(ResourceLocked, lambda: host.vhost.unbind_queue("q", "amq.direct", "k", {}, OTHER))
        == LOCKED
    )
    host.vhost.delete_queue("q", False, False, ME)


def test_shared_queue_redeclared_exclusive_is_locked(host: Host) -> None:
    host.queue("q")
    assert refusal(ResourceLocked, lambda: host.queue("q", exclusive=True)) == LOCKED


def test_deleting_queues_on_condition(host: Host) -> None:
    queue = host.queue("q")
    queue.account.enter(1, 0, 0)
    assert refusal(PreconditionFailed, host.vhost.delete_queue, "q", True, True, ME) == (
        "queue 'q' in vhost '/' not empty"
    )
    assert host.vhost.delete_queue("q", True, False, ME) is queue
    assert refusal(NotFound, host.vhost.delete_queue, "q", True, True, ME) == (
        "no queue 'q' in vhost '/'"
    )


def test_a_queue_with_consumers_is_in_use(host: Host) -> None:
    queue = host.queue("q")
    queue.consumers.append(object())  # type: ignore[arg-type]
    assert refusal(PreconditionFailed, host.vhost.delete_queue, "q", True, False, ME) == (
        "queue 'q' in vhost '/' in use"
    )


def test_queue_unused_deletes_auto_delete_queues_only(host: Host) -> None:
    staying, going = host.queue("staying"), host.queue("going", auto_delete=True)
    assert not host.vhost.queue_unused(staying)
    assert host.vhost.queue_unused(going)
    assert not host.vhost.queue_unused(going)
    assert list(host.vhost.queues) == ["staying"]


# -- bindings


def test_binding_what_is_missing(host: Host) -> None:
    host.exchange("e")
    host.queue("q")
    assert refusal(NotFound, host.bind, "q", "no") == "no exchange 'no' in vhost '/'"
    assert refusal(NotFound, host.bind, "no", "e") == "no queue 'no' in vhost '/'"
    assert refusal(NotFound, host.bind, "no", "nor") == "no exchange 'nor' in vhost '/'"
    assert refusal(NotFound, host.link, "no", "e") == "no exchange 'no' in vhost '/'"
    assert refusal(NotFound, host.link, "e", "no") == "no exchange 'no' in vhost '/'"


def test_unbinding_what_is_not_bound_succeeds(host: Host) -> None:
    host.exchange("e")
    host.queue("q")
    generation = host.vhost.generation
    host.vhost.unbind_queue("q", "e", "k", {}, ME)
    host.vhost.unbind_queue("no", "e", "k", {}, ME)
    host.vhost.unbind_queue("q", "no", "k", {}, ME)
    host.vhost.unbind_exchange("e", "no", "k", {})
    assert host.vhost.generation == generation


def test_a_bindings_identity_is_source_destination_key_and_arguments(host: Host) -> None:
    host.queue("q")
    tables: list[dict[str, object]] = [
        {},
        {"a": 1},
        {"a": 1.0},
        {"a": True},
        {"a": "1"},
        {"a": 1},
        {},
    ]
    for arguments in tables:
        host.vhost.bind_queue("q", "amq.direct", "k", arguments, ME)
    assert len(host.vhost.topology.bindings()) == 5
    host.vhost.bind_queue("q", "amq.fanout", "k", {}, ME)
    host.vhost.bind_queue("q", "amq.direct", "j", {}, ME)
    assert len(host.vhost.topology.bindings()) == 7
    host.vhost.unbind_queue("q", "amq.direct", "k", {"a": 1}, ME)
    assert host.routed("amq.direct", "k") == ["q"]
    assert len(host.vhost.topology.bindings()) == 6


def test_bad_bindings(host: Host) -> None:
    host.exchange("hash", "x-consistent-hash")
    host.queue("q")
    refusal(PreconditionFailed, host.bind, "q", "hash", "heavy")
    refusal(PreconditionFailed, host.vhost.bind_queue, "q", "amq.match", "", {"x-match": "no"}, ME)
    assert host.vhost.topology.bindings() == []


def test_deleting_a_queue_deletes_its_bindings(host: Host) -> None:
    host.queue("q")
    host.bind("q", "amq.direct", "k")
    host.bind("q", "amq.topic", "#")
    host.vhost.delete_queue("q", False, False, ME)
    assert host.vhost.topology.bindings() == []
    assert host.vhost.topology.inbound == {}
    assert host.routed("amq.direct", "k") == host.routed("amq.topic", "k") == []
    host.queue("q")
    assert host.routed("amq.direct", "k") == []


# -- auto-delete exchanges


def test_auto_delete_exchange_stays_until_it_had_a_binding(host: Host) -> None:
    host.exchange("e", auto_delete=True)
    host.queue("q")
    host.vhost.unbind_queue("q", "e", "", {}, ME)
    assert "e" in host.vhost.exchanges
    host.bind("q", "e", "1")
    host.bind("q", "e", "2")
    host.vhost.unbind_queue("q", "e", "1", {}, ME)
    assert "e" in host.vhost.exchanges
    host.vhost.unbind_queue("q", "e", "2", {}, ME)
    assert "e" not in host.vhost.exchanges


def test_being_unbound_as_destination_does_not_delete(host: Host) -> None:
    host.exchange("e", auto_delete=True)
    host.exchange("source")
    host.link("e", "source")
    host.vhost.unbind_exchange("e", "source", "", {})
    assert "e" in host.vhost.exchanges


def test_auto_delete_cascades_along_a_long_chain(host: Host) -> None:
    length = 3000
    for n in range(length):
        host.exchange(f"e{n}", "fanout", auto_delete=True)
        if n:
            host.link(f"e{n}", f"e{n - 1}")
    host.queue("q", auto_delete=True)
    host.bind("q", f"e{length - 1}")
    assert host.routed("e0") == ["q"]
    assert host.vhost.queue_unused(host.vhost.queue("q", ME))
    assert set(host.vhost.exchanges) == {name for name, _, _ in PREDECLARED}


def test_auto_delete_in_a_circle(host: Host) -> None:
    for name in "ab":
        host.exchange(name, "fanout", auto_delete=True)
    host.link("a", "b")
    host.link("b", "a")
    host.link("a", "a")
    host.vhost.delete_exchange("a", False)
    assert "b" not in host.vhost.exchanges
    assert host.vhost.topology.bindings() == []


# -- routing


def test_default_exchange_reaches_queues_by_name(host: Host) -> None:
    host.queue("q")
    host.queue("r")
    assert host.routed("", "q") == ["q"]
    assert host.routed("", "r", "q", "none") == ["q", "r"]
    assert host.routed("", "none") == []


def test_internal_exchanges_are_reached_by_bindings_only(host: Host) -> None:
    host.exchange("in", "fanout", internal=True)
    host.exchange("out", "fanout")
    host.queue("q")
    host.bind("q", "in")
    host.link("in", "out")
    assert refusal(AccessRefused, host.routed, "in") == (
        "cannot publish to internal exchange 'in' in vhost '/'"
    )
    assert host.routed("out") == ["q"]
    internal = host.vhost.exchange("in")
    assert host.vhost.route_from(internal, [""], None) is host.vhost.route("out", [""], None)


def test_exchange_bindings_filter_by_their_own_kind_and_may_form_circles(host: Host) -> None:
    host.exchange("a", "topic")
    host.exchange("b", "direct")
    for name in ("q1", "q2"):
        host.queue(name)
    host.link("b", "a", "x.#")
    host.link("a", "b", "x.y")
    host.link("a", "a", "#")
    host.bind("q1", "b", "x.y")
    host.bind("q2", "a", "*.y")
    assert host.routed("a", "x.y") == ["q1", "q2"]
    assert host.routed("a", "z.y") == ["q2"]
    assert host.routed("b", "x.z") == []


def test_alternate_exchanges_take_what_matches_no_binding(host: Host) -> None:
    host.exchange("main", "direct", alternate_exchange="spare")
    host.exchange("spare", "direct", alternate_exchange="last")
    host.exchange("last", "fanout", alternate_exchange="main")
    for name in ("q1", "q2", "q3"):
        host.queue(name)
    assert host.routed("main", "1") == []
    host.bind("q1", "main", "1")
    host.bind("q2", "spare", "2")
    host.bind("q3", "last")
    assert host.routed("main", "1") == ["q1"]
    assert host.routed("main", "2") == ["q2"]
    assert host.routed("main", "3") == ["q3"]
    assert host.routed("main", "1", "2") == ["q1"]


def test_a_match_that_leads_nowhere_still_is_one(host: Host) -> None:
    host.exchange("main", "direct", alternate_exchange="spare")
    host.exchange("spare", "fanout")
    host.exchange("empty", "fanout")
    host.queue("q")
    host.bind("q", "spare")
    host.link("empty", "main", "k")
    assert host.routed("main", "k") == []
    assert host.routed("main", "j") == ["q"]


def test_alternate_exchange_that_does_not_exist_yet(host: Host) -> None:
    host.exchange("main", "direct", alternate_exchange="later")
    assert host.routed("main", "k") == []
    host.exchange("later", "fanout")
    host.queue("q")
    host.bind("q", "later")
    assert host.routed("main", "k") == ["q"]


def test_needs_headers_follows_bindings_and_alternates(host: Host) -> None:
    host.exchange("a", "fanout")
    host.exchange("b", "fanout", alternate_exchange="a")
    assert not host.vhost.needs_headers("b")
    host.link("a", "a")
    host.link("amq.headers", "a")
    assert host.vhost.needs_headers("b")
    assert not host.vhost.needs_headers("")
    host.exchange("h", "x-consistent-hash", hash_property="message_id")
    assert host.vhost.needs_headers("h")
    assert refusal(NotFound, host.vhost.needs_headers, "no") == "no exchange 'no' in vhost '/'"


def test_same_queues_are_the_same_targets_while_the_generation_holds(host: Host) -> None:
    for name in ("q1", "q2"):
        host.queue(name, durable=name == "q2")
        host.bind(name, "amq.fanout")
        host.bind(name, "amq.topic", f"#.{name}.#")
    route = host.vhost.route
    both = route("amq.fanout", [""], None)
    assert both is route("amq.topic", ["q2.q1"], None)
    assert both is route("", ["q2", "q1"], None)
    assert both.durable
    one = route("", ["q1"], None)
    assert one is route("amq.topic", ["q1"], None)
    assert not one.durable
    assert route("", ["no"], None) is route("amq.direct", [""], None)
    generation = host.vhost.generation
    host.queue("q3")
    assert host.vhost.generation > generation
    assert route("amq.fanout", [""], None) is not both


def test_refused_commands_change_nothing(host: Host) -> None:
    host.queue("q")
    generation = host.vhost.generation
    for call in (
        lambda: host.queue("amq.x"),
        lambda: host.exchange("x", alternate_exchange=1),
        lambda: host.exchange("x", "x-consistent-hash", hash_header=1),
        lambda: host.bind("q", "no"),
        lambda: host.vhost.delete_exchange("amq.direct", False),
    ):
        with pytest.raises(BrokerError):
            call()
    assert host.vhost.generation == generation
    assert host.ledger.rows == []
    assert "x" not in host.vhost.exchanges


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_a_virtual_host_says_of_itself_outlives_a_restart(checkpoint: bool) -> None:
    rig = Rig()
    registry = rig.broker.registry
    registry.set_default_queue_type(rig.vhost, "quorum")
    registry.describe_vhost(rig.vhost, "Löhne", ("a", "b"))
    registry.protect_vhost(rig.vhost, True)
    rig.settle_down()
    if checkpoint:
        rig.checkpoint()
    after = rig.restart()
    kept = after.vhost.topology
    assert (kept.description, kept.tags, kept.is_protected) == ("Löhne", ("a", "b"), True)
    assert kept.default_queue_type == "quorum"
    with pytest.raises(PreconditionFailed, match="it is protected from deletion"):
        after.broker.registry.delete_vhost("/")
    after.broker.registry.describe_vhost(after.vhost, "", ())
    after.broker.registry.protect_vhost(after.vhost, False)
    after.settle_down()
    kept = after.restart().vhost.topology
    assert (kept.description, kept.tags, kept.is_protected) == ("", (), False)


@pytest.mark.parametrize(
    ("description", "tags", "why"),
    [
        ("ä" * 2049, (), "description of 4098 bytes, expected 4096 at most"),
        ("", ("t",) * 65, "65 tags, expected 64 at most"),
        ("", ("t" * 256,), "tag of 256 bytes, expected 255 at most"),
    ],
)
def test_a_description_that_is_too_long_changes_nothing(
    description: str, tags: tuple[str, ...], why: str
) -> None:
    rig = Rig()
    with pytest.raises(PreconditionFailed, match=why):
        rig.broker.registry.describe_vhost(rig.vhost, description, tags)
    assert (rig.vhost.topology.description, rig.vhost.topology.tags) == ("", ())
