"""Drawing: the plan of a world from its seed.

Each feature that came later is drawn from a generator of its own, so that the rest of a seed's plan
stays as it was.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tallymark.simulation.disk import Faults
from tallymark.simulation.network import Weather
from tallymark.simulation.pairs import with_pair
from tallymark.simulation.plan import (
    CYCLE_MS,
    DELETE,
    FAULTS,
    FEATURES,
    FULL,
    KIB,
    KINDS,
    LIES,
    LOOK,
    NO_FILES,
    NSQ_QUEUE,
    ONE_WAY,
    POLICY,
    POWER,
    POWER_IN_COMMIT,
    POWER_IN_FILES,
    POWER_IN_SYNC,
    POWER_TWICE,
    PROTOCOLS,
    PURGE,
    RIGHTS,
    ROGUES,
    ROT,
    SLOW_POLICIES,
    TWICE,
    UNREADABLE,
    ConsumerPlan,
    FaultPlan,
    ManagementPlan,
    Plan,
    PublisherPlan,
    QueuePlan,
    RoguePlan,
    SharedPlan,
    ShovelPlan,
    SinkPlan,
    SlowPlan,
    StreamPlan,
    SubscriptionPlan,
)


def draw(seed: int, pairs: bool | None = None) -> Plan:
    """Return the plan of a seed. pairs: whether it is a pair of brokers; None: the seed says."""
    random = Random(f"plan {seed}")
    duration_s = random.choice([3.0, 6.0, 10.0])
    features = {name: _is_on(random) for name in FEATURES}
    queues = tuple(_queue(f"q{n}", features, random) for n in range(random.randint(1, 3)))
    queues = _waiting(queues, Random(f"plan {seed} waiting"))
    publishers = tuple(
        _publisher(f"p{n}", features, queues, random) for n in range(random.randint(1, 3))
    )
    publishers = _seconds(publishers, queues, Random(f"plan {seed} second"))
    has_nsq = any(one.protocol == "nsq" for one in publishers)
    consumers = tuple(
        _consumer(f"c{n}", features, queues, has_nsq, random) for n in range(random.randint(1, 4))
    )
    kinds = [kind for kind, likely in FAULTS if _is_on(random, likely)]
    faults = tuple(sorted(
        (FaultPlan(round(random.uniform(0.2, duration_s), 4), random.choice(kinds))
         for _ in range(random.randint(1, 5)) if kinds),
        key=lambda one: one.at_s,
    ))  # fmt: skip
    faults = _named(faults, Random(f"plan {seed} twice"))
    disk, weather = _disk(random), _weather(random)
    is_unsafe = (
        POWER in kinds or POWER_IN_SYNC in kinds or disk.write_error > 0 or disk.sync_error > 0
    )
    plan = Plan(
        seed, duration_s,
        # With an interval a confirm promises nothing of a power cut, or of a disk that fails.
        sync="commit" if is_unsafe else random.choice(["commit", "interval", "never"]),
        deliver_after=random.choice(["written", "written", "synced"]),
        segment_size=random.choice([8 * KIB, 32 * KIB, 256 * KIB]),
        checkpoint_every=random.choice([16 * KIB, 64 * KIB, 1024 * KIB]),
        max_memory=random.choice([64 * KIB, 16 * KIB * KIB]),
        queues=queues, publishers=publishers, consumers=consumers, faults=faults,
        disk=disk, weather=weather,
    )  # fmt: skip
    plan = _with_shovels(_over_http(plan))
    plan = _with_times(_with_archives(_with_timeouts(_with_repeats(plan))))
    plan = _with_outages(_with_rot(_with_slow(_with_shared(plan))))
    return with_pair(_with_old_forms(_with_commits(plan)), pairs)


def _with_old_forms(plan: Plan) -> Plan:
    """Draw a folder that stores what an older version reads: in few worlds."""
    return replace(plan, has_old_forms=_is_on(Random(f"forms {plan.seed}"), 0.1))


def _with_commits(plan: Plan) -> Plan:
    """Draw power cuts in the syncs of commits, where somebody may get what is not synced yet."""
    random = Random(f"commits {plan.seed}")
    consumed = {one.queue for one in plan.consumers}
    is_seen = any(
        one.transactional and one.batch > 1 and (one.target == "*" or one.target in consumed)
        for one in plan.publishers
    )
    if not is_seen or _is_on(random, 0.3):
        return plan
    cuts = [
        FaultPlan(round(random.uniform(0.3, plan.duration_s), 4), POWER_IN_COMMIT, f"commit{n}")
        for n in range(random.randint(1, 3))
    ]
    faults = tuple(sorted((*plan.faults, *cuts), key=lambda one: one.at_s))
    return replace(plan, sync="commit", deliver_after="written", faults=faults)


def _with_outages(plan: Plan) -> Plan:
    """Draw files that cannot be opened, bodies that cannot be read, and syncs that lie."""
    random = Random(f"outages {plan.seed}")

    def at_s() -> float:
        return round(random.uniform(0.3, plan.duration_s), 4)

    faults = [*plan.faults]
    if _is_on(random, 0.06):
        faults.append(FaultPlan(at_s(), NO_FILES, "files"))
    # Their readers rely on what was stored, or on its order.
    is_plain = not (plan.subscriptions or plan.sinks or plan.streams or plan.operators)
    is_plain &= not (plan.shovels or plan.shared or plan.slow)
    if is_plain and _is_on(random, 0.12):
        faults += [FaultPlan(at_s(), UNREADABLE, f"reads{n}") for n in range(2)]
        plan = replace(
            plan,
            unreadable=random.choice(["skip", "pause"]),
            max_memory=random.choice([1, 64]) * KIB,
        )
    if is_plain and _is_on(random, 0.06):
        first, last = sorted((at_s(), at_s()))
        faults.append(FaultPlan(first, LIES, "lies"))
        faults.append(FaultPlan(last, random.choice([POWER, POWER_IN_FILES]), "truth"))
    return replace(plan, faults=tuple(sorted(faults, key=lambda one: one.at_s)))


def _with_slow(plan: Plan) -> Plan:
    """Draw subscriptions to topics that may be too slow: none in most worlds."""
    random = Random(f"slow {plan.seed}")
    if not _is_on(random, 0.15):
        return plan
    slow = tuple(_slow(f"slow{n}", random) for n in range(random.choice([1, 1, 2])))
    return replace(plan, slow=slow)


def _slow(name: str, random: Random) -> SlowPlan:
    policy = random.choice([DELETE, DELETE, *SLOW_POLICIES])
    count, depth = random.choice([1, 5, 20, 100]), random.choice([100, 3000])
    limit = random.choice(["count", "count", "depth", "age", "rate"])
    return SlowPlan(
        name, random.choice(PROTOCOLS), policy, is_durable=_is_on(random, 0.5),
        deletes_persistent=_is_on(random, 0.3), is_link_alone=_is_on(random, 0.3),
        count=count if limit == "count" else None, depth=depth if limit == "depth" else None,
        age_ms=random.choice([100, 1000]) if limit == "age" else None,
        rate=random.choice([5.0, 100.0]) if limit == "rate" else None,
        delay_ms=random.choice([100, 1000]), credit=random.choice([1, 1, 5, 50]),
        hold_s=random.choice([0.0, 0.5, 3.0]),
        publishes_over=random.choice((*PROTOCOLS, "amqp091")),
        batch=random.choice([1, 5, 20]), pause_s=random.choice([0.05, 0.2]),
        size=random.choice([20, 300]),
    )  # fmt: skip


def _with_shared(plan: Plan) -> Plan:
    """Draw consumers of several queues that share a limit: none in most worlds."""
    random = Random(f"shared {plan.seed}")
    if not _is_on(random, 0.15):
        return plan
    protocol = random.choice(PROTOCOLS)
    shared = SharedPlan(
        "shared", protocol, count=random.randint(2, 4), limit=random.choice([1, 2, 5, 20]),
        own=random.choice([1, 3, 20, 100]),
        changes=random.choice([0.0, 0.02]) if protocol == "amqp091" else 0.0,
        hold_s=random.choice([0.0, 0.005, 0.05]), release=random.choice([0.0, 0.1]),
        fail=random.choice([0.0, 0.1]), vanish=random.choice([0.0, 0.0, 0.002]),
        batch=random.choice([1, 5, 20]), pause_s=random.choice([0.02, 0.1]),
        size=random.choice([20, 300]),
    )  # fmt: skip
    return replace(plan, shared=(shared,))


def _with_rot(plan: Plan) -> Plan:
    """Draw bits that turn: in few worlds, and in none whose readers rely on what was stored."""
    random = Random(f"rot {plan.seed}")
    if plan.subscriptions or plan.sinks or plan.streams or plan.operators or plan.shovels:
        return plan
    if not _is_on(random, 0.05):
        return plan
    fault = FaultPlan(round(random.uniform(0.5, plan.duration_s), 4), ROT, "rot")
    return replace(plan, faults=tuple(sorted([*plan.faults, fault], key=lambda one: one.at_s)))


def _with_shovels(plan: Plan) -> Plan:
    """Draw a shovel: none in most worlds."""
    random = Random(f"shovel {plan.seed}")
    if not _is_on(random, 0.12):
        return plan
    shovel = ShovelPlan(
        "moved", random.choice(plan.queues).name, random.choice([1, 5, 50]),
        random.choice([0.02, 0.1]),
    )  # fmt: skip
    return replace(plan, shovels=(shovel,))


def _with_repeats(plan: Plan) -> Plan:
    """Draw a publisher that repeats itself, and its queue's memory: none in most worlds."""
    random = Random(f"repeats {plan.seed}")
    known = {one.name: one for one in plan.queues if not one.rejects_publish}
    able = [
        one for one in plan.publishers
        if one.target in known and not one.transactional and one.protocol != "nsq"
    ]  # fmt: skip
    if not able or not _is_on(random, 0.2):
        return plan
    who = random.choice(able)
    return replace(
        plan,
        publishers=tuple(replace(one, repeats=0.3) if one is who else one
                         for one in plan.publishers),
        queues=tuple(replace(one, dedup_ms=600_000) if one.name == who.target else one
                     for one in plan.queues),
    )  # fmt: skip


