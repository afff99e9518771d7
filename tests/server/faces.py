"""One user on an open connection of each protocol, who does one thing after the other there.

A `Face` is a connection; `do(operation, name)` does something to the queue `NAME.q` or the exchange
`NAME.x` and says whether it was allowed. NEEDS has what each operation needs: which right, to
which of the two.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import socket
from collections.abc import Callable
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

import pika
from pika.exceptions import ChannelClosedByBroker

from tallymark.wire.amqp10.events import DispositionReceived, Event, LinkDetached, TransfersReceived
from tallymark.wire.amqp10.outcomes import Accepted, Rejected
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import Properties, Sections, Value, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.types import Symbol
from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import ERROR, MESSAGE, RESPONSE, decode_message
from tests.server.management import call, done
from tests.server.nsqd import Client as NsqClient
from tests.support.amqp10_socket import Client
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

USER = "ann"
PASSWORD = "ann"
CREDENTIALS = f"{USER}:{PASSWORD}"
NAMES = ("mine", "other")
CONFIGURE, WRITE, READ = "configure", "write", "read"
RIGHTS = (CONFIGURE, WRITE, READ)

_numbers = itertools.count()


class Face(Protocol):
    def do(self, operation: str, name: str) -> bool:
        """Whether it was allowed."""
        ...

    def renew(self, token: str) -> None:
        """Have this token take the place of the one that it came in with (PASSWORD)."""
        ...

    def last_words(self) -> str:
        """Wait until the broker ends the connection; what it says of it."""
        ...

    def close(self) -> None: ...


def provide(broker: BrokerProcess) -> None:
    """Queues and exchanges of both names, bound; made by guest."""
    for name in NAMES:
        done(broker, "PUT", f"queues/%2F/{name}.q", {"durable": True})
        done(broker, "PUT", f"exchanges/%2F/{name}.x", {"type": "fanout"})
        done(broker, "PUT", f"exchanges/%2F/{name}.more", {"type": "fanout"})
        done(broker, "POST", f"bindings/%2F/e/{name}.x/q/{name}.q", {})
        for path in (f"/topic/create?topic={name}.t", f"/channel/create?topic={name}.t&channel=c"):
            assert nsq_http(broker, "POST", path, b"", "guest:guest")[0] == 200


def put_message(broker: BrokerProcess, name: str) -> None:
    """One more in the queue, by guest."""
    status, _, _ = call(
        broker, "POST", "exchanges/%2F/amq.default/publish",
        {"routing_key": f"{name}.q", "properties": {}, "payload": "m",
         "payload_encoding": "string"},
    )  # fmt: skip
    assert status == 200


def throwaway(broker: BrokerProcess, kind: str, name: str) -> str:
    """A queue or exchange of guest's, to be deleted."""
    made = f"{name}.{next(_numbers)}"
    body: dict[str, Any] = {"type": "fanout"} if kind == "exchanges" else {}
    done(broker, "PUT", f"{kind}/%2F/{made}", body)
    return made


# -- AMQP 0-9-1


def _expect(error: ChannelClosedByBroker, code: int, text: str) -> None:
    assert error.reply_code == code, error
    assert error.reply_text.startswith(text), error


