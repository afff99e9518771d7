"""The verdict on growth: it is passed by what is flat and by nothing else."""

from __future__ import annotations

import pytest

from tests.soak.__main__ import RULES, judge
from tests.soak.flatness import MIB, Compared, Rule, compare, quarters, table
from tests.soak.sampling import Life, Sample, look

LIFE_S = 60.0
RULE = Rule("memory", 8 * MIB, " MiB", MIB)
SMALL = Rule("descriptors", 16)
EQUAL = Rule("threads", 0, share=0.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([9, 1, 2], (1, 2)),
        ([9, 1, 2, 3], (1, 3)),
        ([9, 1, 2, 3, 4], (1.5, 3.5)),  # five minutes: two in a quarter
        ([99, 1, 50, 3, 4, 5, 6, 7, 8], (25.5, 7.5)),  # eight that count, two in a quarter
        ([99, *range(1, 60)], (7.5, 52.5)),  # an hour: 59 that count, 14 in a quarter
    ],
)
def test_quarters_are_medians_and_leave_out_the_first_life(
    values: list[float], expected: tuple[float, float]
) -> None:
    assert quarters(values) == expected


def test_one_odd_life_decides_nothing() -> None:
    values = [100.0] * 60
    values[7] = values[55] = 900.0
    assert compare(Rule("memory", 0), values).is_flat


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0]])
def test_two_lives_are_no_comparison(values: list[float]) -> None:
    with pytest.raises(ValueError, match="expected at least 3"):
        quarters(values)


@pytest.mark.parametrize(
    ("rule", "first", "last", "is_flat"),
    [
        (RULE, 200 * MIB, 220 * MIB, True),
        (RULE, 200 * MIB, 221 * MIB, False),
        (RULE, 200 * MIB, 179 * MIB, False),  # what is gone was not there for the same work
        (RULE, 40 * MIB, 48 * MIB, True),  # the floor: 20 %
        (RULE, 40 * MIB, 49 * MIB, False),
        (SMALL, 30, 46, True),
        (SMALL, 30, 47, False),
        (SMALL, 300, 331, False),
        (EQUAL, 4, 4, True),
        (EQUAL, 4, 5, False),
        (EQUAL, 4, 3, False),
    ],
)
def test_flat_is_within_a_tenth_or_the_floor(
    rule: Rule, first: float, last: float, is_flat: bool
) -> None:
    assert Compared(rule, first, last).is_flat is is_flat


def test_a_violation_says_which_figure_and_by_how_much() -> None:
    said = str(Compared(RULE, 200 * MIB, 230 * MIB))
    assert said == "NOT FLAT: memory 200 MiB -> 230 MiB: +30 MiB (+15.0%), allowed 20 MiB"
    assert str(Compared(EQUAL, 4, 4)) == "flat: threads 4 -> 4: +0 (+0.0%), allowed 0"


def test_the_table_has_a_row_for_each() -> None:
    rows = table([Compared(RULE, 200 * MIB, 230 * MIB), Compared(SMALL, 60, 62)]).splitlines()
    assert [row.split() for row in rows] == [
        ["at", "first", "at", "the", "end", "difference", "allowed"],
        [
            "memory",
            "200",
            "MiB",
            "230",
            "MiB",
            "+30",
            "MiB",
            "(+15.0%)",
            "20",
            "MiB",
            "NOT",
            "FLAT",
        ],
        ["descriptors", "60", "62", "+2", "(+3.3%)", "16", "flat"],
    ]


def lives(count: int, **growth: float) -> list[Life]:
    """Lives of the same figures, each of which grows by so much from life to life."""
    start = {"memory": 80 * MIB, "descriptors": 60, "threads": 4, "disk": 30 * MIB}
    found = []
    for number in range(count):
        one = Life(number + 1, 1.0)
        grown = {name: round(value + growth.get(name, 0) * number) for name, value in start.items()}
        for age in range(1, int(LIFE_S)):
            memory = grown["memory"] + age * 1000  # it grows within a life, in all alike
            one.samples.append(Sample(age, **{**grown, "memory": memory}))
        found.append(one)
    return found


def test_lives_that_are_alike_are_flat() -> None:
    assert all(one.is_flat for one in judge(lives(60), LIFE_S))


@pytest.mark.parametrize(
    ("name", "growth", "expected"),
    [
        ("memory", MIB / 2, ["memory at half a life", "most memory"]),
        ("descriptors", 1, ["descriptors"]),
        ("threads", 1 / 10, ["threads"]),
        ("disk", MIB, ["disk"]),
    ],
)
def test_each_figure_that_grows_is_named(name: str, growth: float, expected: list[str]) -> None:
    found = [one.rule.name for one in judge(lives(60, **{name: growth}), LIFE_S) if not one.is_flat]
    assert found == expected


def test_every_figure_of_a_sample_has_a_rule() -> None:
    one = lives(1)[0]
    said = {figure(one) for _, figure in RULES}
    assert said == {one.most("memory"), 60.0, 4.0, 30.0 * MIB}


def test_memory_is_compared_at_the_same_age() -> None:
    one = Life(1, 1.0, [Sample(age, age * 100, 1, 1, 1) for age in range(60)])
    assert one.memory_at(30) == 3000
    assert Life(1, 1.0, one.samples[:10]).memory_at(30) == 450, "a life without that age"


def test_a_look_sees_this_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    import os

    folder = tmp_path_factory.mktemp("folder")
    before = look(os.getpid(), folder, 1.0)
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_bytes(os.urandom(1 << 20))
    with (folder / "sub" / "file").open() as held:
        after = look(os.getpid(), folder, 2.0)
        assert held.readable()
    assert before.memory > MIB
    assert before.threads >= 1
    assert after.descriptors == before.descriptors + 1
    assert after.disk - before.disk >= 1 << 20


def test_a_look_at_nobody_fails(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(OSError, match="No such file"):
        look(0x7FFF_FFFF, tmp_path_factory.mktemp("folder"), 1.0)
