"""PostgreSQL servers of our own, as ordinary processes on free ports of 127.0.0.1.

    if find_postgresql() is None:
        pytest.skip(MISSING)
    with Cluster(standbys=1) as cluster:
        connection = psycopg.connect(cluster.url())

They have nothing in common with a server that the machine runs: folders, ports and settings of
their own, nothing installed. PostgreSQL refuses to run as root; there they run as the package's
user, or as nobody. Each server is our own child, stopped by its pid.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.support.patience import until
from tests.support.ports import reserved

MISSING: Final = "PostgreSQL is not installed: apt-get install postgresql, or its bin on the PATH"
USER: Final = "postgres"
"""Name of the superuser in the servers; whoever connects is believed."""
DATABASE: Final = "postgres"
FASTER: Final = {"fsync": "off"}
"""Settings for tests in which no machine loses power: a killed process loses nothing of what the
operating system has."""


def find_postgresql() -> Path | None:
    """Return the folder of PostgreSQL's programs: the newest version of Debian's packages, or what
    is on the PATH. None: there is none."""
    found = [p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if found:
        return max(found, key=lambda path: int(path.parent.name))
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


class PostgresqlDied(Exception):
    """A server, or one of its programs, ended with an error; shows what it printed."""


def runs_as() -> dict[str, Any]:
    """Return the arguments of Popen for a user that PostgreSQL runs as."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    owner = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


