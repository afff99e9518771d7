"""What a command may import: the command line starts quickly and works without Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_S

HEAVY = ("aiohttp", "pyspark", "pyarrow", "pandas", "numpy", "uvloop", "prometheus_client")


@pytest.mark.parametrize("module", ["tallymark.cli.main", "tallymark.server.run"])
def test_nothing_heavy_is_imported_ahead(module: str) -> None:
    program = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.split() == []


def test_a_missing_extra_is_named() -> None:
    program = (
        "import sys; from importlib.machinery import PathFinder\n"
        "class NoSpark(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyspark', 'pyarrow'): return None\n"
        "        return PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path = [f for f in sys.meta_path if f is not PathFinder] + [NoSpark]\n"
        "sys.argv = ['tallymark', 'pipeline', 'reconcile']\n"
        "from tallymark.cli.main import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "pip install 'tallymark[spark]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
