"""The same topology and traffic on two brokers, and what a client sees of it, to be compared.

A topology is a function over a Stage: it declares, publishes and takes, and the stage notes what
is seen. It waits for what can be observed (a letter, a depth), never for time as such.

What ours does otherwise on purpose is a Difference: it names the rule of our message semantics and
edits RabbitMQ's notes into what ours have to be. A Difference that changes nothing is an error.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long
from pika.exceptions import ChannelClosedByBroker, NackError
from pika.spec import BasicProperties

from tests.interop.blocking import Inbox, Message, connect, wait_until
from tests.support.patience import PATIENCE_S

QUIET_S = 0.25
"""How long all depths have to stay as they are to say that nothing more happens."""
POLL_S = 0.005
CLOCK_S = 2.0
"""How far the time in a death may be from the time of the run: it has whole seconds."""
FIELDS = (
    "original-expiration",
    "count",
    "reason",
    "queue",
    "time",
    "exchange",
    "routing-keys",
)
"""Those of a death, in the order of DL-12."""
CLOCK, CLOCK_LETTERS = "clock", "clock-letters"
Note = dict[str, Any]
"""One thing seen: {"letter": queue, "body": ..., "headers": ...} or {"depths": {...}} and so on."""


class Notes(NamedTuple):
    """All that was seen in one run of a topology."""

    seen: list[Note]
    dead_letter_exchanges: dict[str, str]
    """By queue, as declared."""


class Difference(NamedTuple):
    """Where ours is not like RabbitMQ 3.10, on purpose."""

    rule: str
    """Its number in our message semantics."""
    what: str
    edit: Callable[[list[Note]], None]
    """Makes RabbitMQ's notes into ours, in place."""


class Topology(NamedTuple):
    """Declarations and traffic."""

    name: str
    run: Callable[[Stage], None]
    differences: tuple[Difference, ...]


Register = Callable[[Callable[["Stage"], None]], Callable[["Stage"], None]]


def registry() -> tuple[list[Topology], Callable[..., Register]]:
    """A list of topologies and the decorator that adds to it, with their differences."""
    topologies: list[Topology] = []

    def topology(*differences: Difference) -> Register:
        def register(run: Callable[[Stage], None]) -> Callable[[Stage], None]:
            topologies.append(Topology(run.__name__, run, differences))
            return run

        return register

    return topologies, topology


def observe(topology: Topology, port: int) -> Notes:
    """Run it on the broker at `port` of this machine; what it declared is gone afterwards."""
    with Stage(port) as stage:
        topology.run(stage)
        return Notes(stage.seen, stage.dead_letter_exchanges)


def compare(topology: Topology, ours: int, theirs: int) -> None:
    """Run it on both, by their ports, at the same time: ours must show what RabbitMQ does."""
    with ThreadPoolExecutor(1) as other:
        running = other.submit(observe, topology, theirs)
        seen = observe(topology, ours).seen
        expected = as_ours(topology, running.result())
    assert expected
    for number, (note, wanted) in enumerate(zip(seen, expected, strict=False)):
        assert note == wanted, f"note {number} of {len(expected)}"
    assert len(seen) == len(expected)


def as_ours(topology: Topology, theirs: Notes) -> list[Note]:
    """What ours must show, given what RabbitMQ showed."""
    seen = copy.deepcopy(theirs.seen)
    for note in letters(seen):
        if _is_history((note["headers"] or {}).get("x-death")):
            _add_last_death(note["headers"], theirs.dead_letter_exchanges)
            note["fields"] = [_in_order(fields) for fields in note["fields"]]
    for difference in topology.differences:
        before = copy.deepcopy(seen)
        difference.edit(seen)
        assert seen != before, f"{difference.rule} ({difference.what}) makes no difference"
    return seen


def _add_last_death(headers: Note, dead_letter_exchanges: dict[str, str]) -> None:
    """DL-14: RabbitMQ has x-last-death-* since 3.13; ours has it.

    Its exchange is where the message was published before the last death: for a repeated one, the
    dead-letter exchange of the queue where it died before. A topology whose letters went back by
    another way says so with a Difference.
    """
    deaths = headers["x-death"]
    last = deaths[0]
    exchange = last["exchange"]
    if last["count"] != "1L":
        exchange = dead_letter_exchanges[deaths[min(1, len(deaths) - 1)]["queue"]]
    headers |= {
        "x-last-death-reason": last["reason"],
        "x-last-death-queue": last["queue"],
        "x-last-death-exchange": exchange,
    }


