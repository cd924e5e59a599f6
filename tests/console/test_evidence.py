"""One key, unknown outcomes, dead letters, approvals: what is shown, and what is done by whom."""

from __future__ import annotations

import json
import re
import threading
import time
from html import unescape
from typing import Any

import httpx
import pytest
from werkzeug.test import Client

import semel
from semel.console import ConsoleUser, Role, routes
from semel.console.console import THREADS, WAITING
from semel.console.responses import CONTENT_SECURITY
from semel.console.standalone import Standalone
from semel.core import operations as ops
from semel.core.exchange.settings_changed import announce
from semel.core.policy import ietf
from semel.core.records import Fence, Identity, Origin, Request, State
from semel.core.stored.requests import StoredRequest, encode
from semel.core.unknown.evidence import CannotTell, Happened
from semel.errors import ConfigurationError, StoreUnavailable
from semel.operators.operator import KeyAddress, Operator
from semel.operators.trace_link import TraceLink
from semel.outbox import signatures
from tests.console.browser import SAME_SITE, Browser
from tests.scene import HOUR, KEY, MINUTE, WITH_OUTBOX, Scene
from tests.waiting import PATIENCE, until

HOSTILE = "</td><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x01{{7*7}}"
DAY = 24 * HOUR


def by_name(request: Request) -> ConsoleUser | None:
    role, name = request.headers.get("x-role", ""), request.headers.get("x-name", "ada")
    return ConsoleUser(name, [role])


class Desk:
    """A console on a scene's store, and people of every role before it."""

    def __init__(self, scene: Scene, **options: Any) -> None:
        self.scene = scene
        self.browser = Browser(scene.guard.console(authorize=by_name, **options), "asgi")

    def get(self, path: str, role: Role = Role.VIEWER) -> str:
        sent = {"accept": "text/html", "x-role": role.value}
        answer = self.browser.ask("GET", f"/{path}", sent)
        assert answer.status_code == 200, answer.text
        return answer.text

    def json(self, path: str) -> Any:
        sent = {"accept": "application/json", "x-role": "viewer"}
        answer = self.browser.ask("GET", f"/{path}", sent)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(
        self, path: str, role: Role = Role.OPERATOR, name: str = "ada", **form: Any
    ) -> httpx.Response:
        sent = {"accept": "text/html", "x-role": role.value, "x-name": name, **SAME_SITE}
        return self.browser.ask("POST", f"/{path}", sent, data=form)

    def act(
        self,
        path: str,
        role: Role = Role.OPERATOR,
        name: str = "ada",
        expect: int = 200,
        **form: Any,
    ) -> str:
        """Both steps: the page that asks, and its form as it is sent from there."""
        asked = self.post(path, role, name, **form)
        assert asked.status_code == 202, asked.text
        done = self.post(path, role, name, **hidden(asked.text))
        assert done.status_code == expect, done.text
        return done.text

    def document(self, path: str, role: Role = Role.OPERATOR, **form: Any) -> httpx.Response:
        """An act that a program does at once, and reads as JSON."""
        sent = {"accept": "application/json", "x-role": role.value, **SAME_SITE}
        return self.browser.ask("POST", f"/{path}", sent, data={**form, "confirmed": "yes"})

    def seen(self, identity: Identity) -> str:
        told: str = self.json(f"records/{identity.hex()}")["seen"]
        return told


def hidden(page: str) -> dict[str, Any]:
    """The hidden fields of a page that asks, as a browser would send them."""
    form = page[page.rindex('<form class="act"') :]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form):
        found.setdefault(unescape(name), []).append(unescape(value))
    return found


def dead_effect(scene: Scene, key: str, error: str = "refused") -> None:
    scene.harness.perform(ops.Enqueue(key, None, "mail", b'{"card":"4242"}'))
    dies(scene, key, error)


def dies(scene: Scene, key: str, error: str) -> None:
    fence = Fence(f"{key} {error}".encode().ljust(16)[:16])
    scene.harness.perform(ops.TakeEffects(fence, ("mail",), 1, MINUTE))
    scene.harness.perform(ops.MarkFailed(key, fence, error, None))


def audit(scene: Scene) -> list[tuple[str, str]]:
    """What is on record, sorted: of acts of one millisecond Redis does not tell the order."""
    return sorted((each.verb, each.by) for each in Operator(scene.guard).audit())


# ── who may ───────────────────────────────────────────────────────────────────────────────────────

NEEDS = {
    "records/{identity}/evict": Role.CUSTODIAN,
    "records/{identity}/contents": Role.CUSTODIAN,
    "unknown/probe": Role.OPERATOR,
    "unknown/{identity}/look": Role.OPERATOR,
    "unknown/{identity}/probe": Role.OPERATOR,
    "unknown/{identity}/settle": Role.OPERATOR,
    "unknown/{identity}/bury": Role.OPERATOR,
    "unknown/{identity}/free": Role.CUSTODIAN,
    "outbox/retry": Role.OPERATOR,
    "outbox/drop": Role.OPERATOR,
    "approvals/approve": Role.OPERATOR,
    "approvals/decline": Role.OPERATOR,
    "tenants/erase": Role.CUSTODIAN,
}
"""Written here a second time on purpose: a role that is lowered by mistake is found."""


def test_every_act_is_in_this_table() -> None:
    assert set(NEEDS) <= {each.path for each in routes.ACTIONS}
    told = {each.path: each.role for each in routes.ACTIONS if each.path in NEEDS}
    assert told == NEEDS


