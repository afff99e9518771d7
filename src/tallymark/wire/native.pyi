from array import array

def encode_deliveries(
    prefix: bytes,
    suffix: bytes,
    tag: int,
    raw: bytes,
    cuts: array[int],
    lo: int,
    hi: int,
    method_size: int,
    /,
) -> bytes: ...
def encode_mixed_deliveries(
    prefixes: list[bytes],
    suffixes: list[bytes],
    tag: int,
    raw: bytes,
    cuts: array[int],
    lo: int,
    hi: int,
    /,
) -> bytes: ...
def encode_transfers(
    before: bytes,
    between: bytes,
    behind: bytes,
    delivery_id: int,
    tag: int,
    raw: bytes,
    cuts: array[int],
    lo: int,
    hi: int,
    skip: int,
    frame_limit: int,
    /,
) -> tuple[bytes, int]: ...
def count_units(data: bytes, pos: int, end: int, unit: bytes, unit_size: int, /) -> int: ...
