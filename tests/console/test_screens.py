"""Each screen shows what is in the store, first what needs a person, and never a key."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel
from semel.console import Console, Role, routes
from semel.console.screens import audit
from semel.console.screens import sample as sampling
from semel.console.screens.audit import as_csv
from semel.core import operations as ops
from semel.core.records import Identity, Micros, Origin, State
from semel.core.terms import NO_TERMS
from semel.runtime.leases import new_fence
from semel.stores.memory import MemoryBackend
from tests.console.browser import Browser, by_header

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "a\u202eb\u2066c\u200fd",
    "zero\u200bwidth\ufeff",
    "no shape\u3164\u2800\ufe0f\xa0\u2003",
    "bell\x07 escape\x1b[31m null\x00 newline\r\nSet-Cookie: a=b",
    "x" * 10_000,
    "</textarea></title></style><svg/onload=alert(1)>",
    "=HYPERLINK(1)",
)
KEY = "key-that-no-page-may-show-0123456789"


class Clock:
    def __init__(self) -> None:
        self.now: Micros = 1_700_000_000_000_000

    def __call__(self) -> Micros:
        return self.now

    def pass_by(self, duration: timedelta) -> None:
        self.now += int(duration.total_seconds() * 1_000_000)


class Shop:
    """An API whose handler does what the request says, and its console."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        backend = MemoryBackend(clock=self.clock)
        self.guard = semel.Guard(
            backend, tenant=self._tenant, name="shop", maintenance=None, **options
        )
        self.tenant = "acme"

        @self.guard.route(semel.payments(probe=None, required=True))
        async def pay(request: StarletteRequest) -> JSONResponse:
            told = (await request.json())["told"]
            if told == "unknown":
                raise semel.OutcomeUnknown("the provider timed out")
            if told == "not sent":
                raise semel.NotExecuted("no connection")
            return JSONResponse({"paid": True}, status_code=int(told))

        routed = [Route("/payments", pay, methods=["POST"])]
        self.app = self.guard.asgi(Starlette(routes=routed))
        self.console = self.guard.console(authorize=by_header, app=self.app)

    def _tenant(self, request: semel.Request) -> str:
        return self.tenant

    def send(self, told: str, key: str, tenant: str = "acme") -> int:
        self.tenant = tenant
        return _send(self.app, told, key)


def _send(app: Any, told: str, key: str) -> int:
    async def send() -> int:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
            head = {"idempotency-key": f'"{key}"'}
            answer = await client.post("/payments", json={"told": told}, headers=head)
            return answer.status_code

    return asyncio.run(send())


@pytest.fixture
def shop() -> Shop:
    made = Shop()
    for number, told in enumerate(("201", "201", "201", "402", "unknown", "not sent")):
        made.send(told, f"{KEY}-{number}", "globex" if number % 2 else "acme")
    return made


def look(console: Console, path: str, role: Role = Role.CUSTODIAN) -> Any:
    return Browser(console, "asgi", role).json(path)


def page(console: Console, path: str, role: Role = Role.CUSTODIAN) -> str:
    answer = Browser(console, "asgi", role).get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def screens() -> list[str]:
    return [f"/{each.path}" for each in routes.SCREENS if "{" not in each.path]


# ── overview ──────────────────────────────────────────────────────────────────────────────────────


def test_the_overview_counts_what_needs_a_person_and_links_to_it(shop: Shop) -> None:
    found = look(shop.console, "/")
    figures = {each["what"]: each for each in found["figures"]}
    assert figures["Unknown: a person must decide"]["count"] == 1
    assert figures["In flight"]["count"] == 0
    assert found["health"]["up"] is True
    shown = page(shop.console, "/")
    for link in ("./unknown", "./in-flight", "./records?state=pending", "./outbox?state=dead"):
        assert f'href="{link}"' in shown


def test_the_overview_says_how_the_last_day_went_by_route(shop: Shop) -> None:
    day = look(shop.console, "/")["day"]
    ((row),) = day["rows"]
    counted = dict(zip(day["outcomes"], (cell["count"] for cell in row["cells"]), strict=True))
    assert row["route"] == "POST /payments"
    assert counted == {"unknown": 1, "retryable": 1, "4xx": 1, "2xx": 3}
    assert day["exact"] is True
    assert sum(hour["count"] for hour in day["hours"]) == 6
    assert day["hours"][-1]["bad"] == 1


