"""Interesting states of a world: names by which a run says what it has reached, and what never.

A state that no seed reaches is a promise that nobody checks. `History.seen` has those of one world;
who reaches one adds its name there, and here is what it means.
"""

from __future__ import annotations

from typing import Final

from tallymark.engine.broker import Broker
from tallymark.simulation.disk import Disk
from tallymark.simulation.plan import CAUSES, DATABASE_FAULTS, ROGUES, SLOW_POLICIES
from tallymark.stored import records

STATES: Final = {
    # Faults of the plan.
    "power cut": "the power went",
    "power cut in a sync": "it went in a call that syncs",
    "power cut in a commit": "it went in the next sync after a commit was asked for",
    "power cut among files": "it went in a call that changes a name, or syncs the folder",
    "power cut in a recovery": "it went before the broker had read its journal",
    "power cut without syncs": "it went where a confirm does not wait for the disk",
    "power cut twice": "it was to go again while the broker starts",
    "kill": "kill -9",
    "stop": "SIGTERM while clients work",
    "clock step": "the wall clock jumped",
    "cut": "one connection broke",
    "cut all": "all connections broke at once",
    "half open": "a connection broke, and nobody was told",
    "journal failed": "the broker ended because its disk failed",
    "stopped": "the broker ended because it was asked to",
    "disk full": "it had no room for a while",
    "bits turned": "stored bytes changed while the broker was down",
    "served on turned bits": "it went on with what it could read",
    "refused to start on turned bits": "it said what is damaged",
    "no files": "the process could open no more files for a while",
    "file could not be opened": "and one was to be opened",
    "reads fail": "half of the reads of bodies failed for a while",
    "message could not be read": "and one was to be read",
    "message read again": "it was quarantined, and somebody had it read",
    "syncs lie": "from then on they did nothing, and said that all is well",
    "power cut after syncs that lied": "the power went, with all that they had not done",
    "served after syncs that lied": "the broker went on with what there was",
    "refused to start after syncs that lied": "it said what is damaged",
    "one way": "nothing arrived any more at one end of a connection",
    # Two brokers of one journal on PostgreSQL.
    **{f"takeover after {cause}": f"the other one led, after {cause}" for cause in CAUSES.values()},
    **dict.fromkeys(DATABASE_FAULTS, "see plan.py"),
    "superseded leader ended": "it found another epoch, or another holder of its lease",
    "superseded leader tried to write": "the fence kept its blocks out",
    "unknown commit had happened": "its answer was lost, and the row was there",
    "unknown commit had not happened": "its request was lost, and it was made again",
    "failover with commits gone": "the primary had them, and no client was told of any",
    "leader whose database went back": "it said so and ended",
    "served by a database that was behind": "somebody led on what there was",
    # The journal.
    "segment sealed": "the journal has more than one segment",
    "segment stripped": "bodies of settled messages were taken out of a segment",
    "checkpoint": "a checkpoint was written",
    "message back from disk": "a body had left memory when it was delivered",
    "checkpoint under way at a crash": "its file was there, under no final name, or not synced",
    "stripping under way at a crash": "the same, of a segment without its settled bodies",
    "segment begun at a crash": "the name of a new segment was not synced",
    "removal under way at a crash": "files were removed, and the folder was not synced",
    "writes without a sync at a crash": "some of it was on the disk, some was not",
    # Queues.
    "held at a crash": "consumers held messages",
    "deferred at a crash": "messages waited for their time",
    "dead letter delivered": "a consumer got a dead letter",
    "dead letter pending at a crash": "it was dead, and no target had it yet",
    "dead letter undone by a crash": "one had left its queue, and the disk did not know it yet",
    "message undone by a crash": "one had entered, and the disk did not know it yet",
    "settlement undone by a crash": "one was settled, and the disk did not know it yet",
    "backlog at a crash": "a hundred messages and more were ready",
    "redelivery": "a message came again",
    "redelivery after a crash": "a message came again, in another life of the broker",
    "message put off": "NSQ's REQ with a time",
    "message repeated": "a publisher sent an id again to a queue that takes each once",
    "publisher refused": "a full queue did not take a message",
    "message expired": "time to live ended a message that leaves no letter",
    "message dropped for length": "a full queue dropped its oldest",
    "message beyond its delivery limit": "one that failed too often was dropped",
    "dead letter cut out of a cycle": "it came back to where it had died",
    "message passed over": "its publisher had sent its id, or its number, before",
    # Transactions.
    "transaction committed": "its client knows that it was committed",
    "transaction rolled back": "its client knows that it was rolled back",
    "transaction unknown": "its client does not know how it ended",
    "transaction open at a crash": "messages were published or settled in it",
    "ledger balanced": "the equation of every queue was worked out as Spark jobs do it",
    # Shared credit.
    "shared credit used up": "consumers of several queues held together what they may",
    "shared credit goes round over amqp091": "a queue waited for it while another one was served",
    "shared credit goes round over amqp": "the same, where a session's window is what they share",
    "shared credit changed": "another limit was set while they consume",
    # Slow consumers.
    **{
        f"slow consumer found, policy {policy}": "a subscription was above one of its limits"
        for policy in SLOW_POLICIES
    },
    "slow consumer closed": "its client was told that it is too slow",
    "slow consumer subscribed anew": "on the same connection",
    "slow consumer left alone": "it is durable, and may not be deleted",
    "publishers held for a slow consumer": "those of a subscription above its limits",
    "message dropped for a slow consumer": "the oldest of its subscription",
    # Bad clients.
    **{f"rogue {kind}": f"a client that {kind}" for kind in ROGUES},
    # Shovels.
    "shovel moved": "a message came to the other queue",
    "shovel moved twice": "a message came there a second time, flagged",
    "shovel failed": "one of its connections broke, and it began again",
    "shovel ended": "its process ended with what it had in hand",
    # Over HTTP.
    "subscription taken over": "a reader attached where another one had",
    "taken over with verdicts pending": "and that one had said what is to become of messages",
    "reader fenced": "the other one came again, and was refused",
    "driver hung": "a reader stood still for seconds between two steps",
    "batch run again": "one that was planned and not committed",
    "batch read again": "rows of a lease were read a second time",
    "verdict rejected": "a batch was settled that refused a message",
    "verdict released": "a batch was settled that gave a message back",
    "verdict modified": "a batch was settled that gave a message back as failed",
    "sink batch committed": "a batch was published",
    "sink batch repeated": "its answer was lost, and it was committed again",
    "sink batch given up": "what was staged was dropped",
    "sink refused": "its target was full",
    "staging left behind": "nobody committed it, nobody dropped it",
    "stream retention": "a stream lost its beginning",
    "stream archived": "a range of it was recorded as archived",
    "stream plan": "a range was held against that",
    "stream range gone": "a range was not held, and was gone",
    "operator: declare": "a queue came, or went with what it had",
    "operator: policy": "a policy was set, or deleted",
    "operator: purge": "a queue was purged",
    "operator: rights": "rights were taken, or given back",
    "operator: reload": "the configuration was read again",
    "operator: close": "a connection was closed for its client",
    "operator: look": "somebody looked",
    "operator: definitions": "definitions were imported",
    "operator: get": "messages were taken and given back over HTTP",
}
"""Meanings by name: a set of seeds that misses one is too thin."""
BACKLOG: Final = 100
UNDONE: Final = {
    "entered": "message undone by a crash",
    "settled": "settlement undone by a crash",
    "dead_lettered": "dead letter undone by a crash",
}
"""States by the count of an account that is less after a crash than it was before."""
_DROPS: Final = {
    records.DROPPED_EXPIRED: "message expired",
    records.DROPPED_MAXLEN: "message dropped for length",
    records.DROPPED_DELIVERY_LIMIT: "message beyond its delivery limit",
    records.DROPPED_SLOW_CONSUMER: "message dropped for a slow consumer",
    records.DROPPED_CYCLE: "dead letter cut out of a cycle",
    records.DROPPED_DUPLICATE: "message passed over",
}