def _with_times(plan: Plan) -> Plan:
    """Draw messages with a time to live of their own, and a cycle of dead letters."""
    random = Random(f"times {plan.seed}")
    queues = {one.name for one in plan.queues} | {"*"}
    if _is_on(random, 0.2):
        publishers = tuple(
            replace(one, ttl_ms=200)
            if one.target in queues and not one.transactional and not one.repeats
            else one
            for one in plan.publishers
        )
        plan = replace(plan, publishers=publishers)
    if not _is_on(random, 0.1):
        return plan
    # A rejection is a client's decision, from which on a letter may come back.
    cycle = random.choice(plan.queues)
    made = QueuePlan(cycle.name, ttl_ms=CYCLE_MS, dead_letters=True, is_cycle=True)
    return replace(
        plan,
        queues=tuple(made if one is cycle else one for one in plan.queues),
        publishers=tuple(
            replace(one, repeats=0.0) if one.target == cycle.name else one
            for one in plan.publishers
        ),
        consumers=tuple(
            replace(one, reject=0.0) if one.queue == cycle.name else one for one in plan.consumers
        ),
        subscriptions=tuple(
            replace(one, reject=0.0) if one.queue == cycle.name else one
            for one in plan.subscriptions
        ),
    )


def _with_archives(plan: Plan) -> Plan:
    """Draw who archives a stream, and whether what is published there has numbers."""
    random = Random(f"archives {plan.seed}")
    if not plan.streams:
        return plan
    names = {one.name for one in plan.streams}
    has_numbers = _is_on(random, 0.5)
    return replace(
        plan,
        streams=tuple(replace(one, is_archived=_is_on(random, 0.5)) for one in plan.streams),
        publishers=tuple(
            replace(one, is_numbered=True, repeats=0.2)
            if has_numbers and one.target in names
            else one
            for one in plan.publishers
        ),
    )