def _in_order(fields: list[str]) -> list[str]:
    """DL-12: an entry keeps the order of its fields; RabbitMQ 3.10 sorts those it counts up."""
    assert set(fields) - set(FIELDS) == set()
    return [field for field in FIELDS if field in fields]


TURNED = "RabbitMQ 3.10 turns the history round at every death and finds"
"""What is behind the newest entry, that is: from three entries on its order is not that of time."""


def newest_first(note: Note, *order: str) -> None:
    """DL-13: put the entries of a letter's history in the order of `order`, "queue reason" each."""
    deaths = (note["headers"] or {}).get("x-death", [])
    by_key = {f"{death['queue']} {death['reason']}": death for death in deaths}
    assert by_key.keys() == set(order)
    if order:
        note["headers"]["x-death"] = [by_key[key] for key in order]
        note["fields"] = [_in_order(list(by_key[key])) for key in order]


def counts(*pairs: tuple[int, int]) -> Difference:
    """DL-5: x-delivery-count and x-acquired-count of the messages seen, not shown when 0.

    RabbitMQ 3.10 counts every return as a failure, shows the 0 of a first delivery too, and forgets
    the count when the message leaves its quorum queue.
    """

    def edit(seen: list[Note]) -> None:
        for note, (failed, acquired) in zip(letters(seen), pairs, strict=True):
            headers = {**(note["headers"] or {})}
            headers.pop("x-delivery-count", None)
            if failed:
                headers["x-delivery-count"] = f"{failed}L"
            if acquired:
                headers["x-acquired-count"] = f"{acquired}L"
            note["headers"] = headers or None

    return Difference("DL-5", "failures and acquisitions are counted, and kept in death", edit)


def letters(seen: list[Note], *bodies: str) -> list[Note]:
    """The notes of messages, of those with these bodies if any are given."""
    return [note for note in seen if "letter" in note and (not bodies or note["body"] in bodies)]


def arguments_of(words: dict[str, object]) -> dict[str, object]:
    """message_ttl=1 as {"x-message-ttl": 1}."""
    return {f"x-{word.replace('_', '-')}": value for word, value in words.items()}


