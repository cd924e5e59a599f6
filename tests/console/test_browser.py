"""The console in a real browser: every screen, every act, every role; with scripts and without."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from semel.console import ConsoleUser, Role, console, routes
from semel.console.standalone import Standalone
from semel.console.users import UsersFile
from semel.core.records import Identity, State
from semel.core.unknown.evidence import Happened
from semel.operators.approvals import Approvals, Intent, Irreversible, two_person_rule
from semel.operators.operator import KeyAddress, sighting
from tests.conftest import found_or_skipped, note
from tests.console.person import Person, served
from tests.console.shop import Shop, by_name, fill, hostile, opened
from tests.servers import chromium
from tests.waiting import PATIENCE, until

expect.set_options(timeout=PATIENCE * 1000)

SCHEMES = ("light", "dark")
WIDTHS = {"narrow": 390, "wide": 1600}
Enter = Callable[..., Person]
TRACES = "https://traces.example/search"


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """One for this file alone: its thread has an event loop as long as it runs."""
    found = chromium.find()
    found_or_skipped(found, chromium.HOW_TO_GET_IT)
    note(request, str(found))
    with chromium.launched(found) as browser:
        yield browser


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with opened(tmp_path_factory.mktemp("shop")) as shop:
        fill(shop)
        yield shop


@pytest.fixture(scope="module")
def address(shop: Shop) -> Iterator[str]:
    """At /ops one person is enough for everything; at /two nothing is irreversible by one."""
    one = shop.guard.console(authorize=by_name, trace_url=f"{TRACES}?q={{identity}}")
    two = shop.guard.console(authorize=by_name, two_person="all")
    with served(Starlette(routes=[Mount("/ops", app=one), Mount("/two", app=two)])) as address:
        yield address


@pytest.fixture
def enter(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Enter]:
    """Somebody comes to a console. At the end no browser may have complained of anything."""
    people: list[Person] = []

    def enter(role: Role = Role.CUSTODIAN, *, at: str = "ops", **options: Any) -> Person:
        people.append(Person(browser, f"{address}/{at}", role, **options))
        return people[-1]

    yield enter
    for person in people:
        person.context.close()
    assert [each for person in people for each in person.complaints] == []
    sent = {routes.find(path, "POST")[0].path for person in people for path in person.sent}
    assert CLICKED.get(request.function.__name__, set()) <= sent


def paths(shop: Shop) -> list[str]:
    """Every screen; those about one record for records of every state, and a hostile one."""
    unknown = hostile(shop)
    records = [unknown, shop.completed(), shop.held(), shop.released()]
    records += [shop.unknown("booked", intent="charge")]
    found: list[str] = []
    for screen in routes.SCREENS:
        about = records if screen.path.startswith("records/") else records[:1] + records[-1:]
        named = about if "{identity}" in screen.path else about[:1]
        found += [screen.path.replace("{identity}", each.hex()) for each in named]
    return found


# ── screens ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def each_page_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shop changes behind the console's back. What is shared is tested in `test_budget`."""
    monkeypatch.setattr(console, "_SHARED", 0.0)


