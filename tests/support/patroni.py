"""PostgreSQL under Patroni with etcd, as ordinary processes on free ports of 127.0.0.1: whoever is
primary is Patroni's affair.

    if find_patroni() is None:
        pytest.skip(MISSING)
    with Patroni(3) as servers:
        servers.kill_primary()

Each server is a `patroni` of our own with a folder of its own; etcd is one process. All of them are
stopped by their pids.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.patience import until
from tests.support.ports import reserved
from tests.support.postgresql import (
    DATABASE,
    FASTER,
    USER,
    PostgresqlDied,
    find_postgresql,
    runs_as,
)

MISSING: Final = "Patroni with etcd is not installed: apt-get install patroni etcd-server"
PRIMARY: Final = "primary"
SYNCHRONOUS: Final = "synchronous standby"
SOON_MS: Final = 2_000
"""Milliseconds for an answer of a Patroni about its own server."""


def find_patroni() -> Path | None:
    """Return Patroni's program, where PostgreSQL and etcd are installed, too."""
    found = shutil.which("patroni")
    if found is None or shutil.which("etcd") is None or find_postgresql() is None:
        return None
    return Path(found)


class Member:
    """One server, and the Patroni that runs it."""

    def __init__(self, folder: Path, name: str, etcd: int) -> None:
        programs = find_postgresql()
        assert programs is not None, MISSING
        self.name = name
        self.port = reserved()
        self._rest = reserved()
        self.data = folder / name
        self.log = folder / f"{name}.log"
        self._file = folder / f"{name}.json"  # Patroni reads YAML, which JSON is
        parameters = {"max_connections": "60", "shared_buffers": "64MB", **FASTER}
        told = {
            "scope": "tallymark",
            "name": name,
            "restapi": {
                "listen": f"127.0.0.1:{self._rest}", "connect_address": f"127.0.0.1:{self._rest}",
            },
            "etcd3": {"hosts": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": 20, "loop_wait": 1, "retry_timeout": 3,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": ["data-checksums", {"encoding": "UTF8"}, {"locale": "C"}],
                "pg_hba": [
                    "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust",
                ],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}", "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self.data), "bin_dir": str(programs),
                "pgpass": str(folder / f"{name}.pgpass"),
                "authentication": {
                    "superuser": {"username": USER}, "replication": {"username": "replicator"},
                },
                "parameters": {**parameters, "unix_socket_directories": ""},
            },
        }  # fmt: skip
        self._file.write_text(json.dumps(told))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = find_patroni()
        assert program is not None, MISSING
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(program), str(self._file)], cwd=self.data.parent, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, **runs_as(),
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def role(self) -> str:
        """Return what Patroni says that it is and does: PRIMARY, SYNCHRONOUS or another text; empty
        where it does not answer. Raises PostgresqlDied: it has ended."""
        if self._process is None:
            return ""
        if self._process.poll() is not None:
            raise PostgresqlDied(_end_of(self.log))
        asked = f"http://127.0.0.1:{self._rest}/patroni"
        try:
            with urllib.request.urlopen(asked, timeout=SOON_MS / 1000) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                said = json.load(error)
        except OSError:
            return ""
        if said.get("state") not in ("running", "streaming"):
            return str(said.get("state", ""))
        if said.get("role") in ("master", "primary"):
            return PRIMARY
        return SYNCHRONOUS if said.get("sync_standby") else str(said.get("role", ""))

    def kill(self) -> None:
        """End Patroni's and PostgreSQL's processes here at once, as if the machine had gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None
        pid = self._postmaster()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *map(int, children)):
            _signal(one, signal.SIGSTOP)
        for one in (*map(int, children), pid):
            _signal(one, signal.SIGKILL)

    def stop(self) -> None:
        """Stop Patroni, and PostgreSQL with it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
            if (self.data / "postmaster.pid").exists():
                _signal(self._postmaster(), signal.SIGQUIT)

    def _postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])


class Patroni:
    """Servers of which Patroni has made one the primary, and another a synchronous standby."""

    def __init__(self, count: int = 3) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="patroni-"))
        self._port, peers = reserved(), reserved()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._log = self.folder / "etcd.log"
        url, peer = f"http://127.0.0.1:{self._port}", f"http://127.0.0.1:{peers}"
        self._command = [
            "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", url,
            "--advertise-client-urls", url, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        self.servers = [Member(self.folder, f"server{n}", self._port) for n in range(count)]

    def __enter__(self) -> Patroni:
        if owner := runs_as():
            os.chown(self.folder, owner["user"], owner["group"])
        try:
            with self._log.open("ab") as log:
                self._etcd = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **runs_as()
                )
            for server in self.servers:
                server.start()
            self.wait_until_whole()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self.servers:
            server.stop()
        if self._etcd is not None:
            self._etcd.terminate()
            self._etcd.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = DATABASE) -> str:
        """Return the URL of whichever server takes writes."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"postgresql://{USER}@{hosts}/{database}?target_session_attrs=read-write"

    def primary(self) -> Member | None:
        """Return the server that is the primary now."""
        found = [one for one in self.servers if one.role() == PRIMARY]
        return found[0] if len(found) == 1 else None

    def wait_until_whole(self) -> None:
        """Wait until there is a primary, and a standby that its commits wait for."""

        def is_whole() -> bool:
            roles = [one.role() for one in self.servers]
            return PRIMARY in roles and SYNCHRONOUS in roles

        until(is_whole, what=self._logs)

    def kill_primary(self) -> Member:
        """Kill the primary; return it when Patroni has made another one."""
        dead = self.primary()
        assert dead is not None, self._logs()
        dead.kill()
        until(self.primary, what=self._logs)
        return dead

    def _logs(self) -> str:
        return "\n".join(_end_of(one.log) for one in self.servers)


def _end_of(file: Path) -> str:
    return file.read_text(errors="replace")[-1500:] if file.exists() else f"no {file.name}"


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself
