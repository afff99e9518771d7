"""The management node: requests as RabbitMQ's clients send them, answers, refusals, permissions."""

from __future__ import annotations

from array import array
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.bridge.amqp10.management import Answer, Management, NotAnswerable
from tallymark.bridge.amqp10.management_paths import binding_location
from tallymark.bridge.permissions import Access
from tallymark.engine.broker import Broker
from tallymark.engine.message import Payload
from tallymark.engine.session import Connection
from tallymark.stored.annotations import Route
from tallymark.wire.amqp10.sections import Data, Properties, Sections, Value, encode_message
from tallymark.wire.amqp10.types import Array, Int, Symbol, UInt, ULong

ID = "11111111-2222-3333-4444-555555555555"
ANYTHING = (".*", ".*", ".*")
FETCH = "nothing is ever fetched here"

# What rabbitmq-amqp-python-client 1.0.1 sends, byte for byte, with ID as its message id.
PYTHON = {
    "declare exchange": "00537045005373c04c05a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a1182f65786368616e6765732f6d7925323065786368616e6765a103505554a103246d65005377d10000003a00000008a10764757261626c6541a10474797065a105746f706963a108696e7465726e616c42a109617267756d656e7473d10000000400000000",  # noqa: E501
    "declare classic queue": "00537045005373c04105a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a10d2f7175657565732f7125324631a103505554a103246d65005377d10000009800000008a10b6175746f5f64656c65746541a10764757261626c6541a1096578636c757369766542a109617267756d656e7473d10000006000000008a116782d646561642d6c65747465722d65786368616e6765a103646c78a10c782d6d61782d6c656e677468550aa10d782d6d6573736167652d74746c810000000000001388a10c782d71756575652d74797065a107636c6173736963",  # noqa: E501
    "declare quorum queue": "00537045005373c04205a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a10e2f7175657565732f71756f72756da103505554a103246d65005377d10000006700000002a109617267756d656e7473d10000005300000006a10c782d71756575652d74797065a10671756f72756da10f782d64656c697665722d6c696d69745503a116782d646561642d6c65747465722d7374726174656779a10c61742d6d6f73742d6f6e6365",  # noqa: E501
    "declare stream": "00537045005373c04205a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a10e2f7175657565732f73747265616da103505554a103246d65005377d10000002e00000002a109617267756d656e7473d10000001a00000002a10c782d71756575652d74797065a10673747265616d",  # noqa: E501
    "bind": "00537045005373c03e05a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a1092f62696e64696e6773a104504f5354a103246d65005377d10000005700000008a10b62696e64696e675f6b6579a103612e23a106736f75726365a10b6d792065786368616e6765a11164657374696e6174696f6e5f7175657565a103712f31a109617267756d656e7473d10000000400000000",  # noqa: E501
    "queue info": "00537045005373c04105a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a10d2f7175657565732f7125324631a103474554a103246d65",  # noqa: E501
    "purge": "00537045005373c04d05a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a1162f7175657565732f71253246312f6d65737361676573a10644454c455445a103246d65",  # noqa: E501
    "unbind": "00537045005373c06d05a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a1362f62696e64696e67732f7372633d6d7925323065786368616e67653b647374713d71253246313b6b65793d612e2532333b617267733da10644454c455445a103246d65",  # noqa: E501
    "delete queue": "00537045005373c04405a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a10d2f7175657565732f7125324631a10644454c455445a103246d65",  # noqa: E501
    "delete exchange": "00537045005373c04f05a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a1182f65786368616e6765732f6d7925323065786368616e6765a10644454c455445a103246d65",  # noqa: E501
    "token": "00537045005373c04005a12431313131313131312d323232322d333333332d343434342d35353535353535353535353540a10c2f617574682f746f6b656e73a103505554a103246d65005377a003616263",  # noqa: E501
}