@pytest.mark.parametrize("path", NEEDS)
def test_who_has_less_than_its_role_does_nothing(quick: Scene, path: str) -> None:
    quick.guard.policy = ietf(probe=lambda _: Happened())
    state = State.COMPLETED if path.endswith("evict") else State.UNKNOWN
    identity = quick.completed() if state is State.COMPLETED else quick.unknown()
    dead_effect(quick, "one")
    desk = Desk(quick)
    form: dict[str, Any] = {
        "seen": desk.seen(identity),
        "item": ["one", identity.hex()],
        "reason": "x",
        "verdict": "absent",
        "final": "yes",
        "confirmed": "yes",
        "tenant": "tern",
    }
    less = {Role.OPERATOR: (Role.VIEWER,), Role.CUSTODIAN: (Role.VIEWER, Role.OPERATOR)}
    for role in less[NEEDS[path]]:
        answer = desk.post(path.replace("{identity}", identity.hex()), role, **form)
        assert answer.status_code == 403
    assert quick.state(identity) is state
    assert [each.key for each in Operator(quick.guard).list_dead()] == ["one"]
    assert audit(quick) == []


def test_a_viewer_is_offered_nothing_to_do(quick: Scene) -> None:
    identity = quick.unknown()
    dead_effect(quick, "one")
    desk = Desk(quick)
    for path in (f"records/{identity.hex()}", f"unknown/{identity.hex()}", "unknown", "outbox"):
        assert 'method="post"' not in desk.get(path)
    assert "Free the key" not in desk.get(f"unknown/{identity.hex()}", Role.OPERATOR)
    assert "Free the key" in desk.get(f"unknown/{identity.hex()}", Role.CUSTODIAN)


# ── one key ───────────────────────────────────────────────────────────────────────────────────────


def test_every_state_has_its_page(scene: Scene) -> None:
    made = [
        scene.held(),
        scene.completed(),
        scene.released(),
        scene.unknown("booked", intent="charge"),
    ]
    desk, told = Desk(scene), dict[str, Any]()
    for identity in made:
        page, told = desk.get(f"records/{identity.hex()}"), desk.json(f"records/{identity.hex()}")
        assert told["state"] == scene.state(identity).value
        assert 'class="here"><title>' in page
        assert "time not recorded" in page or told["state"] in ("in_progress", "completed")
    assert told["points"][1]["downstream_key"] == scene.key_of(made[-1], "charge")
    assert told["in_doubt"] == "charge"


def test_neither_key_nor_body_is_on_a_page_or_in_json(quick: Scene) -> None:
    request = StoredRequest(
        *("POST", "", "/payments", b"page=2&access%5Ftoken=abcdef&"),
        headers=(
            (b"idempotency-key", KEY.encode()),
            *((name, b"abcdef") for name in (b"authorization", b"x-access-token", b"api-key")),
        ),
        body=b'{"card":"4242"}',
        key=KEY,
        principal=None,
    )
    identity = quick.unknown(request=encode(request))
    done = quick.completed(b'{"card":"4242"}')
    desk = Desk(quick)
    shown = ""
    for path in (*(f"records/{each.hex()}" for each in (identity, done)), "unknown", "outbox"):
        shown += desk.get(path, Role.CUSTODIAN) + json.dumps(desk.json(path))
    shown += desk.get(f"unknown/{identity.hex()}", Role.CUSTODIAN)
    shown += json.dumps(desk.json(f"unknown/{identity.hex()}"))
    for secret in (KEY, "4242", "abcdef", quick.case(identity).record.fence.hex()):
        assert secret not in shown
    assert "page=2" in shown


def test_a_custodian_looks_inside_and_that_is_on_record(scene: Scene) -> None:
    identity = scene.completed(b'{"card":"4242"}')
    desk, path = Desk(scene), f"records/{identity.hex()}/contents"
    assert desk.post(path, Role.CUSTODIAN).status_code == 400, "not without a reason"
    answer = desk.post(path, Role.CUSTODIAN, reason="ticket 7")
    assert "4242" in answer.text
    assert audit(scene) == [("look", "operator ada")]


def test_a_settled_key_is_freed_once_it_is_confirmed(scene: Scene) -> None:
    identity = scene.completed()
    desk, path = Desk(scene), f"records/{identity.hex()}/evict"
    seen = desk.seen(identity)
    asked = desk.post(path, Role.CUSTODIAN, seen=seen, reason="a wrong answer")
    assert "Free this key?" in asked.text
    assert scene.state(identity) is State.COMPLETED
    desk.act(path, Role.CUSTODIAN, seen=seen, reason="a wrong answer")
    assert scene.harness.record(identity) is None
    assert audit(scene) == [("evict", "operator ada")]


TRACES = "https://tempo.example/search?q={identity}&start={from}&end={to_ms}"


