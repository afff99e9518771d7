"""deploy/Containerfile: what it is made of, and, where podman or buildah can, that it serves."""

from __future__ import annotations

import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tallymark.server.config.settings import DECLARED
from tests.support.long import long
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy/Containerfile"
TEXT = re.sub(r"\\\n\s*", "", FILE.read_text())
"""With one line for each instruction."""
STAGES = re.split(r"^FROM ", TEXT, flags=re.M)[1:]
BUILDERS = [found for found in map(shutil.which, ("podman", "buildah")) if found is not None]


def copied() -> list[str]:
    """Files and folders that come from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.M)
    return [name for line in lines for name in line.split()]


def test_what_it_copies_is_there_and_sent() -> None:
    kept = re.findall(r"^!(\S+)$", (ROOT / ".containerignore").read_text(), re.M)
    for name in copied():
        assert (ROOT / name).exists(), name
        assert any(fnmatch(name, one) or name.startswith(f"{one}/") for one in kept), name
    assert {"src", "pyproject.toml", "constraints.txt"} <= set(copied())


def test_the_compiler_stays_behind_and_the_broker_is_not_root() -> None:
    build, final = STAGES
    assert "gcc" in build
    assert "gcc" not in final
    assert "--from=build" in final
    users = re.findall(r"^USER (\S+)$", final, re.M)
    assert users == ["tallymark"]
    assert final.index("USER tallymark") < final.index("ENTRYPOINT")


def test_its_variables_are_settings() -> None:
    names = re.findall(r"\bTALLYMARK_([A-Z_]+)=", TEXT)
    assert names
    assert {name.lower() for name in names} <= set(DECLARED)


@long(ci=False)  # fetches an image and packages, and compiles: minutes
@pytest.mark.skipif(not BUILDERS, reason="apt-get install podman (or buildah)")
def test_it_is_built(tmp_path: Path) -> None:
    done = subprocess.run(
        [BUILDERS[0], "build", "-f", str(FILE), "-t", "tallymark-test", str(ROOT)],
        capture_output=True,
        text=True,
        timeout=8 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