def test_what_was_made_before_the_last_day_is_not_counted(shop: Shop) -> None:
    shop.clock.pass_by(timedelta(hours=23))
    shop.send("201", f"{KEY}-late")
    assert sum(hour["count"] for hour in look(shop.console, "/")["day"]["hours"]) == 7
    shop.clock.pass_by(timedelta(hours=2))
    again = shop.guard.console(authorize=by_header)
    assert sum(hour["count"] for hour in look(again, "/")["day"]["hours"]) == 1


def test_a_sample_says_how_many_there_are(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SIZE", 3)
    monkeypatch.setattr(sampling, "_STEP", 3)
    day = look(shop.console, "/")["day"]
    assert (day["exact"], day["sampled"]) == (False, 3)
    assert "Sampled 3 of about" in page(shop.console, "/")


def test_the_estimate_of_a_sample_is_right() -> None:
    """Identities are spread evenly: where a tenth of the range has 100, there are a thousand."""
    tenth = Identity(((1 << 256) // 10).to_bytes(32, "big"))
    assert sampling.estimated(100, tenth) == 1000
    assert sampling.estimated(5, Identity(b"\xff" * 32)) == 5
    assert sampling.estimated(5, Identity(bytes(32))) == 5
    assert [sampling.rounded(each) for each in (7, 99.4, 123, 2_987_654)] == [7, 99, 120, 3_000_000]


class Out:
    """A store that does not answer."""

    def perform(self, op: Any) -> Any:
        raise semel.StoreUnavailable("nobody is there")


def test_the_overview_of_a_store_that_is_out_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBackend, "blocking", lambda self: Out())
    assert "nobody is there" in page(shop.console, "/")
    answer = Browser(shop.console, "asgi").get("/records")
    assert answer.status_code == 503
    assert "nobody is there" in answer.text


# ── records ───────────────────────────────────────────────────────────────────────────────────────


def test_records_are_found_by_their_whole_key_which_is_in_no_address(shop: Shop) -> None:
    browser = Browser(shop.console, "asgi")
    form = {"key": f"{KEY}-1", "path": "/payments", "method": "post", "tenant": "globex"}
    found = browser.send("/records/find", form)
    assert found.status_code == 303
    assert found.headers["location"].startswith("../records/")
    assert KEY not in found.headers["location"]
    for wrong in ({"tenant": "acme"}, {"path": "/other"}, {"key": KEY}, {"method": "PUT"}):
        assert browser.send("/records/find", {**form, **wrong}).status_code == 404
    assert browser.send("/records/find", {**form, "key": ""}).status_code == 400


@pytest.mark.parametrize("path", screens())
def test_no_screen_shows_a_key(shop: Shop, path: str) -> None:
    assert KEY not in page(shop.console, path)
    assert KEY not in json.dumps(look(shop.console, path))


def test_the_filters_are_in_the_address_and_in_the_form(shop: Shop) -> None:
    found = look(shop.console, "/records?state=unknown&tenant=acme")
    assert [(each["state"], each["tenant"]) for each in found["rows"]] == [("unknown", "acme")]
    shown = page(shop.console, "/records?state=unknown&tenant=acme")
    assert '<option value="unknown" selected>' in shown
    assert 'value="acme"' in shown
    assert look(shop.console, "/records?tenant=nobody")["rows"] == []
    assert "No record fits" in page(shop.console, "/records?tenant=nobody")


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("status=2xx", 3),
        ("status=402", 1),
        ("reason=timed", 0),
        ("reason=outcomeunknown", 1),
        ("route=POST%20/payments", 6),
        ("route=POST%20/other", 0),
        ("resource=none", 0),
        ("since=1h", 6),
        ("since=2100-01-01", 0),
        ("older=1h", 0),
        ("path=/pay*", 6),
        ("method=put", 0),
    ],
)
def test_each_filter_counts(shop: Shop, query: str, count: int) -> None:
    assert len(look(shop.console, f"/records?{query}")["rows"]) == count