class Node:
    """A broker and one connection that manages it."""

    def __init__(self, patterns: tuple[str, str, str] = ANYTHING) -> None:
        def fetch(payload: Payload) -> bytes:
            raise AssertionError(FETCH)

        self.broker = Broker(fetch)
        self.vhost = self.broker.registry.add_vhost("/")
        self.connection = self.connected()
        self.management = self.managing(patterns)
        self.broker.take_records()

    def connected(self) -> Connection:
        return self.broker.clients.open_connection("/", "user", "peer")

    def managing(
        self, patterns: tuple[str, str, str] = ANYTHING, connection: Connection | None = None
    ) -> Management:
        access = Access("user", "/", patterns)
        return Management(self.broker, connection or self.connection, access, "node@host")

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, object]:
        return shown(self.management.answer(request(method, target, body)))

    def python(self, name: str) -> tuple[int, object]:
        return shown(self.management.answer(bytes.fromhex(PYTHON[name])))

    def publish(self, queue: str, count: int) -> None:
        session = self.broker.clients.open_session(self.connection)
        payload = Payload(
            3, b"x" * count, array("I", range(count + 1)), Route("", queue), None,
            self.broker.new_message_ids(count), 1, False, 0,
        )  # fmt: skip
        self.broker.publishing.publish(session, self.vhost.route("", [queue], None), payload)

    def bound(self) -> list[tuple[str, str, str]]:
        return [(b.source.name, b.destination(), b.key) for b in self.vhost.topology.bindings()]


def request(method: str, target: str, body: object = None) -> bytes:
    return encode_message(
        properties=Properties(message_id=ID, to=target, subject=method, reply_to="$me"),
        body=Value(body),
    )


def shown(answer: Answer, id: object = ID) -> tuple[int, object]:
    """Status and body of a response that is as the specification wants it."""
    sections = Sections(answer.data, 0, len(answer.data))
    properties = sections.properties
    assert properties is not None
    assert properties.correlation_id == id
    assert type(properties.correlation_id) is type(id)
    assert sections.application_properties == {"http:response": "1.1"}
    assert sections.body_kind == "value"
    assert properties.subject == str(answer.status)
    assert not (answer.stored and answer.status >= 400 and answer.status != 404)
    return answer.status, sections.bodies[0]


@pytest.fixture
def node() -> Node:
    return Node()


def refusal(answer: tuple[int, object], status: int, text: str) -> None:
    assert answer == (status, text)


# -- as the Python client says it


def test_the_requests_of_rabbitmqs_python_client(node: Node) -> None:
    assert node.python("declare exchange") == (204, None)
    exchange = node.vhost.exchanges["my exchange"]
    assert (exchange.type, exchange.durable, exchange.internal) == ("topic", True, False)

    status, info = node.python("declare classic queue")
    assert status == 201
    assert info == {
        "leader": "node@host",
        "replicas": ["node@host"],
        "message_count": 0,
        "consumer_count": 0,
        "name": "q/1",
        "vhost": "/",
        "durable": True,
        "auto_delete": True,
        "exclusive": False,
        "type": "classic",
        "arguments": {
            "x-dead-letter-exchange": "dlx",
            "x-max-length": 10,
            "x-message-ttl": 5000,
            "x-queue-type": "classic",
        },
    }
    assert node.python("declare classic queue") == (200, info)
    queue = node.vhost.queues["q/1"]
    assert queue.settings.ttl_ms == 5000

    assert node.python("bind") == (204, None)
    assert node.python("bind") == (204, None)
    assert node.bound() == [("my exchange", "q/1", "a.#")]

    node.publish("q/1", 3)
    status, info = node.python("queue info")
    assert isinstance(info, dict)
    assert (status, info["message_count"], info["consumer_count"]) == (200, 3, 0)
    assert node.python("purge") == (200, {"message_count": 3})
    assert queue.ready == 0

    assert node.python("unbind") == (204, None)
    assert node.bound() == []
    assert node.python("unbind") == (204, None)

    node.publish("q/1", 2)
    assert node.python("delete queue") == (200, {"message_count": 2})
    assert "q/1" not in node.vhost.queues
    assert node.python("delete queue") == (200, {"message_count": 0})
    assert node.python("delete exchange") == (204, None)
    assert "my exchange" not in node.vhost.exchanges
    assert node.python("delete exchange") == (204, None)


def test_types_of_queues(node: Node) -> None:
    status, info = node.python("declare quorum queue")
    assert isinstance(info, dict)
    assert (status, info["type"]) == (201, "quorum")
    assert node.vhost.queues["quorum"].settings.is_quorum
    status, info = node.python("declare stream")
    assert isinstance(info, dict)
    assert (status, info["type"]) == (201, "stream")
    assert node.vhost.queues["stream"].settings.is_stream


def test_there_are_no_tokens(node: Node) -> None:
    status, text = node.python("token")
    assert status == 400
    assert "'user' logged in by another way than a token" in str(text)


