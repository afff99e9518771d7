"""Home of a journal outside of its folder: with one, the folder's files are a cache of it.

Every change of the folder goes to the home, too: blocks as they are written, by the writer's
thread, and all else by the cleaner's or, at a start, by who starts it. A method returns when the
change is safe there, however long that takes. OSError means that it never will be: the journal has
failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Home(Protocol):
    """The home of one journal."""

    @property
    def trouble(self) -> str:
        """Return why changes wait, for humans; empty: they do not. From any thread."""

    @property
    def waits_s(self) -> float:
        """Return for how long the oldest change has been waiting, seconds. From any thread."""

    def append(self, segment: int, offset: int, buffers: list[bytes]) -> None:
        """Append whole blocks to a segment, which has `offset` bytes. Raises OSError."""

    def put(self, folder: Path, names: Sequence[str], gone: Sequence[str]) -> None:
        """Keep these files of the folder as they are now, and let go of those in `gone`, all at
        once. Raises OSError."""

    def end(self) -> None:
        """Stop waiting: from now on, what cannot be made safe at once raises OSError. From any
        thread."""

    def close(self) -> None:
        """Let go of everything; no other method is called any more."""