@pytest.mark.parametrize("role", Role)
def test_every_screen_opens_and_no_browser_complains(shop: Shop, enter: Enter, role: Role) -> None:
    person = enter(role)
    for path in paths(shop):
        page = person.open(path)
        expect(page.locator("h1")).to_have_count(1)
        expect(page.locator("header nav a[aria-current]")).to_have_count(1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing(shop: Shop, enter: Enter, scheme: Any) -> None:
    person = enter(color_scheme=scheme)
    for path in paths(shop):
        person.open(path)
        assert person.axe() == [], path


def test_complaints_of_browsers_and_of_axe_are_heard(enter: Enter) -> None:
    """The control of the tests above."""
    person = enter()
    page = person.open()
    page.evaluate("document.body.setAttribute('style', 'color: red')")
    page.evaluate("try { document.body.innerHTML += '<hr>' } catch { }")
    page.evaluate("fetch('static/nothing.css').then((answer) => answer.status)")
    said = " ".join(person.complaints)
    for complaint in ("violates style-src", "violates require-trusted-types-for", "404 GET"):
        assert complaint in said
    person.complaints.clear()
    page.evaluate("document.getElementById('main').append(document.createElement('img'))")
    assert "image-alt" in " ".join(person.axe())


@pytest.mark.parametrize("width", WIDTHS)
def test_no_screen_is_wider_than_its_window(shop: Shop, enter: Enter, width: str) -> None:
    person = enter(viewport={"width": WIDTHS[width], "height": 800})
    for path in paths(shop):
        person.open(path)
        assert person.overflow() <= 0, path


def test_dark_and_light_are_different_and_print_is_plain(enter: Enter) -> None:
    person, grounds = enter(), set[str]()
    page = person.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.add(page.evaluate(ground))
    assert len(grounds) == 2
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    expect(page.get_by_role("navigation")).to_be_hidden()
    for path in ("unknown", "outbox"):  # their rows are in a form: what is done with them is not
        page = person.open(path)
        expect(page.get_by_role("table").first).to_be_visible()
        expect(page.get_by_label("Reason, for the audit").first).to_be_hidden()


def test_in_a_narrow_window_tables_are_whole_under_their_captions(enter: Enter) -> None:
    page = enter(viewport={"width": 390, "height": 800}).open()
    table = page.locator("table.heat")
    expect(table.get_by_role("columnheader", name="2xx")).to_be_visible()
    wide = {
        part: box["width"]
        for part in ("caption", "thead", "tbody")
        if (box := table.locator(part).bounding_box()) is not None
    }
    assert wide["tbody"] == wide["thead"], "they are one table"
    assert wide["caption"] <= 390


def test_every_figure_of_the_overview_leads_to_its_list(enter: Enter) -> None:
    person = enter(Role.VIEWER)
    page = person.open()
    counted = page.locator(".figures a, .heat td a").filter(has_not_text=re.compile(r"^\D*0\D*$"))
    links = counted.evaluate_all("all => all.map((a) => a.href)")
    assert len(links) > 10
    for link in dict.fromkeys(links):
        page.goto(link)
        expect(page.locator("h1")).to_have_count(1)
        expect(page.get_by_text("No record fits")).to_have_count(0)


def test_the_link_to_traces_tells_nothing_of_the_page_that_has_it(shop: Shop, enter: Enter) -> None:
    identity = shop.completed()
    person = enter(Role.VIEWER)
    asked: list[Any] = []

    def answer(route: Any) -> None:
        asked.append(route.request)
        route.fulfill(body="<title>traces</title>", content_type="text/html")

    person.context.route(f"{TRACES}**", answer)
    person.open(f"records/{identity.hex()}")
    with person.context.expect_page() as opened:
        person.click_link("Search for its spans")
    expect(opened.value).to_have_title("traces")
    assert opened.value.evaluate("[window.opener, document.referrer]") == [None, ""]
    assert asked[0].url == f"{TRACES}?q={identity.hex()[:16]}"
    assert "referer" not in asked[0].headers
    assert person.page.url.endswith(identity.hex()), "the page is still there"


# ── acts ──────────────────────────────────────────────────────────────────────────────────────────


CLICKED: dict[str, set[str]] = {
    "test_a_record_is_found_by_its_whole_key": {"records/find"},
    "test_an_outcome_is_settled_as_happened": {"unknown/{identity}/settle"},
    "test_a_probe_is_looked_at_and_then_asked": {
        "unknown/{identity}/look",
        "unknown/{identity}/probe",
    },
    "test_probes_of_those_selected_or_of_all_are_asked": {"unknown/probe"},
    "test_an_outcome_is_given_up": {"unknown/{identity}/bury"},
    "test_dead_letters_are_tried_again_as_they_were_shown": {"outbox/retry"},
    "test_dead_letters_are_deleted_those_selected_or_all": {"outbox/drop"},
    "test_a_settled_key_is_evicted_and_one_in_doubt_is_freed": {
        "records/{identity}/evict",
        "unknown/{identity}/free",
    },
    "test_what_a_record_holds_is_shown_to_a_custodian": {"records/{identity}/contents"},
    "test_one_proposes_and_another_login_approves": {"approvals/approve"},
    "test_a_proposal_is_declined_or_withdrawn": {"approvals/decline"},
    "test_a_tenant_is_erased": {"tenants/erase"},
}
"""By test, the acts whose forms it must send: `enter` looks at what its browsers sent."""


def test_every_act_is_clicked_somewhere() -> None:
    assert set.union(*CLICKED.values()) == {each.path for each in routes.ACTIONS}
    assert set(CLICKED) <= set(globals())


def act(person: Person, button: str, confirm: str, reason: str = "ticket 7") -> None:
    """Both steps of an act, as the page has them: what will be done, and what came of it."""
    form = person.page.locator("form", has=person.page.get_by_role("button", name=button))
    form.get_by_label("Reason, for the audit").fill(reason)
    person.click(button, form)
    expect(person.page.get_by_text(reason)).to_be_visible()
    person.click(confirm)


def acts(shop: Shop) -> list[tuple[str, str, str]]:
    """The newest acts on record: what, by whom, why."""
    return [(each.verb, each.by, each.reason) for each in islice(shop.operator().audit(), 3)]


def test_a_record_is_found_by_its_whole_key(shop: Shop, enter: Enter) -> None:
    key = "a-strange?kind&of=key#1"
    shop.request(key, "/orders")
    found = shop.operator().find(KeyAddress("", "POST", "/orders", key))
    assert found is not None
    person = enter(Role.VIEWER)
    page = person.open("records")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_text("Find one by its whole key").click()
    form = page.locator("form.find")
    for label, text in (("Key", key), ("Path", "/orders")):
        form.get_by_label(label, exact=True).fill(text)
    person.click("Find", form)
    expect(page).to_have_url(re.compile(found.case.record.identity.hex()))
    assert "strange" not in " ".join(asked), "no address has the key"
    assert "strange" not in page.content()


def test_an_outcome_is_settled_as_happened(shop: Shop, enter: Enter) -> None:
    identity = shop.unknown()
    person = enter(Role.OPERATOR)
    page = person.open("unknown")
    page.locator(f"tr[data-row='{identity.hex()}'] a").click()
    page.get_by_label("Status of the answer").fill("201")
    page.get_by_label("Body of that answer").fill('{"id": "pay_9"}')
    page.get_by_label("The provider's name for it").fill("ch_9")
    act(person, "Settle as happened", "Settle")
    expect(page.get_by_role("status").first).to_be_visible()
    assert shop.state(identity) is State.COMPLETED
    verb, by, why = acts(shop)[0]
    assert (verb, by) == ("settle", "operator ada")
    assert "happened (ch_9): ticket 7" in why


def test_an_outcome_is_settled_as_absent_by_who_says_that_it_is_final(
    shop: Shop, enter: Enter
) -> None:
    identity = shop.unknown()
    person = enter(Role.OPERATOR)
    page = person.open(f"unknown/{identity.hex()}")
    form = page.locator("form", has=page.get_by_role("button", name="Settle as absent"))
    form.get_by_label("Reason, for the audit").fill("not in their books")
    person.click("Settle as absent", form)  # the browser asks for the box that is not ticked
    assert form.locator("input:invalid").count() == 1
    form.get_by_role("checkbox").check()
    act(person, "Settle as absent", "Settle")
    expect(page.get_by_role("status").first).to_be_visible()
    assert shop.state(identity) is State.FAILED_RETRYABLE


def test_a_probe_is_looked_at_and_then_asked(shop: Shop, enter: Enter) -> None:
    identity = shop.unknown()
    person = enter(Role.OPERATOR)
    page = person.open(f"unknown/{identity.hex()}")
    person.click("Look, and decide nothing")
    expect(page.get_by_text("Just now:")).to_be_visible()
    assert shop.state(identity) is State.UNKNOWN
    person.click("Ask now, and settle by it")
    expect(page.get_by_role("status").first).to_be_visible()
    assert shop.state(identity) is State.COMPLETED


def test_probes_of_those_selected_or_of_all_are_asked(shop: Shop, enter: Enter) -> None:
    chosen, other = shop.unknown(reason="an outage"), shop.unknown(reason="an outage")
    person = enter(Role.OPERATOR)
    page = person.open("unknown?reason=an+outage")
    page.get_by_label(f"Select {chosen.hex()[:12]}").check()
    act(person, "Ask the probes of those selected", "Ask them now")
    expect(page.get_by_text("Done: 1 of 1.")).to_be_visible()
    assert shop.state(chosen) is State.COMPLETED
    assert shop.state(other) is State.UNKNOWN
    person.open("unknown?reason=an+outage")
    act(person, "Of all 1", "Ask them now")
    expect(page.get_by_text("Done: 1 of 1.")).to_be_visible()
    assert shop.state(other) is State.COMPLETED


def test_an_outcome_is_given_up(shop: Shop, enter: Enter) -> None:
    identity = shop.unknown()
    person = enter(Role.OPERATOR)
    person.open(f"unknown/{identity.hex()}")
    act(person, "Give it up", "Give it up")
    expect(person.page.get_by_role("status").first).to_have_text("given up")
    assert shop.state(identity) is State.EXPIRED
    assert acts(shop)[0][:2] == ("bury", "operator ada")


def test_what_another_has_settled_meanwhile_is_left_and_shown(shop: Shop, enter: Enter) -> None:
    identity = shop.unknown()
    person = enter(Role.OPERATOR)
    page = person.open(f"unknown/{identity.hex()}")
    shop.operator().settle(identity, Happened(), by="bob", reason="he was faster")
    act(person, "Give it up", "Give it up")
    expect(page.get_by_role("alert")).to_contain_text("Not done")
    expect(page.locator("dl.facts")).to_contain_text("completed")
    assert person.axe() == []
    assert all("409" in each for each in person.complaints)
    person.complaints.clear()
    assert acts(shop)[0][:2] == ("settle", "operator bob")


def test_dead_letters_are_tried_again_as_they_were_shown(shop: Shop, enter: Enter) -> None:
    keys = [shop.dead_effect("webhook.push", "503 from the client") for _ in range(3)]
    person = enter(Role.OPERATOR)
    page = person.open("outbox?name=webhook.push")
    expect(page.locator("tbody tr")).to_have_count(3)
    form = page.locator("form.confirming")
    form.get_by_label("Reason, for the audit").fill("they are back")
    person.click("Try all that fit again", form)
    late = shop.dead_effect("webhook.push", "503 from the client")
    expect(page.locator("tbody tr")).to_have_count(3)
    person.click("Try again")
    expect(page.locator(".s-completed")).to_have_count(3)
    left = [each.key for each in shop.operator().list_dead()]
    assert late in left
    assert not set(keys) & set(left)


def test_dead_letters_are_deleted_those_selected_or_all(shop: Shop, enter: Enter) -> None:
    keys = [shop.dead_effect("sms.send", f"number {each} is not a number") for each in range(3)]
    person = enter(Role.OPERATOR)
    page = person.open("outbox?name=sms.send")
    page.get_by_label("Select all that are shown").check()
    page.get_by_label(f"Select sms.send {keys[1]}").uncheck()
    act(person, "Delete those selected", "Delete")
    expect(page.locator(".s-completed")).to_have_count(2)
    left = [each.key for each in shop.operator().list_dead()]
    assert [each for each in keys if each in left] == [keys[1]]
    person.open("outbox?name=sms.send")
    act(person, "Delete all that fit", "Delete")
    expect(page.get_by_text("Done: 1 of 1.")).to_be_visible()
    assert keys[1] not in [each.key for each in shop.operator().list_dead()]


def test_a_settled_key_is_evicted_and_one_in_doubt_is_freed(shop: Shop, enter: Enter) -> None:
    settled, doubtful = shop.completed(), shop.unknown()
    person = enter(Role.CUSTODIAN)
    person.open(f"records/{settled.hex()}")
    act(person, "Free the key", "Free")
    expect(person.page.get_by_role("status").first).to_be_visible()
    assert shop.harness.record(settled) is None
    person.open(f"unknown/{doubtful.hex()}")
    act(person, "Free the key", "Free")
    expect(person.page.get_by_role("status").first).to_be_visible()
    assert [verb for verb, _, _ in acts(shop)[:2]] == ["free", "evict"]


def test_what_a_record_holds_is_shown_to_a_custodian(shop: Shop, enter: Enter) -> None:
    identity = hostile(shop)
    person = enter(Role.CUSTODIAN)
    page = person.open(f"records/{identity.hex()}")
    form = page.locator("form", has=page.get_by_role("button", name="Show what it holds"))
    form.get_by_label("Reason, for the audit").fill("ticket 8")
    person.click("Show what it holds", form)
    expect(page.locator("pre").first).to_contain_text("<script>alert(1)</script>")
    assert acts(shop)[0] == ("look", "operator ada", "ticket 8")
    assert person.axe() == []


def test_one_proposes_and_another_login_approves(shop: Shop, enter: Enter) -> None:
    identity = shop.completed()
    ada, bob = enter(at="two", name="ada"), enter(at="two", name="bob")
    ada.open(f"records/{identity.hex()}")
    act(ada, "Free the key", "Free")
    expect(ada.page.get_by_text("a second person must approve it").first).to_be_visible()
    ada.page.get_by_role("link", name="All that waits for a second person").click()
    expect(ada.page.get_by_role("button", name="Withdraw")).to_be_visible()
    expect(ada.page.get_by_role("button", name="Approve")).to_have_count(0)
    assert ada.axe() == []
    assert shop.state(identity) is State.COMPLETED
    bob.open("approvals")
    act(bob, "Approve", "Approve, and do it", "agreed")
    expect(bob.page.get_by_role("status").first).to_be_visible()
    assert shop.harness.record(identity) is None
    assert [each[:2] for each in acts(shop)[:3]] == [
        ("evict", "operator bob"),
        ("approve", "operator bob"),
        ("propose", "operator ada"),
    ]


def proposed(shop: Shop, by: str) -> Identity:
    """A record whose key somebody has proposed to free."""
    identity = shop.completed()
    found = shop.operator().find(identity)
    assert found is not None
    intent = Intent(Irreversible.EVICT, identity.hex(), sighting(found.case.record))
    Approvals(shop.operator(), two_person_rule("all")).act(intent, by=by, reason="ticket 9")
    return identity


@pytest.mark.parametrize("by", ["ada", "bob"])
def test_a_proposal_is_declined_or_withdrawn(shop: Shop, enter: Enter, by: str) -> None:
    identity = proposed(shop, "ada")
    person = enter(at="two", name=by)
    page = person.open(f"records/{identity.hex()}")
    form = page.locator("form", has=page.get_by_role("button", name=DECLINE[by]))
    person.click(DECLINE[by], form)
    assert form.locator("input:invalid").count() == 1, "not without a reason"
    form.get_by_label("Reason, for the audit").fill("on second thoughts")
    person.click(DECLINE[by], form)
    expect(page.get_by_role("status").first).to_have_text("declined")
    person.open(f"records/{identity.hex()}")
    expect(page.get_by_text("Waits for a second person")).to_have_count(0)
    assert shop.state(identity) is State.COMPLETED
    assert acts(shop)[0] == ("decline", f"operator {by}", "on second thoughts")


DECLINE = {"ada": "Withdraw", "bob": "Decline"}


def test_a_tenant_is_erased(shop: Shop, enter: Enter) -> None:
    identity = shop.completed(tenant="hooli")
    person = enter(Role.CUSTODIAN)
    page = person.open("tenants")
    page.get_by_text("Erase what is kept of a tenant").click()
    page.get_by_label("Tenant", exact=True).fill("hooli")
    act(person, "Erase", "Erase", "they asked for it")
    expect(page.get_by_role("status").first).to_contain_text("It goes on by itself")
    until(lambda: shop.state(identity) is State.EXPIRED)
    person.click_link("See in the audit how far it is")
    until(lambda: person.open("audit?verb=erase").get_by_text("1 records erased").count())


# ── roles ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("role", Role)
def test_each_role_is_offered_what_it_may(shop: Shop, enter: Enter, role: Role) -> None:
    unknown, settled, pending = shop.unknown(), shop.completed(), proposed(shop, "zoe")
    person = enter(role, at="two")
    expected = {
        f"unknown/{unknown.hex()}": {
            "Settle as happened …": Role.OPERATOR,
            "Settle as absent …": Role.OPERATOR,
            "Give it up …": Role.OPERATOR,
            "Look, and decide nothing": Role.OPERATOR,
            "Ask now, and settle by it": Role.OPERATOR,
            "Free the key …": Role.CUSTODIAN,
        },
        f"records/{settled.hex()}": {
            "Free the key …": Role.CUSTODIAN,
            "Show what it holds": Role.CUSTODIAN,
        },
        f"records/{pending.hex()}": {"Approve …": Role.CUSTODIAN, "Decline": Role.CUSTODIAN},
        "unknown": {
            "Ask the probes of those selected …": Role.OPERATOR,
            "Of all": Role.OPERATOR,
        },
        "outbox": {
            "Try those selected again …": Role.OPERATOR,
            "Try all that fit again …": Role.OPERATOR,
            "Delete those selected …": Role.OPERATOR,
            "Delete all that fit …": Role.OPERATOR,
        },
    }
    for path, buttons in expected.items():
        page = person.open(path)
        expect(page.locator(".role")).to_have_text(role.value)
        for name, needs in buttons.items():
            there = page.get_by_role("button", name=name).count() > 0
            assert there is role.includes(needs), (path, name)
    person.open("tenants")
    erasing = person.page.get_by_text("Erase what is kept of a tenant").count() > 0
    assert erasing is role.includes(Role.CUSTODIAN)


def test_a_form_that_a_viewer_sends_all_the_same_is_refused(shop: Shop, enter: Enter) -> None:
    identity = shop.completed()
    person = enter(Role.VIEWER)
    page = person.open("records")
    page.evaluate(f"document.querySelector('form.find').action = 'records/{identity.hex()}/evict'")
    page.get_by_text("Find one by its whole key").click()
    person.click("Find", page.locator("form.find"))
    expect(page.get_by_role("alert")).to_contain_text("needs the role custodian")
    assert shop.state(identity) is State.COMPLETED
    assert all("403" in each for each in person.complaints)
    person.complaints.clear()


# ── logging in ────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def standalone(shop: Shop, **settings: Any) -> Iterator[tuple[str, str | None]]:
    """A console by itself, and the token of its address."""
    console, token = Standalone(**settings).console(shop.guard, None, "grace", 8410)
    with served(console) as address:
        yield address, token


def test_the_address_of_a_standalone_console_works_once(shop: Shop, browser: Browser) -> None:
    with standalone(shop) as (address, token):
        first, second = (Person(browser, address, None) for _ in range(2))
        page = first.open(f"login?token={token}")
        first.click("Log in")
        expect(page.locator(".who bdi")).to_have_text("grace")
        assert token is not None
        assert token not in page.url
        assert second.open().url.endswith("/login"), "nobody else is let in"
        second.open(f"login?token={token}")
        second.click("Log in")
        expect(second.page.get_by_role("alert")).to_contain_text("used already")
        assert second.axe() == []
        first.click("Log out")
        expect(page).to_have_url(re.compile("login$"))
        assert first.open("records").url.endswith("/login")
        assert first.complaints == []
        for person in (first, second):
            person.context.close()


def test_people_of_a_users_file_log_in(shop: Shop, browser: Browser, tmp_path: Path) -> None:
    users = UsersFile(tmp_path / "users.json")
    users.add(ConsoleUser("ada", ["operator"]), "correct horse battery")
    with standalone(shop, users=tmp_path / "users.json") as (address, token):
        assert token is None
        person = Person(browser, address, None)
        page = person.open()
        assert person.axe() == []
        for password in ("wrong", "correct horse battery"):
            page.get_by_label("Name").fill("ada")
            page.get_by_label("Password").fill(password)
            person.click("Log in")
            if password == "wrong":
                expect(page.get_by_role("alert")).to_contain_text("is wrong")
        expect(page.locator(".role")).to_have_text("operator")
        person.context.close()


# ── without JavaScript ────────────────────────────────────────────────────────────────────────────


def test_without_javascript_every_screen_can_be_read(shop: Shop, enter: Enter) -> None:
    person = enter(java_script_enabled=False)
    for path in paths(shop):
        page = person.open(path)
        expect(page.locator("h1")).to_have_count(1)
        expect(page.locator("#refreshing")).to_be_hidden()
        expect(page.locator("#keys-open")).to_be_hidden()


def test_without_javascript_acts_are_done(shop: Shop, enter: Enter) -> None:
    identity, key = shop.unknown(), shop.dead_effect("fax.send", "no carrier")
    person = enter(Role.OPERATOR, java_script_enabled=False)
    page = person.open(f"unknown/{identity.hex()}")
    act(person, "Settle as happened", "Settle")
    expect(page.get_by_role("status").first).to_be_visible()
    assert shop.state(identity) is State.COMPLETED
    page = person.open("outbox?name=fax.send")
    page.get_by_label(f"Select fax.send {key}").check()
    act(person, "Try those selected again", "Try again")
    expect(page.locator(".s-completed")).to_have_count(1)
    page = person.open("records")
    page.locator("select[name=state]").select_option("completed")
    person.click("Filter")
    expect(page.locator("tbody tr").first).to_be_visible()
    assert "state=completed" in page.url


# ── keys, and reading again ───────────────────────────────────────────────────────────────────────


def test_keys_do_what_their_list_says(enter: Enter) -> None:
    person = enter(Role.OPERATOR)
    page = person.open("records")
    rows = page.locator("tbody tr")
    page.keyboard.press("j")
    expect(rows.nth(0)).to_have_class("at")
    page.keyboard.press("j")
    expect(rows.nth(1)).to_have_class("at")
    page.keyboard.press("k")
    expect(rows.nth(0)).to_have_class("at")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert person.axe() == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("select[name=state]")).to_be_focused()
    page.keyboard.press("Escape")
    wanted = rows.nth(0).get_attribute("data-row")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"records/{wanted}$"))
    page.goto(f"{person.address}/outbox")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("tbody tr.at input")).to_be_checked()