def test_what_clients_in_other_languages_rely_on(node: Node) -> None:
    """Go's asserts the types, Java's wants an array and its UUID back."""
    id = UUID(ID)
    message = encode_message(
        properties=Properties(message_id=id, to="/queues/q", subject="PUT", reply_to="$me"),
        body=Value({"durable": True, "auto_delete": False, "exclusive": False, "arguments": {}}),
    )
    _, info = shown(node.management.answer(message), id)
    assert isinstance(info, dict)
    assert type(info["message_count"]) is ULong
    assert type(info["consumer_count"]) is UInt
    assert type(info["replicas"]) is Array
    assert type(info["arguments"]) is dict
    assert {type(key) for key in info} == {str}


@pytest.mark.parametrize("id", [ULong(7), b"\x00\x01", UUID(int=9), "text", ULong(2**40)])
def test_the_answer_carries_the_id_of_the_request(node: Node, id: object) -> None:
    properties = Properties(message_id=id, to="/queues/q", subject="GET", reply_to="$me")  # type: ignore[arg-type]
    message = encode_message(properties=properties, body=Value(None))
    assert shown(node.management.answer(message), id)[0] == 404


def test_sections_may_come_in_any_order(node: Node) -> None:
    """An empty body in front, as the same client writes it over a socket."""
    rest = encode_message(properties=Properties(message_id=ID, to="/queues/q", subject="GET",
                                                reply_to="$me"), body=b"")  # fmt: skip
    answer = node.management.answer(b"\x00\x53\x77\x40" + rest[: rest.index(b"\x00\x53\x75")])
    assert shown(answer) == (404, "no queue 'q' in vhost '/'")


# -- queues


def test_declaring_again(node: Node) -> None:
    body = {"durable": True, "arguments": {"x-max-length": Int(5), Symbol("x-other"): "y"}}
    assert node.ask("PUT", "/queues/q", body)[0] == 201
    assert node.ask("PUT", "/queues/q", body)[0] == 200
    same = {"arguments": {"x-max-length": ULong(5)}}
    assert node.ask("PUT", "/queues/q", same)[0] == 200
    refusal(
        node.ask("PUT", "/queues/q", {"durable": False}),
        409,
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is "
        "'true'",
    )
    status, text = node.ask("PUT", "/queues/q", {"arguments": {"x-max-length": 6}})
    assert (status, str(text)[:37]) == (409, "inequivalent arg 'x-max-length' for q")
    assert node.ask("PUT", "/queues/r", {"arguments": {"x-max-length": "many"}})[0] == 409
    assert "r" not in node.vhost.queues


def test_exclusive_queues_belong_to_the_connection(node: Node) -> None:
    body: dict[str, object] = {"exclusive": True, "durable": False, "auto_delete": True}
    status, info = node.ask("PUT", "/queues/mine", body)
    assert isinstance(info, dict)
    assert (status, info["exclusive"], info["durable"]) == (201, True, False)
    other = node.managing(connection=node.connected())
    for method, target, sent in [
        ("PUT", "/queues/mine", body),
        ("DELETE", "/queues/mine", None),
        ("DELETE", "/queues/mine/messages", None),
    ]:
        status, text = shown(other.answer(request(method, target, sent)))
        assert status == 400
        assert str(text).startswith("cannot obtain exclusive access to locked queue 'mine'")
    assert shown(other.answer(request("GET", "/queues/mine")))[0] == 200
    node.broker.clients.close_connection(node.connection, False)
    assert "mine" not in node.vhost.queues


def test_queues_that_the_broker_names(node: Node) -> None:
    status, info = node.ask("POST", "/queues", {"exclusive": True})
    assert isinstance(info, dict)
    assert status == 201
    name = info["name"]
    assert name.startswith("amq.gen-")
    assert name in node.vhost.queues
    _, other = node.ask("POST", "/queues", {})
    assert isinstance(other, dict)
    assert other["name"] != name
    assert node.ask("DELETE", f"/queues/{name}")[0] == 200
    refusal(
        node.ask("PUT", "/queues/", {}),
        400,
        "a queue with an empty name cannot be declared, expected POST /queues",
    )