class Amqp091:
    """pika, one channel; a channel that is closed is opened again."""

    NEEDS: ClassVar[dict[str, set[str]]] = {
        "declare queue": {CONFIGURE},
        "delete queue": {CONFIGURE},
        "declare exchange": {CONFIGURE},
        "delete exchange": {CONFIGURE},
        "bind": {WRITE, READ},
        "unbind": {WRITE, READ},
        "bind exchanges": {WRITE, READ},
        "publish": {WRITE},
        "publish in a transaction": {WRITE},
        "get": {READ},
        "purge": {READ},
        "consume": {READ},
    }

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                port=broker.amqp_port, credentials=pika.PlainCredentials(USER, PASSWORD)
            )
        )
        self._channels: dict[str, Any] = {}
        self._got: list[bytes] = []

    def do(self, operation: str, name: str) -> bool:
        channel = self._channels.get(operation)
        if channel is None or channel.is_closed:
            channel = self._channels[operation] = self._connection.channel()
            if operation == "publish":
                channel.confirm_delivery()
            if operation == "publish in a transaction":
                channel.tx_select()
        try:
            self._act(channel, operation, name)
        except ChannelClosedByBroker as error:
            _expect(error, 403, "ACCESS_REFUSED - access to ")
            return False
        return True

    def _act(self, channel: Any, operation: str, name: str) -> None:
        queue, exchange = f"{name}.q", f"{name}.x"
        match operation:
            case "declare queue":
                channel.queue_declare(f"{name}.{next(_numbers)}", durable=True)
            case "delete queue":
                channel.queue_delete(throwaway(self._broker, "queues", name))
            case "declare exchange":
                channel.exchange_declare(f"{name}.{next(_numbers)}", "fanout")
            case "delete exchange":
                channel.exchange_delete(throwaway(self._broker, "exchanges", name))
            case "bind":
                channel.queue_bind(queue, exchange, "k")
            case "unbind":
                channel.queue_unbind(queue, exchange, f"none-{next(_numbers)}")
            case "bind exchanges":
                channel.exchange_bind(f"{name}.more", exchange, "k")
            case "publish":
                channel.basic_publish(exchange, "k", b"m")
            case "publish in a transaction":
                channel.basic_publish(exchange, "k", b"m")
                channel.tx_commit()
            case "get":
                channel.basic_get(queue, auto_ack=True)
            case "purge":
                channel.queue_purge(queue)
            case _:
                self._consume(channel, name)

    def _consume(self, channel: Any, name: str) -> None:
        """The consumer that is there already, if there is one, must get the next message."""
        if name not in channel.consumer_tags:
            channel.basic_consume(
                f"{name}.q", lambda *got: self._got.append(got[-1]), auto_ack=True,
                consumer_tag=name,
            )  # fmt: skip
        before = len(self._got)
        put_message(self._broker, name)
        while len(self._got) == before:
            self._connection.process_data_events(0.05)
            if channel.is_closed:
                raise channel._closing_reason

    def publish_as(self, user_id: str, name: str) -> bool:
        """Publish with this user-id."""
        channel = self._connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(user_id=user_id)
        try:
            channel.basic_publish(f"{name}.x", "k", b"m", properties)
        except ChannelClosedByBroker as error:
            _expect(error, 406, "PRECONDITION_FAILED - user_id property set to ")
            return False
        return True

    def renew(self, token: str) -> None:
        self._connection.update_secret(token, "renewed")

    def last_words(self) -> str:
        from pika.exceptions import ConnectionClosedByBroker

        try:
            while True:
                self._connection.process_data_events(1)
        except ConnectionClosedByBroker as error:
            return f"{error.reply_code} {error.reply_text}"

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()


# -- AMQP 1.0