@pytest.mark.parametrize("of", ["guard", "console"])
def test_a_record_links_to_its_traces(quick: Scene, of: str) -> None:
    identity = hostile(quick)
    asked = {"trace_url": TRACES} if of == "console" else {}
    quick.guard.trace_link = TraceLink(TRACES if of == "guard" else "https://t.example/{identity}")
    desk = Desk(quick, **asked)
    for path in (f"records/{identity.hex()}", f"unknown/{identity.hex()}"):
        told = desk.json(path)
        (link,) = re.findall(r'<a href="(https?://[^"]*)"([^>]*)>', desk.get(path))
        href, rest = unescape(link[0]), link[1]
        assert href == told.get("record", told)["traces"]
        assert re.fullmatch(
            rf"https://tempo\.example/search\?q={identity.hex()[:16]}&start=\d+&end=\d+", href
        )
        assert 'rel="noopener noreferrer"' in rest
    answer = desk.browser.ask("GET", f"/records/{identity.hex()}", {"x-role": "viewer"})
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_without_a_template_there_is_no_link_elsewhere(quick: Scene) -> None:
    identity = quick.unknown()
    desk = Desk(quick)
    for path in (f"records/{identity.hex()}", f"unknown/{identity.hex()}"):
        assert "://" not in desk.get(path)
        assert desk.json(path).get("traces") is None


def test_a_wrong_template_stops_the_console_at_once(quick: Scene) -> None:
    for wrong in ("javascript:alert({identity})", "https://t.example/{key}"):
        with pytest.raises(ConfigurationError, match="trace_url= "):
            Desk(quick, trace_url=wrong)
        with pytest.raises(ConfigurationError, match="trace_url= "):
            Standalone(trace_url=wrong).check()


def test_a_page_without_its_record_says_so(quick: Scene) -> None:
    desk = Desk(quick)
    for path in ("records/", "unknown/"):
        sent = {"accept": "text/html", "x-role": "viewer"}
        assert desk.browser.ask("GET", f"/{path}{'ab' * 32}", sent).status_code == 404


# ── unknown ───────────────────────────────────────────────────────────────────────────────────────


def looked(page: str) -> dict[str, Any]:
    """What its forms bring back of what the probe has said."""
    fields = re.findall(r'name="(looked|voucher)" value="([^"]*)"', page)
    return {name: unescape(value) for name, value in fields}


def test_settled_as_happened_with_the_evidence_that_was_on_screen(scene: Scene) -> None:
    scene.guard.policy = ietf(probe=lambda _: Happened())
    identity = scene.unknown()
    desk, path = Desk(scene), f"unknown/{identity.hex()}/settle"
    form: dict[str, Any] = {
        "seen": desk.seen(identity),
        "verdict": "happened",
        "reason": "in the dashboard",
    }
    form |= {"status": "201", "body": '{"id": 7}', "provider_id": "ch_7"}
    form |= looked(desk.post(f"unknown/{identity.hex()}/look").text)
    assert "Retries get the answer that you give" in desk.post(path, **form).text
    assert scene.state(identity) is State.UNKNOWN
    desk.act(path, **form)
    assert scene.state(identity) is State.COMPLETED
    (entry,) = Operator(scene.guard).audit()
    assert entry.by == "operator ada"
    assert "happened (ch_7): in the dashboard [on screen: journal: none" in entry.reason
    assert "probe, as shown: happened" in entry.reason
    kept = desk.json(f"records/{identity.hex()}")["answer"]
    assert (kept["status"], kept["size"]) == (201, 9)


def test_what_the_probe_said_cannot_be_made_up(quick: Scene) -> None:
    quick.guard.policy = ietf(probe=lambda _: CannotTell("no\nanswer"))
    identity, another = quick.unknown(), quick.unknown()
    desk, path = Desk(quick), f"unknown/{identity.hex()}/settle"
    said = looked(desk.post(f"unknown/{identity.hex()}/look").text)
    elsewhere = looked(desk.post(f"unknown/{another.hex()}/look").text)
    form: dict[str, Any] = {"seen": desk.seen(identity), "verdict": "happened"}
    form["reason"] = "seen [on screen: probe, as shown: happened]"
    lies: list[dict[str, Any]] = [{"looked": "happened"}, said | {"looked": "happened"}, elsewhere]
    for made_up in lies:
        page = desk.post(path, **form, **made_up).text
        assert "<bdi>journal: none; webhooks: none</bdi>" in page
    desk.act(path, **form, **said)
    (entry,) = Operator(quick.guard).audit()
    assert entry.reason.endswith("; probe, as shown: cannot tell: no answer]")
    assert entry.reason.startswith("happened: seen (on screen: probe, as shown: happened) [on")


@pytest.mark.parametrize("status", ["099", "600", "02009999", "2e2", "٢٠٠"])
def test_a_status_that_no_answer_has_is_refused(quick: Scene, status: str) -> None:
    identity = quick.unknown()
    form: dict[str, Any] = {"verdict": "happened", "status": status, "reason": "seen"}
    assert Desk(quick).post(f"unknown/{identity.hex()}/settle", **form).status_code == 400


def test_an_operation_goes_on_with_the_stated_result(scene: Scene) -> None:
    identity = scene.unknown("booked", intent="charge")
    desk, path = Desk(scene), f"unknown/{identity.hex()}/settle"
    form: dict[str, Any] = {"seen": desk.seen(identity), "verdict": "happened", "reason": "seen"}
    assert desk.post(path, **form).status_code == 400, "it needs the result"
    assert desk.post(path, **form, body="no json").status_code == 400
    desk.act(path, **form, body='{"charge": "ch_7"}')
    assert scene.state(identity) is State.IN_PROGRESS


