#!/usr/bin/env python3
"""Write constraints.txt anew: every package of pyproject.toml, its version and its files' hashes.

    lock.py UV            the newest versions that go together
    lock.py UV --keep     the versions that are there, and what is new in pyproject.toml

UV is the program that resolves; it names all files of a version, of every platform and Python, so
that one file serves all machines. Under each package stands what asks for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from requirements import LOCK, Locked, every_requirement, read_lock

HEAD = """\
# Every package of the runtime, of all extras and of the build, as tested together, with the SHA-256
# of each of its files: of wheels for all platforms and Pythons, and of the source. pip installs
# nothing else (.ci/requirements.py picks what a target needs). To renew: make constraints; to keep
# versions and add what is new in pyproject.toml: make constraints KEEP=1
"""


def resolve(uv: str, keep: bool) -> str:
    """What the resolver says, as a requirements file. Raises CalledProcessError."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    oldest = re.sub("[^0-9.]", "", project["requires-python"])
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "wanted"
        wanted.write_text("\n".join(every_requirement()) + "\n")
        command = [
            uv, "pip", "compile", "--quiet", "--no-config", "--universal", "--generate-hashes",
            "--no-header", "--python-version", oldest, str(wanted),
        ]  # fmt: skip
        if keep:
            pins = Path(folder) / "pins"
            pins.write_text("".join(f"{pin_of(one)}\n" for one in read_lock().values()))
            command += ["--constraints", str(pins)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def pin_of(one: Locked) -> str:
    """NAME==VERSION, and where that is needed."""
    return f"{one.pin} ; {one.marker}" if one.marker else one.pin


def lines_of(one: Locked) -> list[str]:
    head = pin_of(one)
    asked = [f"    # for {', '.join(one.wanted_by)}"] if one.wanted_by else []
    return [" \\\n    ".join([head, *(f"--hash={value}" for value in one.hashes)]), *asked]


def main(uv: str, keep: bool) -> int:
    try:
        said = resolve(uv, keep)
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        return error.returncode
    found = read_lock(said)
    LOCK.write_text(
        HEAD + "\n".join(line for one in found.values() for line in lines_of(one)) + "\n"
    )
    print(f"{LOCK}: {len(found)} packages, {sum(len(one.hashes) for one in found.values())} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--keep" in sys.argv[2:]))
