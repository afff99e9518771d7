"""How much of one read is worked on before others have their turn.

The unit is a step: a frame or a command, where a run of them that are alike counts once. A read of
64 KiB holds tens of thousands of the smallest.
"""

from typing import Final

ALL: Final = 1 << 62
"""For an owner that serves nobody else."""
SHARE: Final = 1000
"""For a server: some milliseconds."""
