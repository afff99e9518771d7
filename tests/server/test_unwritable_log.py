"""A log that cannot be written: its disk is full, or the program that reads it has died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pika
import pytest

from tests.support.patience import PATIENCE_S


def serve(folder: Path, stderr: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tallymark", "serve", "--data-dir", str(folder)]
    command += ["--amqp-port", "0", "--http-port", "0", "--log-level", "debug"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


@pytest.mark.parametrize("why", ["full", "gone"])
def test_a_broker_goes_on_without_its_log_and_ends_cleanly(tmp_path: Path, why: str) -> None:
    if why == "full":
        reader, stderr = -1, os.open("/dev/full", os.O_WRONLY)
    else:
        reader, stderr = os.pipe()
    process = serve(tmp_path / "data", stderr)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"ended with {process.wait(PATIENCE_S)} before it was ready"
        if reader >= 0:
            os.close(reader)
        port = json.loads(line)["amqp"][1]
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        connection.close()
        second = serve(tmp_path / "data", stderr)
        assert second.communicate(timeout=PATIENCE_S)[0] == ""
        assert second.returncode == 3, "the folder is in use"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(stderr)
