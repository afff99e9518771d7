"""Commits numbered turns as fast as it can and prints how far they are synced, until killed."""

from __future__ import annotations

import random
import select
import sys
from pathlib import Path

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.journal import Journal
from tallymark.stored.records import ENTERED, LIVE, MARK, PAYLOAD, SETTLED
from tests.journal.builders import TIME, entering


def main(folder: str, seed: str) -> None:
    journal = Journal(Path(folder), lambda error: None, segment_bytes=16384)
    live: dict[int, Payload] = {}
    number = 0
    for record in journal.recovered():
        if record.kind in (ENTERED, LIVE):
            assert record.payload is not None
            record.payload.live += record.count
            live[record.first] = record.payload
            number = max(number, record.first)
        elif record.kind == SETTLED:
            live.pop(record.first).live = 0
        elif record.kind == MARK:
            number = max(number, record.first)
    for payload in live.values():
        assert journal.retain(payload.position, payload.size)
    journal.start()
    chance = random.Random(int(seed))
    waiting: list[tuple[int, str]] = []
    turn = 0
    while True:
        turn += 1
        records: list[Record] = []
        said = []
        for _ in range(chance.randint(1, 5)):
            number += 1
            records += entering(number, 1, chance.randint(20, 3000))
            payload = records[-1].payload
            assert payload is not None
            live[number] = payload
            said.append(f"+{number}")
        while len(live) > 40:
            settled = chance.choice(list(live))
            payload = live[settled]
            if payload.position < 0:
                continue
            del live[settled]
            journal.release(payload.position, payload.size)
            records.append(Record(SETTLED, 5, settled, 1, TIME))
            said.append(f"-{settled}")
        waiting.append((journal.commit(records, TIME), " ".join(said)))
        while waiting and (waiting[0][0] <= journal.synced or len(waiting) > 20):
            end, text = waiting[0]
            while journal.synced < end:
                select.select([journal.signal], [], [])
                journal.hear()
            waiting.pop(0)
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        if turn % 50 == 0:
            state = [Record(MARK, 5, number, 0, TIME)]
            for first, payload in live.items():
                state.append(Record(PAYLOAD, 0, first, 1, TIME, payload))
                state.append(Record(LIVE, 5, first, 1, TIME, payload))
            journal.checkpoint(state, TIME)
        if turn % 7 == 0:
            journal.clean(TIME, 1 << 40)
            for sparse in journal.sparse()[:1]:
                moving = [p for p in live.values() if p.position >> 32 == sparse]
                journal.relocate(moving, TIME)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
