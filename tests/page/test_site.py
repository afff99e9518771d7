"""The page's frame over HTTP: who gets in, what every answer says, forms, live pages."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallymark.server.page.pages import PAGES
from tests.page.browser import Browser
from tests.server.management import FULL, done
from tests.support.process import BrokerProcess

BASIC = "Basic " + base64.b64encode(b"guest:guest").decode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("page")) / "data") as running:
        done(running, "PUT", "vhosts/other", {})
        done(running, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(running, "PUT", "permissions/%2F/ann", FULL)
        done(running, "PUT", "queues/%2F/here", {"durable": True})
        done(running, "PUT", "queues/other/elsewhere", {"durable": True})
        yield running


@pytest.fixture
def browser(broker: BrokerProcess) -> Browser:
    found = Browser(broker)
    answer = found.login()
    assert (answer.status, answer.to) == (303, "/"), answer.text
    return found


# -- getting in


def test_a_browser_is_asked_to_log_in(broker: BrokerProcess) -> None:
    browser = Browser(broker)
    assert browser.get("/").to == "/ui/login"
    answer = browser.get("/ui/queues?sort=-ready")
    assert answer.to == "/ui/login?to=%2Fui%2Fqueues%3Fsort%3D-ready"
    form = browser.get(answer.to)
    assert form.status == 200
    assert 'value="/ui/queues?sort=-ready"' in form.text


def test_no_page_is_shown_and_nothing_done_without_a_log_in(broker: BrokerProcess) -> None:
    wrong = "Basic " + base64.b64encode(b"guest:wrong").decode()
    for page in PAGES:
        path = re.sub(r"\{[^}]+\}", "q", page.path)
        assert Browser(broker).get(path).to.startswith("/ui/login"), path
        assert Browser(broker).send("GET", path, Authorization=wrong).to.startswith("/ui/login")
        if page.actions:
            answer = Browser(broker).send("POST", path, {"action": next(iter(page.actions))})
            assert answer.status in (303, 401, 403), (path, answer.status)
            assert answer.status != 303 or answer.to.startswith("/ui/login"), path


def test_a_program_is_answered_as_ever(broker: BrokerProcess) -> None:
    for accept in ("", "*/*", "application/json"):
        answer = Browser(broker).send("GET", "/", Accept=accept)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert Browser(broker).send("GET", "/", Accept=accept, Authorization=BASIC).status == 404


def test_the_session_is_no_way_into_the_interface_for_programs(browser: Browser) -> None:
    assert browser.get("/").status == 200
    assert browser.get("/api/overview").status == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites(broker: BrokerProcess) -> None:
    (cookie,) = Browser(broker).login().cookies
    assert cookie.startswith(f"tallymark-session-{broker.http_port}=")
    for wanted in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert wanted in cookie


def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(broker: BrokerProcess) -> None:
    found = [Browser(broker).login(*pair) for pair in (("guest", "no"), ("nobody", "no"))]
    assert [answer.status for answer in found] == [403, 403]
    assert found[0].text == found[1].text
    assert not found[0].cookies


def test_a_password_that_comes_along_needs_no_session(broker: BrokerProcess) -> None:
    browser = Browser(broker)
    assert browser.get("/", Authorization=BASIC).status == 200
    wrong = "Basic " + base64.b64encode(b"guest:no").decode()
    assert browser.get("/", Authorization=wrong).status == 303


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example/", "/\\evil.example", "/a\r\nX: y", "x", ""]
)
def test_a_log_in_leads_nowhere_else(broker: BrokerProcess, to: str) -> None:
    answer = Browser(broker).send(
        "POST", "/ui/login", {"name": "guest", "password": "guest", "to": to}
    )
    assert (answer.status, answer.to) == (303, "/")


def test_a_log_out_ends_the_session_whoever_kept_the_cookie(browser: Browser) -> None:
    kept, token = browser.cookie, browser.get("/").form_token()
    answer = browser.send("POST", "/ui/logout", {"form_token": token})
    assert answer.to == "/ui/login"
    browser.cookie = kept
    assert browser.get("/").to == "/ui/login"


def test_a_session_ends_with_its_user_and_with_the_password(broker: BrokerProcess) -> None:
    for change in ("password", "user"):
        done(broker, "PUT", "users/gone", {"password": "gone", "tags": ""})
        browser = Browser(broker)
        assert browser.login("gone", "gone").status == 303
        assert browser.get("/").status == 200
        if change == "user":
            done(broker, "DELETE", "users/gone")
        else:
            done(broker, "PUT", "users/gone", {"password": "new", "tags": ""})
        assert browser.get("/").to == "/ui/login"


# -- what every answer says


@pytest.mark.parametrize(
    "path", ["/", "/ui/queues", "/ui/login", "/ui/none", "/ui/live?at=/none", "/ui/static/page.js"]
)
def test_nothing_is_loaded_from_elsewhere_or_run_inline(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    if "html" in answer.headers["content-type"]:
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", answer.text)
        assert not re.search(r"(src|href)=\"(https?:)?//", answer.text)


def test_files_may_be_kept_for_ever_and_come_with_their_licences(browser: Browser) -> None:
    found = re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', browser.get("/").text)
    assert len(found) >= 5
    for address in found:
        answer = Browser(browser._broker).get(address)
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]
    for name in ("htmx-2.0.11", "uplot-1.6.32"):
        assert "Permission" in browser.get(f"/ui/static/{name}.LICENSE.txt").text
    assert browser.get("/ui/static/..%2Fsite.py").status == 404


def test_a_name_that_is_not_ours_is_turned_away(browser: Browser) -> None:
    assert browser.get("/", Host="evil.example").status == 421
    assert browser.get("/ui/login", Host="evil.example").status == 421


# -- forms


@pytest.mark.parametrize("token", ["", "x", "é"])
def test_a_form_without_the_token_changes_nothing(browser: Browser, token: str) -> None:
    answer = browser.send("POST", "/ui/logout", {"form_token": token})
    assert answer.status == 403
    assert browser.get("/").status == 200


def test_a_token_of_another_session_changes_nothing(broker: BrokerProcess) -> None:
    first, second = Browser(broker), Browser(broker)
    first.login()
    second.login()
    token = first.get("/").form_token()
    assert second.send("POST", "/ui/logout", {"form_token": token}).status == 403


def test_a_form_that_another_site_sends_is_turned_away(browser: Browser) -> None:
    token = browser.get("/").form_token()
    answer = browser.send(
        "POST", "/ui/logout", {"form_token": token}, Origin="https://evil.example"
    )
    assert answer.status == 403
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
        answer = browser.send("POST", "/ui/logout", {"form_token": token}, Content_Type=kind)
        assert answer.status == 415
    assert browser.get("/").status == 200


# -- who sees what


def test_a_user_sees_the_virtual_hosts_that_it_may_enter(broker: BrokerProcess) -> None:
    browser = Browser(broker)
    browser.login("ann", "ann")
    text = browser.get("/ui/queues").text
    assert "here" in text
    assert "elsewhere" not in text
    with browser.live("/ui/queues") as live:
        text = live.until("here")
        assert "elsewhere" not in text


# -- live pages


def test_a_live_page_is_sent_when_it_changes(broker: BrokerProcess, browser: Browser) -> None:
    with browser.live("/ui/queues?q=made-while") as live:
        assert live.status == 200
        live.until("Nothing found")
        done(broker, "PUT", "queues/%2F/made-while-open", {})
        live.until("made-while-open")


def test_a_live_page_ends_at_the_log_out(browser: Browser) -> None:
    with browser.live("/") as live:
        assert live.next()[0] == "live"
        browser.send("POST", "/ui/logout", {"form_token": browser.get("/").form_token()})
        while (event := live.next())[0] == "live":
            pass
        assert event == ("end", "logged out")


@pytest.mark.parametrize("path", ["/none", "/ui/none", "/api/overview", "/ui/static/page.js"])
def test_only_pages_are_live(browser: Browser, path: str) -> None:
    with browser.live(path) as live:
        assert live.status == 400


def test_a_live_page_needs_a_session(broker: BrokerProcess) -> None:
    with Browser(broker).live("/") as live:
        assert live.status == 401


def test_nobody_opens_any_number_of_live_pages(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/many", {"password": "many", "tags": ""})
    browser = Browser(broker)
    browser.login("many", "many")
    opened = [browser.live("/") for _ in range(21)]
    assert [live.status for live in opened] == [200] * 20 + [503]
    for live in opened:
        live.__exit__(None, None, None)


def test_a_broker_stops_while_live_pages_are_open(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        browser = Browser(broker)
        browser.login()
        with browser.live("/") as live:
            assert live.next()[0] == "live"
            assert broker.stop() == 0
            assert live.next() == ("end", "stopped")
