"""A naive model of one queue and its NSQ clients, played against the engine.

The model has one object per message and knows five places: ready, held by a client under a tag,
deferred, finished, dropped. It does not know entries, bitmaps, heaps, lanes or records. Whether a
held message has timed out it asks the engine only within MERGE_MS of its deadline; outside of that
it knows. Order is not its concern: NSQ promises none.
"""

from __future__ import annotations

from random import Random

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, FAILED, RETURNED
from tallymark.engine.timeouts import MERGE_MS
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import Delivery, held
from tests.support.engine_steps import manual
from tests.support.nsq_client import Client

READY, HELD, DEFERRED, FINISHED, DROPPED = "ready", "held", "deferred", "finished", "dropped"
MOST_MS = 400
"""max-msg-timeout in these plays: a few touches reach it."""
STEPS_MS = (0, 1, MERGE_MS - 1, MERGE_MS, 40, 99, 100, 101, 130, 400)
DELAYS_MS = (0, 0, 1, 30, 120, 500)
CLOCK_STEPS_MS = (-86_400_000, -3_600_000, -2_500, 2_500, 3_600_000, 86_400_000)
"""By how much somebody sets the wall clock; what becomes of messages does not depend on it."""
RETRY_MS, LONGEST_RETRY_MS = 30, 90


class Message:
    """Where one message is, and how often it was sent."""

    __slots__ = ("attempts", "deadline_ms", "due_ms", "failures", "given_ms", "place", "sent")

    def __init__(self) -> None:
        self.place = READY
        self.attempts = 0
        """As the engine has it: after a crash it may be one more than was sent."""
        self.sent = 0
        self.failures = 0
        self.given_ms = 0
        self.deadline_ms = 0
        self.due_ms = 0


class Player:
    """A client, what it holds, and every tag it was ever given."""

    __slots__ = ("client", "held", "tags")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.held: dict[int, Message] = {}
        self.tags: list[int] = []