def test_names_are_percent_encoded(node: Node) -> None:
    assert node.ask("PUT", "/queues/a%2Fb%20c%3F%C3%BC+d", {})[0] == 201
    assert list(node.vhost.queues) == ["a/b c?ü+d"]
    assert node.ask("DELETE", "/queues/a%2fb%20c%3f%c3%bc+d") == (200, {"message_count": 0})
    assert node.vhost.queues == {}
    for target, text in [
        ("/queues/a%2", "bad name 'a%2': expected two hexadecimal digits after each %"),
        ("/queues/a%zz", "bad name 'a%zz': expected two hexadecimal digits after each %"),
        ("/queues/%ff", "bad name '%ff': expected percent-encoded UTF-8"),
        ("/queues/a%0Ab", "bad name 'a\\nb': line feed and carriage return are not allowed"),
        ("/queues/a%0D", "bad name 'a\\r': line feed and carriage return are not allowed"),
    ]:
        refusal(node.ask("PUT", target, {}), 400, text)
    assert node.vhost.queues == {}


def test_what_is_not_there(node: Node) -> None:
    refusal(node.ask("GET", "/queues/q"), 404, "no queue 'q' in vhost '/'")
    refusal(node.ask("DELETE", "/queues/q/messages"), 404, "no queue 'q' in vhost '/'")
    purge = request("DELETE", "/queues/q/messages")
    assert node.management.answer(purge).stored, "it may have been deleted just now"
    bind = {"source": "e", "destination_queue": "q", "binding_key": "", "arguments": {}}
    refusal(node.ask("POST", "/bindings", bind), 404, "no exchange 'e' in vhost '/'")
    node.ask("PUT", "/exchanges/e", {})
    refusal(node.ask("POST", "/bindings", bind), 404, "no queue 'q' in vhost '/'")
    del node.broker.vhosts["/"]
    refusal(node.ask("GET", "/queues/q"), 404, "vhost / not found")


@pytest.mark.parametrize(
    ("target", "body", "text"),
    [
        ("/queues/q", None, "the body is None, expected a map that describes the queue"),
        ("/queues/q", [1], "the body is [1], expected a map that describes the queue"),
        ("/queues/q", {"durable": 1}, "'durable' of the queue is 1, expected a boolean"),
        ("/queues/q", {"exclusive": None}, "'exclusive' of the queue is None, expected a boolean"),
        ("/queues/q", {"arguments": [1]}, "'arguments' of the queue is [1], expected a map"),
        (
            "/queues/q",
            {"arguments": {1: 2}},
            "argument 1 of the queue, expected a name of at most ",
        ),
        ("/queues/q", {"arguments": {"x" * 256: 2}}, "argument 'xxx"),
        ("/queues/q", {"type": "quorum"}, "the queue has no property 'type'"),
        ("/queues/q", {7: True}, "the queue has no property 7"),
        (
            "/exchanges/e",
            "direct",
            "the body is 'direct', expected a map that describes the exchange",
        ),
        ("/exchanges/e", {"type": 1}, "'type' of the exchange is 1, expected a string"),
        ("/exchanges/e", {"type": "odd"}, "unknown exchange type 'odd'"),
        ("/exchanges/e", {"passive": True}, "the exchange has no property 'passive'"),
    ],
)
def test_bodies_that_make_no_sense(node: Node, target: str, body: object, text: str) -> None:
    status, found = node.ask("PUT", target, body)
    assert status == 400
    assert str(found).startswith(text), found
    assert node.vhost.queues == {}
    assert "e" not in node.vhost.exchanges


# -- exchanges


def test_exchanges(node: Node) -> None:
    body: dict[str, object] = {
        "type": "fanout",
        "durable": False,
        "auto_delete": True,
        "internal": True,
        "arguments": {"alternate-exchange": "a"},
    }
    assert node.ask("PUT", "/exchanges/e", body) == (204, None)
    made = node.vhost.exchanges["e"]
    assert (made.type, made.durable, made.auto_delete, made.internal, made.alternate) == (
        "fanout", False, True, True, "a",
    )  # fmt: skip
    assert node.ask("PUT", "/exchanges/e", body) == (204, None)
    assert node.ask("PUT", "/exchanges/e", {})[0] == 409
    assert node.ask("PUT", "/exchanges/amq.direct", {"type": "direct"}) == (204, None)
    assert node.ask("PUT", "/exchanges/d", {})[0] == 204
    assert node.vhost.exchanges["d"].type == "direct"


