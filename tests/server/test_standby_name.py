"""Who holds a lease is known by its name: no broker may have another's, dead or alive."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("psycopg", reason="needs the extra tallymark[postgresql]")

from tallymark.server.standby import process_name


def test_a_process_of_the_same_host_and_number_has_another_name() -> None:
    names = {process_name() for _ in range(100)}
    assert len(names) == 100
    assert all(name.endswith(f":{os.getpid()}") for name in names)