class Amqp10:
    """Our own wire layer; links stay as long as they may."""

    NEEDS: ClassVar[dict[str, set[str]]] = {
        "declare queue": {CONFIGURE},
        "delete queue": {CONFIGURE},
        "declare exchange": {CONFIGURE},
        "delete exchange": {CONFIGURE},
        "bind": {WRITE, READ},
        "purge": {READ},
        "publish": {WRITE},
        "publish without a target": {WRITE},
        "consume": {READ},
    }
    _REFUSED = "amqp:unauthorized-access"

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        raw = socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=PATIENCE_S)
        self._client = Client(raw).login(USER, PASSWORD)
        self._session = self._client.session()
        self._senders: dict[str | None, SenderLink] = {}
        self._receivers: dict[str, ReceiverLink] = {}
        self._detached: dict[object, LinkDetached] = {}
        self._pair: tuple[SenderLink, ReceiverLink] | None = None

    def do(self, operation: str, name: str) -> bool:
        match operation:
            case "publish":
                return self._publish(f"/exchanges/{name}.x", encode_message(body=b"m"))
            case "publish without a target":
                properties = Properties(to=f"/exchanges/{name}.x")
                return self._publish(None, encode_message(properties=properties, body=b"m"))
            case "consume":
                return self._consume(name)
            case _:
                return self._manage(operation, name)

    def _publish(self, address: str | None, message: bytes) -> bool:
        link = self._senders.get(address)
        if link is None:
            name = f"to {address} {next(_numbers)}"
            link = self._client.sender(self._session, address, name=name)
            self._senders[address] = link
        gone = self._detached.pop(link, None)
        if gone is not None:
            del self._senders[address]
            self._refused(gone)
            return False
        number = link.send(message)
        while True:
            event = self._client.exchange()
            assert event is not None, "the broker hung up"
            if isinstance(event, LinkDetached) and event.link is link:
                del self._senders[address]
                self._refused(event)
                return False
            if isinstance(event, DispositionReceived) and event.first <= number <= event.last:
                if isinstance(event.state, Rejected):
                    assert event.state.error is not None
                    assert event.state.error.condition == self._REFUSED
                    return False
                assert isinstance(event.state, Accepted), event.state
                return True

    def _refused(self, event: LinkDetached) -> None:
        assert event.error is not None
        assert event.error.condition == self._REFUSED, event.error
        event.link.detach()

    def _consume(self, name: str) -> bool:
        link = self._receivers.get(name)
        if link is None:
            link = self._client.receiver(self._session, f"/queues/{name}.q", 1)
            self._receivers[name] = link
        gone = self._detached.pop(link, None)
        if gone is not None:
            del self._receivers[name]
            self._refused(gone)
            return False
        link.flow(10)
        put_message(self._broker, name)
        while True:
            event = self._client.exchange()
            assert event is not None, "the broker hung up"
            if isinstance(event, LinkDetached) and event.link is link:
                del self._receivers[name]
                self._refused(event)
                return False
            if isinstance(event, TransfersReceived) and event.link is link:
                return True

    def _manage(self, operation: str, name: str) -> bool:
        queue, exchange = f"{name}.q", f"{name}.x"
        fresh = f"{name}.{next(_numbers)}"
        body: object = None
        match operation:
            case "declare queue":
                method, path, body = "PUT", f"/queues/{fresh}", {}
            case "delete queue":
                made = throwaway(self._broker, "queues", name)
                method, path = "DELETE", f"/queues/{made}"
            case "declare exchange":
                method, path, body = "PUT", f"/exchanges/{fresh}", {"type": "fanout"}
            case "delete exchange":
                made = throwaway(self._broker, "exchanges", name)
                method, path = "DELETE", f"/exchanges/{made}"
            case "purge":
                method, path = "DELETE", f"/queues/{queue}/messages"
            case _:
                assert operation == "bind"
                method, path = "POST", "/bindings"
                body = {
                    "source": exchange, "destination_queue": queue, "binding_key": "k",
                    "arguments": {},
                }  # fmt: skip
        status = self._request(method, path, body)
        assert status in ("200", "201", "204", "403"), (operation, status)
        return status != "403"

    def _request(self, method: str, path: str, body: object) -> str:
        if self._pair is None:
            asked = Attach(
                name="management", source=Source(address="/management"),
                target=Target(address="/management"), properties={Symbol("paired"): True},
            )  # fmt: skip
            sender = self._session.attach_sender(asked, 1)
            receiver = self._session.attach_receiver(asked, 1)
            for link in (sender, receiver):
                while link.state.value != "ATTACHED":
                    assert self._client.exchange() is not None
            self._pair = sender, receiver
            receiver.flow(100)
        sender, receiver = self._pair
        properties = Properties(
            message_id=f"id-{next(_numbers)}", to=path, subject=method, reply_to="$me"
        )
        sender.send(encode_message(properties=properties, body=Value(body)), settled=True)
        others: list[Event] = []
        while True:
            event = self._client.next_of(Event)
            if not isinstance(event, TransfersReceived) or event.link is not receiver:
                others.append(event)
            else:
                self._client.events[:0] = others
                answered = Sections(event.data, 0, len(event.data)).properties
                assert answered is not None
                assert answered.subject is not None
                return answered.subject

    def renew(self, token: str) -> None:
        """Links that it detaches are read of before the answer: `do` is told of them."""
        assert self._request("PUT", "/auth/tokens", token.encode()) == "204"
        for event in self._client.events:
            if isinstance(event, LinkDetached):
                self._detached[event.link] = event
        self._client.events = [one for one in self._client.events if type(one) is not LinkDetached]

    def publish_as(self, user_id: str, name: str) -> bool:
        """Publish with this user-id."""
        properties = Properties(user_id=user_id.encode())
        message = encode_message(properties=properties, body=b"m")
        return self._publish(f"/exchanges/{name}.x", message)

    def last_words(self) -> str:
        from tallymark.wire.amqp10.events import CloseReceived

        event = self._client.next_of(CloseReceived)
        assert event.error is not None
        return f"{event.error.condition} {event.error.description}"

    def close(self) -> None:
        self._client.socket.close()