def test_names_that_are_taken_by_the_broker(node: Node) -> None:
    default = "operation not permitted on the default exchange"
    refusal(node.ask("PUT", "/exchanges/", {}), 403, default)
    refusal(node.ask("DELETE", "/exchanges/"), 403, default)
    for kind in ("queue", "exchange"):
        text = f"{kind} 'amq.x' in vhost '/' starts with reserved prefix 'amq.'"
        refusal(node.ask("PUT", f"/{kind}s/amq.x", {}), 403, text)
    refusal(
        node.ask("DELETE", "/exchanges/amq.topic"),
        403,
        "exchange 'amq.topic' in vhost '/' starts with reserved prefix 'amq.'",
    )
    node.ask("PUT", "/queues/q", {})
    bind = {"source": "", "destination_queue": "q", "binding_key": "k"}
    refusal(node.ask("POST", "/bindings", bind), 403, default)
    bind = {"source": "amq.topic", "destination_exchange": "", "binding_key": "k"}
    refusal(node.ask("POST", "/bindings", bind), 403, default)


# -- bindings


def test_bindings_with_arguments_are_found_by_their_location(node: Node) -> None:
    node.ask("PUT", "/queues/my%20q", {})
    node.ask("PUT", "/exchanges/e", {"type": "headers"})
    for arguments in ({}, {"x-match": "all", "a": 1}, {"a": 1, "b": "2"}):
        body = {"source": "e", "destination_queue": "my q", "binding_key": "k/1",
                "arguments": arguments}  # fmt: skip
        assert node.ask("POST", "/bindings", body) == (204, None)
    target = "/bindings?src=e&dstq=my+q&key=k%2F1"
    status, found = node.ask("GET", target)
    assert isinstance(found, list)
    assert status == 200
    assert [one["arguments"] for one in found] == [
        {}, {"x-match": "all", "a": 1}, {"a": 1, "b": "2"},
    ]  # fmt: skip
    for one in found:
        assert (one["source"], one["destination_queue"], one["binding_key"]) == ("e", "my q", "k/1")
        assert "destination_exchange" not in one
    assert found[0]["location"] == "/bindings/src=e;dstq=my%20q;key=k%2F1;args="
    assert len({one["location"] for one in found}) == 3
    assert node.ask("DELETE", found[1]["location"]) == (204, None)
    assert node.ask("GET", target.replace("+", "%20")) == (200, [found[0], found[2]])
    # Without the hash it is the one without arguments, and none but that.
    assert node.ask("DELETE", "/bindings/src=e;dstq=my%20q;key=k%2F1;args=") == (204, None)
    assert node.ask("DELETE", "/bindings/src=e;dstq=my%20q;key=k%2F1;args=") == (204, None)
    assert node.ask("GET", target) == (200, [found[2]])


def test_bindings_between_exchanges(node: Node) -> None:
    node.ask("PUT", "/exchanges/from", {})
    node.ask("PUT", "/exchanges/to", {})
    node.ask("PUT", "/queues/to", {})
    body = {"source": "from", "destination_exchange": "to", "binding_key": ""}
    assert node.ask("POST", "/bindings", body) == (204, None)
    assert node.ask("GET", "/bindings?src=from&dste=to&key=") == (
        200,
        [
            {
                "source": "from",
                "destination_exchange": "to",
                "binding_key": "",
                "arguments": {},
                "location": "/bindings/src=from;dste=to;key=;args=",
            }
        ],
    )
    assert node.ask("GET", "/bindings?src=from&dstq=to&key=") == (200, [])
    assert node.ask("DELETE", "/bindings/src=from;dstq=to;key=;args=") == (204, None)
    assert len(node.bound()) == 1
    assert node.ask("DELETE", "/bindings/src=from;dste=to;key=;args=") == (204, None)
    assert node.bound() == []


def test_a_plus_in_a_query(node: Node) -> None:
    """A space to most clients, a plus to the Java client."""
    node.ask("PUT", "/queues/q", {})
    for key in ("a b", "c+d"):
        body = {"source": "amq.topic", "destination_queue": "q", "binding_key": key}
        node.ask("POST", "/bindings", body)
    for asked, key in [("a+b", "a b"), ("a%20b", "a b"), ("c+d", "c+d"), ("c%2Bd", "c+d")]:
        status, found = node.ask("GET", f"/bindings?src=amq.topic&dstq=q&key={asked}")
        assert isinstance(found, list)
        assert (status, [one["binding_key"] for one in found]) == (200, [key])
    assert node.ask("GET", "/bindings?src=amq.topic&dstq=q&key=e+f") == (200, [])