def _with_timeouts(plan: Plan) -> Plan:
    """Draw NSQ's time-outs, and a power cut where nobody syncs."""
    random = Random(f"timeouts {plan.seed}")
    consumers = tuple(
        replace(one, timeout_ms=1000, hold_s=random.choice([0.2, 1.0]))
        if one.protocol == "nsq" and _is_on(random, 0.3)
        else one
        for one in plan.consumers
    )
    faults = plan.faults
    if plan.sync != "commit" and _is_on(random, 0.5):
        at_s = round(random.uniform(0.5, plan.duration_s), 4)
        more = FaultPlan(at_s, random.choice([POWER, POWER_IN_FILES]), "unsynced")
        faults = tuple(sorted([*faults, more], key=lambda one: one.at_s))
    return replace(plan, consumers=consumers, faults=faults)


def _over_http(plan: Plan) -> Plan:
    """Draw what works over HTTP: nothing in most worlds."""
    random = Random(f"http {plan.seed}")
    if _is_on(random, 0.3):
        subscriptions = tuple(
            _subscription(f"s{n}", plan.queues, random) for n in range(random.choice([1, 1, 2]))
        )
        plan = replace(plan, subscriptions=subscriptions)
    targets = [one.name for one in plan.queues]
    if _is_on(random, 0.15):
        stream = _stream("log", random)
        targets.append(stream.name)
        publisher = PublisherPlan(
            "log0", random.choice(PROTOCOLS), stream.name, batch=random.choice([1, 5, 30]),
            pause_s=random.choice([0.01, 0.1]), size=random.choice([20, 300, 3000]),
        )  # fmt: skip
        plan = replace(plan, streams=(stream,), publishers=(*plan.publishers, publisher))
    if _is_on(random, 0.2):
        sink = SinkPlan(
            "w0", random.choice(targets), rows=random.choice([1, 3, 20]),
            pause_s=random.choice([0.01, 0.1]), size=random.choice([20, 3000]),
            gives_up=random.choice([0.0, 0.2]),
        )  # fmt: skip
        plan = replace(plan, sinks=(sink,))
    plan = _managed(plan, random) if _is_on(random, 0.25) else plan
    return _harassed(replace(plan, has_ledger=_is_on(random, 0.3)), random)


