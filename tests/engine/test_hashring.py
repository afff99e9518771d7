"""The ring: shares by weight, and what moves when members come and go."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.matching import MAX_POINTS, POINTS, HashRing, place_of

KEYS = [b"key-%d" % n for n in range(4000)]


def ring_of(weights: dict[str, int]) -> HashRing[str]:
    ring: HashRing[str] = HashRing()
    for name, weight in weights.items():
        ring.add(name, weight, name)
    return ring


def owners(ring: HashRing[str]) -> list[str | None]:
    return [ring.find(key) for key in KEYS]


def test_empty_ring_has_no_owner() -> None:
    ring = ring_of({"q": 1})
    assert ring.find(b"k") == "q"
    ring.remove("q", 1, "q")
    assert ring.find(b"k") is None


def test_owners_are_the_same_in_every_process() -> None:
    """A change of these figures would move the keys of running systems."""
    ring = ring_of({"queue:a": 1, "queue:b": 2, "queue:c": 3})
    found = [ring.find(b"%d" % n) for n in range(8)]
    assert found == [f"queue:{letter}" for letter in "cacbabcc"]


def test_shares_follow_weights() -> None:
    weights = {f"q{n}": 1 + n % 3 for n in range(10)}
    found = owners(ring_of(weights))
    total = sum(weights.values())
    for name, weight in weights.items():
        expected = len(KEYS) * weight / total
        assert abs(found.count(name) - expected) < 0.35 * expected


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 5), min_size=2), st.data())
def test_only_keys_of_the_member_that_left_move(
    weights: dict[str, int], data: st.DataObject
) -> None:
    ring = ring_of(weights)
    before = owners(ring)
    gone = data.draw(st.sampled_from(sorted(weights)))
    ring.remove(gone, weights[gone], gone)
    after = owners(ring)
    for old, new in zip(before, after, strict=True):
        assert new != gone
        assert old in (new, gone)
    ring.add(gone, weights[gone], gone)
    assert owners(ring) == before


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 5), min_size=1))
def test_order_of_arrival_does_not_matter(weights: dict[str, int]) -> None:
    backwards = dict(reversed(list(weights.items())))
    assert owners(ring_of(weights)) == owners(ring_of(backwards))


def test_weights_under_one_name_add_up() -> None:
    ring = ring_of({"a": 1, "b": 1})
    ring.add("a", 3, "a again")
    assert owners(ring) == owners(ring_of({"a": 4, "b": 1}))
    ring.remove("a", 1, "a")
    assert "a again" in owners(ring)
    ring.remove("a", 3, "a again")
    assert set(owners(ring)) == {"b"}


def test_huge_weights_keep_their_shares_and_bound_the_points() -> None:
    ring = ring_of({"a": 10**12, "b": 10**12, "c": 1})
    found = owners(ring)
    assert abs(found.count("a") - len(KEYS) / 2) < 0.1 * len(KEYS)
    assert len(ring._points) <= MAX_POINTS + 1
    assert len(ring._points) > POINTS * 3


CHANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=60)


@settings(max_examples=25)
@given(st.integers(1, 30), CHANGES)
def test_a_ring_that_was_amended_is_as_one_laid_out_anew(
    begin: int, changes: list[tuple[int, int]]
) -> None:
    weights = {f"m{at}": 1 for at in range(begin)}
    ring = ring_of(weights)
    keys = KEYS[:200]
    for at, weight in changes:
        name = f"m{at}"
        if name in weights:
            ring.remove(name, weights.pop(name), name)
        if weight:
            ring.add(name, weight, name)
            weights[name] = weight
        fresh = ring_of(weights)
        assert [ring.find(key) for key in keys] == [fresh.find(key) for key in keys]


def test_a_member_that_comes_or_goes_moves_its_own_points_only() -> None:
    """All points of all members were laid out anew at the look-up after each change."""
    ring = ring_of({f"m{at}": 1 for at in range(40)})
    ring.find(b"k")
    numbers = {name: member.number for name, member in ring.members.items()}
    ring.remove("m7", 1, "m7")
    ring.find(b"k")
    ring.add("n", 1, "n")
    ring.find(b"k")
    numbers["n"] = numbers.pop("m7")
    assert {name: member.number for name, member in ring.members.items()} == numbers


def test_members_whose_points_share_a_place_are_told_apart_by_their_names() -> None:
    ring = ring_of({"b": 1, "a": 1})
    ring.find(b"k")
    ring._points = array("Q", [place_of(b"k") | ring.members[name].number for name in "ba"])
    assert ring.find(b"k") == "a"