def test_a_page_is_read_again_unless_nobody_sees_it_or_somebody_is_at_work(
    shop: Shop, enter: Enter
) -> None:
    """The page's clock is ours, and it counts what it sends: nothing is sent after the count."""
    person = enter(Role.OPERATOR)
    page = person.page
    person.context.add_init_script(COUNT_SENT)
    page.clock.install()
    person.open("unknown")
    fresh = shop.unknown()
    row = page.locator(f"tr[data-row='{fresh.hex()}']")
    expect(row).to_have_count(0)
    page.clock.run_for(31_000)
    expect(row).to_have_count(1)
    assert sent(person) == 1
    hide(person, True)
    page.clock.run_for(300_000)
    assert sent(person) == 1, "a hidden tab asks for nothing"
    other = shop.unknown()
    hide(person, False)
    expect(page.locator(f"tr[data-row='{other.hex()}']")).to_have_count(1)
    assert sent(person) == 2, "back in sight it is up to date at once"
    page.get_by_label(f"Select {fresh.hex()[:12]}").check()
    page.clock.run_for(300_000)
    assert sent(person) == 2, "what somebody has selected stays"
    page.get_by_label(f"Select {fresh.hex()[:12]}").uncheck()
    person.click("Pause")
    page.clock.run_for(300_000)
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert sent(person) == 2, "paused"
    person.click("Resume")
    page.clock.run_for(31_000)
    assert sent(person) == 3, "and the page can still do it"


COUNT_SENT = """
window.sent = 0;
const send = XMLHttpRequest.prototype.send;
XMLHttpRequest.prototype.send = function () { window.sent += 1; return send.call(this); };
"""


def sent(person: Person) -> int:
    count: int = person.page.evaluate("window.sent")
    return count


def hide(person: Person, hidden: bool) -> None:
    """As if its tab were put behind another: a browser without windows shows all of them."""
    define = "(value) => Object.defineProperty(document, 'hidden', { value, configurable: true })"
    person.page.evaluate(define, hidden)
    person.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