class Stage:
    """A connection to one broker, what was declared there, and what was seen."""

    def __init__(self, port: int) -> None:
        self.seen: list[Note] = []
        self.queues: list[str] = []
        self.exchanges: list[str] = []
        self.dead_letter_exchanges: dict[str, str] = {}
        self.port = port
        self._began = time.time()
        self._inboxes: dict[str, str] = {}

    def __enter__(self) -> Stage:
        self.connection = connect(self.port)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.connection.is_open:
            self.connection.close()
        cleaner = connect(self.port)
        channel = cleaner.channel()
        for queue in (*self.queues, CLOCK, CLOCK_LETTERS):
            channel.queue_delete(queue)
        for exchange in self.exchanges:
            channel.exchange_delete(exchange)
        cleaner.close()

    # -- declarations; keywords are the x-arguments

    def queue(self, name: str, *, durable: bool = True, **words: object) -> None:
        """x-arguments as words: message_ttl=50, dead_letter_exchange=""."""
        self.channel.queue_declare(name, durable=durable, arguments=arguments_of(words))
        self.queues.append(name)
        if "dead_letter_exchange" in words:
            self.dead_letter_exchanges[name] = str(words["dead_letter_exchange"])

    def quorum(self, name: str, **words: object) -> None:
        self.queue(name, queue_type="quorum", **words)

    def exchange(
        self, name: str, kind: str = "direct", *, internal: bool = False, **arguments: str
    ) -> None:
        """Arguments as words, without x-: alternate_exchange="other"."""
        named = {word.replace("_", "-"): value for word, value in arguments.items()}
        self.channel.exchange_declare(name, kind, durable=True, internal=internal, arguments=named)
        self.exchanges.append(name)

    def bind(
        self, queue: str, exchange: str, key: str = "", arguments: dict[str, object] | None = None
    ) -> None:
        self.channel.queue_bind(queue, exchange, key, arguments)

    def dead_letters(self, exchange: str, *queues: str) -> None:
        """A fanout exchange to these queues, declared here."""
        self.exchange(exchange, "fanout")
        for queue in queues:
            self.queue(queue)
            self.bind(queue, exchange)

    # -- traffic

    def publish(self, key: str, *bodies: str, exchange: str = "", **properties: Any) -> None:
        """Persistent unless told otherwise; returns when confirmed. A refusal is noted."""
        for body in bodies:
            made = BasicProperties(**{"delivery_mode": 2, **properties})
            try:
                self.channel.basic_publish(exchange, key, body.encode(), made)
            except NackError:
                self.note(refused=body)

    def message(self, queue: str) -> Message:
        """Wait for a message, note it, leave it unsettled."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            method, properties, body = self.channel.basic_get(queue)
            if method is not None:
                message = Message(method, properties, body)
                self.letter(queue, message)
                return message
            assert time.monotonic() < deadline, f"no message in {queue} within {PATIENCE_S} s"
            self.connection.process_data_events(POLL_S)

    def get(self, queue: str) -> int:
        """As `message`; returns its delivery tag."""
        return int(self.message(queue).method.delivery_tag)

    def get_nothing(self, queue: str) -> None:
        """Ask once; a message would be noted."""
        method, properties, body = self.channel.basic_get(queue)
        if method is None:
            self.note(nothing_in=queue)
        else:
            self.letter(queue, Message(method, properties, body))

    def take(self, queue: str, count: int = 1) -> None:
        """Wait for as many messages one by one, note them, acknowledge them."""
        for _ in range(count):
            self.ack(self.get(queue))

    def drain(self, *queues: str) -> None:
        """When nothing moves any more: note the depths, then take all that is in these queues."""
        self.quiet_depths()
        depths = self.seen[-1]["depths"]
        for queue in queues:
            self.take(queue, depths[queue])

    def take_or_lose(self, queue: str) -> None:
        """When nothing moves any more: take what is in the queue, or note that it was lost."""
        self.quiet_depths()
        depth = self.seen.pop()["depths"][queue]
        if depth == 0:
            self.note(lost=queue)
        self.take(queue, depth)

    def ack(self, tag: int) -> None:
        self.channel.basic_ack(tag)

    def reject(self, tag: int, requeue: bool = False) -> None:
        self.channel.basic_reject(tag, requeue)

    def nack(self, tag: int, multiple: bool = False, requeue: bool = False) -> None:
        self.channel.basic_nack(tag, multiple, requeue)

    def consume(self, queue: str, channel: BlockingChannel | None = None, **options: Any) -> Inbox:
        """A consumer; what `arrived` of it is noted."""
        inbox = Inbox(channel or self.channel, queue, **options)
        self._inboxes[inbox.tag] = queue
        return inbox

    def arrived(self, inbox: Inbox, count: int) -> list[Message]:
        """Wait for as many messages of a consumer and note them."""
        messages = inbox.wait(count)
        for message in messages:
            self.letter(self._inboxes[inbox.tag], message)
        return messages

    def hold(self, queue: str) -> Hold:
        """A consumer that takes one message at a time: what it holds cannot expire."""
        return Hold(self, queue)

    def pass_time(self, ms: int) -> None:
        """Until a message that lives `ms` has been seen to die: later ones are due as well."""
        arguments = arguments_of(
            {
                "dead_letter_exchange": "",
                "dead_letter_routing_key": CLOCK_LETTERS,
                "message_ttl": ms,
            }
        )
        self.channel.queue_declare(CLOCK_LETTERS, durable=True)
        self.channel.queue_declare(CLOCK, durable=True, arguments=arguments)
        self.channel.basic_publish("", CLOCK, b"")
        self.wait_for_depth(CLOCK_LETTERS, 1)
        self.channel.queue_delete(CLOCK)
        self.channel.queue_delete(CLOCK_LETTERS)

    # -- what is seen

    def note(self, **what: object) -> None:
        self.seen.append(what)

    def letter(self, queue: str, message: Message) -> None:
        """Note a message as its consumer sees it."""
        properties = {
            name: value
            for name, value in vars(message.properties).items()
            if value is not None and name != "headers"
        }
        headers = message.properties.headers
        deaths = (headers or {}).get("x-death")
        self.note(
            letter=queue,
            body=message.body.decode(),
            exchange=message.method.exchange,
            routing_key=message.method.routing_key,
            redelivered=message.method.redelivered,
            headers=None if headers is None else self._plain(headers),
            fields=[list(death) for death in deaths] if _is_history(deaths) else None,
            properties=properties,
        )

    def depths(self, **expected: int) -> None:
        """Wait until the queues have as many ready messages; note the depths of all."""
        found: dict[str, int] = {}
        deadline = time.monotonic() + PATIENCE_S
        while (found := self._depths()) != found | expected:
            assert time.monotonic() < deadline, f"{found} after {PATIENCE_S} s, not {expected}"
            self.connection.process_data_events(POLL_S)
        self.note(depths=found)

    def quiet_depths(self) -> None:
        """Note the depths of all queues when they have stayed the same for a while."""
        found: dict[str, int] = {}
        since = began = time.monotonic()
        while time.monotonic() - since < QUIET_S:
            if (now := self._depths()) != found:
                found, since = now, time.monotonic()
            assert time.monotonic() - began < PATIENCE_S, f"still moving: {found}"
            self.connection.process_data_events(POLL_S)
        self.note(depths=found)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait; nothing is noted."""
        wait_until(self.connection, condition)

    def wait_for_depth(self, queue: str, depth: int) -> None:
        """Wait; nothing is noted."""
        wait_until(self.connection, lambda: self.depth(queue) == depth)

    def wait_until_gone(self, queue: str) -> None:
        """Until the queue does not exist any more, then note how a client is told."""
        refusals: list[tuple[int, str]] = []

        def asked() -> bool:
            channel = self.connection.channel()
            try:
                channel.queue_declare(queue, passive=True)
            except ChannelClosedByBroker as error:
                refusals.append((error.reply_code, error.reply_text))
                return True
            channel.close()
            return False

        wait_until(self.connection, asked)
        self.queues.remove(queue)
        self.note(gone=queue, refusal=refusals[0])

    @contextmanager
    def refusal(self, what: str) -> Iterator[BlockingChannel]:
        """Note with which words the broker closes a channel over what is done in the block."""
        channel = self.connection.channel()
        try:
            yield channel
        except ChannelClosedByBroker as error:
            self.note(refusal=what, code=error.reply_code, text=error.reply_text)
        else:
            channel.close()
            self.note(refusal=what, code=None, text="")

    def _depths(self) -> dict[str, int]:
        return {queue: self.depth(queue) for queue in self.queues}

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def _plain(self, value: object) -> object:
        """A field value so that equal means equal on the wire; times of this run as "recent"."""
        if isinstance(value, dict):
            return {name: self._plain(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._plain(inner) for inner in value]
        if isinstance(value, datetime):
            return self._when(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        return repr(value) if isinstance(value, long) else f"{value}I"

    def _when(self, value: datetime) -> object:
        now = datetime.now(UTC).timestamp()
        recent = self._began - CLOCK_S <= value.timestamp() <= now + CLOCK_S
        return "recent" if recent else value.isoformat()


class Hold:
    """A consumer with room for one message, there before the message is."""

    def __init__(self, stage: Stage, queue: str) -> None:
        self.stage = stage
        self.channel = stage.connection.channel()
        self.channel.basic_qos(prefetch_count=1)
        self.inbox = stage.consume(queue, self.channel)
        self.tag = 0

    def wait(self) -> None:
        """Until it has a message, which is noted."""
        self.tag = self.stage.arrived(self.inbox, 1)[0].method.delivery_tag

    def reject(self) -> None:
        """Refuse what it holds, ready for another one."""
        self.channel.basic_reject(self.tag, requeue=False)

    def give_back(self) -> None:
        """Return what it holds and take no more."""
        self.channel.basic_cancel(self.inbox.tag)
        self.channel.basic_nack(self.tag, requeue=True)
        self.channel.close()

    def ack(self) -> None:
        """Settle what it holds and take no more."""
        self.channel.basic_cancel(self.inbox.tag)
        self.channel.basic_ack(self.tag)
        self.channel.close()


def _is_history(deaths: object) -> bool:
    return isinstance(deaths, list) and all(isinstance(death, dict) for death in deaths)
