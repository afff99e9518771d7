"""Short connections, 100,000 of each protocol: memory at the end within 10 % of where it was after
the first tenth.

    python -m tests.soak.churn --connections 100000

`make churn CONNECTIONS=n` runs it as installed. Each connection does a little work, which
tests/server/churn.py says. All protocols go to one broker, one after the other. Memory is that of
the broker's process (VmRSS), read when every connection is closed and every descriptor is given
back. With fewer than 100,000 connections 8 MiB are allowed where a tenth is less. The exit code is
1 where a protocol made it grow by more.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.server import churn, lines
from tests.server.peers import open_files
from tests.soak.flatness import MIB, Compared, Rule, table
from tests.support.patience import until
from tests.support.process import BrokerProcess

STEPS = 10
IN_FULL = 100_000
PROTOCOLS = [name for name in churn.WORK if name != "vanishing"]


def rule(name: str, connections: int) -> Rule:
    floor = 0.0 if connections >= IN_FULL else 8 * MIB
    return Rule(f"memory, {name}", floor, " MiB", MIB)


def memory(broker: BrokerProcess) -> float:
    return lines.memory_mib(broker) * MIB


def run(broker: BrokerProcess, name: str, connections: int) -> Compared:
    """Connections of one protocol; memory after the first tenth of them, and at the end."""
    ports = {
        "amqp_port": broker.amqp_port, "http_port": broker.http_port,
        "nsq_port": broker.nsq_port, "nsq_http_port": broker.nsq_http_port,
    }  # fmt: skip
    before = open_files(broker)
    began, used = time.monotonic(), broker.cpu_seconds()
    seen: list[float] = []
    for _ in range(STEPS):
        churn.run(connections // STEPS, [name], ports)
        until(lambda: open_files(broker) <= before, what="descriptors are given back")
        seen.append(memory(broker))
    seconds, used = time.monotonic() - began, broker.cpu_seconds() - used
    shown = " ".join(f"{value / MIB:.1f}" for value in seen)
    print(
        f"{name}: {connections:,} connections in {seconds:,.0f} s, {used:,.0f} s of the broker's "
        f"CPU; MiB after each tenth: {shown}",
        flush=True,
    )
    return Compared(rule(name, connections), seen[0], seen[-1])


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=IN_FULL, help="of each protocol")
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=PROTOCOLS)
    given = parser.parse_args()
    if given.connections < STEPS:
        parser.error(f"--connections is {given.connections}, expected at least {STEPS}")
    # Whoever is told to end takes its broker along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        flags = {"sync": "interval", "auto_create_queues": "^churn$", "ledger_retention": "1s"}
        with BrokerProcess(Path(folder) / "data", is_forked=False, **flags) as broker:
            how = "compiled" if broker.ready["compiled"] else "interpreted"
            print(f"churn: a broker of {memory(broker) / MIB:.1f} MiB, {how}", flush=True)
            found = [run(broker, name, given.connections) for name in given.protocols]
    print(table(found))
    return 0 if all(one.is_flat for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
