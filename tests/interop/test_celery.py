"""Celery as it comes: workers as processes of their own, results over AMQP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from celery import group

from tests.interop import celery_tasks as tasks
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
START_S = PATIENCE_S


class Site:
    """A queue of this test's own and the workers that serve it."""

    def __init__(self, port: int, queue: str, folder: Path) -> None:
        self.folder = folder
        self.begun = folder / "begun"
        broker = f"amqp://guest:guest@127.0.0.1:{port}//"
        self.environment = os.environ | {
            "CELERY_BROKER": broker,
            "CELERY_QUEUE": queue,
            "CELERY_BEGUN": str(self.begun),
        }
        tasks.app.conf.update(broker_url=broker, task_default_queue=queue)

    @contextmanager
    def worker(self, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that is consuming when the block begins and stopped after it."""
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.interop.celery_tasks", "worker"]
        command += ["--hostname", f"{name}@%h", "--loglevel", "INFO", *options]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=out, stderr=out
            )
        try:
            self._wait_until_it_answers(f"{name}@{socket.gethostname()}", process, log)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(START_S)

    def _wait_until_it_answers(
        self, node: str, process: subprocess.Popen[bytes], log: Path
    ) -> None:
        """Ask over Celery's own remote control, which is a fanout exchange and a reply queue."""
        deadline = time.monotonic() + START_S
        while not tasks.app.control.ping(destination=[node], timeout=0.5):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"{node} does not answer: {log.read_text()}"


@pytest.fixture
def site(port: int, name: str, tmp_path: Path) -> Iterator[Site]:
    made = Site(port, name, tmp_path)
    yield made
    with tasks.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(name)
    tasks.app.close()


def test_thousand_tasks_retries_and_countdown(site: Site) -> None:
    with site.worker("plain", "--pool", "prefork", "--concurrency", "2"):
        began = time.time()
        later = [
            tasks.now.apply_async(countdown=2),
            tasks.now.apply_async(eta=tasks.app.now() + timedelta(seconds=2)),
        ]
        retried = [tasks.succeed_at_third_attempt.delay() for _ in range(10)]
        results = group(tasks.add.s(number, 1) for number in range(1000)).apply_async()
        assert results.get(timeout=PATIENCE_S) == [number + 1 for number in range(1000)]
        assert [result.get(timeout=PATIENCE_S) for result in retried] == [2] * 10
        assert all(result.get(timeout=PATIENCE_S) >= began + 2 for result in later)


def test_task_of_a_killed_worker_runs_again(site: Site) -> None:
    os.mkfifo(site.begun)
    with site.worker("first", "--pool", "solo") as first:
        result = tasks.hang_at_first_attempt.delay()
        assert site.begun.read_text() == f"{result.id} {first.pid}"  # waits for the task
        others = [tasks.add.delay(number, 1) for number in range(10)]  # prefetched, not begun
        site.begun.unlink()
        first.kill()
        first.wait()
    with site.worker("second", "--pool", "solo"):
        assert result.get(timeout=PATIENCE_S) is True
        assert [other.get(timeout=PATIENCE_S) for other in others] == [n + 1 for n in range(10)]


def test_tasks_that_are_not_due_yet_do_not_keep_others_back(site: Site) -> None:
    """Celery raises its prefetch limit for each of them; its consumer must feel it at once."""
    with site.worker("waits", "--pool", "solo", "--prefetch-multiplier", "1"):
        for _ in range(6):
            tasks.now.apply_async(countdown=3600)
        results = [tasks.add.delay(number, 1) for number in range(3)]
        assert [result.get(timeout=PATIENCE_S) for result in results] == [1, 2, 3]
