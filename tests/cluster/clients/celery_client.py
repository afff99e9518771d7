"""Celery: `broker_url` is the list, separated by semicolons."""

from __future__ import annotations

from celery import Celery

from tests.cluster.clients import told

app = Celery(
    "tests.cluster.clients.celery_client",
    broker_url=";".join(f"amqp://guest:guest@{host}//" for host in told.hosts()),
    broker_transport_options={"confirm_publish": True},  # else a task may be lost with the leader
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue=told.queue(),
    task_publish_retry_policy={"max_retries": None, "interval_start": 0, "interval_max": 0.1},
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    worker_enable_remote_control=False,
)


@app.task(name="received")
def received(number: int) -> None:
    told.received(number)


if told.is_publisher():
    for number in told.numbers():
        received.delay(number)
        told.confirmed(number)
else:
    app.worker_main(["worker", "--pool", "solo", "--without-gossip", "--without-mingle"])