def _harassed(plan: Plan, random: Random) -> Plan:
    """Draw bad clients, and faults of other kinds."""
    queues = [one.name for one in plan.queues]
    if _is_on(random, 0.2):
        rogues = tuple(
            RoguePlan(f"rogue{n}", random.choice(ROGUES), random.choice(queues))
            for n in range(random.randint(1, 3))
        )
        plan = replace(plan, rogues=rogues)
    kinds = [kind for kind in (FULL, ONE_WAY) if _is_on(random, 0.1)]
    more = [
        FaultPlan(round(random.uniform(0.2, plan.duration_s), 4), kind, f"g{n}")
        for n, kind in enumerate(kinds)
    ]
    faults = tuple(sorted([*plan.faults, *more], key=lambda one: one.at_s))
    return replace(plan, faults=faults)


def _managed(plan: Plan, random: Random) -> Plan:
    """Draw an operator, the queues that it changes, and the clients whose rights it changes."""
    kinds = tuple(random.sample(KINDS, random.randint(1, 4)))
    if any(one.protocol == "nsq" for one in plan.publishers):
        kinds = tuple(LOOK if kind == RIGHTS else kind for kind in kinds)  # NSQ has no log-in here
    operator = ManagementPlan("op", kinds, pause_s=random.choice([0.02, 0.2]))
    has_workers = RIGHTS in kinds
    return replace(
        plan,
        operators=(operator,),
        queues=tuple(
            replace(one, is_managed=bool({PURGE, POLICY} & {*kinds}) and _is_on(random, 0.5))
            for one in plan.queues
        ),
        publishers=tuple(
            replace(one, is_worker=has_workers and _is_on(random, 0.5)) for one in plan.publishers
        ),
        consumers=tuple(
            replace(one, is_worker=has_workers and _is_on(random, 0.5)) for one in plan.consumers
        ),
    )


def _stream(name: str, random: Random) -> StreamPlan:
    return StreamPlan(
        name, max_bytes=random.choice([None, 3000, 30_000]),
        segment_bytes=random.choice([500, 2000, 10_000]), readers=random.choice([1, 2]),
        rows=random.choice([1, 20, 200]), pause_s=random.choice([0.0, 0.02, 0.2]),
    )  # fmt: skip


def _subscription(name: str, queues: tuple[QueuePlan, ...], random: Random) -> SubscriptionPlan:
    return SubscriptionPlan(
        name, random.choice(queues).name, rows=random.choice([1, 5, 40]),
        pause_s=random.choice([0.0, 0.005, 0.05]), hangs=random.choice([0.0, 0.01, 0.05]),
        ends=random.choice([0.0, 0.02]), rival=_is_on(random, 0.5),
        reject=random.choice([0.0, 0.1]), release=random.choice([0.0, 0.1]),
        fail=random.choice([0.0, 0.1]),
    )  # fmt: skip


