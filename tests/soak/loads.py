"""The loads of the crash tests as traffic of a soak, at a pace: NSQ, transactions and a stream.

Each keeps its own history, stricter than files: attempts that count on, transactions that are there
whole or not at all, offsets that never change. A round of each is one life of the broker.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.soak.account import Notes
from tests.soak.stage import LOOK_S, Actor, HungUp, Stage
from tests.support import nsq_load, stream_load, transaction_load
from tests.support.crash_history import check_account
from tests.support.nsq_history import ChannelHistory, TopicHistory, check_same
from tests.support.pace import Pace
from tests.support.patience import PATIENCE_S
from tests.support.stream_load import Known, follow
from tests.support.transaction_load import LETTERS, PERSISTENT, SOURCES, TARGETS, Account

TOPIC = "soak"
EACH = 250
"""Messages in each source of the transactions, for one life."""
STREAM_BYTES = 2_000_000
"""That a stream keeps: what comes in a fraction of a life."""


class Nsq(Actor):
    """PUB, MPUB and DPUB; FIN, REQ, REQ with a delay; one consumer lets everything time out."""

    def __init__(self, stage: Stage, per_s: float, confirmed: Notes, got: Notes) -> None:
        super().__init__(stage, "NSQ")
        self.topic = TopicHistory(TOPIC)
        self.one = ChannelHistory("one", self.topic)
        self.two = ChannelHistory("two", self.topic)
        self._roles = [(None, False), (self.one, False), (self.one, True), (self.two, False)]
        self._sequences = [0] * len(self._roles)
        self._per_s = per_s / len(self._roles)
        self._confirmed = confirmed
        self._got = got
        self._noted = 0
        self._is_drained = False

    @property
    def is_done(self) -> bool:
        return self._is_drained

    def set_up(self) -> None:
        """Both channels, so that each gets everything."""
        for index in (1, 3):
            self._client(index).leave(certain=False)

    def work(self) -> None:
        life = self.stage.life
        clients: list[nsq_load.Client] = []
        try:
            for index in range(len(self._roles)):
                clients.append(self._connect_one(index, life))
            while self.stage.lives(life) and not self.stage.ended.is_set():
                for client in clients:
                    client.work()
                    if client.is_lost:
                        raise ConnectionError(f"client {client.producer} was hung up on")
                nsq_load.wait_for(clients)
            if self.stage.lives(life):
                for client in clients[1:]:  # the first has no subscription to give up
                    client.stop()
                for client in clients:
                    client.leave(certain=True)
                    self._sequences[client.producer] = client.sequence
                clients.clear()
                self._drain()
                return
        finally:
            if clients:
                self._crashed(clients)

    def _connect_one(self, index: int, life: int) -> nsq_load.Client:
        try:
            return self._client(index)
        except AssertionError as error:
            if self.stage.lives(life):
                raise
            raise ConnectionError(str(error)) from error  # it was hung up on

    def _crashed(self, clients: list[nsq_load.Client]) -> None:
        """After the broker's end: what it had sent before is still there to be read."""
        for client in clients:
            client.read_the_rest()
            self._sequences[client.producer] = client.sequence
        self.topic.life += 1
        for channel in (self.one, self.two):
            channel.life_ends(crashed=True)
        self._note()

    def _note(self) -> None:
        for batch in self.topic.batches[self._noted :]:
            if batch.is_ok:
                for number in batch.numbers:
                    self._confirmed.add(number)
        self._noted = len(self.topic.batches)

    def _drain(self) -> None:
        """Receive and finish everything, and make up the account."""
        clients = [self._client(1), self._client(3)]
        for client in clients:
            client.only_drain()
        nsq_load.run(clients, self._is_empty)
        for client in clients:
            client.stop()
        for client in clients:
            client.leave(certain=False)
        self._note()
        for channel in (self.one, self.two):
            channel.life_ends(crashed=False)
            channel.check_all_done()
        check_same(self.one, self.two)
        for number in sorted(self.one.finished()):
            self._got.add(number)
        for row in self._rows():
            check_account(row, 0)
        self._is_drained = True

    def _is_empty(self) -> bool:
        self.stage.closed.wait(LOOK_S)
        return not sum(row["ready"] + row["acquired"] + row["deferred"] for row in self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        rows = self.stage.broker.queues()
        return [rows[f"{TOPIC}:one"], rows[f"{TOPIC}:two"]]

    def _client(self, index: int) -> nsq_load.Client:
        channel, holds = self._roles[index]
        return nsq_load.Client(
            self.stage.broker.nsq_port, index, self._sequences[index], self.topic, channel,
            random.Random(), holds=holds, pace=Pace(self._per_s),
        )  # fmt: skip


class Transactions(Actor):
    """Transactions over eleven queues, two clients of each AMQP; each life's account is made up in
    the next."""

    def __init__(self, stage: Stage, per_s: float, committed: Notes) -> None:
        super().__init__(stage, "transactions")
        self._per_s = per_s
        self._account: Account | None = None
        self._next = 0
        self._committed = committed
        self._is_checked = False
        self.transactions = self.checked = 0

    @property
    def is_done(self) -> bool:
        return self._is_checked and self.stage.ended.is_set()

    def set_up(self) -> None:
        channel = self._channel()
        transaction_load.set_up(channel)
        channel.connection.close()

    def work(self) -> None:
        life = self.stage.life
        self._is_checked = False
        self._check()
        self._is_checked = True
        if self.stage.ended.is_set():
            return
        account = self._fill()
        self._account = account
        kinds = [transaction_load.Worker, transaction_load.Worker10] * 2
        port = self.stage.broker.amqp_port
        workers = [
            kind(port, f"l{life}w{n}", account, random.getrandbits(32), False)
            for n, kind in enumerate(kinds)
        ]
        for worker in workers:
            worker.may_begin = _Turns(self.stage, life, self._per_s / len(workers))
            worker.start()
        for worker in workers:
            worker.join()
            if worker.error is not None and self.stage.lives(life):
                raise HungUp(f"{worker.name}: {worker.error!r}") from worker.error
        while self.stage.lives(life) and not self.stage.ended.is_set():
            self.stage.ended.wait(LOOK_S)  # all sources are empty

    def _check(self) -> None:
        """All queues are read and nothing is settled until the account is found right: a broker
        killed meanwhile has it all again."""
        channel = self._channel()
        contents: dict[str, list[bytes]] = {}
        for name in (*SOURCES, *TARGETS, LETTERS):
            bodies = contents[name] = []
            while True:
                method, _, body = channel.basic_get(name)
                if method is None:
                    break
                bodies.append(body)
        if self._account is not None:
            self.transactions += self._account.check(contents)
            self.checked += 1
            for name in sorted(self._account.committed):
                life, _, rest = name.partition("w")
                worker, _, number = rest.partition(".")
                self._committed.add(int(life[1:]) << 32 | int(worker) << 24 | int(number))
            self._account = None
        channel.basic_ack(0, multiple=True)
        channel.connection.close()

    def _fill(self) -> Account:
        """All sources at once: one large transaction."""
        account = Account({source: set() for source in SOURCES})
        channel = self._channel()
        channel.tx_select()
        for source in SOURCES:
            numbers = range(self._next, self._next + EACH)
            self._next += EACH
            account.sources[source].update(numbers)
            for number in numbers:
                channel.basic_publish("", source, b"%d " % number, PERSISTENT)
        channel.tx_commit()
        channel.connection.close()
        return account

    def _channel(self) -> BlockingChannel:
        parameters = pika.ConnectionParameters(
            "127.0.0.1", self.stage.broker.amqp_port, heartbeat=0,
            socket_timeout=PATIENCE_S, stack_timeout=PATIENCE_S,
        )  # fmt: skip
        return pika.BlockingConnection(parameters).channel()


class _Turns:
    """Lets a worker begin its next transaction when it is time for it."""

    def __init__(self, stage: Stage, life: int, per_s: float) -> None:
        self._stage = stage
        self._life = life
        self._pace = Pace(per_s)

    def __call__(self) -> bool:
        while self._stage.lives(self._life) and not self._stage.ended.is_set():
            if self._pace.take():
                return True
            self._stage.ended.wait(LOOK_S)
        # Killed: the next command finds out, and its commit is not counted as asked for.
        return not self._stage.ended.is_set()


class Stream(Actor):
    """Two publishers of numbered messages and two readers; after each life all of the stream is
    read and compared with what they saw."""

    def __init__(self, stage: Stage, per_s: float) -> None:
        super().__init__(stage, "stream")
        self.known = Known()
        self.publishers = [
            stream_load.Publisher(id, self.known, random.Random(id), Pace(per_s / 2))
            for id in range(2)
        ]
        self._is_checked = False

    @property
    def is_done(self) -> bool:
        return self._is_checked and self.stage.ended.is_set()

    def set_up(self) -> None:
        stream_load.declare(self.stage.broker.amqp_port, {"x-max-length-bytes": STREAM_BYTES})

    def work(self) -> None:
        life, port = self.stage.life, self.stage.broker.amqp_port
        self._is_checked = False
        low, high, found = stream_load.read_all(self.stage.broker)
        stream_load.check(self.known, self.publishers, low, high, found)
        self._is_checked = True
        if self.stage.ended.is_set():
            return
        ended = threading.Event()
        threads = [
            threading.Thread(target=publisher.run, args=(port, ended), daemon=True)
            for publisher in self.publishers
        ] + [
            threading.Thread(
                target=follow, args=(port, start, 100, self.known, ended), daemon=True
            )
            for start in (0, high)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        while self.stage.lives(life) and not self.stage.ended.is_set():
            self.stage.ended.wait(LOOK_S)
            gone = [thread.name for thread in threads if not thread.is_alive()]
            if gone and self.stage.lives(life):
                raise HungUp(f"stream: {len(gone)} of {len(threads)} clients")
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a client of the stream is stuck"
        self._is_checked = False
