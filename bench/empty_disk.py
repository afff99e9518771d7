#!/usr/bin/env python3
"""A start on an empty disk, with the journal on PostgreSQL: how long until it serves.

Messages that nobody takes are published, the data folder is removed, and a broker is started on an
empty one: all of the journal comes from the database. A second start finds its copy and compares.

    empty_disk.py [--gib 10] [--size 1024]

PostgreSQL is one server without standbys, on this machine: reading needs no more. The disk must
hold three times the journal.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import Running, scratch, tallymark
from bench.loadgen import CHANNELS, build
from tests.support.postgresql import MISSING, Cluster, find_postgresql
from tests.support.process import cpu_seconds

GIB = 1 << 30
PATIENCE_S = 3600.0


def fill(program: Path, port: int, messages: int, size: int) -> None:
    """Publish durable messages, each of them confirmed. Raises CalledProcessError."""
    command = [program, "--proto", "amqp", "--port", str(port), "--mode", "pub", "--queue", "disk"]
    command += ["--messages", str(messages), "--size", str(size), "--persistent", "--durable"]
    command += ["--confirm-window", "1000", "--timeout", "3600"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def peak_mib(pid: int) -> float:
    """The most memory that a process had, MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def shown(what: str, broker: Running, journal: int) -> str:
    return (
        f"{what}: ready after {broker.start_s:.1f} s ({journal / broker.start_s / 1e6:.0f} MB/s), "
        f"{cpu_seconds(broker.pid):.1f} s of CPU, peak {peak_mib(broker.pid):.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=1024)
    args = parser.parse_args()
    if find_postgresql() is None:
        sys.exit(MISSING)
    with ExitStack() as held:
        cluster = held.enter_context(Cluster())
        folder = held.enter_context(scratch())
        program = build(CHANNELS, folder)
        home = ("--journal", cluster.url())
        with tallymark(folder / "first", *home) as broker:
            fill(program, broker.port, int(args.gib * GIB / args.size), args.size)
        shutil.rmtree(folder / "first")
        asked = "SELECT sum(octet_length(bytes)) FROM tallymark.block"
        journal = int(cluster.primary.run(asked))
        print(f"{journal / GIB:.2f} GiB of journal, messages of {args.size} bytes", flush=True)
        for what in ("empty disk", "the copy is there"):
            with tallymark(folder / "second", *home, patience_s=PATIENCE_S) as broker:
                print(shown(what, broker, journal), flush=True)


if __name__ == "__main__":
    main()
