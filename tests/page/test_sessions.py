"""Sessions of browsers: when they begin, last and end; under a clock that the test holds."""

from __future__ import annotations

import pytest

from tallymark.server.access.user import GUEST_USER, User
from tallymark.server.page import sessions
from tallymark.server.page.sessions import IDLE_S, LONGEST_S, Sessions


class Rig:
    """Sessions, a clock and the users that there are."""

    def __init__(self) -> None:
        self.now = 0.0
        self.users = {"ann": User("ann", b"salt", b"hash")}
        self.sessions = Sessions(lambda: self.now, lambda user: self.users.get(user.name))

    def begin(self) -> str:
        return self.sessions.begin(self.users["ann"])


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_session_is_found_by_its_number_alone(rig: Rig) -> None:
    number = rig.begin()
    found = rig.sessions.find(number)
    assert found is not None
    assert found.user.name == "ann"
    assert rig.sessions.find(number + "x") is None
    assert rig.sessions.find("") is None


def test_it_ends_when_it_is_not_used(rig: Rig) -> None:
    number = rig.begin()
    rig.now = IDLE_S - 1
    assert rig.sessions.find(number) is not None
    rig.now += IDLE_S - 1
    assert rig.sessions.find(number) is not None
    rig.now += IDLE_S
    assert rig.sessions.find(number) is None
    assert len(rig.sessions) == 0


def test_it_ends_some_time_after_the_log_in_however_much_it_is_used(rig: Rig) -> None:
    number = rig.begin()
    while rig.now + IDLE_S / 2 < LONGEST_S:
        rig.now += IDLE_S / 2
        assert rig.sessions.find(number) is not None
    rig.now = LONGEST_S
    assert rig.sessions.find(number) is None


@pytest.mark.parametrize(
    "then", [None, User("ann", b"salt", b"other"), User("ann", b"other", b"hash")]
)
def test_it_ends_with_its_user_and_with_the_password(rig: Rig, then: User | None) -> None:
    number = rig.begin()
    if then is None:
        del rig.users["ann"]
    else:
        rig.users["ann"] = then
    assert rig.sessions.find(number) is None


def test_it_goes_on_when_the_user_gets_other_rights(rig: Rig) -> None:
    number = rig.begin()
    rig.users["ann"] = User("ann", b"salt", b"hash", administrator=True)
    assert rig.sessions.find(number) is not None


def test_a_log_out_ends_one_and_a_stop_all(rig: Rig) -> None:
    first, second, third = rig.begin(), rig.begin(), rig.begin()
    rig.sessions.end(second)
    rig.sessions.end("unknown")
    assert rig.sessions.find(second) is None
    assert rig.sessions.find(first) is not None
    rig.sessions.end_all()
    assert rig.sessions.find(third) is None


def test_the_one_not_used_for_longest_makes_room(rig: Rig) -> None:
    numbers = [rig.begin() for _ in range(sessions.MOST)]
    assert rig.sessions.find(numbers[0]) is not None
    rig.begin()
    assert rig.sessions.find(numbers[0]) is not None
    assert rig.sessions.find(numbers[1]) is None
    assert len(rig.sessions) == sessions.MOST


def test_form_tokens_differ_by_session_by_user_and_by_password(rig: Rig) -> None:
    first, second = (rig.sessions.find(rig.begin()) for _ in range(2))
    assert first is not None
    assert second is not None
    of = rig.sessions.form_token
    ann = rig.users["ann"]
    found = {
        first.form_token, second.form_token, of(ann), of(GUEST_USER),
        of(User("ann", b"salt", b"other")), Rig().sessions.form_token(ann),
    }  # fmt: skip
    assert len(found) == 6
    assert of(ann) == of(User("ann", b"salt", b"hash", administrator=True))
