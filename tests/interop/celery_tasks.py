"""The application that the Celery tests' workers run: `celery -A tests.interop.celery_tasks`.

Where the broker is, which queue is used and where a task says that it has begun comes from the
worker's environment.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from celery import Celery, Task

app = Celery(
    "interop",
    broker=os.environ.get("CELERY_BROKER", ""),
    backend="rpc://",
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ.get("CELERY_QUEUE", "celery"),
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=16,
    worker_hijack_root_logger=False,
    result_expires=60,
)


@app.task
def add(x: int, y: int) -> int:
    """The plain task."""
    return x + y


@app.task(bind=True, max_retries=3)
def succeed_at_third_attempt(self: Task) -> int:
    """Raises twice; Celery publishes it again each time."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task
def now() -> float:
    """When it ran, wall time in seconds."""
    return time.time()


@app.task(bind=True)
def hang_at_first_attempt(self: Task) -> bool:
    """While the pipe is there: says who it is and waits to be killed. Afterwards: tells whether
    it was delivered again."""
    begun = Path(os.environ["CELERY_BEGUN"])
    if begun.exists():
        begun.write_text(f"{self.request.id} {os.getpid()}")
        while True:
            signal.pause()
    return bool(self.request.delivery_info["redelivered"])
