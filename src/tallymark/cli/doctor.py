"""`tallymark doctor`: whether this machine, this folder and these settings go together."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import typer

from tallymark import is_compiled
from tallymark.cli.output import show_table
from tallymark.cli.serve import with_settings
from tallymark.cli.serving import configured
from tallymark.server.access import users
from tallymark.server.access.limits import LimitsError
from tallymark.server.access.user import UsersError
from tallymark.server.config.settings import Config
from tallymark.server.features import FeaturesError
from tallymark.server.listening import ABSENT, CannotServe, addresses_of, is_path

OK: Final = "ok"
LOOK: Final = "look"
WRONG: Final = "wrong"

SYNCS: Final = 50
BLOCK: Final = bytes(4096)
SLOW_SYNC_MS: Final = 20.0
NO_SYNC_MS: Final = 0.01
"""Below it nothing can have reached a device."""
SPARE_SEGMENTS: Final = 4
"""Segments that are allocated with the first message: the one being written and three spares."""
SPARE_FILES: Final = 1040
"""Open files that are not connections of clients: the journal's, listeners, HTTP."""
IN_MEMORY: Final = ("tmpfs", "ramfs")
OVER_A_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "glusterfs")
ANOTHER_ADDRESS: Final = "name an address of this machine"
UNSYNCHRONISED: Final = 64
"""STA_UNSYNC of adjtimex(2)."""

_INT: Final = ctypes.POINTER(ctypes.c_int)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    state: str
    found: str
    advice: str = ""
    """Change that is recommended; empty where all is well."""


def doctor(given: dict[str, Any]) -> None:
    """Look at the machine, the data folder and the settings, and say what to change.

    Takes the flags of serve. Exit code 1 where something is wrong: a broker would not start, or
    would not keep what it confirms.
    """
    config, _ = configured(given)
    findings = list(examine(config))
    rows = [{"state": one.state, "topic": one.topic, "found": one.found} for one in findings]
    show_table(rows, ("state", "topic", "found"), "nothing")
    for one in findings:
        if one.advice:
            print(f"{one.state}: {one.topic}: {one.advice}")
    if any(one.state == WRONG for one in findings):
        raise typer.Exit(1)


def examine(config: Config) -> Iterator[Finding]:
    """Look at everything that decides how a broker with this configuration does."""
    yield build()
    folder = config.data_dir.absolute()
    place = nearest(folder)
    yield users_of(folder)
    yield start(config)
    yield file_system(place, type_of(place, Path("/proc/self/mounts").read_text()))
    free = shutil.disk_usage(place).free
    yield space(free, config.disk_free_limit + SPARE_SEGMENTS * config.segment_size)
    yield syncing(place, config.sync, perf_counter)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield descriptors(files, config.max_connections)
    yield memory(available_bytes(), config.max_memory)
    yield clock(clock_status())
    for name, hosts in listeners(config).items():
        for host in hosts:
            if not is_path(host):
                yield port(name, getattr(config, name), host)
    yield spark(find_spec("pyspark") is not None)


def build() -> Finding:
    if is_compiled():
        return Finding("build", OK, "compiled")
    return Finding(
        "build", LOOK, "pure Python", "install it with a C compiler at hand: messages cost less CPU"
    )


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    while not folder.is_dir():
        folder = folder.parent
    return folder


def users_of(folder: Path) -> Finding:
    try:
        count = len(users.load(folder)) if folder.is_dir() else 0
    except UsersError as error:
        return Finding("users", WRONG, str(error), "a broker would not start")
    if count:
        return Finding("users", OK, f"{count:,}")
    return Finding(
        "users", LOOK, "none: guest/guest, from this machine only",
        f"for others: tallymark user add NAME --data-dir {folder}",
    )  # fmt: skip


def start(config: Config) -> Finding:
    """Look for what a start is refused for, as a start does."""
    from tallymark.server.run import StartRefused, check_start

    try:
        check_start(config)
    except (StartRefused, UsersError, LimitsError, FeaturesError, CannotServe) as error:
        return Finding("settings", WRONG, str(error), "a broker would not start with them")
    return Finding("settings", OK, "a broker would start with them")


def type_of(folder: Path, mounts: str) -> str:
    """Return the type of the file system that the folder is on. mounts: as in /proc/self/mounts."""
    best, found = "", "unknown"
    for line in mounts.splitlines():
        _, point, kind = line.split(" ")[:3]
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, found = point, kind
    return found


def file_system(folder: Path, kind: str) -> Finding:
    found = f"{kind}, at {folder}"
    if kind in IN_MEMORY:
        return Finding(
            "file system", WRONG, found, "name a data_dir on a disk: this one ends with the machine"
        )
    if kind in OVER_A_NETWORK:
        return Finding(
            "file system", LOOK, found,
            "prefer a local disk: a lock and a sync over a network depend on its server",
        )  # fmt: skip
    return Finding("file system", OK, found)


def space(free: int, wanted: int) -> Finding:
    found = f"{_size(free)} free"
    if free < wanted:
        return Finding(
            "disk space", WRONG, found,
            f"publishers would be held back: free {_size(wanted)} at least, the limit "
            "disk_free_limit and four segments",
        )  # fmt: skip
    return Finding("disk space", OK, found)


