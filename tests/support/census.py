"""What a thing holds, counted: every container that can be reached from it, by who has it.

    before = census(broker)
    ... play something that leaves nothing behind, often ...
    assert not grown(before, census(broker), 20)

A container's name is that of its owner's class and attribute, `State.queues`, with `[]` for each
step into it; objects are counted by class. So what a cycle leaves behind is named, wherever it is.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)

LEAVES = (
    type, ModuleType, CodeType, BuiltinFunctionType, int, float, bool, str, bytes, bytearray,
    type(None), memoryview,
)  # fmt: skip
SIZED = (list, tuple, dict, set, frozenset, deque)
OPAQUE = (FunctionType, MethodType, CellType, GeneratorType, CoroutineType, FrameType)
"""Gone through without a name of their own."""


def census(*roots: object, leaves_out: Collection[object] = ()) -> Counter[str]:
    """Return the lengths of all containers that can be reached, summed by name, and the number of
    objects of each class.

    leaves_out: objects that are not gone into.
    """
    found: Counter[str] = Counter()
    seen = {id(one) for one in leaves_out}
    line: deque[tuple[str, object]] = deque()
    for root in roots:
        line.append((type(root).__qualname__, root))
    while line:
        name, one = line.popleft()
        if id(one) in seen or isinstance(one, LEAVES):
            if isinstance(one, (bytearray, bytes)) and id(one) not in seen:
                found[f"{name} bytes"] += len(one)
            continue
        seen.add(id(one))
        if isinstance(one, SIZED):
            found[name] += len(one)
            line.extend((f"{name}[]", part) for part in _parts(one))
        else:
            if isinstance(one, OPAQUE):
                line.extend(_inside(name, one))
                continue
            own = type(one).__qualname__
            found[own] += 1
            line.extend((f"{own}.{what}", part) for what, part in _attributes(one))
    return found


def _parts(one: object) -> Iterator[object]:
    if isinstance(one, dict):
        yield from list(one)
        yield from list(one.values())
    else:
        yield from list(one)  # type: ignore[call-overload]


def _inside(name: str, one: object) -> Iterator[tuple[str, object]]:
    if isinstance(one, FunctionType):
        for cell in one.__closure__ or ():
            yield f"{name}()", cell
        for value in one.__defaults__ or ():
            yield f"{name}()", value
        return
    for part in gc.get_referents(one):
        if not isinstance(part, dict) or "__builtins__" not in part:
            yield name, part


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    """What an object of a class refers to, by the names of its attributes; "?" is what has none."""
    held = {id(part): part for part in gc.get_referents(one)}
    own = getattr(one, "__dict__", {})
    held.pop(id(own), None)
    held.update({id(value): value for value in own.values()})
    named = [(str(what), value) for what, value in own.items()]
    for kind in type(one).__mro__:
        for what, found in vars(kind).items():
            if isinstance(found, (GetSetDescriptorType, MemberDescriptorType)):
                with suppress(AttributeError):  # nothing was assigned
                    named.append((what, getattr(one, what)))
    for what, value in named:
        if held.pop(id(value), None) is not None:
            yield what, value
    for part in held.values():
        yield "?", part


def grown(
    before: Mapping[str, int], after: Mapping[str, int], least: int, bounded: Sequence[str] = ()
) -> dict[str, int]:
    """Return what has grown by so much and more, and not what is in a container of a bounded size.

    bounded: beginnings of these containers' names.
    """
    return {
        name: n - before.get(name, 0)
        for name, n in sorted(after.items())
        if n - before.get(name, 0) >= least and not name.startswith(tuple(bounded))
    }