def test_absent_needs_its_assertion(scene: Scene) -> None:
    identity = scene.unknown()
    desk, path = Desk(scene), f"unknown/{identity.hex()}/settle"
    form: dict[str, Any] = {
        "seen": desk.seen(identity),
        "verdict": "absent",
        "reason": "not in their books",
    }
    lacks: list[dict[str, Any]] = [{}, {"final": "no"}]
    for lacking in lacks:
        refused = desk.post(path, **form, **lacking, confirmed="yes")
        assert refused.status_code == 400
    assert scene.state(identity) is State.UNKNOWN
    desk.act(path, **form, final="yes")
    assert scene.state(identity) is State.FAILED_RETRYABLE


@pytest.mark.parametrize("act", ["settle", "bury", "free"])
def test_what_has_changed_since_it_was_seen_is_left_and_shown(scene: Scene, act: str) -> None:
    identity = scene.unknown()
    desk, path = Desk(scene), f"unknown/{identity.hex()}/{act}"
    form: dict[str, Any] = {"seen": desk.seen(identity), "verdict": "happened", "reason": "seen"}
    asked = desk.post(path, Role.CUSTODIAN, **form)
    assert asked.status_code == 202
    Operator(scene.guard).settle(identity, Happened(), by="bob", reason="he was faster")
    refused = desk.post(path, Role.CUSTODIAN, **hidden(asked.text))
    assert refused.status_code == 409
    assert "Not done" in refused.text
    assert "<bdi>completed</bdi>" in refused.text
    told = desk.document(path, Role.CUSTODIAN, **form)
    assert (told.status_code, told.json()["status"], told.json()["done"]) == (409, 409, [])
    assert told.json()["failed"][0].startswith("Not done: ")
    assert audit(scene) == [("settle", "operator bob")]


@pytest.mark.parametrize("act", ["settle", "bury", "free"])
def test_an_act_that_does_not_say_what_was_seen_does_nothing(quick: Scene, act: str) -> None:
    identity = quick.unknown()
    form: dict[str, Any] = {"verdict": "happened", "reason": "seen", "confirmed": "yes"}
    page = Desk(quick).post(f"unknown/{identity.hex()}/{act}", Role.CUSTODIAN, **form)
    assert page.status_code == 409
    assert "Not done" in page.text
    assert quick.state(identity) is State.UNKNOWN


def test_a_look_at_the_probe_decides_nothing_and_asking_it_does(scene: Scene) -> None:
    scene.guard.policy = ietf(probe=lambda _: Happened(provider_id="ch_7"))
    identity = scene.unknown()
    desk, path = Desk(scene), f"unknown/{identity.hex()}"
    page = desk.post(f"{path}/look").text
    assert "happened (ch_7)" in page
    assert scene.state(identity) is State.UNKNOWN
    assert audit(scene) == []
    desk.post(f"{path}/probe")
    assert scene.state(identity) is State.COMPLETED


def test_what_the_provider_sent_is_beside_it(scene: Scene) -> None:
    identity = scene.unknown()
    told = json.dumps({"source": "acme", "event": "evt_7", "applied": False})
    kind = ops.NotableKind
    seen = (
        ops.Notable(kind.WEBHOOK, identity=identity, detail=told),
        ops.Notable(kind.MISMATCH, identity=identity, detail='{"fields":["amount"]}'),
    )
    scene.harness.perform(ops.WriteNotables(seen, DAY))
    desk = Desk(scene)
    (webhook,) = desk.json(f"unknown/{identity.hex()}")["record"]["webhooks"]
    assert webhook["text"] == "the provider sent an event: source: acme; event: evt_7; applied: no"
    assert "another request came under its key: fields: amount" in desk.get(
        f"records/{identity.hex()}"
    )


def test_probes_of_many_are_asked_and_each_has_its_result(scene: Scene) -> None:
    def ask(inquiry: Any) -> Happened | CannotTell:
        return CannotTell("down") if inquiry.path in down else Happened()

    down = ["/bad"]

    scene.guard.policy = ietf(probe=ask)
    good, bad = scene.unknown(path="/good"), scene.unknown(path="/bad")
    desk = Desk(scene)
    asked = desk.post("unknown/probe", every="yes", route="POST /good", reason="back")
    later = scene.unknown(path="/good")
    page = desk.post("unknown/probe", **hidden(asked.text)).text
    assert scene.state(good) is State.COMPLETED
    assert scene.state(later) is State.UNKNOWN, "what came to fit later is no part of it"
    page = desk.act("unknown/probe", item=[bad.hex(), later.hex()], reason="back")
    assert page.count('s-refused">not done') == page.count('s-completed">done') == 1
    assert "Done: 1 of 2." in page
    assert "Not done: 1 of 2." in page
    assert scene.state(bad) is State.UNKNOWN
    page = desk.act("unknown/probe", item=[bad.hex(), later.hex()], reason="back", expect=409)
    assert "Not done: 2 of 2." in page
    alone = desk.document(f"unknown/{bad.hex()}/probe")
    assert (alone.status_code, alone.json()["failed"]) == (409, ["Not done: down."])
    down.clear()
    desk.document(f"unknown/{bad.hex()}/probe")
    told = {(each.by, each.reason) for each in Operator(scene.guard).audit()}
    assert told == {
        ("probe POST /bad", "happened: asked by operator ada"),
        ("probe POST /good", "happened: asked by operator ada: back"),
    }


