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