@pytest.mark.parametrize(
    ("method", "target", "body", "text"),
    [
        ("POST", "/bindings", {"destination_queue": "q", "binding_key": ""},
         "'source' of the binding is None, expected a string"),
        ("POST", "/bindings", {"source": "e", "binding_key": ""},
         "'destination_queue' of the binding is None, expected a string"),
        ("POST", "/bindings", {"source": "e", "destination_exchange": 1, "binding_key": ""},
         "'destination_exchange' of the binding is 1, expected a string"),
        ("POST", "/bindings", {"source": "e", "destination_queue": "q"},
         "'binding_key' of the binding is None, expected a string"),
        ("POST", "/bindings", {"source": "e", "destination_queue": "q", "binding_key": "",
                               "destination_exchange": "f"},
         "the binding has no property 'destination_queue'"),
        ("POST", "/bindings", {"source": "a\nb", "destination_queue": "q", "binding_key": ""},
         "bad name 'a\\nb': line feed and carriage return are not allowed"),
        ("GET", "/bindings?src=e&dstq=q", None,
         "'key' is missing in '/bindings?src=e&dstq=q', expected src, key and dstq or dste"),
        ("GET", "/bindings?key=k&dste=q", None,
         "'src' is missing in '/bindings?key=k&dste=q', expected src, key and dstq or dste"),
        ("GET", "/bindings", None,
         "'src' is missing in '/bindings', expected src, key and dstq or dste"),
        ("GET", "/bindings?src", None, "bad query 'src': expected a value behind 'src'"),
        ("GET", "/bindings?src=%f", None,
         "bad name '%f': expected two hexadecimal digits after each %"),
        ("DELETE", "/bindings/src=e;key=k", None,
         "bad binding 'src=e;key=k': expected src=:exchange;dstq=:queue;key=:key;args= or, for an "
         "exchange, dste in the place of dstq"),
        ("DELETE", "/bindings/src=;dstq=q;key=k;args=", None,
         "bad binding 'src=;dstq=q;key=k;args=': expected src=:exchange;dstq=:queue;key=:key;args= "
         "or, for an exchange, dste in the place of dstq"),
    ],
)  # fmt: skip
def test_bindings_that_make_no_sense(
    node: Node, method: str, target: str, body: object, text: str
) -> None:
    refusal(node.ask(method, target, body), 400, text)


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"),
                min_size=1, max_size=8)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(names, names, st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
       st.dictionaries(names, st.integers(0, 3), max_size=2))  # fmt: skip
def test_any_names_can_be_managed(
    exchange: str, queue: str, key: str, arguments: dict[str, object]
) -> None:
    node = Node()
    exchange, queue = f"e{exchange}", f"q{queue}"
    location = binding_location(exchange, True, queue, key, arguments)
    _, path, segment = location.split("/")
    assert path == "bindings"
    source, destination, quoted, _ = segment.split(";")
    _, encoded = source.split("=")
    assert node.ask("PUT", f"/exchanges/{encoded}", {}) == (204, None)
    assert node.ask("PUT", f"/queues/{destination[5:]}", {})[0] == 201
    assert list(node.vhost.queues) == [queue]
    body: dict[str, object] = {"source": exchange, "destination_queue": queue,
                               "binding_key": key, "arguments": dict(arguments)}  # fmt: skip
    assert node.ask("POST", "/bindings", body) == (204, None)
    assert node.bound() == [(exchange, queue, key)]
    target = f"/bindings?{source}&{destination}&{quoted}"
    _status, found = node.ask("GET", target)
    assert isinstance(found, list)
    assert [one["location"] for one in found] == [location]
    assert node.ask("DELETE", location) == (204, None)
    assert node.bound() == []


# -- permissions, the disk, what is no request


def denied(kind: str, name: str) -> str:
    return f"access to {kind} '{name}' in vhost '/' refused for user 'user'"


