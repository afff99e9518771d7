"""Files that the process has open, and how many it may."""

from __future__ import annotations

import os
import resource
from typing import Final

DESCRIPTORS: Final = "/dev/fd"
BOUNDLESS: Final = 1 << 20
"""Stands for a number of files or tasks that nothing limits."""


def files_open() -> int:
    """Return how many files and sockets the process has open. May block."""
    return len(os.listdir(DESCRIPTORS)) - 1  # without that of the folder itself


def files_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return BOUNDLESS if soft == resource.RLIM_INFINITY else soft