class Server:
    """One server on a folder of its own."""

    def __init__(self, programs: Path, folder: Path, name: str, settings: dict[str, str]) -> None:
        self.programs = programs
        self.name = name
        """Name by which a primary knows it as a standby."""
        self.data = folder / name
        self.log = folder / f"{name}.log"
        self.port = reserved()
        self.settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None

    def initialise(self) -> None:
        """Make an empty database folder."""
        options = ["-U", USER, "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
        self._program("initdb", "-D", self.data, *options)

    def clone(self, primary: Server) -> None:
        """Make the folder of a standby of `primary`, which runs. What was there is gone: so a
        primary that was killed comes back as a standby of the one that took its place."""
        shutil.rmtree(self.data, ignore_errors=True)
        told = f"host=127.0.0.1 port={primary.port} user={USER} application_name={self.name}"
        self._program("pg_basebackup", "-D", self.data, "-d", told, "-R", "-N", "-c", "fast")

    def follow(self, primary: Server) -> None:
        """Name another primary, from the next start on."""
        told = f"host=127.0.0.1 port={primary.port} user={USER} application_name={self.name}"
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"\nprimary_conninfo = '{told}'\nrecovery_target_timeline = 'latest'\n")
        (self.data / "standby.signal").touch()
        if os.geteuid() == 0:
            owner = self.data.stat()
            os.chown(self.data / "standby.signal", owner.st_uid, owner.st_gid)

    def start(self) -> None:
        """Start and wait until it answers. Raises PostgresqlDied."""
        options = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "64MB",
            "max_connections": "60",
            "wal_level": "replica",
            "max_wal_senders": "10",
            "hot_standby": "on",
            "wal_receiver_status_interval": "1s",
            "wal_retrieve_retry_interval": "100ms",
            **self.settings,
        }
        command = [str(self.programs / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.data, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                **runs_as(),
            )  # fmt: skip
        until(self._answers, what=lambda: self.log.read_text()[-3000:])

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise PostgresqlDied(self.log.read_text()[-3000:])
        asked = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)):
                return False
        return subprocess.run(asked, check=False).returncode == 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Number of its first process, the postmaster."""
        assert self._process is not None
        return self._process.pid

    def pids(self) -> list[int]:
        """Return its processes, the postmaster first."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def stop(self) -> None:
        """Stop it: connections are closed, everything is on disk (a "fast" shutdown)."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            self.resume()
            process.send_signal(signal.SIGINT)
        process.wait()
        self._process = None

    def kill(self) -> None:
        """End all its processes at once, as if the machine had gone."""
        process = self._process
        assert process is not None
        self.pause()
        for pid in reversed(self.pids()):
            _signal(pid, signal.SIGKILL)
        process.wait()
        self._process = None

    def pause(self) -> None:
        """Stop all its processes where they are; `resume` lets them go on."""
        process = self._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        for pid in self.pids():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.pids():
            _signal(pid, signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all its processes for as long as this lasts."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def promote(self) -> None:
        """Make a standby a primary; returns when it takes writes."""
        self._program("pg_ctl", "promote", "-D", self.data, "-w")

    def run(self, sql: str) -> str:
        """Run SQL as the superuser; return the rows as text, a column between each two tabs."""
        psql = [
            str(self.programs / "psql"), "-XqAt", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-h",
            "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", DATABASE, "-c", sql,
        ]  # fmt: skip
        return _output(psql, {})

    def _program(self, name: str, *arguments: object) -> None:
        command = [str(self.programs / name), *map(str, arguments)]
        _output(command, {"cwd": self.data.parent, **runs_as()})


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself


def _output(command: list[str], more: dict[str, Any]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False, **more,
    )  # fmt: skip
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        raise PostgresqlDied(f"{command[0]} ended with {done.returncode}: {text[-3000:]}")
    return text.strip("\n")


class Cluster:
    """A primary and its synchronous standbys, any one of which must have a commit."""

    def __init__(self, standbys: int = 0, settings: dict[str, str] | None = None) -> None:
        """settings: of all servers, FASTER where nothing else is said."""
        programs = find_postgresql()
        assert programs is not None, MISSING
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        chosen = FASTER if settings is None else settings
        self.servers = [
            Server(programs, self.folder, f"server{number}", chosen)
            for number in range(1 + standbys)
        ]
        """The servers, the first primary first."""

    @property
    def primary(self) -> Server:
        """Server that was the primary first."""
        return self.servers[0]

    @property
    def standbys(self) -> list[Server]:
        return self.servers[1:]

    def __enter__(self) -> Cluster:
        owner = runs_as()
        if owner:
            os.chown(self.folder, owner["user"], owner["group"])
        try:
            self.primary.initialise()
            self.primary.start()
            for standby in self.standbys:
                standby.clone(self.primary)
                standby.start()
            if self.standbys:
                self.replicate_to(self.primary, [standby.name for standby in self.standbys])
                self.wait_for_standbys(self.primary, len(self.standbys))
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
        for server in reversed(self.servers):
            server.stop()
        shutil.rmtree(self.folder)

    @contextmanager
    def standbys_paused(self) -> Iterator[None]:
        """Let no commit be safe for as long as this lasts."""
        with ExitStack() as paused:
            for standby in self.standbys:
                paused.enter_context(standby.paused())
            yield

    def url(self, database: str = DATABASE) -> str:
        """Return the URL of whichever server takes writes."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"postgresql://{USER}@{hosts}/{database}?target_session_attrs=read-write"

    @staticmethod
    def replicate_to(primary: Server, names: list[str]) -> None:
        """Let each commit of `primary` wait for any one of these standbys; for none if there are
        none."""
        said = f"ANY 1 ({', '.join(names)})" if names else ""
        primary.run(f"ALTER SYSTEM SET synchronous_standby_names = '{said}'")
        primary.run("SELECT pg_reload_conf()")

    @staticmethod
    def wait_for_standbys(primary: Server, count: int) -> None:
        """Wait until so many standbys are counted on by commits of `primary`."""
        asked = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
        until(
            lambda: int(primary.run(asked)) >= count, what=lambda: primary.log.read_text()[-2000:]
        )

    def promote_best(self, dead: Server) -> None:
        """Promote the standby that has most of the log, in place of the dead primary, and have the
        others follow it."""
        alive = [one for one in self.servers if one is not dead and one.is_running]
        asked = "SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0')"
        self.failed_over(max(alive, key=lambda one: int(one.run(asked))))

    def failed_over(self, to: Server) -> None:
        """Promote a standby; the other standbys that run follow it."""
        to.promote()
        others = [one for one in self.servers if one is not to and one.is_running]
        self.replicate_to(to, [])
        for one in others:
            one.stop()
            one.follow(to)
            one.start()
        if others:
            self.replicate_to(to, [one.name for one in others])
            self.wait_for_standbys(to, len(others))
