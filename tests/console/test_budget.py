"""A console takes its share of the time, and what many look at is made once."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import pytest

import semel
from semel.console import Console, ConsoleUser, Role, routes
from semel.console import console as consoles
from semel.console.budget import LONGEST, PIECE, WorkBudget, held, paced
from semel.console.cache import MOST, Cache
from semel.console.view import View
from semel.core.frozen import replace
from semel.core.records import Request
from semel.errors import ConfigurationError
from tests.console.browser import SAME_SITE, Browser
from tests.waiting import PATIENCE, until

# ── the budget ────────────────────────────────────────────────────────────────────────────────────


class Time:
    """A clock that goes on by work and by pauses."""

    def __init__(self) -> None:
        self.now = 100.0
        self.worked = self.paused = 0.0

    def clock(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.paused += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def budget_of(time: Time, share: float | None = 0.1) -> WorkBudget:
    return WorkBudget(share, time.clock, time.sleep)


def test_pages_are_made_in_their_share_of_the_time(time: Time) -> None:
    budget = budget_of(time)
    for _ in range(100):
        budget.run(lambda: time.work(0.02))
    assert time.paused == pytest.approx(99 * 0.02 * 9)


def test_the_first_page_does_not_wait(time: Time) -> None:
    budget_of(time).run(lambda: time.work(0.05))
    assert time.paused == 0


def test_a_page_pauses_after_each_piece_of_its_text(time: Time) -> None:
    pieces: list[float] = []

    def chunk() -> str:
        pieces.append(time.paused)
        time.work(PIECE / 40)
        return "x"

    page = budget_of(time).run(lambda: "".join(paced(chunk() for _ in range(2000))))
    assert len(page) == 2000
    assert time.paused == pytest.approx(9 * time.worked, rel=0.1)
    assert max(Counter(pieces).values()) * PIECE / 40 <= 2 * PIECE  # without a pause


def test_a_console_of_its_own_does_not_pause(time: Time) -> None:
    budget = budget_of(time, None)
    for _ in range(10):
        budget.run(lambda: time.work(1))
    assert time.paused == 0


def test_a_page_that_took_very_long_holds_up_the_next_for_seconds_only(time: Time) -> None:
    budget = budget_of(time)
    budget.run(lambda: time.work(600))
    budget.run(lambda: None)
    assert time.paused == LONGEST


def test_a_page_that_failed_is_paid_for_too(time: Time) -> None:
    budget = budget_of(time)

    def failing() -> None:
        time.work(0.1)
        raise ValueError

    with pytest.raises(ValueError):
        budget.run(failing)
    budget.run(lambda: None)
    assert time.paused == pytest.approx(0.9)


def test_that_one_page_waits_for_another_is_no_work(time: Time) -> None:
    budget, lock, began = budget_of(time), threading.Lock(), threading.Event()

    def page() -> None:
        began.set()
        with held(lock):
            pass

    with lock:
        waits = threading.Thread(target=lambda: budget.run(page))
        waits.start()
        began.wait(PATIENCE)
        until(lambda: budget.idle == 1)
        time.now += 1000
    waits.join()
    budget.run(lambda: None)
    assert time.paused == 0


# ── what is shared ────────────────────────────────────────────────────────────────────────────────


def test_what_was_made_is_made_again_when_its_time_is_up_or_it_is_forgotten(time: Time) -> None:
    cache, made = Cache(time.clock), list[int]()

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [cache.get("page", 2, make), cache.get("page", 2, make)] == [0, 0]
    time.now += 2
    assert cache.get("page", 2, make) == 1
    cache.forget()
    assert cache.get("page", 2, make) == 2


def test_what_was_begun_before_an_act_is_not_shown_after_it(time: Time) -> None:
    cache = Cache(time.clock)

    def make() -> str:
        cache.forget()  # an act, while the page is made
        return "before"

    assert cache.get("page", 2, make) == "before"
    assert cache.get("page", 2, lambda: "after") == "after"


def test_addresses_without_end_do_not_fill_the_memory() -> None:
    cache, made = Cache(), list[int]()
    for n in range(MOST + 1):
        cache.get(n, 60, partial(made.append, n))
    cache.get(MOST, 60, lambda: made.append(-1))
    assert made == list(range(MOST + 1))
    cache.get(0, 60, lambda: made.append(-1))
    assert made[-1] == -1


@pytest.fixture
def guard() -> semel.Guard:
    return semel.Guard("memory://", tenant=None)


def by_name(request: Request) -> ConsoleUser:
    return ConsoleUser(request.headers["x-name"], [request.headers["x-role"]])


def asked(console: Console, name: str, path: str = "/", role: Role = Role.VIEWER) -> str:
    return Browser(console, "wsgi", role).get(path, **{"x-name": name}).text


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The users for whom the page of mismatches was made."""
    found = next(each for each in routes.SCREENS if each.path == "mismatches")
    users: list[str] = []

    def show(view: View) -> object:
        users.append(view.user.name)
        return found.show(view)

    changed = tuple(replace(each, show=show) if each is found else each for each in routes.SCREENS)
    monkeypatch.setattr(routes, "SCREENS", changed)
    return users


def test_a_page_is_made_once_for_those_of_one_role_and_has_the_name_of_each(
    guard: semel.Guard, shown: list[str]
) -> None:
    console = guard.console(authorize=by_name)
    pages = [asked(console, name, "/mismatches") for name in ("ada", "bob")]
    assert shown == ["ada"]
    assert ["ada" in each for each in pages] == [True, False]
    assert ["bob" in each for each in pages] == [False, True]
    asked(console, "cleo", "/mismatches", Role.CUSTODIAN)
    asked(console, "ada", "/mismatches?tenant=acme")
    assert shown == ["ada", "cleo", "ada"]


def test_who_has_acted_sees_what_has_become_of_it(guard: semel.Guard, shown: list[str]) -> None:
    console = guard.console(authorize=by_name)
    asked(console, "ada", "/mismatches")
    Browser(console, "wsgi").ask("POST", "/records/find", {**SAME_SITE, "x-name": "ada"})
    asked(console, "ada", "/mismatches")
    assert shown == ["ada", "ada"]


@pytest.mark.parametrize("path", [each.path for each in routes.SCREENS if each.shared])
def test_no_page_that_is_shared_depends_on_who_looks(
    guard: semel.Guard, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Only its top does."""
    monkeypatch.setattr(consoles, "_SHARED", 0.0)  # each page is made anew
    console = guard.console(authorize=by_name)
    ada, bob = (asked(console, name, f"/{path}", Role.CUSTODIAN) for name in ("ada", "bob"))
    assert ada.partition("<main")[2] == bob.partition("<main")[2] != ""


# ── too many ──────────────────────────────────────────────────────────────────────────────────────


def test_who_has_waited_too_long_for_a_turn_is_told_why(
    guard: semel.Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consoles, "_TURN_WITHIN", 0.0)
    answer = Browser(guard.console(authorize=by_name), "wsgi").get("/", **{"x-name": "ada"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert "a process of its own" in answer.text


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_share_that_is_none_is_refused(guard: semel.Guard, share: float) -> None:
    with pytest.raises(ConfigurationError):
        guard.console(authorize=by_name, work_share=share)
