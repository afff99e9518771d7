"""The files that say what is to be different."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tallymark.whatif.changes import ChangeRefused, changes_of, read_changes
from tallymark.whatif.recording import Answers
from tallymark.whatif.settings import name_of, said_of


def test_a_range_is_a_world_for_each_value_and_two_are_for_each_pair(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(
        'from = 2026-11-20T12:00:00Z\n[[queue]]\nname = "orders"\nmax-length = [10, 20, 30]\n'
        '[[consumers]]\nqueue = "orders"\nspeed = [1, 2]\nlate = "1h"\n'
    )
    worlds = read_changes(file)
    assert [one.name for one in worlds] == [
        f"limits: max-length {length}, speed {speed}" for length in (10, 20, 30) for speed in (1, 2)
    ]
    assert {one.since_ms for one in worlds} == {1_795_176_000_000}
    assert worlds[3].arguments_of("/", "orders") == {"x-max-length": 20}
    assert worlds[3].consumers[0].speed == 2
    assert worlds[3].consumers[0].late_ms == 3_600_000


def test_the_file_of_the_manual_is_understood() -> None:
    """docs/what-if.md"""
    page = Path(__file__).resolve().parents[2] / "docs" / "what-if.md"
    [text] = page.read_text().split("```toml\n")[1:]
    worlds = list(changes_of("manual", tomllib.loads(text.split("```")[0])))
    assert len(worlds) == 3
    assert worlds[0].consumers[0].away_for_ms == worlds[0].consumers[0].late_ms == 3_600_000
    assert worlds[0].restarts[0].outage_ms == 10_000


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"queues": 3}, "queues is not known here"),
        ({"queue": [{"max-length": 3}]}, r"\[\[queue\]\]: name is None, expected text"),
        ({"consumers": [{"queue": "q", "speed": 0}]}, "speed is 0, expected a number above 0"),
        ({"consumers": [{"queue": "q", "late": "soon"}]}, "late is 'soon', expected such as 30s"),
        ({"consumers": [{"queue": "q", "late": "²s"}]}, "late is '²s', expected such as 30s"),
        ({"consumers": [{"queue": "q", "fast": 2}]}, "fast is not known here"),
        (
            {"queue": [{"name": "q", "maxlength": 3}]},
            "maxlength is no argument of a queue, expected max-length or max-length-bytes",
        ),
        ({"restart": [{"at": "noon"}]}, "at is 'noon', expected a time such as"),
        ({"queue": [{"name": "q", "max-length": []}]}, "max-length is an empty list"),
        ({"queue": [{"name": "q"}]}, r"\[\[queue\]\] q: it changes nothing, expected an argument"),
        (
            {"consumers": [{"queue": "q"}]},
            "it changes nothing, expected times or speed or prefetch or late or away",
        ),
        (
            {"consumers": [{"queue": "q", "away": {"from": "2026-11-20T12:00:00Z"}}]},
            "away: it changes nothing, expected for",
        ),
        ({"publishers": [{"exchange": "x"}]}, "it changes nothing, expected rate"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_words(
    said: dict[str, object], expected: str
) -> None:
    with pytest.raises(ChangeRefused, match=expected):
        list(changes_of("change", said))


def test_settings_of_a_command_line_are_a_change() -> None:
    given = ["orders.max-length=10", "orders.overflow=reject-publish", "a.b.message-ttl=[1,2]"]
    worlds = list(changes_of("given", said_of(given)))
    assert len(worlds) == 2
    assert worlds[0].arguments_of("/", "orders") == {
        "x-max-length": 10, "x-overflow": "reject-publish",
    }  # fmt: skip
    assert worlds[1].arguments_of("/", "a.b") == {"x-message-ttl": 2}
    assert name_of(given[1:]) == "orders.overflow=reject-publish, a.b.message-ttl"
    with pytest.raises(ChangeRefused, match=r"expected QUEUE\.ARGUMENT=VALUE"):
        said_of(["orders"])
    with pytest.raises(ChangeRefused, match=r"orders\.max-length is given twice, expected one"):
        said_of(["orders.max-length=10", "orders.max-length=20"])


def test_answers_are_found_by_ranges_of_message_ids() -> None:
    answers = Answers()
    for first, count in ((30, 5), (10, 10)):
        answers.add(first, count, 1, 0, 0, 0, 1, 0, 0)
    answers.sort()
    assert list(answers.find(8, 30)) == [(-1, 2), (0, 10), (-1, 10), (1, 5), (-1, 3)]
    assert list(answers.find(12, 2)) == [(0, 2)]
    assert list(answers.find(35, 2)) == [(-1, 2)]
