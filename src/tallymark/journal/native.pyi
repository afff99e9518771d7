from collections.abc import Callable, Sequence

from tallymark.journal.jobs import Job
from tallymark.units import Position

class Jobs:
    offset: int
    written: Position
    durable: Position
    synced: Position
    written_bytes: int
    syncs: int
    is_over: bool
    keeps_cached: bool
    def __new__(
        cls,
        syncs_each: bool,
        returns_each: bool,
        signal: int,
        pwritev: Callable[[int, Sequence[bytes], int], int] | None,
        fdatasync: Callable[[int], None] | None,
        /,
    ) -> Jobs: ...
    def put(self, job: Job, /) -> None: ...
    def take(self) -> list[Job]: ...
    def begin(self, fd: int, segment: int, /) -> None: ...
    def tell(self, position: Position, /) -> None: ...
    def count_sync(self, us: int, /) -> None: ...
    def sync_times(self) -> tuple[list[int], int]: ...

def crc32c(data: bytes, /) -> int: ...
