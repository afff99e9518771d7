"""Share: the amount of work on one read before other connections have their turn.

The unit is a step: a frame or a command, where a run of them that are alike counts once. A read of
64 KiB holds tens of thousands of the smallest.
"""

from typing import Final

ALL: Final = 1 << 62
"""Share of an owner that serves only one connection."""
SHARE: Final = 300
"""Share of a connection of a server: some milliseconds of what costs most, as declaring a queue.
With 1,000 the floods of two connections kept others waiting three times as long; 100 made a loop of
rejected messages 8 % dearer."""