@pytest.mark.parametrize(
    ("patterns", "method", "target", "body", "kind", "name"),
    [
        (("^$", ".*", ".*"), "PUT", "/queues/q", {}, "queue", "q"),
        (("^$", ".*", ".*"), "POST", "/queues", {}, "queue", "amq.gen-AAAAAAAAAAAAAAAAAAAAAA"),
        (("^$", ".*", ".*"), "DELETE", "/queues/q", None, "queue", "q"),
        ((".*", ".*", "^$"), "DELETE", "/queues/q/messages", None, "queue", "q"),
        ((".*", ".*", "^$"), "PUT", "/queues/q",
         {"arguments": {"x-dead-letter-exchange": "d"}}, "queue", "q"),
        ((".*", "^q", ".*"), "PUT", "/queues/q",
         {"arguments": {"x-dead-letter-exchange": "d"}}, "exchange", "d"),
        (("^$", ".*", ".*"), "PUT", "/exchanges/e", {}, "exchange", "e"),
        ((".*", ".*", "^$"), "PUT", "/exchanges/e",
         {"arguments": {"alternate-exchange": "a"}}, "exchange", "e"),
        ((".*", "^e", ".*"), "PUT", "/exchanges/e",
         {"arguments": {"alternate-exchange": "a"}}, "exchange", "a"),
        (("^$", ".*", ".*"), "DELETE", "/exchanges/e", None, "exchange", "e"),
        ((".*", "^$", ".*"), "POST", "/bindings",
         {"source": "e", "destination_queue": "q", "binding_key": ""}, "queue", "q"),
        ((".*", ".*", "^$"), "POST", "/bindings",
         {"source": "e", "destination_exchange": "f", "binding_key": ""}, "exchange", "e"),
        ((".*", "^$", ".*"), "DELETE", "/bindings/src=e;dstq=q;key=;args=", None, "queue", "q"),
        ((".*", ".*", "^$"), "DELETE", "/bindings/src=e;dste=f;key=;args=", None, "exchange", "e"),
    ],
)  # fmt: skip
def test_permissions(
    patterns: tuple[str, str, str], method: str, target: str, body: object, kind: str, name: str
) -> None:
    node = Node(patterns)
    before = len(node.vhost.exchanges)
    refusal(node.ask(method, target, body), 403, denied(kind, name))
    assert (node.vhost.queues, len(node.vhost.exchanges)) == ({}, before)
    assert node.broker.take_records() == []


def test_what_outlives_a_restart_waits_for_the_disk(node: Node) -> None:
    def stored(method: str, target: str, body: object = None) -> bool:
        answer = node.management.answer(request(method, target, body))
        assert answer.status < 300, answer.data
        recorded = bool(node.broker.take_records())
        assert answer.stored >= recorded, target
        return answer.stored

    passing: dict[str, object] = {"durable": False}
    assert stored("PUT", "/queues/kept", {})
    assert stored("PUT", "/queues/kept", {})  # its record may still be on its way
    assert not stored("PUT", "/queues/passing", passing)
    assert not stored("PUT", "/queues/mine", {"exclusive": True})
    assert not stored("GET", "/queues/kept")
    assert stored("PUT", "/exchanges/kept", {})
    assert not stored("PUT", "/exchanges/passing", passing)
    for exchange in ("kept", "passing"):
        for queue in ("kept", "passing", "mine"):
            lasts = exchange == queue == "kept"
            body: dict[str, object] = {
                "source": exchange, "destination_queue": queue, "binding_key": "",
            }  # fmt: skip
            assert stored("POST", "/bindings", body) is lasts
            location = f"/bindings/src={exchange};dstq={queue};key=;args="
            assert stored("DELETE", location) is lasts
            assert stored("DELETE", location)  # that it is gone may be on its way
    body = {"source": "kept", "destination_exchange": "passing", "binding_key": ""}
    assert not stored("POST", "/bindings", body)
    assert not stored("DELETE", "/queues/kept/messages")
    assert stored("DELETE", "/queues/kept")
    assert not stored("DELETE", "/queues/passing")
    assert stored("DELETE", "/exchanges/kept")
    assert not stored("DELETE", "/exchanges/passing")
    assert stored("DELETE", "/exchanges/missing")