def syncing(folder: Path, sync: str, now_s: Callable[[], float]) -> Finding:
    """Write and sync small blocks in the folder, as a broker does for confirms."""
    took_ms = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(SYNCS):
                began = now_s()
                os.write(file.fileno(), BLOCK)
                os.fdatasync(file.fileno())
                took_ms.append(1000 * (now_s() - began))
    except OSError as error:
        return Finding(
            "disk sync", WRONG, str(error), f"a broker must be able to write to {folder}"
        )
    middle, worst = median(took_ms), max(took_ms)
    found = f"{middle:.2f} ms, the slowest of {SYNCS} {worst:.1f} ms"
    if middle < NO_SYNC_MS:
        return Finding(
            "disk sync", LOOK, found,
            "too quick for a device: what was confirmed may be lost with the power",
        )  # fmt: skip
    if middle > SLOW_SYNC_MS and sync != "never":
        return Finding(
            "disk sync", LOOK, found,
            f"a publisher that waits for each confirm gets {1000 / middle:.0f} a second: use a "
            "quicker disk, or let publishers have several messages under way",
        )  # fmt: skip
    return Finding("disk sync", OK, found)


def descriptors(hard: int, wanted: int) -> Finding:
    """hard: the most open files that a process may ask for."""
    unlimited = hard == resource.RLIM_INFINITY
    found = "no limit" if unlimited else f"{hard:,} for {wanted:,} connections"
    if not unlimited and hard < wanted + SPARE_FILES:
        return Finding(
            "open files", LOOK, found,
            f"max_connections would be lowered: LimitNOFILE={wanted + SPARE_FILES} in systemd, or "
            "ulimit -Hn",
        )  # fmt: skip
    return Finding("open files", OK, found)


def available_bytes() -> int:
    """Return the memory that this process may still have: of its control group, or the machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists():
        text = limit.read_text().strip()
        if text.isdigit():
            free = min(free, int(text))
    return free


def memory(available: int, wanted: int) -> Finding:
    found = f"{_size(available)} available, max_memory {_size(wanted)}"
    if available < 2 * wanted:
        return Finding(
            "memory", LOOK, found,
            "lower max_memory to half of what there is: buffers and a checkpoint need some, too",
        )  # fmt: skip
    return Finding("memory", OK, found)


def clock_status() -> int:
    """Return the status bits of adjtimex(2); -1 where the system does not tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex"):
        return -1
    state = (ctypes.c_long * 64)()  # struct timex; modes = 0: nothing is set
    if libc.adjtimex(ctypes.byref(state)) < 0:
        return -1
    status = ctypes.cast(ctypes.byref(state, 5 * ctypes.sizeof(ctypes.c_long)), _INT)
    return int(status.contents.value) if ctypes.sizeof(ctypes.c_long) == 8 else -1


def clock(status: int) -> Finding:
    if status < 0:
        return Finding("clock", OK, "not told here")
    if status & UNSYNCHRONISED:
        return Finding(
            "clock", LOOK, "not synchronised",
            "run chrony or systemd-timesyncd: times in the ledger and of deferred messages are "
            "wall time",
        )  # fmt: skip
    return Finding("clock", OK, "synchronised")


def listeners(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the addresses that a broker would listen on, by the setting of their port."""
    found = {"amqp_port": config.host}
    if config.amqps_cert is not None:
        found["amqps_port"] = config.host
    found["http_port"] = config.host
    if config.https_cert is not None:
        found["https_port"] = config.host
    if config.nsq:
        found |= {"nsq_port": config.nsq_host, "nsq_http_port": config.nsq_http_host}
        if config.nsq_tls_cert is not None:
            found["nsq_https_port"] = config.nsq_https_host
    return found


def port(name: str, number: int, host: str) -> Finding:
    """Take the port on each address of a host, as a broker does, and leave it."""
    try:
        addresses = addresses_of(host, number)
    except CannotServe as error:
        return Finding(name, WRONG, str(error), ANOTHER_ADDRESS)
    absent: list[str] = []
    for family, address in addresses:
        try:
            with socket.socket(family) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind(address)
        except OSError as error:
            if error.errno not in ABSENT:
                return Finding(
                    name, LOOK, f"{address[0]}:{number}: {error.strerror}",
                    "a broker is running already, or another program: see ss -ltnp",
                )  # fmt: skip
            absent.append(f"{address[0]}: {error.strerror}")
    if len(absent) == len(addresses):
        return Finding(name, WRONG, absent[0], ANOTHER_ADDRESS)
    return Finding(name, OK, f"{host}:{number} is free")


def spark(has_spark: bool) -> Finding:
    if not has_spark:
        return Finding(
            "pipelines", LOOK, "pyspark is not installed", "pip install 'tallymark[spark]'"
        )
    from tallymark.spark.java import JavaNotFound, find_java

    try:
        java = find_java()
    except JavaNotFound as error:
        return Finding("pipelines", LOOK, "no Java", str(error))
    return Finding("pipelines", OK, f"pyspark, Java {java.version}")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def add_to(app: typer.Typer) -> None:
    app.command(name="doctor")(with_settings(doctor))