def _waiting(queues: tuple[QueuePlan, ...], random: Random) -> tuple[QueuePlan, ...]:
    """Return the queues, some of them with dead letters that have to wait."""
    return tuple(
        replace(one, dead_length=random.choice([10, 50]))
        if one.dead_letters and _is_on(random, 0.5)
        else one
        for one in queues
    )


def _named(faults: tuple[FaultPlan, ...], random: Random) -> tuple[FaultPlan, ...]:
    """Return the faults with names, and with some of their power cuts changed."""
    other = {POWER: POWER_TWICE, POWER_IN_SYNC: POWER_IN_FILES}
    return tuple(
        FaultPlan(
            one.at_s, other[one.kind] if one.kind in other and _is_on(random, TWICE) else one.kind,
            f"f{number}",
        )
        for number, one in enumerate(faults)
    )  # fmt: skip


def _is_on(random: Random, likely: float = 0.4) -> bool:
    return random.random() < likely


def _publisher(
    name: str, features: dict[str, bool], queues: tuple[QueuePlan, ...], random: Random
) -> PublisherPlan:
    is_nsq = _is_on(random, 0.25)
    goes_to_all = features["fanout"] and _is_on(random)
    target = "*" if goes_to_all else random.choice(queues).name
    return PublisherPlan(
        name, "nsq" if is_nsq else random.choice(PROTOCOLS), NSQ_QUEUE if is_nsq else target,
        batch=random.choice([1, 1, 5, 30]), pause_s=random.choice([0.01, 0.05, 0.3]),
        size=random.choice([20, 300, 3000]),
        transactional=not is_nsq and features["tx"] and _is_on(random),
    )  # fmt: skip


def _seconds(
    publishers: tuple[PublisherPlan, ...], queues: tuple[QueuePlan, ...], random: Random
) -> tuple[PublisherPlan, ...]:
    """Return the publishers, some of whose transactions are about two queues."""
    return tuple(
        replace(one, second=random.choice(queues).name, batch=max(one.batch, 2))
        if one.transactional and one.target != "*" and _is_on(random, 0.5)
        else one
        for one in publishers
    )


def _consumer(
    name: str,
    features: dict[str, bool],
    queues: tuple[QueuePlan, ...],
    has_nsq: bool,
    random: Random,
) -> ConsumerPlan:
    is_nsq = has_nsq and _is_on(random, 0.3)
    return ConsumerPlan(
        name, "nsq" if is_nsq else random.choice(PROTOCOLS),
        NSQ_QUEUE if is_nsq else random.choice(queues).name,
        credit=random.choice([1, 3, 20, 100]), hold_s=random.choice([0.0, 0.01, 0.2]),
        reject=random.choice([0.0, 0.1]), release=random.choice([0.0, 0.1]),
        fail=random.choice([0.0, 0.1, 0.4]), vanish=random.choice([0.0, 0.0, 0.02]),
        transactional=not is_nsq and features["tx"] and _is_on(random),
    )  # fmt: skip


def _disk(random: Random) -> Faults:
    return Faults(
        write_s=random.choice([0.000_02, 0.000_2]),
        sync_s=random.choice([0.000_1, 0.001, 0.01]),
        stall=random.choice([0.0, 0.0, 0.002]),
        write_error=random.choice([0.0, 0.0, 0.0, 0.001]),
        sync_error=random.choice([0.0, 0.0, 0.002, 0.02]),
        short_write=random.choice([0.0, 0.0, 0.1]),
    )


def _weather(random: Random) -> Weather:
    return Weather(
        latency_s=random.choice([0.000_1, 0.001, 0.02]),
        cuts=random.choice([0.0, 0.2, 0.9]),
        stall=random.choice([0.0, 0.0, 0.005]),
    )


def _queue(name: str, features: dict[str, bool], random: Random) -> QueuePlan:
    def has(feature: str) -> bool:
        return features[feature] and random.random() < 0.5

    has_limit = has("limit")
    has_length = has("length")
    return QueuePlan(
        name,
        type="quorum" if has_limit else "classic",
        ttl_ms=random.choice([50, 500, 3000]) if has("ttl") else None,
        max_length=random.choice([1, 10, 50]) if has_length else None,
        rejects_publish=has_length and random.random() < 0.4,
        delivery_limit=random.choice([0, 2, 5]) if has_limit else None,
        priorities=5 if not has_limit and has("priorities") else None,
        single_active=has("single"),
        dead_letters=has("dead"),
    )
