"""`python -m tallymark ...` without the second of CPU that its imports take.

    done = forked.run("status", "--url", broker.url)
    process = forked.popen([sys.executable, "-m", "tallymark", "serve", ...], ...)

One process imports the commands and the server once, and forks itself for each that is asked for.
From there on they are what they would be: a process of their own, with arguments, environment,
folder, streams, signals and exit code of their own. What a start loads, and what a variable does
to the interpreter, is not seen this way: what is no plain `python -m tallymark`, or has another
PYTHONPATH or LD_PRELOAD than this process had at first, is started as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, TextIO

from tests.support.patience import PATIENCE_S

COMMAND: Final = [sys.executable, "-m", "tallymark"]
AT_START: Final = ("PYTHON", "LD_", "VIRTUAL_ENV")
"""Variables that begin so are read when an interpreter starts."""
LARGEST: Final = 1 << 20
WITHOUT: Final = "without-spark"
WITH_SPARK: Final = "with-spark"


class Forked:
    """A process that was forked; what subprocess.Popen has of it."""

    def __init__(self, pid: int, status: int, stdout: IO[str] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """The exit code once it has ended; less than zero: the signal that ended it."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(COMMAND, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            said = os.read(self._status, 100)
            os.close(self._status)
            self.returncode = int(said)
        return self.returncode


Process = Forked | subprocess.Popen[str]


def popen(command: Sequence[str], env: Mapping[str, str], stderr: IO[Any]) -> Process:
    """A process that goes on; its stdout is a pipe of text."""
    if not _is_plain(command, env):
        return popen_fresh(command, env, stderr)
    reading, writing = os.pipe()
    with open(os.devnull) as nothing:
        stdout = os.fdopen(reading, "r")
        try:
            forker = _forker(command[3:4])
            return forker.start(command[3:], env, nothing.fileno(), writing, stderr.fileno(),
                                   stdout)  # fmt: skip
        finally:
            os.close(writing)


def popen_fresh(command: Sequence[str], env: Mapping[str, str], stderr: IO[Any]) -> Process:
    """The same by a new interpreter."""
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=dict(env)
    )


def run(
    *arguments: str,
    env: Mapping[str, str | None] | None = None,
    stdin: str = "",
    timeout: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """A command, to its end; env: variables beside those of this process, or None in its place."""
    command = [*COMMAND, *arguments]
    given = {**os.environ, **(env or {})}
    environ = {name: value for name, value in given.items() if value is not None}
    if not _is_plain(command, environ):
        return subprocess.run(
            command, env=environ, input=stdin, capture_output=True, text=True, timeout=timeout
        )
    file = tempfile.TemporaryFile
    with file("w+") as typed, file("w+") as out, file("w+") as err:
        typed.write(stdin)
        typed.seek(0)
        process = _forker(arguments[:1]).start(
            arguments, environ, typed.fileno(), out.fileno(), err.fileno(), None
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in env if name.startswith(AT_START)}


def _is_plain(command: Sequence[str], env: Mapping[str, str]) -> bool:
    return list(command[:3]) == COMMAND and _at_start(env) == _ENVIRONMENT


_ENVIRONMENT: Final = _at_start(os.environ)


class Forker:
    """The process that forks, from the side of the tests."""

    def __init__(self, loads: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked", loads, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
            )  # fmt: skip
        atexit.register(self.close)

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        pipe: IO[str] | None,
    ) -> Forked:
        """A child with these streams; pipe: the other end of its stdout."""
        asked = {"arguments": list(arguments), "env": dict(env), "cwd": os.getcwd()}
        status, theirs = os.pipe()
        try:
            socket.send_fds(
                self._control, [json.dumps(asked).encode()], [stdin, stdout, stderr, theirs]
            )
        finally:
            os.close(theirs)
        return Forked(int(self._control.recv(100)), status, pipe)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


_forkers: dict[tuple[int, str], Forker] = {}


def _forker(command: Sequence[str]) -> Forker:
    """Of this process, as a worker of pytest has its own, and with what the command needs."""
    loads = WITH_SPARK if command and command[0] in ("pipeline", "demo") else WITHOUT
    key = (os.getpid(), loads)
    if key not in _forkers:
        _forkers[key] = Forker(loads)
    return _forkers[key]


# -- the process that forks


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request until nobody asks any more; returns the request in a child, None at
    the end in the process itself."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fd for key, _ in selector.select()]
            if woken in ready:
                os.read(woken, 4096)
                _reap(statuses)
            if control.fileno() not in ready:
                continue
            data, descriptors, _, _ = socket.recv_fds(control, LARGEST, 4)
            if not data:
                for left in statuses:  # of a run that was ended in the middle of a test
                    os.kill(left, signal.SIGKILL)
                return None
            pid = os.fork()
            if pid == 0:
                break
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            statuses[pid] = descriptors[3]
            control.send(str(pid).encode())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As in a terminal, also where the tests run in the background, in which a shell ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    control.close()
    for stream, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, stream)
    sys.stdout = _stdout_of(sys.stdout)
    for descriptor in (*descriptors, *statuses.values(), woken, wake):
        os.close(descriptor)
    asked: dict[str, Any] = json.loads(data)
    return asked


def _stdout_of(before: TextIO) -> TextIO:
    """Return the stream of what is stdout now: the one before takes it for a file, as its own
    was."""
    assert isinstance(before, io.TextIOWrapper)
    return io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)),
        encoding=before.encoding,
        errors=before.errors,
        write_through=before.write_through,
    )


def _reap(statuses: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        told = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know
            os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(told)


def load(what: str) -> None:
    """Import what the commands and a broker import at one time or another."""
    import tallymark.cli
    import tallymark.server

    packages = [tallymark.cli, tallymark.server]
    if what == WITH_SPARK:
        packages.append(importlib.import_module("tallymark.spark"))
    for package in packages:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    with contextlib.suppress(ImportError):
        importlib.import_module("uvloop")
    gc.collect()
    gc.freeze()


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[2]))
    load(sys.argv[1])
    asked = serve(control)
    if asked is None:
        return
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    random.seed()
    sys.argv = ["tallymark", *asked["arguments"]]
    runpy.run_module("tallymark", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