@pytest.mark.parametrize(
    ("method", "target", "status", "text"),
    [
        ("GET", "/", 404, "no resource '/'"),
        ("GET", "/nothing/here", 404, "no resource '/nothing/here'"),
        ("GET", "/exchanges", 404, "no resource '/exchanges'"),
        ("GET", "/queues/q/bindings", 404, "no resource '/queues/q/bindings'"),
        ("GET", "/queues/a/b/messages", 404, "no resource '/queues/a/b/messages'"),
        ("GET", "/bindings/a/b", 404, "no resource '/bindings/a/b'"),
        ("GET", "queues/q", 400, "bad path 'queues/q': expected a / in front"),
        ("GET", "", 400, "bad path '': expected a / in front"),
        ("POST", "/queues/q", 405,
         "'POST' of '/queues/q' is not offered, expected GET or PUT or DELETE"),
        ("GET", "/queues", 405, "'GET' of '/queues' is not offered, expected POST"),
        ("get", "/queues/q", 405,
         "'get' of '/queues/q' is not offered, expected GET or PUT or DELETE"),
        ("GET", "/exchanges/e", 405,
         "'GET' of '/exchanges/e' is not offered, expected PUT or DELETE"),
        ("GET", "/auth/tokens", 405, "'GET' of '/auth/tokens' is not offered, expected PUT"),
    ],
)  # fmt: skip
def test_resources_and_methods_that_are_not_there(
    node: Node, method: str, target: str, status: int, text: str
) -> None:
    refusal(node.ask(method, target), status, text)


@pytest.mark.parametrize(
    ("message", "condition", "text"),
    [
        (b"", "amqp:invalid-field", "a request without properties"),
        (b"\x00", "amqp:decode-error", "the request cannot be read: "),
        (b"hello", "amqp:decode-error", "the request cannot be read: "),
        (bytes.fromhex(PYTHON["bind"])[:-5], "amqp:decode-error", "the request cannot be read: "),
        (encode_message(body=Value(None)), "amqp:invalid-field", "a request without properties"),
        (encode_message(properties=Properties(to="/queues/q", subject="GET", reply_to="$me"),
                        body=Value(None)), "amqp:invalid-field", "a request without message-id"),
        (encode_message(properties=Properties(message_id="1", to="/queues/q", subject="GET"),
                        body=Value(None)), "amqp:invalid-field", "reply-to is None, expected"),
        (encode_message(properties=Properties(message_id="1", subject="GET", reply_to="$me"),
                        body=Value(None)), "amqp:invalid-field", "a request without to"),
        (encode_message(properties=Properties(message_id="1", to="/queues/q", reply_to="$me"),
                        body=Value(None)), "amqp:invalid-field", "a request without subject"),
        (encode_message(properties=Properties(message_id="1", to="/" * 4097, subject="GET",
                                              reply_to="$me"), body=Value(None)),
         "amqp:invalid-field", "'to' has 4097 characters, at most 4096 are taken"),
    ],
)  # fmt: skip
def test_what_is_no_request(node: Node, message: bytes, condition: str, text: str) -> None:
    with pytest.raises(NotAnswerable) as caught:
        node.management.answer(message)
    assert caught.value.condition == condition
    assert caught.value.text.startswith(text)


def test_a_body_of_bytes_is_no_map(node: Node) -> None:
    message = encode_message(
        properties=Properties(message_id=ID, to="/queues/q", subject="PUT", reply_to="$me"),
        body=Data(b"{}"),
    )
    refusal(
        shown(node.management.answer(message)),
        400,
        "the body is None, expected a map that describes the queue",
    )


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(PYTHON)), st.data())
def test_any_bytes_are_answered_or_refused(name: str, data: st.DataObject) -> None:
    node = Node()
    message = bytearray(bytes.fromhex(PYTHON[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        answer = node.management.answer(bytes(message[: data.draw(st.integers(0, len(message)))]))
    except NotAnswerable:
        return
    assert Sections(answer.data, 0, len(answer.data)).properties is not None
    node.broker.check()


def test_booleans_of_an_answer_have_their_long_form() -> None:
    """As RabbitMQ writes them: 0x56 and the value [amqp-1.0 §1.6.2]."""
    node = Node()
    arguments = {"x-single-active-consumer": True, "x-nested": {"a": False, "b": [True]}}
    answer = node.management.answer(
        request("PUT", "/queues/q", {"durable": True, "arguments": arguments})
    )
    for name, value in (("durable", True), ("exclusive", False), ("auto_delete", False)):
        field = b"\xa1" + bytes([len(name)]) + name.encode()
        assert field + (b"\x56\x01" if value else b"\x56\x00") in answer.data, name
    assert b"x-single-active-consumer\x56\x01" in answer.data
    assert b"\x01a\x56\x00" in answer.data
    assert b"\x01b\xc0\x03\x01\x56\x01" in answer.data
    _, body = shown(answer)
    assert isinstance(body, dict)
    assert body["arguments"] == arguments