# -- HTTP


class Http:
    """One kept connection: the management interface, and what Spark calls."""

    NEEDS: ClassVar[dict[str, set[str]]] = {
        "declare queue": {CONFIGURE},
        "delete queue": {CONFIGURE},
        "declare exchange": {CONFIGURE},
        "delete exchange": {CONFIGURE},
        "bind": {WRITE, READ},
        "publish": {WRITE},
        "get": {READ},
        "purge": {READ},
        "lease": {READ},
        "read a lease": {READ},
        "browse": {READ},
        "read a browse plan": {READ},
    }

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", broker.http_port, timeout=PATIENCE_S
        )
        self._leases: dict[str, tuple[int, int]] = {}
        self._plans: dict[str, str] = {}

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        pair = base64.b64encode(CREDENTIALS.encode()).decode()
        headers = {"Authorization": f"Basic {pair}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        raw = response.read()
        kind = response.headers.get("Content-Type", "")
        return response.status, json.loads(raw) if "json" in kind and raw else raw

    def do(self, operation: str, name: str) -> bool:
        status, found = self._act(operation, name)
        if status in (401, 403):
            assert found["error"] in ("access_refused", "not_authorised"), found
            return False
        assert status in (200, 201, 204), (operation, status, found)
        return True

    def _act(self, operation: str, name: str) -> tuple[int, Any]:
        queue, exchange = f"/api/queues/%2F/{name}.q", f"/api/exchanges/%2F/{name}.x"
        fresh = f"{name}.{next(_numbers)}"
        match operation:
            case "declare queue":
                return self.ask("PUT", f"/api/queues/%2F/{fresh}", {})
            case "delete queue":
                made = throwaway(self._broker, "queues", name)
                return self.ask("DELETE", f"/api/queues/%2F/{made}")
            case "declare exchange":
                return self.ask("PUT", f"/api/exchanges/%2F/{fresh}", {"type": "fanout"})
            case "delete exchange":
                made = throwaway(self._broker, "exchanges", name)
                return self.ask("DELETE", f"/api/exchanges/%2F/{made}")
            case "bind":
                path = f"/api/bindings/%2F/e/{name}.x/q/{name}.q"
                return self.ask("POST", path, {"routing_key": "k"})
            case "publish":
                message = {"routing_key": "k", "properties": {}, "payload": "m"}
                return self.ask("POST", f"{exchange}/publish",
                                {**message, "payload_encoding": "string"})  # fmt: skip
            case "get":
                wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
                return self.ask("POST", f"{queue}/get", wanted)
            case "purge":
                return self.ask("DELETE", f"{queue}/contents")
            case "lease" | "read a lease":
                return self._lease(name, reads=operation != "lease")
            case _:
                return self._browse(name, reads=operation != "browse")

    def _lease(self, name: str, reads: bool) -> tuple[int, Any]:
        """One subscription per name, attached once."""
        one = f"/api/tallymark/subscriptions/%2F/{name}.q/spark"
        if name not in self._leases:
            status, found = self.ask("POST", f"{one}/attach", {})
            if status != 200:
                return status, found
            self._leases[name] = found["fence"], found["epoch"]
        fence, epoch = self._leases[name]
        if reads:
            floor = self._floor(one)
            return self.ask(
                "GET", f"{one}/read?fence={fence}&epoch={epoch}&from={floor}&to={floor}"
            )
        wanted = {"fence": fence, "epoch": epoch, "start": self._floor(one), "max_rows": 1}
        return self.ask("POST", f"{one}/lease", wanted)

    def _floor(self, one: str) -> int:
        """As guest sees it: what the subscription has been settled up to."""
        status, found = self._broker.http("GET", f"{one}/stat")
        assert status == 200
        return int(found["floor"])

    def _browse(self, name: str, reads: bool) -> tuple[int, Any]:
        """One plan per name, made once, if it is to be read."""
        if name not in self._plans or not reads:
            status, found = self.ask("POST", f"/api/tallymark/browse/%2F/{name}.q")
            if status != 200 or not reads:
                return status, found
            self._plans[name] = found["plan"]
        plan = quote(self._plans[name], safe="")
        return self.ask("GET", f"/api/tallymark/browse/plans/{plan}/read?from=0&to=0")

    def renew(self, token: str) -> None:
        """Each request has the token of its time."""

    def last_words(self) -> str:
        status, found = self.ask("GET", "/api/whoami")
        return f"{status} {found['reason']}"

    def close(self) -> None:
        self._connection.close()


# -- NSQ


class Nsq:
    """AUTH with the user's password. A refusal ends a connection, so each operation on each topic
    has one of its own."""

    NEEDS: ClassVar[dict[str, set[str]]] = {
        "PUB": {WRITE},
        "MPUB": {WRITE},
        "DPUB": {WRITE},
        "PUB to a new topic": {CONFIGURE, WRITE},
        "SUB": {READ},
        "SUB to a new channel": {CONFIGURE, WRITE, READ},
    }

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._clients: dict[tuple[str, str], NsqClient] = {}
        self._last = self._connected()

    def _connected(self) -> NsqClient:
        client = NsqClient(self._broker.nsq_port)
        client.send(commands.auth(f"{USER}:{PASSWORD}".encode()))
        kind, data = client.next()
        assert kind == RESPONSE, data
        assert json.loads(data)["identity"] == USER
        return client

    def do(self, operation: str, name: str) -> bool:
        client = self._clients.get((operation, name))
        is_new = client is None
        if client is None:
            client = self._clients[operation, name] = self._last = self._connected()
        topic, channel = f"{name}.t", "c"
        body = b"m"
        match operation:
            case "PUB":
                client.send(commands.pub(topic, body))
            case "MPUB":
                client.send(commands.mpub(topic, [body]))
            case "DPUB":
                client.send(commands.dpub(topic, 1, body))
            case "PUB to a new topic":
                client.send(commands.pub(f"{name}.t{next(_numbers)}", body))
            case "SUB to a new channel":
                # One SUB per connection: this one is of now, the rights of its log-in or not.
                client.send(commands.sub(topic, f"c{next(_numbers)}"))
                del self._clients[operation, name]
                self._clients[operation, name] = self._connected()
            case _:
                return self._subscribed(client, name, is_new)
        return self._is_ok(client, (operation, name), channel)

    def _is_ok(self, client: NsqClient, key: tuple[str, str], channel: str) -> bool:
        kind, data = client.next()
        if kind == ERROR:
            _expect_unauthorized(data)
            if self._clients.get(key) is client:
                del self._clients[key]
            client.close()
            return False
        assert (kind, data) == (RESPONSE, b"OK")
        return True

    def _subscribed(self, client: NsqClient, name: str, is_new: bool) -> bool:
        """The subscriber that is there already, if there is one, must get the next message."""
        if is_new:
            client.send(commands.sub(f"{name}.t", "c"))
            if not self._is_ok(client, ("SUB", name), "c"):
                return False
            client.send(commands.rdy(100))
        status, _ = nsq_http(self._broker, "POST", f"/pub?topic={name}.t", b"m", "guest:guest")
        assert status == 200
        kind, data = client.next()
        if kind == ERROR:
            _expect_unauthorized(data)
            del self._clients["SUB", name]
            client.close()
            return False
        assert kind == MESSAGE
        client.send(commands.fin(int(decode_message(data)[2], 16)))
        return True

    def renew(self, token: str) -> None:
        """On all of its connections. What is said instead of the answer is for `do`."""
        for client in self._clients.values():
            client.send(commands.auth(token.encode()))
            frame = client.next()
            if frame[0] == ERROR:
                client.put_back(frame)
            else:
                assert json.loads(frame[1])["identity"] == USER, frame

    def last_words(self) -> str:
        while True:
            try:
                kind, data = self._last.next()
            except AssertionError as error:
                return str(error)
            assert kind == RESPONSE, data

    def close(self) -> None:
        self._last.close()
        for client in self._clients.values():
            client.close()


def _expect_unauthorized(data: bytes) -> None:
    assert data.startswith(b"E_UNAUTHORIZED AUTH failed for "), data


def nsq_http(
    broker: BrokerProcess, method: str, path: str, body: bytes | None, user: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.nsq_http_port, timeout=PATIENCE_S)
    headers = {}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class NsqHttp:
    """nsqd's HTTP interface."""

    NEEDS: ClassVar[dict[str, set[str]]] = {
        "/pub": {WRITE},
        "/mpub": {WRITE},
        "/pub to a new topic": {CONFIGURE, WRITE},
        "/topic/create": {CONFIGURE},
        "/topic/delete": {CONFIGURE},
        "/topic/empty": {READ},
        "/topic/unpause": {CONFIGURE},
        "/channel/create": {CONFIGURE, WRITE, READ},
        "/channel/delete": {CONFIGURE},
        "/channel/empty": {READ},
        "/channel/unpause": {CONFIGURE},
    }

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def do(self, operation: str, name: str) -> bool:
        path, topic = operation, f"{name}.t"
        channel = "c"
        body: bytes | None = b"m"
        match operation:
            case "/pub to a new topic":
                path, topic = "/pub", f"{name}.t{next(_numbers)}"
            case "/topic/create":
                topic = f"{name}.t{next(_numbers)}"
            case "/topic/delete":
                topic = f"{name}.t{next(_numbers)}"
                self._provide(f"/channel/create?topic={topic}&channel=c", topic)
            case "/channel/create":
                channel = f"c{next(_numbers)}"
            case "/channel/delete":
                channel = f"c{next(_numbers)}"
                self._provide(f"/channel/create?topic={topic}&channel={channel}", topic)
        query = f"?topic={topic}"
        if path.startswith("/channel"):
            query += f"&channel={channel}"
        status, raw = nsq_http(self._broker, "POST", path + query, body, CREDENTIALS)
        if status == 403:
            assert json.loads(raw) == {"message": "FORBIDDEN"}
            return False
        assert status == 200, (operation, status, raw)
        return True

    def _provide(self, path: str, topic: str) -> None:
        for one in (f"/topic/create?topic={topic}", path):
            assert nsq_http(self._broker, "POST", one, b"", "guest:guest")[0] == 200

    def renew(self, token: str) -> None:
        """As over HTTP."""

    def last_words(self) -> str:
        status, raw = nsq_http(self._broker, "GET", "/stats", None, CREDENTIALS)
        return f"{status} {json.loads(raw)['message']}"

    def close(self) -> None:
        """Each request is a connection of its own."""


FACES: dict[str, Callable[[BrokerProcess], Face]] = {
    "AMQP 0-9-1": Amqp091,
    "AMQP 1.0": Amqp10,
    "HTTP": Http,
    "NSQ": Nsq,
    "NSQ over HTTP": NsqHttp,
}
NEEDS: dict[str, dict[str, set[str]]] = {
    "AMQP 0-9-1": Amqp091.NEEDS,
    "AMQP 1.0": Amqp10.NEEDS,
    "HTTP": Http.NEEDS,
    "NSQ": Nsq.NEEDS,
    "NSQ over HTTP": NsqHttp.NEEDS,
}
