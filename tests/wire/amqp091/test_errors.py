from __future__ import annotations

import pytest

from tallymark.wire.amqp091.errors import WireError, clip, reply_scope, reply_text


@pytest.mark.parametrize("code", [311, 312, 313, 403, 404, 405, 406])
def test_soft_errors_close_the_channel(code: int) -> None:
    assert reply_scope(code) == "channel"


@pytest.mark.parametrize("code", [320, 402, 501, 502, 503, 504, 505, 506, 530, 540, 541, 999])
def test_hard_errors_close_the_connection(code: int) -> None:
    assert reply_scope(code) == "connection"


def test_reply_texts_begin_with_the_name_of_the_code() -> None:
    error = WireError(404, "no queue 'q' in vhost '/'")
    assert error.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert str(error) == "404 NOT_FOUND - no queue 'q' in vhost '/'"
    assert reply_text(200, "Normal shutdown") == "Normal shutdown"


def test_texts_are_cut_between_characters() -> None:
    assert clip("a" * 255) == "a" * 255
    assert clip("a" * 256) == "a" * 252 + "..."
    assert clip("a" + "é" * 200) == "a" + "é" * 125 + "..."


def test_texts_are_utf_8_whatever_they_quote() -> None:
    assert clip("bad expiration 'é\udcff'") == "bad expiration 'é?'"
    assert clip("\udcff" * 255) == "?" * 255
    assert clip("\udcff" * 256) == "?" * 252 + "..."
