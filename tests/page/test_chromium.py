"""The page in a browser, as an operator uses it: each answer within three clicks of the overview.

Brief: the four tasks. Long: every page through axe, light and dark, and at a width of 400.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.page.chromium import MISSING, NARROW, PROGRAM, chromium, logged_in
from tests.page.scene import BEHIND, POISON, Scene
from tests.support.process import BrokerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

pytest.importorskip("playwright", reason="needs the extra dev: pip install 'tallymark[dev]'")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=MISSING)

MOST_CLICKS = 3
AXE = Path(__file__).parent / "axe" / "axe-4.14.1.min.js"
SERIOUS = ("serious", "critical")
PATHS = (
    "/", "/ui/queues", "/ui/queues/%2F/jobs", "/ui/queues/%2F/parked", "/ui/messages",
    "/ui/messages?q=c-4711", "/ui/dead-letters", "/ui/dead-letters/%2F/parked", "/ui/consumers",
    "/ui/connections", "/ui/streams", "/ui/exchanges", "/ui/exchanges/%2F/orders", "/ui/policies",
    "/ui/users", "/ui/features", "/ui/nsq",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("chromium")) / "data"
    with BrokerProcess(folder) as running, Scene(running):
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def window(browser: Browser, broker: BrokerProcess) -> Page:
    return logged_in(browser, broker)


class Operator:
    """A person before the overview, who counts clicks."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        self.complaints: list[str] = []
        """What the browser refuses of the page, by its own policy."""
        page.on("console", self._hear)
        page.goto("/")

    def _hear(self, said: ConsoleMessage) -> None:
        if "Content Security Policy" in said.text:
            self.complaints.append(said.text)

    def leave(self) -> None:
        self.page.remove_listener("console", self._hear)

    def click(self, what: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS
        what.click()

    def menu(self, word: str) -> None:
        """Go to a page by the menu."""
        self.click(self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=word))

    def sees(self, text: str) -> None:
        from playwright.sync_api import expect

        expect(self.page.get_by_role("main")).to_contain_text(text)

    def sees_first(self, text: str) -> None:
        """Wait until the first row of the table has a text in it."""
        from playwright.sync_api import expect

        expect(self.page.get_by_role("row").nth(1)).to_contain_text(text)


@pytest.fixture
def operator(window: Page) -> Iterator[Operator]:
    made = Operator(window)
    yield made
    made.leave()
    assert made.complaints == []


def test_the_one_stuck_queue_is_found_and_why(operator: Operator) -> None:
    operator.menu("Queues")
    operator.click(operator.page.get_by_role("link", name="Ready", exact=True))
    operator.sees_first("jobs")
    operator.click(operator.page.get_by_role("row").nth(1).get_by_role("link"))
    operator.sees("Its consumer is at its prefetch limit, with 10 unsettled messages")


def test_a_message_is_found_by_its_correlation_id(operator: Operator) -> None:
    operator.menu("Messages")
    operator.page.get_by_label("Look for").fill("c-4711")
    operator.click(operator.page.get_by_role("button", name="Find"))
    operator.sees("1 message found")
    operator.sees("order-11")
    operator.sees("attempt 1")
    operator.sees("from work")


def test_the_poison_messages_are_moved_back(operator: Operator) -> None:
    operator.menu("Dead letters")
    row = operator.page.get_by_role("row").filter(has_text="parked").filter(has_text="rejected")
    operator.click(row.get_by_role("link", name="Redrive"))
    operator.sees(f"{POISON} of {POISON} would go back")
    operator.click(operator.page.get_by_role("button", name=f"Redrive {POISON} messages"))
    operator.sees(f"{POISON} messages of parked moved back.")


def test_a_slow_consumer_is_seen_before_it_is_disconnected(operator: Operator) -> None:
    operator.menu("Consumers")
    operator.sees("dashboard of ticker is near its limit")
    operator.sees(f"{BEHIND} of 100 messages")
    operator.sees("it is disconnected and its queue deleted")


def found_by_axe(page: Page) -> list[str]:
    """What axe finds serious, with the elements."""
    found: Any = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{one['id']}: {node['target']}"
        for one in found
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, broker: BrokerProcess, scheme: Any) -> None:
    page = logged_in(browser, broker, color_scheme=scheme, bypass_csp=True)
    problems = {}
    for path in PATHS:
        answer = page.goto(path)
        assert answer is not None
        assert answer.ok, path
        page.add_script_tag(path=AXE)
        problems[path] = found_by_axe(page)
    page.close()
    assert {path: found for path, found in problems.items() if found} == {}


@pytest.mark.long
def test_no_page_is_wider_than_a_telephone(browser: Browser, broker: BrokerProcess) -> None:
    page = logged_in(browser, broker, viewport=NARROW)
    over = {}
    for path in PATHS:
        answer = page.goto(path)
        assert answer is not None
        assert answer.ok, path
        over[path] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.close()
    assert {path: found for path, found in over.items() if found > 0} == {}
