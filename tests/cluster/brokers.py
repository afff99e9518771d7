"""Brokers of one journal on a PostgreSQL of our own: who leads, and what one of them meets.

    with Cluster(standbys=2) as servers, Brokers(folder, servers, 2) as brokers:
        leader = brokers.leader()

Each broker has its own data folder and ports that it keeps, and reaches the database through doors
of its own (`Door`), which can be shut: to its clients it is then as it was.
"""

from __future__ import annotations

import json
import queue
import selectors
import signal
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.support.patience import until
from tests.support.patroni import Patroni
from tests.support.postgresql import DATABASE, USER, Cluster
from tests.support.process import BrokerProcess

LEASE_MS: Final = 4000
"""Time of a lease: longer than this machine's processes may have to wait for their turn."""
CHUNK: Final = 1 << 16


class Door:
    """A port that leads to a server. Shut, it takes connections and bytes in and passes nothing on;
    opened again it passes on what came meanwhile."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._is_open = threading.Event()
        self._is_open.set()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"door {port}", daemon=True)
        self._thread.start()

    def shut(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def close(self) -> None:
        self._ended = True
        self._is_open.set()
        with socket.create_connection(("127.0.0.1", self.port)):
            self._thread.join()
        for one in [*self._others, self._server]:
            one.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select():
                self._is_open.wait()
                if self._ended:
                    return
                if key.fileobj is self._server:
                    self._enter()
                elif key.fileobj in self._others:
                    assert isinstance(key.fileobj, socket.socket)
                    self._pass_on(key.fileobj)

    def _enter(self) -> None:
        near, _ = self._server.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        other = self._others[one]
        try:
            data = one.recv(CHUNK)
            if data:
                other.sendall(data)
                return
        except OSError:
            data = b""
        for end in (one, other):
            self._selector.unregister(end)
            del self._others[end]
            end.close()


class Broker(BrokerProcess):
    """A broker that stands by and may lead."""

    def __init__(
        self, folder: Path, ports: list[int], env: dict[str, str] | None = None, **flags: str
    ) -> None:
        """ports: of the PostgreSQL servers."""
        self.doors = [Door(port) for port in ports]
        hosts = ",".join(f"127.0.0.1:{door.port}" for door in self.doors)
        self.journal = f"postgresql://{USER}@{hosts}/{DATABASE}?target_session_attrs=read-write"
        told = {
            "journal": self.journal,
            "standby": "true",
            "lease": f"{LEASE_MS}ms",
            "log_format": "json",
        }
        super().__init__(folder, env=env, has_nsq=False, keeps_ports=True, **{**told, **flags})
        self._lines: queue.Queue[str] = queue.Queue()

    def start(self) -> Broker:
        """Returns when it stands by."""
        super().start()
        self._lines = queue.Queue()
        assert self._process is not None
        reader = threading.Thread(
            target=_read, args=(self._process.stdout, self._lines), name="stdout", daemon=True
        )
        reader.start()
        return self

    @property
    def leads(self) -> bool:
        """Return whether it has said that it takes clients."""
        while not self.ready.get("ready"):
            try:
                self.ready = json.loads(self._lines.get_nowait())
            except queue.Empty:
                return False
        return True

    @property
    def epoch(self) -> int:
        """Epoch in which it took the lead last, by its log."""
        return int(self.said("lead.taken")["epoch"])

    def said(self, event: str) -> dict[str, Any]:
        """Return the last line of its log about an event."""
        lines = [line for line in self.log().splitlines() if f'"{event}"' in line]
        said: dict[str, Any] = json.loads(lines[-1])
        return said

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def cut_off(self) -> None:
        """Cut it off from the database, and from nobody else."""
        for door in self.doors:
            door.shut()

    def reconnect(self) -> None:
        for door in self.doors:
            door.open()

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()


def _read(stdout: object, lines: queue.Queue[str]) -> None:
    try:
        for line in stdout:  # type: ignore[attr-defined]
            lines.put(line)
    except ValueError:
        return  # closed: the broker has ended


class Brokers:
    """Brokers of one journal."""

    def __init__(self, folder: Path, servers: Cluster | Patroni, count: int, **flags: str) -> None:
        self._ports = [server.port for server in servers.servers]
        self._folder = folder
        self._flags = flags
        self.all: list[Broker] = []
        for _ in range(count):
            self.add()

    def add(self, env: dict[str, str] | None = None, **flags: str) -> Broker:
        """Make a broker on an empty folder; it is not started."""
        folder = self._folder / f"broker{len(self.all)}"
        made = Broker(folder, self._ports, env, **{**self._flags, **flags})
        self.all.append(made)
        return made

    def __enter__(self) -> Brokers:
        for broker in self.all:
            broker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for broker in self.all:
            broker.reconnect()
            if broker.is_running:
                broker.kill()
        for broker in self.all:
            for door in broker.doors:
                door.close()

    def leader(self, *others: Broker) -> Broker:
        """Wait until a broker leads that is none of these; return it."""
        found: list[Broker] = []

        def leads() -> bool:
            found.extend(b for b in self.all if b not in others and b.is_running and b.leads)
            return bool(found)

        until(leads, what=lambda: "\n".join(one.log()[-1500:] for one in self.all))
        return found[0]

    def start_again(self) -> None:
        """Start those that have ended."""
        for broker in self.all:
            if not broker.is_running:
                broker.ready = {}
                broker.start()
