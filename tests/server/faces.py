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

from tallymark.wire.amqp10.events import DispositionReceived, LinkDetached, TransfersReceived
from tallymark.wire.amqp10.outcomes import Accepted, Rejected
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import Properties, Sections, Value, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.types import Symbol
from tests.server.management import call, done
from tests.support.amqp10_socket import Client
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
        raw = socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=20)
        self._client = Client(raw).login(USER, PASSWORD)
        self._session = self._client.session()
        self._senders: dict[str | None, SenderLink] = {}
        self._receivers: dict[str, ReceiverLink] = {}
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
        while True:
            event = self._client.next_of(TransfersReceived)
            if event.link is receiver:
                answered = Sections(event.data, 0, len(event.data)).properties
                assert answered is not None
                assert answered.subject is not None
                return answered.subject

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
        self._connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=60)
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
            return self.ask("GET", f"{one}/read?epoch={epoch}&from={floor}&to={floor}")
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

    def last_words(self) -> str:
        status, found = self.ask("GET", "/api/whoami")
        return f"{status} {found['reason']}"

    def close(self) -> None:
        self._connection.close()


FACES: dict[str, Callable[[BrokerProcess], Face]] = {
    "AMQP 0-9-1": Amqp091,
    "AMQP 1.0": Amqp10,
    "HTTP": Http,
}
NEEDS: dict[str, dict[str, set[str]]] = {
    "AMQP 0-9-1": Amqp091.NEEDS,
    "AMQP 1.0": Amqp10.NEEDS,
    "HTTP": Http.NEEDS,
}