def test_a_slow_provider_does_not_hold_a_thread_for_a_whole_list(
    quick: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.console.screens.unknown._ASKING", 0.0)
    quick.guard.policy = ietf(probe=lambda _: Happened())
    identity = quick.unknown()
    told = Desk(quick).document("unknown/probe", item=[identity.hex()], reason="back")
    assert told.status_code == 409
    assert told.json()["items"][0]["said"] == "not asked: the others took too long"
    assert quick.state(identity) is State.UNKNOWN


def test_a_program_does_not_take_the_question_for_the_act(quick: Scene) -> None:
    identity = quick.completed()
    desk = Desk(quick)
    sent = {"accept": "application/json", "x-role": "custodian", **SAME_SITE}
    form: dict[str, Any] = {"seen": desk.seen(identity), "reason": "wrong"}
    path = f"/records/{identity.hex()}/evict"
    asked = desk.browser.ask("POST", path, sent, data=form)
    assert (asked.status_code, asked.json()["question"]) == (202, "Free this key?")
    assert quick.state(identity) is State.COMPLETED
    done = desk.browser.ask("POST", path, sent, data=dict(asked.json()["fields"]))
    assert (done.status_code, quick.harness.record(identity)) == (200, None)


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────


@WITH_OUTBOX
def test_the_list_that_was_shown_is_tried_again_and_nothing_else(scene: Scene) -> None:
    for key in ("one", "two"):
        dead_effect(scene, key)
    dead_effect(scene, "other", "another error")
    desk = Desk(scene)
    asked = desk.post("outbox/retry", every="yes", error="refused", reason="it is back")
    assert sorted(item.partition(":")[2] for item in hidden(asked.text)["item"]) == ["one", "two"]
    dead_effect(scene, "three")
    Operator(scene.guard).drop_dead("one", by="bob", reason="wrong")
    page = desk.post("outbox/retry", **hidden(asked.text)).text
    assert page.count('s-completed">done') == page.count('s-refused">not done') == 1
    left = {each.key for each in Operator(scene.guard).list_dead()}
    assert left == {"other", "three"}


@WITH_OUTBOX
@pytest.mark.parametrize("path", ["outbox/retry", "outbox/drop"])
def test_an_effect_that_has_died_again_is_left(scene: Scene, path: str) -> None:
    """Also when the form is sent a second time, by a double click or by going back."""
    dead_effect(scene, "one")
    desk = Desk(scene)
    asked = hidden(desk.post(path, every="yes", reason="it is back").text)
    scene.travel(MINUTE)
    Operator(scene.guard).retry_dead("one", by="bob", reason="x")
    dies(scene, "one", "again")
    answer = desk.post(path, **asked)
    assert (answer.status_code, "Not done: 1 of 1." in answer.text) == (409, True)
    assert [each.key for each in Operator(scene.guard).list_dead()] == ["one"]


@WITH_OUTBOX
def test_where_more_fit_than_one_act_is_about_the_page_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.console.screens.outbox.MOST", 2)
    desk = Desk(scene)
    for number in range(3):
        page = desk.post("outbox/drop", every="yes", reason="x").text
        assert ("there are more, for another act" in page) == (number > 2)
        dead_effect(scene, f"key-{number}")
    page = desk.post("outbox/drop", every="yes", reason="x").text
    assert "there are more, for another act" in page
    assert [each.partition(":")[2] for each in hidden(page)["item"]] == ["key-2", "key-1"]


@WITH_OUTBOX
def test_effects_are_listed_by_pages_and_by_a_part_of_their_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.console.screens.outbox.PAGE", 2)
    for number in range(5):
        dead_effect(scene, f"key-{number}", "refused" if number != 2 else "another error")
        scene.travel(MINUTE)
    desk, pages, place = Desk(scene), list[list[str]](), "outbox?error=refused"
    while place:
        page = desk.json(place)
        pages.append([each["key"] for each in page["rows"]])
        place = page["next"] and f"outbox?error=refused&after={page['next']}"
    assert pages == [["key-4", "key-3"], ["key-1", "key-0"]]


@WITH_OUTBOX
def test_selected_effects_are_deleted(scene: Scene) -> None:
    for key in ("one", "two"):
        dead_effect(scene, key)
    desk = Desk(scene)
    (item,) = [each["item"] for each in desk.json("outbox")["rows"] if each["key"] == "one"]
    desk.act("outbox/drop", item=item, reason="wrong")
    assert [each.key for each in Operator(scene.guard).list_dead()] == ["two"]
    assert audit(scene) == [("drop", "operator ada")]


def test_effects_that_wait_for_a_second_person_are_not_called_done(quick: Scene) -> None:
    dead_effect(quick, "one")
    desk = Desk(quick, two_person=["drop"])
    (row,) = desk.json("outbox")["rows"]
    told = desk.document("outbox/drop", item=[row["item"]], reason="wrong")
    assert (told.status_code, told.json()["done"]) == (202, [])
    assert told.json()["waiting"] == ["To be approved by a second person: 1 of 1."]
    assert [each["done"] for each in told.json()["items"]] == [None]
    assert [each.key for each in Operator(quick.guard).list_dead()] == ["one"]


def test_nothing_selected_and_too_many_are_refused(quick: Scene) -> None:
    desk = Desk(quick)
    for path in ("outbox/retry", "outbox/drop", "unknown/probe"):
        assert desk.post(path, reason="x").status_code == 400
        many = [f"1:{number}" for number in range(1001)]
        assert desk.post(path, reason="x", item=many, confirmed="yes").status_code == 400


@pytest.mark.parametrize("place", ["9223372036854775808-1", "1-9223372036854775808", "-", "٣-٣"])
def test_a_place_that_no_database_has_is_none(scene: Scene, place: str) -> None:
    browser = Desk(scene).browser
    answer = browser.ask("GET", f"/outbox?after={place}", {"x-role": "viewer"})
    assert answer.status_code == (400 if scene.guard.backend.capabilities.outbox else 200)


def test_a_store_without_an_outbox_says_so(scene: Scene) -> None:
    page = Desk(scene).get("outbox")
    assert ("This store has no outbox" in page) != scene.guard.backend.capabilities.outbox


# ── mismatches ────────────────────────────────────────────────────────────────────────────────────


def test_mismatches_are_grouped_and_name_fields_only(scene: Scene) -> None:
    kind = ops.NotableKind.MISMATCH
    seen = [
        ops.Notable(kind, "", "POST /a", "tern", None, '{"fields":["amount"]}', 2),
        ops.Notable(kind, "", "POST /a", "tern", None, '{"fields":["amount","to"]}'),
        ops.Notable(kind, "", "POST /a", "gull", None, '{"fields":[]}'),
        ops.Notable(ops.NotableKind.REPLAY, "", "POST /a", "tern"),
        ops.Notable(kind, "", "POST /b", "tern", None, "no json"),
    ]
    scene.harness.perform(ops.WriteNotables(tuple(seen), DAY))
    rows = Desk(scene).json("mismatches")["rows"]
    assert {(each["route"], each["tenant"], each["count"]) for each in rows} == {
        ("POST /a", "tern", 3),
        ("POST /a", "gull", 1),
        ("POST /b", "tern", 1),
    }
    assert rows[0]["fields"] == [{"name": "amount", "count": 3}, {"name": "to", "count": 1}]
    found = Desk(scene).json("mismatches?route=POST%20%2Fa&tenant=gull")["rows"]
    assert [each["count"] for each in found] == [1]


def test_what_requests_and_providers_did_is_seen_in_the_console(scene: Scene) -> None:
    """From real requests and a real webhook to the pages, with nothing written by the test."""
    secret = "whsec_" + "c2VjcmV0LW9mLXRoZS1iYW5rLWFuZC10aGUtc2hvcA=="

    def application(environ: dict[str, Any], start: Any) -> list[bytes]:
        raise semel.OutcomeUnknown("cut off")

    client = Client(scene.guard.wsgi(application))
    for amount in (7, 7, 8):
        sent = {"Idempotency-Key": "0123456789abcdef"}
        client.post("/payments", json={"amount": amount, "card": "4242"}, headers=sent)
    found = scene.guard.operator().find(KeyAddress("", "POST", "/payments", "0123456789abcdef"))
    assert found is not None
    identity = found.case.record.identity
    inbox = scene.guard.inbox("acme", secret, lambda _: (identity, CannotTell("still pending")))
    at = int(time.time())
    signature = signatures.sign(signatures.secrets(secret), "evt_7", at, b"{}")
    head = {"Webhook-Id": "evt_7", "Webhook-Timestamp": str(at), "Webhook-Signature": signature}
    assert inbox.receive(head, b"{}").status == 200
    assert scene.guard.runtime.notables is not None
    scene.guard.runtime.notables.run_once(last=True)
    desk = Desk(scene)
    (row,) = desk.json("mismatches")["rows"]
    assert row["fields"] == [{"name": "amount", "count": 1}]
    told = desk.json(f"unknown/{identity.hex()}")["record"]
    assert "evt_7" in told["webhooks"][0]["text"]
    texts = [line["text"] for line in told["lines"] if line["kind"] == "notable"]
    assert any(text.startswith("a duplicate met it") for text in texts)
    assert any("fields: amount" in text for text in texts)
    assert "4242" not in desk.get("mismatches") + desk.get(f"unknown/{identity.hex()}")


# ── two persons ───────────────────────────────────────────────────────────────────────────────────


def test_one_proposes_and_another_login_approves(scene: Scene) -> None:
    identity = scene.unknown()
    desk = Desk(scene, two_person="all")
    form: dict[str, Any] = {
        "seen": desk.seen(identity),
        "verdict": "absent",
        "final": "yes",
        "reason": "voided",
    }
    page = desk.act(f"unknown/{identity.hex()}/settle", name="ada", expect=202, **form)
    assert "a second person must approve it" in page
    assert scene.state(identity) is State.UNKNOWN
    (waiting,) = desk.json("approvals")["pending"]
    number = waiting["number"]
    assert waiting["act"] == "absent"
    assert f'value="{number}"' in desk.get(f"records/{identity.hex()}", Role.OPERATOR)
    page = desk.act("approvals/approve", name="Ada", number=number, reason="agreed", expect=403)
    assert "cannot approve" in page
    assert scene.state(identity) is State.UNKNOWN
    desk.act("approvals/approve", name="bob", number=number, reason="agreed")
    assert scene.state(identity) is State.FAILED_RETRYABLE
    assert audit(scene) == [
        ("approve", "operator bob"),
        ("propose", "operator ada"),
        ("settle", "operator bob"),
    ]
    assert desk.post("approvals/approve", name="cleo", number=number, reason="x").status_code == 404


def test_who_approves_needs_the_role_of_the_act(quick: Scene) -> None:
    identity = quick.completed()
    desk = Desk(quick, two_person=["evict"])
    path, seen = f"records/{identity.hex()}/evict", desk.seen(identity)
    desk.act(path, Role.CUSTODIAN, "ada", seen=seen, reason="wrong", expect=202)
    (waiting,) = desk.json("approvals")["pending"]
    form: dict[str, Any] = {"number": waiting["number"], "reason": "agreed", "confirmed": "yes"}
    for act in ("approve", "decline"):
        assert desk.post(f"approvals/{act}", Role.OPERATOR, "bob", **form).status_code == 403
    assert quick.state(identity) is State.COMPLETED
    desk.post("approvals/approve", Role.CUSTODIAN, "bob", **form)
    assert quick.harness.record(identity) is None


def test_a_tenant_is_erased_by_two(scene: Scene) -> None:
    identity = scene.completed()
    desk = Desk(scene, two_person=["erase"])
    form: dict[str, Any] = {"tenant": "tern", "reason": "asked for it"}
    desk.act("tenants/erase", Role.CUSTODIAN, "ada", 202, **form)
    assert scene.state(identity) is State.COMPLETED
    (waiting,) = desk.json("approvals")["pending"]
    form = {"number": waiting["number"], "reason": "agreed"}
    assert "It goes on by itself" in desk.act(
        "approvals/approve", Role.CUSTODIAN, "bob", 202, **form
    )
    until(lambda: erased(scene) == ["begun", "1 records erased, 0 unsettled ones left"])
    assert scene.state(identity) is State.EXPIRED
    assert "came to nothing" not in " ".join(each.reason for each in Operator(scene.guard).audit())


def erased(scene: Scene) -> list[str]:
    """What the audit says of erasures, sorted: Redis tells no order within a millisecond."""
    entries = Operator(scene.guard).audit(verb="erase")
    return sorted(each.reason.partition(":")[0] for each in entries if each.identity is None)[::-1]


class Gate:
    """A store whose lists of a tenant's records wait until they may be read, or fail."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.open, self.error = inner, threading.Event(), False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def blocking(self) -> Any:
        return self

    def perform(self, op: Any) -> Any:
        if isinstance(op, ops.ListBelongings):
            assert self.open.wait(PATIENCE)
            if self.error:
                raise StoreUnavailable("the disk is gone")
        return self._inner.blocking().perform(op)


def test_while_tenants_are_erased_every_page_is_there_and_nothing_says_that_it_is_done(
    quick: Scene,
) -> None:
    """More of them than the console has threads: none of those is held."""
    tenants = [f"tenant-{number}" for number in range(THREADS + 1)]
    made = [quick.completed(tenant=each) for each in tenants]
    gate: Any = Gate(quick.guard.runtime.backend)
    quick.guard.runtime.backend = gate
    desk = Desk(quick)
    for tenant in tenants:
        form: dict[str, Any] = {"tenant": tenant, "reason": "asked for it"}
        page = desk.act("tenants/erase", Role.CUSTODIAN, "ada", 202, **form)
        assert "It is done when the audit says so" in page
        assert 'href="../audit?verb=erase"' in page
    until(lambda: erased(quick) == ["begun"])
    assert "begun: asked for it" in desk.get("audit?verb=erase")
    assert erased(quick) == ["begun"], "one after the other"
    gate.open.set()
    until(lambda: len(erased(quick)) == 2 * len(tenants))
    assert [quick.state(each) for each in made] == [State.EXPIRED] * len(made)


def test_an_erasure_that_breaks_off_says_so_in_the_audit(
    quick: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    identity = quick.completed()
    gate: Any = Gate(quick.guard.runtime.backend)
    quick.guard.runtime.backend = gate
    gate.error = True
    gate.open.set()
    told = Desk(quick).document("tenants/erase", Role.CUSTODIAN, tenant="tern", reason="asked")
    assert (told.status_code, told.json()["started"], told.json()["done"]) == (202, True, [])
    until(lambda: len(erased(quick)) == 2)
    assert "broke off (StoreUnavailable), and is not done" in erased(quick)
    assert quick.state(identity) is State.COMPLETED
    until(lambda: "an act of the console broke off" in caplog.text)


def test_a_form_that_is_sent_twice_erases_once(quick: Scene) -> None:
    desk, form = Desk(quick), {"tenant": "tern", "reason": "asked for it"}
    asked = hidden(desk.post("tenants/erase", Role.CUSTODIAN, **form).text)
    assert desk.post("tenants/erase", Role.CUSTODIAN, **asked).status_code == 202
    until(lambda: len(erased(quick)) == 2)
    later = quick.completed()
    again = desk.post("tenants/erase", Role.CUSTODIAN, **asked)
    assert (again.status_code, "this form was sent before" in again.text) == (409, True)
    assert (quick.state(later), len(erased(quick))) == (State.COMPLETED, 2)
    desk.act("tenants/erase", Role.CUSTODIAN, "ada", 202, **form)
    until(lambda: quick.state(later) is State.EXPIRED)


def test_only_so_many_erasures_wait_for_each_other(quick: Scene) -> None:
    gate: Any = Gate(quick.guard.runtime.backend)
    quick.guard.runtime.backend = gate
    desk = Desk(quick)
    form: dict[str, Any] = {"tenant": "tern", "reason": "asked for it"}
    answers = [desk.document("tenants/erase", Role.CUSTODIAN, **form) for _ in range(WAITING + 1)]
    assert [each.status_code for each in answers] == [202] * WAITING + [409]
    assert "come again" in answers[-1].json()["failed"][0]
    gate.open.set()
    until(lambda: len(erased(quick)) == 2 * WAITING)


class OutAfter:
    """A store that is out from the operation on that is named."""

    def __init__(self, inner: Any, kind: type) -> None:
        self._inner, self._kind, self._out = inner, kind, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def blocking(self) -> Any:
        return self

    def perform(self, op: Any) -> Any:
        if self._out:
            raise StoreUnavailable("no answer")
        self._out = isinstance(op, self._kind)
        return self._inner.blocking().perform(op)


def test_what_is_done_is_not_called_refused_because_the_store_is_out_behind_it(
    quick: Scene,
) -> None:
    identity = quick.completed()
    desk = Desk(quick)
    form: dict[str, Any] = {"seen": desk.seen(identity), "reason": "wrong"}
    whole, out = quick.guard.backend, OutAfter(quick.guard.backend, ops.Evict)
    broken: Any = out
    quick.guard.backend = quick.guard.runtime.backend = broken
    told = desk.document(f"records/{identity.hex()}/evict", Role.CUSTODIAN, **form)
    quick.guard.backend = quick.guard.runtime.backend = whole
    assert told.status_code == 200
    assert "its key is free; whether processes remember" in told.json()["done"][0]
    assert quick.harness.record(identity) is None


def test_an_evicted_key_holds_no_thread_while_processes_remember_its_answer(quick: Scene) -> None:
    """A process with a cache of half an hour has been seen: that long its answers may come."""
    quick.run(announce(30 * MINUTE))
    identity = quick.completed()
    desk = Desk(quick)
    form: dict[str, Any] = {"seen": desk.seen(identity), "reason": "wrong"}
    page = desk.act(f"records/{identity.hex()}/evict", Role.CUSTODIAN, **form)
    assert quick.harness.record(identity) is None
    assert re.search(r"may repeat its answer from memory until \d\d:\d\d:\d\d UTC", page)


# ── hostile texts ─────────────────────────────────────────────────────────────────────────────────


def hostile(scene: Scene) -> Identity:
    """A record in doubt, and all about it, with the same text everywhere a stranger can put one."""
    terms = scene.guard.runtime.plan("*", scene.guard.policy).terms
    scene.harness.perform(ops.Agree(terms))
    identity, fence = Identity(b"h" * 32), Fence(b"h" * 16)
    origin = Origin(HOSTILE, "POST", f"/{HOSTILE}", f"{HOSTILE}{KEY}")
    request = StoredRequest(
        *("POST", "", f"/{HOSTILE}", HOSTILE.encode("latin-1", "ignore")),
        headers=((b"x-note", HOSTILE.encode("latin-1", "ignore")),),
        body=HOSTILE.encode(),
        key=KEY,
        principal=None,
    )
    claim = ops.Claim(
        *(identity, fence, "r1.x", b"", origin, MINUTE), request=encode(request), terms=terms.id
    )
    scene.harness.perform(claim)
    scene.harness.perform(ops.Suspend(identity, fence, HOSTILE, None))
    told = json.dumps({HOSTILE: HOSTILE, "fields": [HOSTILE]})
    for kind in ops.NotableKind:
        seen = ops.Notable(kind, HOSTILE, HOSTILE, HOSTILE, identity, told)
        scene.harness.perform(ops.WriteNotables((seen,), DAY))
    return identity


def test_no_text_of_a_stranger_becomes_part_of_a_page(scene: Scene) -> None:
    scene.guard.policy = ietf(probe=lambda _: CannotTell(HOSTILE))
    identity, bad = hostile(scene), scene.unknown(path="/bad")
    desk = Desk(scene, two_person="all", trace_url=TRACES)
    outbox = scene.guard.backend.capabilities.outbox
    if outbox:
        dead_effect(scene, f"k{HOSTILE}", HOSTILE)
    form: dict[str, Any] = {"seen": desk.seen(identity), "reason": HOSTILE, "looked": HOSTILE}
    pages = [desk.act(f"unknown/{identity.hex()}/free", Role.CUSTODIAN, "<b>ada", 202, **form)]
    pages += [desk.post(f"unknown/{identity.hex()}/bury", **form).text]
    pages += [desk.act("unknown/probe", item=bad.hex(), reason=HOSTILE, expect=409)]
    pages += [desk.post(f"unknown/{bad.hex()}/{act}").text for act in ("look", "probe")]
    tenant = "<script>alert(1)</script>\"'><img src=x>"
    pages += [desk.act("tenants/erase", Role.CUSTODIAN, "x", 202, tenant=tenant, reason=HOSTILE)]
    pages += [desk.post(f"records/{identity.hex()}/contents", Role.CUSTODIAN, reason="x").text]
    paths = ("unknown", "outbox", "mismatches", "approvals")
    for path in (f"records/{identity.hex()}", f"unknown/{identity.hex()}", *paths):
        pages.append(desk.get(path, Role.CUSTODIAN))
        desk.json(path)
    if outbox:
        asked = desk.post("outbox/drop", every="yes", reason=HOSTILE).text
        pages += [asked, desk.post("outbox/drop", **hidden(asked)).text]
    for page in pages:
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "<b>ada" not in page
        assert "\u202e" not in re.sub(r'value="[^"]*"', "", page)
        assert ">49" not in page