class Race:
    """One play. Every command says what it expects of the engine, and `look` compares the rest."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history: list[str] = []
        self.rig = manual()
        self.retries = self.random.random() < 0.3
        """Whether messages whose delivery failed wait for their next try."""
        arguments: dict[str, object] = {
            "delayed-retry-type": "failed", "delayed-retry-min": RETRY_MS,
            "delayed-retry-max": LONGEST_RETRY_MS,
        }  # fmt: skip
        self.queue = self.rig.declare(
            "q", arguments if self.retries else {}, self.random.random() < 0.7
        )
        self.messages: list[Message] = []
        self.players: list[Player] = []
        self.paused = False
        self.requeued = 0
        self.timed_out = 0
        self.names = 0

    # -- the play

    def play(self, steps: int) -> None:
        pick = self.random.random
        self.publish()
        self.join()
        self.join()
        for _ in range(steps):
            COMMANDS[int(pick() * len(COMMANDS))](self)
            if pick() < 0.7:
                self.wait(0)
        self.wait(0)
        self.finish_all()

    def finish_all(self) -> None:
        """Everything goes on to its end: then every message was finished or dropped, once."""
        if self.paused:
            self.pause()
        if not self.players:
            self.join()
        for player in self.players:
            player.client.rdy(10)
        for _ in range(100):
            self.wait(0)
            for player in self.players:
                for tag in list(player.held):
                    self.settle(player, tag, 1, ACCEPTED)
            if all(m.place in (FINISHED, DROPPED) for m in self.messages):
                break
            self.wait(100)
        self.wait(0)
        queue = self.queue
        assert (
            queue.entered
            == len(self.messages)
            == queue.account.settled + sum(queue.account.dropped.values())
        )
        assert (queue.ready, queue.acquired, queue.deferred, len(queue.deferrals)) == (
            0,
            0,
            0,
            0,
        )
        for player in self.players:
            assert player.client.session.unacked == player.client.consumer.unacked == 0
            assert not player.client.session.inflight
        rig = self.rig
        rig.turn()
        rig.turn()
        assert rig.broker.store.resident_bytes == 0

    # -- commands

    def publish(self) -> None:
        n = 1 + int(self.random.random() * 3)
        delay = self.random.choice(DELAYS_MS)
        first = len(self.messages)
        known = Annotations(due_ms=self.rig.now_ms + delay) if delay else None
        self.history.append(f"publish {n} delay {delay}")
        self.rig.send("q", *range(first, first + n), annotations=known)
        for _ in range(n):
            message = Message()
            if delay:
                message.place = DEFERRED
                message.due_ms = self.rig.now_ms + delay
            self.messages.append(message)

    def join(self) -> None:
        if len(self.players) == 3:
            return
        self.names += 1
        rdy = self.random.choice((0, 1, 2, 5))
        timeout_ms = self.random.choice((100, 130, 250))
        self.history.append(f"join c{self.names} rdy {rdy} timeout {timeout_ms}")
        client = Client(self.rig, "q", f"c{self.names}", rdy, timeout_ms)
        self.players.append(Player(client))

    def leave(self) -> None:
        player = self.someone()
        if player is None:
            return
        lost = self.random.random() < 0.5
        self.history.append(f"leave {player.client.consumer.tag} lost {lost}")
        self.players.remove(player)
        player.client.leave(lost)
        for message in player.held.values():
            self.back(message, lost)

    def back(self, message: Message, failed: bool) -> None:
        """It was given back, to its old place."""
        message.place = READY
        message.failures += failed
        if failed and self.retries:
            message.place = DEFERRED
            message.due_ms = self.rig.now_ms + min(message.failures * RETRY_MS, LONGEST_RETRY_MS)

    def rdy(self) -> None:
        player = self.someone()
        if player is not None:
            count = self.random.choice((0, 1, 2, 5))
            self.history.append(f"rdy {player.client.consumer.tag} {count}")
            player.client.rdy(count)

    def fin(self) -> None:
        self.some_settlement(ACCEPTED)

    def give_back(self) -> None:
        self.some_settlement(self.random.choice((RETURNED, FAILED)))

    def some_settlement(self, outcome: int) -> None:
        player = self.someone()
        if player is not None and player.tags:
            n = self.random.choice((1, 1, 1, 2, 3))
            self.settle(player, self.some_tag(player), n, outcome)

    def settle(self, player: Player, tag: int, n: int, outcome: int) -> None:
        """n tags in one command: those before the first that is not in flight are settled."""
        self.history.append(f"settle {player.client.consumer.tag} {tag}+{n} outcome {outcome}")
        expected = 0
        while expected < n and tag + expected in player.held:
            expected += 1
        try:
            self.rig.broker.settlement.settle(player.client.session, tag, tag + n - 1, outcome)
        except PreconditionFailed:
            assert expected < n, "refused what is in flight"
        else:
            assert expected == n, "settled what is not in flight"
        for each in range(tag, tag + expected):
            message = self.let_go(player, each)
            if outcome == ACCEPTED:
                message.place = FINISHED
            else:
                self.back(message, outcome == FAILED)

    def req(self) -> None:
        player = self.someone()
        if player is None or not player.tags:
            return
        tag, delay = self.some_tag(player), self.random.choice(DELAYS_MS)
        self.history.append(f"req {player.client.consumer.tag} {tag} delay {delay}")
        if not self.does(player.client.req, player, tag, delay):
            return
        self.requeued += 1
        message = self.let_go(player, tag)
        message.place = DEFERRED if delay else READY
        message.due_ms = self.rig.now_ms + delay

    def touch(self) -> None:
        player = self.someone()
        if player is None or not player.tags:
            return
        tag = self.some_tag(player)
        self.history.append(f"touch {player.client.consumer.tag} {tag}")
        if self.does(player.client.touch, player, tag, MOST_MS):
            message = player.held[tag]
            fresh = self.rig.now_ms + player.client.consumer.timeout_ms
            message.deadline_ms = min(fresh, message.given_ms + MOST_MS)

    def does(self, command: object, player: Player, tag: int, argument: int) -> bool:
        """Whether REQ or TOUCH did it: as it must where the message is in flight, and only then."""
        assert callable(command)
        try:
            command(tag, argument)
        except PreconditionFailed:
            assert tag not in player.held, "refused what is in flight"
            return False
        assert tag in player.held, "took what is not in flight"
        return True

    def empty(self) -> None:
        self.history.append("empty")
        self.rig.broker.contents.empty(self.queue)
        for message in self.messages:
            if message.place in (READY, HELD, DEFERRED):
                message.place = DROPPED
        for player in self.players:
            player.held.clear()

    def pause(self) -> None:
        self.paused = not self.paused
        self.history.append(f"pause {self.paused}")
        self.rig.broker.registry.pause(self.queue, self.paused)

    def set_wall_clock(self) -> None:
        step = self.random.choice(CLOCK_STEPS_MS)
        self.history.append(f"set wall clock {step:+}")
        self.rig.set_wall_clock(step)
        self.wait(0)
        self.rig.checkpoint()  # as the server does at each jump (`Turns.tell_time`)

    def restart(self) -> None:
        """From the log, from a checkpoint and the log, or after an orderly stop."""
        if not self.queue.durable:
            return
        self.wait(0)
        moved = self.rig.wall_off_ms
        how = self.random.choice(("crash", "checkpoint", "clean"))
        self.history.append(f"restart {how}")
        if how == "checkpoint":
            self.rig.checkpoint()
        if how == "clean":
            for player in self.players:
                player.client.leave(False)
        self.rig = self.rig.restart(how == "clean")
        self.queue = self.rig.vhost.queues["q"]
        self.players.clear()
        self.requeued = self.timed_out = 0
        for message in self.messages:
            if message.place == HELD:
                message.place = READY
            message.due_ms += moved
        flagged = {h.number: h.acquired for h in self.rig.holds("q")}
        for entry in self.queue.deferrals:
            self.rig.broker.store.load(entry.piece.payload)
            flagged.update({h.number: h.acquired for h in held(entry.piece)})
        for number, message in enumerate(self.messages):
            if message.place in (READY, DEFERRED) and how != "clean":
                message.attempts = flagged[number]
                assert message.sent <= message.attempts <= message.sent + 1
        self.join()

    def pass_time(self) -> None:
        self.wait(self.random.choice(STEPS_MS))

    def wait(self, ms: int) -> None:
        """Time passes; the broker gets a turn whenever it asked for one, and is looked at."""
        if ms:
            self.history.append(f"wait {ms}")
        rig = self.rig
        end = rig.now_ms + ms
        self.look(rig.settle_down())
        while rig.broker.next_due() <= end:
            rig.now_ms = max(rig.now_ms, rig.broker.next_due())
            self.look(rig.settle_down())
            assert rig.broker.next_due() > rig.now_ms, "a deadline came, and nothing was done"
        rig.now_ms = end
        self.look(rig.settle_down())

    # -- comparison

    def look(self, seen: list[Delivery]) -> None:
        now = self.rig.now_ms
        for message in self.messages:
            if message.place == DEFERRED and message.due_ms <= now:
                message.place = READY
        for player in self.players:
            for tag, message in list(player.held.items()):
                if message.deadline_ms > now:
                    continue
                if message.deadline_ms + MERGE_MS <= now or not player.client.holds(tag):
                    self.let_go(player, tag).place = READY
                    self.timed_out += 1
        for delivery, given in zip(seen, self.rig.given, strict=True):
            self.deliver(delivery, given.acquired)
        self.rig.given.clear()
        self.compare()

    def deliver(self, delivery: Delivery, acquired: int) -> None:
        message = self.messages[delivery.number]
        player = next(p for p in self.players if p.client.session.id == delivery.session)
        assert message.place == READY, f"{delivery.number} sent while {message.place}"
        assert not self.paused, f"{delivery.number} sent from a paused queue"
        assert acquired == message.attempts, f"{delivery.number}: attempts {acquired}"
        message.attempts += 1
        message.sent += 1
        message.place = HELD
        message.given_ms = self.rig.now_ms
        message.deadline_ms = self.rig.now_ms + player.client.consumer.timeout_ms
        assert not player.tags or delivery.tag > player.tags[-1], "a tag given twice"
        player.tags.append(delivery.tag)
        player.held[delivery.tag] = message
        assert len(player.held) <= player.client.consumer.limit, "more than RDY"

    def compare(self) -> None:
        places = [message.place for message in self.messages]
        queue = self.queue
        found = (
            queue.ready, queue.acquired, queue.deferred, queue.account.settled,
            sum(queue.account.dropped.values()), queue.requeued, queue.timed_out,
        )  # fmt: skip
        expected = (
            places.count(READY), places.count(HELD), places.count(DEFERRED),
            places.count(FINISHED), places.count(DROPPED), self.requeued, self.timed_out,
        )  # fmt: skip
        assert found == expected, (found, expected)
        free = 0
        for player in self.players:
            client = player.client
            assert client.consumer.unacked == client.session.unacked == len(player.held)
            assert all(client.holds(tag) for tag in player.held)
            free += max(0, client.consumer.limit - len(player.held))
        assert self.paused or not (free and queue.ready), "a client waits, and a message"
        self.rig.broker.check()

    # -- choices

    def someone(self) -> Player | None:
        return self.random.choice(self.players) if self.players else None

    def some_tag(self, player: Player) -> int:
        """Mostly one that is held, else any it ever had, or never."""
        if player.held and self.random.random() < 0.75:
            return self.random.choice(list(player.held))
        return self.random.choice([*player.tags, player.tags[-1] + 1])

    def let_go(self, player: Player, tag: int) -> Message:
        return player.held.pop(tag)


COMMANDS = (
    *[Race.fin] * 4, *[Race.req] * 5, *[Race.touch] * 5, *[Race.pass_time] * 7,
    *[Race.publish] * 2, *[Race.give_back] * 2, *[Race.rdy] * 2, Race.leave, Race.join, Race.empty,
    Race.pause, Race.restart, Race.set_wall_clock,
)  # fmt: skip
"""What may come next, as often as it stands here."""
