"""How histories are stored: three forms of deaths, all readable for ever [DL-19, DL-20].

`fixtures/annotations-*.json` are stored forms as released; they are never changed, only added to.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tallymark.stored.annotations import NEWEST_FORM, REASONS, Annotations, death_headers
from tests.engine.test_annotations import FORMS, START_MS, Traveller, counts, died, entries, facts

FIXTURES = Path(__file__).parent / "fixtures"


def test_dl_19_a_message_keeps_the_form_it_has() -> None:
    for form in FORMS:
        known = died(Annotations(ttl_ms=1), "q", "expired", form=form)
        assert known.form == form
        for newer in FORMS:
            assert died(known, "q2", "expired", form=newer).form == form


def test_dl_19_a_first_death_takes_the_form_that_is_enabled() -> None:
    """What was known without deaths has no form to keep."""
    stored = Annotations.from_bytes(Annotations(ttl_ms=5, hops=3).to_bytes())
    assert stored.form == 0
    assert died(stored, "q", "expired", form=2).form == 2


FORM_3 = (
    -1, (), (), -1, ("dlx", "Q2"), 1_700_000_002_000,
    [
        ("Q1", "expired", 1, "dlx", ("Q1",), 1_700_000_001_999, 1_700_000_001_999, -1),
        ("Q2", "rejected", 3, "", ("Q2", "cc é"), 1_700_000_000_123, 1_700_000_001_500, 0),
    ],
    ("rejected", "Q2", ""), ("expired", "Q1", "dlx"), 1, 4, 3,
)  # fmt: skip
IN_FIXTURES: dict[str, tuple[object, ...]] = {
    "annotations-form0.json": (
        60_000, ("cc 1", "cc 2", "bcc 1"), ("bcc 1",), 7, None, 0, [], None, None, 2, 5, 0,
    ),
    "annotations-form1.json": (
        *FORM_3[:6],
        [
            ("Q1", "expired", 1, "dlx", ("Q1",), 1_700_000_001_000, 1_700_000_001_000, -1),
            ("Q2", "rejected", 3, "", ("Q2", "cc é"), 1_700_000_000_000, 1_700_000_000_000, 0),
        ],
        ("rejected", "Q2", ""), None, 0, 0, 1,
    ),
    "annotations-form2.json": (*FORM_3[:9], 0, 0, 2),
    "annotations-form2-repeated.json": (
        -1, (), (), 30, ("dlx", "Q1"), 1_700_000_000_200,
        [
            ("Q1", "expired", 1, "dlx", ("Q1",), 1_700_000_000_200, 1_700_000_000_200, -1),
            ("Q1", "expired", 1, "", ("Q1",), 1_700_000_000_100, 1_700_000_000_100, -1),
        ],
        ("expired", "Q1", ""), ("expired", "Q1", "dlx"), 0, 0, 2,
    ),
    "annotations-form3.json": FORM_3,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(IN_FIXTURES))
def test_dl_20_every_stored_form_stays_readable(name: str) -> None:
    blob = (FIXTURES / name).read_bytes()
    assert facts(Annotations.from_bytes(blob)) == IN_FIXTURES[name]


def test_dl_20_every_fixture_is_read_by_a_test() -> None:
    assert sorted(path.name for path in FIXTURES.glob("annotations-*")) == sorted(IN_FIXTURES)


@pytest.mark.parametrize("form", FORMS)
def test_dl_20_an_old_history_and_one_more_death_is_told_like_a_new_one(form: int) -> None:
    old = Annotations.from_bytes((FIXTURES / f"annotations-form{form}.json").read_bytes())
    new = Annotations.from_bytes((FIXTURES / "annotations-form3.json").read_bytes())
    for _ in range(2):
        old = died(old, "Q2", "rejected", START_MS + 10_000, key="Q1")
        new = died(new, "Q2", "rejected", START_MS + 10_000, key="Q1")
        assert entries(old) == entries(new)
        assert death_headers(old) == death_headers(new)


@pytest.mark.parametrize("form", FORMS)
def test_dl_a15_histories_of_every_form_go_on_alike(form: int) -> None:
    """Q1 has a TTL, at Q2 the message is refused, twice; then it expires once more."""
    message = Traveller("Q1", form)
    for n in range(2):
        assert message.dies("expired", "Q2")
        assert message.known is not None
        message.known = Annotations.from_bytes(message.known.to_bytes())
        assert message.known.form == form
        assert (message.known.last_death is None) == (form == 1 and n == 0)
        assert message.dies("rejected", "Q1")
    assert message.dies("expired", "Q2")
    known = message.known
    assert counts(known) == [("Q1", "expired", 3), ("Q2", "rejected", 2)]
    assert known.first_death == known.last_death == ("expired", "Q1", "")


@pytest.mark.parametrize("form", FORMS)
def test_dl_a16_a_stored_history_without_its_last_death_gets_one(form: int) -> None:
    stored = died(None, "q", "expired", form=form).to_object()
    stored.pop("last", None)
    old = Annotations.from_object(stored)
    assert old.last_death is None
    assert [name for name in death_headers(old) if name.startswith("x-last")] == []
    again = died(old, "q2", "rejected", key="q3")
    assert again.last_death == ("rejected", "q2", "")
    assert Annotations.from_bytes(again.to_bytes()).last_death == again.last_death


def test_a_history_without_its_first_death_is_not_given_one() -> None:
    stored = died(None, "q", "expired").to_object()
    del stored["first"]
    again = died(Annotations.from_object(stored), "q2", "rejected")
    assert again.first_death is None
    assert again.last_death == ("rejected", "q2", "")


names = st.sampled_from(["a", "b", "c\0rejected", "d\x002", "é", ""])
texts = st.text(max_size=4)
deaths = st.tuples(
    names, st.sampled_from(REASONS), texts, st.none() | texts, st.integers(0, 1 << 42),
    st.booleans(), st.booleans(),
)  # fmt: skip
published = st.builds(
    lambda ttl_ms, cc, bcc, hops: Annotations(
        ttl_ms=ttl_ms, more_keys=(*cc, *bcc), bcc=tuple(bcc), hops=hops
    ),
    st.integers(-1, 1 << 70),
    st.lists(texts, max_size=2),
    st.lists(texts, max_size=2),
    st.integers(-1, 255),
)


@settings(max_examples=300)
@example(None, [("a", "expired", "", None, 9, True, True), ("b", "expired", "", None, 9, True,
         True), ("a", "expired", "", None, 1, True, True)])  # fmt: skip
@given(st.none() | published, st.lists(deaths, min_size=1, max_size=8))
def test_dl_20_storing_and_dying_is_told_alike_in_every_form(
    start: Annotations | None, past: list[tuple[str, str, str, str | None, int, bool, bool]]
) -> None:
    """The newest form is never stored here; the others are read back before some deaths."""
    known: dict[int, Annotations | None] = dict.fromkeys(FORMS, start)
    for n, (queue, reason, exchange, key, now_ms, compact, restart) in enumerate(past):
        for form in FORMS:
            old = known[form]
            if restart and old is not None and form < NEWEST_FORM:
                old = Annotations.from_bytes(old.to_bytes())
            known[form] = died(
                old, queue, reason, now_ms, exchange=exchange, key=key, form=form,
                compact=compact, hops=n, failed=n, acquired=n + 1,
            )  # fmt: skip
        newest = known[NEWEST_FORM]
        assert newest is not None
        for form in FORMS:
            one = known[form]
            assert one is not None
            assert entries(one) == entries(newest)
            assert one.first_death == newest.first_death
            if form > 1 or n > 0:
                assert one.last_death == newest.last_death
            assert (one.failed, one.acquired, one.hops) == (
                newest.failed, newest.acquired, newest.hops
            )  # fmt: skip


@given(
    st.none() | published, st.lists(deaths, max_size=8), st.sampled_from(FORMS), st.integers(0, 9)
)
def test_what_is_stored_is_read_back_whole(
    start: Annotations | None,
    past: list[tuple[str, str, str, str | None, int, bool, bool]],
    form: int,
    failed: int,
) -> None:
    known = start
    for queue, reason, exchange, key, now_ms, compact, _ in past:
        known = died(
            known, queue, reason, now_ms, exchange=exchange, key=key, form=form, compact=compact,
            failed=failed, acquired=failed,
        )  # fmt: skip
    if known is None:
        known = Annotations(failed=failed)
    blob = known.to_bytes()
    again = Annotations.from_bytes(blob)
    assert facts(again) == facts(known)
    assert again.to_bytes() == blob
    assert facts(Annotations.from_object(known.to_object())) == facts(known)


def test_the_stored_form_is_the_same_object_every_time() -> None:
    known = died(None, "q", "expired")
    assert known.to_bytes() is known.to_bytes()


def test_keys_that_are_no_text_survive_storing() -> None:
    """A CC key in bytes that are not UTF-8 is kept with surrogate escapes."""
    odd = b"\xff\xfe".decode("utf-8", "surrogateescape")
    known = Annotations.from_bytes(Annotations(more_keys=(odd,)).to_bytes())
    assert known.more_keys == (odd,)


def stored(**changed: object) -> bytes:
    """A form 3 history with some members changed; None removes one."""
    value = json.loads((FIXTURES / "annotations-form3.json").read_bytes())
    for name, new in changed.items():
        if new is None:
            del value[name]
        else:
            value[name] = new
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"[]",
        b"\xff",
        b"{}",
        stored(v=None),
        stored(v=2),
        stored(v="1"),
        stored(v=True),
        stored(form=None),
        stored(form=4),
        stored(form=-1),
        stored(form=0),
        stored(form=1),
        stored(form=2),
        stored(deaths=None),
        stored(deaths=[]),
        stored(deaths=[7]),
        stored(deaths=[{}]),
        stored(first=["expired", "q"]),
        stored(first=["bored", "q", ""]),
        stored(last="expired"),
        stored(route=["only one"]),
        stored(route=[1, 2]),
        stored(ttl="5"),
        stored(ttl=-5),
        stored(hops=1.5),
        stored(acquired=True),
        stored(keys="k"),
        stored(bcc=["not among the keys"]),
        stored(later="a field of a later release"),
        b'{"v":1,"form":3,"deaths":[{"queue":"q","reason":"bored","count":1,"exchange":"",'
        b'"first":1,"last":1}]}',
        b'{"v":1,"form":3,"deaths":[{"queue":"q","reason":"expired","count":1,"exchange":"",'
        b'"first":1,"last":1,"more":1}]}',
        b'{"v":1,"form":2,"deaths":{"expired":{"count":1,"exchange":"","first":1}}}',
        b'{"v":1,"form":2,"deaths":{"q\\u0000bored":{"count":1,"exchange":"","first":1,"last":1}}}',
        b'{"v":1,"form":1,"deaths":[{"count":1,"reason":"expired","queue":"q","time":1,'
        b'"exchange":"","more":1}]}',
        b'{"v":1,"form":1,"deaths":[{"count":1,"reason":"expired","queue":"q","time":1,'
        b'"exchange":"","original-expiration":"-5"}]}',
    ],
)
def test_dl_20_what_is_not_known_is_refused_and_never_guessed_at(blob: bytes) -> None:
    with pytest.raises(ValueError):
        Annotations.from_bytes(blob)


def test_dl_20_the_refusal_names_the_version_and_what_was_expected() -> None:
    with pytest.raises(ValueError, match="version 7, expected 1"):
        Annotations.from_bytes(b'{"v":7,"form":3}')
