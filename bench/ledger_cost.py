"""What the ledger costs on the hot path: processor time of engine and journal per message, with all
rows and with the policy `ledger = account`, which leaves deliveries out.

    python -m bench.ledger_cost

In this process, without sockets: publish, hand out, settle, pack the block and its checksum. The
journal's writing thread is not in it. Runs of so many messages: 1 is the worst case.
"""

from __future__ import annotations

import time
from array import array
from typing import Final

from tallymark.engine.broker import Broker
from tallymark.engine.effects import Deliver
from tallymark.engine.message import Format, Payload
from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.policies import QUEUES, Policy
from tallymark.journal.packer import STORED, Packer
from tallymark.stored.annotations import Route

MESSAGES: Final = 51_200
BODY: Final = 1024
ROUNDS: Final = 3


class Cost:
    """Nanoseconds a message of one setting."""

    def __init__(self, ledger: str, run: int) -> None:
        self.run = run
        self.broker = Broker(_nothing_to_fetch)
        self.broker.formats[0] = Format()
        self.broker.clock.tell(1)
        vhost = self.broker.registry.add_vhost("/")
        connection = self.broker.clients.open_connection("/", "guest", "bench")
        self.session = self.broker.clients.open_session(connection)
        self.broker.registry.set_policy("/", Policy("l", ".*", {"ledger": ledger}, 0, QUEUES))
        queue = self.broker.registry.declare_queue(connection, "q", True, False, False, {}, False)
        self.broker.consuming.set_prefetch(self.session, 0, False)
        self.broker.consuming.consume(self.session, queue, "c", False, False, 0, {})
        self.targets = vhost.route("", ["q"], None)
        self.raw = bytes(BODY) * run
        self.cuts = array("I", range(0, BODY * run + 1, BODY))
        self.route = Route("", "q")
        self.packer = Packer()
        self.offset = 0
        self.rows = 0

    def measure(self) -> float:
        began = time.process_time_ns()
        for turn in range(MESSAGES // self.run):
            self._turn(turn)
        return (time.process_time_ns() - began) / MESSAGES

    def _turn(self, turn: int) -> None:
        broker, run = self.broker, self.run
        payload = Payload(
            0, self.raw, self.cuts, self.route, None, broker.new_message_ids(run), turn, True, BODY
        )
        broker.publishing.publish(self.session, self.targets, payload)
        for effect in broker.turn(turn):
            if isinstance(effect, Deliver):
                last = effect.first_tag + len(effect.slice) - 1
                broker.settlement.settle(self.session, effect.first_tag, last, ACCEPTED)
        broker.turn(turn)
        records = broker.take_records()
        self.rows += len(records)
        length = self.packer.load(records, STORED)
        self.packer.finish(1, self.offset, turn, 1, 0, turn, 0)
        self.offset = (self.offset + length) % (1 << 30)
        broker.committed(1 << 32 | self.offset)
        broker.synced(1 << 32 | self.offset)
        broker.store.released.clear()


def _nothing_to_fetch(payload: Payload) -> bytes:
    raise AssertionError(f"message {payload.first_id} was not in memory")


def main() -> None:
    for run in (1, 16, 256):
        best: dict[str, float] = {}
        rows: dict[str, float] = {}
        for _ in range(ROUNDS):
            for ledger in ("all", "account"):
                one = Cost(ledger, run)
                best[ledger] = min(best.get(ledger, 1e9), one.measure())
                rows[ledger] = one.rows / MESSAGES
        saved = best["all"] - best["account"]
        print(
            f"runs of {run:3}: all {best['all']:6.0f} ns, {rows['all']:.3f} rows a message; "
            f"account {best['account']:6.0f} ns, {rows['account']:.3f}; "
            f"deliveries cost {saved:.0f} ns a message"
        )


if __name__ == "__main__":
    main()