def of_queues(broker: Broker) -> set[str]:
    """Return the states in which a broker's queues are when it crashes."""
    found = set()
    for queue in broker.queues.values():
        account = queue.account
        for is_so, name in (
            (account.acquired, "held at a crash"),
            (account.deferred, "deferred at a crash"),
            (account.pending, "dead letter pending at a crash"),
            (account.staged, "transaction open at a crash"),
            (account.ready >= BACKLOG, "backlog at a crash"),
        ):
            if is_so:
                found.add(name)
    return found


def of_drops(broker: Broker) -> set[str]:
    """Return which ends its messages have found without a consumer."""
    accounts = [queue.account for queue in broker.queues.values()]
    return {
        name
        for reason, name in _DROPS.items()
        if any(account.dropped.get(reason) for account in accounts)
    }


def counts(broker: Broker) -> dict[tuple[str, str], int]:
    """Return what the accounts of the queues count, by queue and name."""
    return {
        (queue.name, name): getattr(queue.account, name)
        for queue in broker.queues.values()
        for name in UNDONE
    }


def of_recovery(before: dict[tuple[str, str], int], after: dict[tuple[str, str], int]) -> set[str]:
    """Return what a crash has undone, by the counts before and after it."""
    return {UNDONE[key[1]] for key, count in before.items() if after.get(key, 0) < count}


def of_disk(disk: Disk) -> set[str]:
    """Return the states in which the files are when the power goes."""
    found = set()
    begun, gone = disk.unsynced_names()
    for is_so, name in (
        (any(".checkpoint" in one for one in begun), "checkpoint under way at a crash"),
        (any(".ledger" in one for one in begun), "stripping under way at a crash"),
        (any(one.endswith(".segment") for one in begun), "segment begun at a crash"),
        (any(not one.endswith(".tmp") for one in gone), "removal under way at a crash"),
        (disk.has_unsynced_writes(), "writes without a sync at a crash"),
    ):
        if is_so:
            found.add(name)
    return found