def test_the_newest_record_comes_first_and_pages_miss_none(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        shop.clock.pass_by(timedelta(minutes=1))
        shop.send("201", f"{KEY}-later-{number}")
    monkeypatch.setattr("semel.console.screens.records.PAGE", 4)
    seen: list[str] = []
    after: Any = ""
    while after is not None:
        found = look(shop.console, f"/records?state=completed&after={after}")
        seen += [each["created_at"] for each in found["rows"]]
        after = found["next"]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 9


def test_a_filter_that_makes_no_sense_is_refused_with_a_sentence(shop: Shop) -> None:
    browser = Browser(shop.console, "asgi")
    for path in (
        "/records?older=soon",
        "/audit?since=soon",
        "/audit?identity=12",
        "/audit?format=x",
    ):
        answer = browser.get(path)
        assert answer.status_code in (400, 404), path


# ── in flight ─────────────────────────────────────────────────────────────────────────────────────


def test_what_is_past_its_lease_comes_first(shop: Shop) -> None:
    store = shop.guard.backend.blocking()
    for number in range(2):
        _claim(store, number, lease=timedelta(seconds=60 + 60 * number))
    shop.clock.pass_by(timedelta(seconds=90))
    found = look(shop.console, "/in-flight")
    assert [each["standing"] for each in found["rows"]] == ["lapsed", "ok"]
    assert found["rows"][0]["lease_left"] == -30
    assert found["rows"][0]["age"] == 90
    assert "30 s past" in page(shop.console, "/in-flight")


def test_what_takes_longer_than_usual_is_told(shop: Shop) -> None:
    for number in range(10):
        shop.send("201", f"{KEY}-usual-{number}")
    store = shop.guard.backend.blocking()
    _claim(store, 1, lease=timedelta(hours=1), terms=_terms(shop))
    shop.clock.pass_by(timedelta(seconds=5))
    (only,) = look(shop.console, "/in-flight")["rows"]
    assert (only["standing"], only["usual"]) == ("slow", 0)


def _terms(shop: Shop) -> Any:
    scanned = shop.guard.backend.blocking().perform(ops.Scan(tuple(State), 1))
    return scanned.glimpses[0].terms


def _claim(store: Any, number: int, lease: timedelta, terms: Any = None) -> None:
    """A claim that nobody ends, made at the store."""
    identity, fence = Identity(bytes([number]) * 32), new_fence()
    origin = Origin("acme", "POST", "/payments", f"{KEY}-claim")
    until = lease // timedelta(microseconds=1)
    told = (identity, fence, "v1:", b"", origin, until)
    store.perform(ops.Claim(*told, terms=NO_TERMS if terms is None else terms.id))


# ── tenants ───────────────────────────────────────────────────────────────────────────────────────


def test_tenants_are_shown_with_what_they_ask_for_and_misuse(shop: Shop) -> None:
    store = shop.guard.backend.blocking()
    seen = ops.Notable(ops.NotableKind.MISMATCH, tenant="globex", count=3)
    store.perform(ops.WriteNotables((seen,), keep=86_400_000_000))
    found = look(shop.console, "/tenants")
    first, second = found["rows"]
    assert (first["tenant"], first["misuse"], first["records"]) == ("globex", {"mismatch": 3}, 3)
    assert (second["tenant"], second["unknown"], second["last_hour"]) == ("acme", 1, 3)
    assert "records?tenant=globex" in page(shop.console, "/tenants")


def test_the_limits_of_tenants_are_told() -> None:
    limits = semel.Limits(new_keys=semel.Rate(100), active_keys=5000)
    found = look(Shop(limits=limits).console, "/tenants")
    assert found["limits"] == {"new keys": "100 in 1 s, in each process", "keys alive": "5,000"}


def test_only_a_custodian_is_offered_to_erase_a_tenant(shop: Shop) -> None:
    for role in Role:
        offered = "tenants/erase" in page(shop.console, "/tenants", role)
        assert offered is (role is Role.CUSTODIAN)


# ── audit ─────────────────────────────────────────────────────────────────────────────────────────


def _acts(shop: Shop) -> None:
    operator = shop.guard.operator()
    for number in range(3):
        operator.erase(f"gone-{number}", by="ada", reason=f'=reason {number}, \u202equoted"')


def test_acts_are_filtered_and_paged(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    _acts(shop)
    monkeypatch.setattr("semel.console.screens.audit.PAGE", 2)
    seen: list[str] = []
    after = ""
    while True:
        found = look(shop.console, f"/audit?verb=erase{after}")
        seen += [each["subject"] for each in found["rows"]]
        if found["next"] is None:
            break
        after = f"&after={found['next']}"
    assert seen == [f"gone-{number}" for number in (2, 2, 1, 1, 0, 0)]
    assert look(shop.console, "/audit?by=bob")["rows"] == []


def test_a_filter_that_fits_nothing_does_not_read_the_whole_audit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _acts(shop)
    monkeypatch.setattr(audit, "LOOK", 4)
    found = look(shop.console, "/audit?by=nobody")
    assert (found["rows"], found["looked"]) == ([], 4)
    assert "Go on with Older" in page(shop.console, "/audit?by=nobody")
    rest = look(shop.console, f"/audit?by=nobody&after={found['next']}")
    assert (rest["rows"], rest["looked"], rest["next"]) == ([], 2, None)


def test_acts_are_files_that_a_spreadsheet_may_open(shop: Shop) -> None:
    _acts(shop)
    browser = Browser(shop.console, "asgi")
    as_file = browser.get("/audit?format=csv")
    assert as_file.headers["content-disposition"] == 'attachment; filename="semel-audit.csv"'
    rows = list(csv.DictReader(io.StringIO(as_file.text)))
    assert len(rows) == 6
    lines = browser.get("/audit?format=jsonl").text.splitlines()
    assert [json.loads(line)["subject"] for line in lines][:2] == ["gone-2", "gone-2"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "\uff1d1"])
def test_no_cell_is_a_formula(text: str) -> None:
    ((cell,),) = list(csv.reader(io.StringIO(as_csv(["a"], [{"a": text}]))))[1:]
    assert cell == f"'{text}"


@pytest.mark.parametrize("divided", [";", "; ", "|", "\n", "\t"])
def test_no_part_of_a_cell_is_one_to_those_who_divide_otherwise(divided: str) -> None:
    assert f"seen{divided[0]}'{divided[1:]}=1" in as_csv(["a"], [{"a": f"seen{divided}=1"}])


# ── routes and doctor ─────────────────────────────────────────────────────────────────────────────


def test_routes_are_told_as_the_command_tells_them(shop: Shop) -> None:
    found = look(shop.console, "/routes")
    ((row),) = found["rows"]
    assert (row["path"], row["keys"], row["said"]) == ("/payments", "enforces", "on the endpoint")
    assert found["known"] is True
    without = shop.guard.console(authorize=by_header)
    assert look(without, "/routes")["known"] is False
    assert "was not told the application" in page(without, "/routes")


def test_the_doctor_tells_the_worst_first(shop: Shop) -> None:
    found = look(shop.console, "/doctor")
    severities = [each["severity"] for each in found["findings"]]
    assert severities[0] == "warning"
    assert "limit" in severities
    assert "1 unknown and asked about by nobody" in page(shop.console, "/doctor")


# ── strangers' texts ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hostile() -> Shop:
    """A store in which every text that strangers write is hostile: tenants, reasons, subjects."""
    made = Shop()
    store = made.guard.backend.blocking()
    for number, text in enumerate(HOSTILE):
        made.send("unknown" if number % 2 else "201", f"{KEY}-{number}", text)
        made.guard.operator().erase(f"{text} subject", by="ada", reason=f"{text} reason")
        seen = ops.Notable(ops.NotableKind.MISMATCH, tenant=text, route=text)
        store.perform(ops.WriteNotables((seen,), keep=86_400_000_000))
        worker = ops.WorkerInfo(str(number), "shop", text, text, text, 1, text)
        store.perform(ops.Beat(worker, 60_000_000))
    return made


@pytest.mark.parametrize("path", screens())
def test_no_text_of_strangers_is_markup_and_none_hides(hostile: Shop, path: str) -> None:
    shown = page(hostile.console, path)
    for tag in ("<script>alert", "<img", "<svg/onload", "</textarea>", "</title></style>"):
        assert tag not in shown
    hidden = "\u202e\u2066\u200f\u200b\ufeff\x07\x1b\x00\r\u3164\u2800\ufe0f\xa0\u2003"
    assert not set(shown) & set(hidden)
    assert "x" * 500 not in re.sub('href="[^"]*"', "", shown), "tables have room for a part of it"


@pytest.mark.parametrize("path", ["/records", "/audit"])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_filter_is_only_a_filter(shop: Shop, path: str, text: str) -> None:
    query = dict.fromkeys(("state", "tenant", "method", "path", "by", "verb"), text)
    answer = Browser(shop.console, "asgi").ask("GET", path, {"accept": "text/html"}, params=query)
    assert answer.status_code == 200
    for tag in ("<script>alert", "<img", "<svg/onload", "</textarea>"):
        assert tag not in answer.text
    assert not set(answer.text) & set("\u202e\u2066\u200f\u200b\x07\x1b\x00")
    assert "set-cookie" not in answer.headers
