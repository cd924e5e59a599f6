"""Django's views behind the middleware, in both colours, through Django's own handlers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.core.exceptions import PermissionDenied
from django.http import FileResponse, Http404, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path, re_path
from django.views import View
from django.views.decorators.csrf import csrf_exempt

import semel
from semel.core.request import keys
from semel.frameworks.django import guarded
from semel.stores.sql.dialect import dialect
from semel.worker.reconciler import Reconciler
from semel.worker.stored_runs import StoredRuns
from tests.ears import listen
from tests.frameworks.django_site import GUARD, Site, Urls
from tests.web.conftest import MakeGuard
from tests.web.drive import KEY, Ask, Driver
from tests.web.test_identity import VECTORS, named

COLOURS = ("wsgi", "asgi")

Serve = Callable[..., Driver]


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(colour: str, make_guard: MakeGuard, runner: asyncio.Runner) -> Iterator[Serve]:
    """Views behind the middleware, or behind whatever else is told."""
    open_: list[Site] = []

    def begin(guard: semel.Guard | None = None, /, *, site: Any = None, **views: Any) -> Driver:
        made = {name.replace("__", "/"): view for name, view in views.items()}
        open_.append(Site(guard or make_guard(), made, **(site or {})))
        return open_[-1].driver(colour, runner)

    yield begin
    for site in reversed(open_):  # each puts back what was before it
        site.close()


class Counted:
    """A view that counts its calls, in either colour."""

    def __init__(self, answer: Callable[[Any], HttpResponse] | None = None) -> None:
        self.calls = 0
        self._answer = answer

    def happen(self, request: Any) -> HttpResponse:
        self.calls += 1
        if self._answer is not None:
            return self._answer(request)
        return HttpResponse(f"{self.calls} of {request.body.decode()}", status=201)

    def sync(self, request: Any) -> HttpResponse:
        return self.happen(request)

    def sync_view(self) -> Any:
        """As a function of its own, to be decorated."""
        return lambda request: self.happen(request)

    async def awaited(self, request: Any) -> HttpResponse:
        return self.happen(request)

    def view(self, kind: str) -> Any:
        if kind == "class":
            counted = self

            class Payments(View):
                def post(self, request: Any) -> HttpResponse:
                    return counted.happen(request)

            return Payments.as_view()
        return self.awaited if kind == "async" else self.sync


@pytest.mark.parametrize("kind", ["sync", "async", "class"])
def test_a_view_runs_once_and_its_answer_is_repeated(serve: Serve, kind: str) -> None:
    counted = Counted()
    send = serve(x=counted.view(kind))
    first, again = send(Ask(body=b'{"a": 1}')), send(Ask(body=b'{"a": 1}'))
    assert (first.status, first.body) == (again.status, again.body) == (201, b'1 of {"a": 1}')
    assert (first.replayed, again.replayed) == (False, True)
    assert first.one("content-type") == again.one("content-type") == "text/html; charset=utf-8"
    assert send(Ask(body=b'{"a": 2}')).code == "key-reused"
    assert counted.calls == 1


def test_a_request_without_a_key_passes_with_its_body_unread(serve: Serve) -> None:
    counted = Counted()
    send = serve(x=counted.sync)
    assert [send(Ask(key=None, body=b"abc")).body for _ in range(2)] == [b"1 of abc", b"2 of abc"]


@pytest.mark.parametrize(
    ("route", "paths", "runs"),
    [
        (r"^pay/?$", ("/pay", "/pay/", "/pay"), 1),
        (r"^pay/*$", ("/pay//", "/pay", "/pay/"), 1),
        (r"pay/?$", ("/pay", "/pay/", "/pay"), 1),
        (r"(?i)^pay/(?P<of>\w+)$", ("/PAY/a", "/pay/a", "/Pay/a"), 1),
        (r"(?i)^pay/(?P<of>\w+)/?$", ("/PAY/A/", "/pay/A", "/pay/a"), 2),
        (r"(?i)^pay-(?P<of>\w+)$", ("/PAY-A", "/pay-A", "/pay-a"), 2),
        (r"(?i)^pay(?P<of>\w)$", ("/PAYA", "/payA", "/paya"), 2),
        (r"(?si)^pay/(?P<of>\w+)/now$", (f"/PAY/{'A' * 64}/NOW", f"/pay/{'A' * 64}/now"), 1),
        (r"^pay/(?P<of>.+)$", ("/pay/a", "/pay/a/", "/pay/A"), 3),
    ],
)
@pytest.mark.parametrize("by", ["middleware", "decorator"])
def test_paths_that_the_resolver_takes_for_one_are_one(
    route: str,
    paths: tuple[str, ...],
    runs: int,
    by: str,
    guard: semel.Guard,
    runner: asyncio.Runner,
) -> None:
    counted = Counted()

    def pay(request: Any, **_: Any) -> HttpResponse:
        return counted.happen(request)

    site = Site(guard, {})
    view = pay if by == "middleware" else guarded(guard)(pay)
    urls = Urls({})
    urls.urlpatterns = [re_path(route, csrf_exempt(view))]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[GUARD] if by == "middleware" else []):
        send = site.driver("wsgi", runner)
        assert [send(Ask(path=path.encode())).status for path in paths] == [201] * len(paths)
    site.close()
    assert counted.calls == runs


@named(VECTORS["paths"])
def test_the_path_is_that_of_the_shared_vectors(
    vector: dict[str, Any], colour: str, make_guard: MakeGuard, serve: Serve
) -> None:
    seen: list[tuple[str, bytes]] = []

    def note(request: Any, **_: Any) -> HttpResponse:
        seen.append((paths[-1], semel.operation().identity))
        return HttpResponse()

    paths: list[str] = []

    def tenant(request: semel.Request) -> str:
        paths.append(request.path)
        return "t1"

    guard = make_guard(tenant=tenant)
    views = {"": note, "<path:rest>": note}
    send = serve(guard, **views)
    octets = bytes.fromhex(vector["decoded_hex"])
    answer = send(Ask(path=octets))
    if not octets and colour == "asgi":
        assert answer.status == 404  # Django's own resolver finds nothing there
        return
    expected = keys.identity(keys.Scope("t1", "POST", vector["canonical"]), KEY)
    assert seen == [(vector["canonical"], expected)]


def test_a_tag_is_found_through_the_resolver(guard: semel.Guard, serve: Serve) -> None:
    required = semel.ietf(required=True)

    class Refunds(View):
        @guard.route(required)
        def post(self, request: Any, number: int) -> HttpResponse:
            return HttpResponse(str(number))

    tagged = guard.route(required)(csrf_exempt(Counted().sync_view()))
    send = serve(
        guard,
        **{"tagged": tagged, "refunds/<int:number>": Refunds.as_view(), "free": Counted().sync},
    )
    for where, status in [("tagged", 400), ("refunds/7", 400), ("free", 201), ("none", 404)]:
        assert send(Ask(path=f"/{where}".encode(), key=None)).status == status
    assert send(Ask(path=b"/refunds/7")).body == b"7"


@pytest.mark.parametrize(
    ("error", "status", "calls"),
    [(Http404("no"), 404, 1), (PermissionDenied("no"), 403, 2), (RuntimeError("no"), 500, 2)],
)
def test_what_django_makes_of_exceptions_is_judged_as_any_answer(
    serve: Serve, error: Exception, status: int, calls: int
) -> None:
    def fail(request: Any) -> HttpResponse:
        raise error

    counted = Counted(fail)
    send = serve(x=counted.sync)
    assert [send().status, send().status] == [status, status]
    assert counted.calls == calls


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_exception_that_django_answers_is_still_known(
    make_guard: MakeGuard, serve: Serve, kind: str
) -> None:
    """The policy trusts a 503, but not an exception that may have come after an effect."""

    def fail(request: Any) -> HttpResponse:
        raise semel.OutcomeUnknown("sent, and then?")

    counted = Counted(fail)
    send = serve(make_guard(policy=semel.ietf()), x=counted.view(kind))
    assert send().status == 500
    assert send().code == "outcome-unknown"
    assert counted.calls == 1


class Soothing:
    """A middleware that answers for views that failed, as some projects have."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)

    def process_exception(self, request: Any, exception: Exception) -> HttpResponse:
        return HttpResponse("never mind", status=503)


def test_an_exception_that_another_middleware_answers_is_still_known(
    guard: semel.Guard, serve: Serve
) -> None:
    def fail(request: Any) -> HttpResponse:
        raise TimeoutError("read: the provider may have done it")

    counted = Counted(fail)
    layers = [f"{__name__}.Soothing", GUARD]
    send = serve(guard, site={"MIDDLEWARE": layers}, x=counted.sync)
    assert send().status == 503
    assert send().code == "outcome-unknown"
    assert counted.calls == 1


class Rerouting:
    """Middleware that lets another URLconf answer, as for the host of a tenant's own."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.urlconf = elsewhere[-1]
        return self.get_response(request)


elsewhere: list[Any] = []


@pytest.mark.parametrize("at_first", ["x", "another"])
def test_a_view_that_another_middleware_chooses_is_not_run_unclaimed(
    guard: semel.Guard, serve: Serve, at_first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was claimed for it, or not as its tag says."""
    here, there = Counted(), Counted()
    elsewhere.append(Urls({"x": guard.route(semel.ietf(required=True))(there.sync_view())}))
    layers = [GUARD, f"{__name__}.Rerouting"]
    send = serve(guard, site={"MIDDLEWARE": layers}, **{at_first: here.sync})
    assert [send().code for _ in range(2)] == ["misconfigured"] * 2
    assert send(Ask(key=None)).code == "misconfigured"
    assert (here.calls, there.calls) == (0, 0)
    assert "put it above" in caplog.text
    above = serve(guard, site={"MIDDLEWARE": layers[::-1]}, **{at_first: here.sync})
    assert [above().status for _ in range(2)] == [201, 201]
    assert there.calls == 1


def test_what_takes_no_keys_is_answered_whoever_chooses_the_view(
    guard: semel.Guard, serve: Serve
) -> None:
    there = Counted()
    elsewhere.append(Urls({"x": there.sync}))
    send = serve(guard, site={"MIDDLEWARE": [GUARD, f"{__name__}.Rerouting"]})
    assert send(Ask(key=None)).status == 201
    assert send(Ask("DELETE")).status == 201
    assert send(Ask(path=b"/nowhere")).status == 404


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


def multipart(boundary: str, text: str, file: bytes) -> Ask:
    parts = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="note"\r\n\r\n{text}\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="a.bin"\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    ).encode()
    body = parts + file + f"\r\n--{boundary}--\r\n".encode()
    kind = f"multipart/form-data; boundary={boundary}"
    return Ask(body=body, headers=(("content-type", kind), ("content-length", str(len(body)))))


def upload(request: Any) -> HttpResponse:
    file = request.FILES["file"]
    return HttpResponse(f"{request.POST['note']} {file.size}")


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_file_is_uploaded_once_whatever_its_boundary(serve: Serve, size: int) -> None:
    """The large one is over DATA_UPLOAD_MAX_MEMORY_SIZE, which is not for files."""
    counted = Counted(upload)
    send = serve(x=counted.sync)
    first = send(multipart("one", "hello", b"x" * size))
    again = send(multipart("another", "hello", b"x" * size))
    assert first.body == again.body == f"hello {size}".encode()
    assert send(multipart("one", "hello", b"y" * size)).code == "key-reused"
    assert counted.calls == 1


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_view_may_read_its_body_as_a_stream(serve: Serve, size: int) -> None:
    """The large one is on disk meanwhile, in the very file that it was compared from."""
    send = serve(x=Counted(lambda request: HttpResponse(str(len(request.read())))).sync)
    assert send(Ask(body=b"x" * size)).body == str(size).encode()


def test_a_body_over_the_routes_limit_is_refused_before_the_view(
    make_guard: MakeGuard, serve: Serve
) -> None:
    counted = Counted()
    guard = make_guard(policy=semel.ietf(max_request_body=10))
    ear, send = listen(guard), serve(guard, x=counted.sync)
    assert send(Ask(body=b"x" * 11)).code == "body-too-large"
    assert ear.one("refusal")["code"] == "body-too-large"
    assert send(Ask(body=b"x" * 10)).status == 201
    assert counted.calls == 1


def test_a_tenant_that_must_be_awaited_is_awaited_under_asgi_and_refused_under_wsgi(
    make_guard: MakeGuard, serve: Serve, colour: str
) -> None:
    async def tenant(request: semel.Request) -> str | None:
        await asyncio.sleep(0)
        return request.headers.get("x-user")

    counted, guard = Counted(), make_guard(tenant=tenant)
    with pytest.raises(semel.ConfigurationError, match="coroutine function"):
        guarded(guard)(counted.sync_view())
    if colour == "wsgi":
        with pytest.raises(semel.ConfigurationError, match="coroutine function"):
            serve(guard, x=counted.sync)
        return
    send, ann = serve(guard, x=counted.awaited), Ask(headers=(("x-user", "ann"),))
    assert [send(ann).replayed, send(ann).replayed] == [False, True]
    assert send().code == "tenant-missing"
    status = Ask("GET", b"/semel/status/" + b"0" * 64, key=None, headers=ann.headers)
    assert send(status).code == "no-such-operation"
    assert counted.calls == 1


def test_a_body_that_breaks_off_is_refused(serve: Serve) -> None:
    counted = Counted()
    send = serve(x=counted.sync)
    headers = (("content-type", "application/json"), ("content-length", "3"))
    assert send(Ask(body=b"{}", headers=headers)).code == "malformed-body"
    assert counted.calls == 0


def test_a_body_that_django_takes_for_an_empty_one_is_refused(serve: Serve, colour: str) -> None:
    """Without a Content-Length, Django reads nothing under WSGI, and all of it under ASGI."""
    counted = Counted()
    send = serve(x=counted.sync)
    chunked = (("content-length", ""), ("transfer-encoding", "chunked"))
    reply = send(Ask(body=b"{}", headers=chunked))
    if colour == "asgi":
        assert reply.body == b"1 of {}"
    else:
        assert (reply.status, reply.code, counted.calls) == (411, "length-required", 0)


CSRF = "django.middleware.csrf.CsrfViewMiddleware"


@pytest.mark.parametrize("layers", [[CSRF, GUARD], [GUARD, CSRF], [CSRF]])
def test_csrf_protection_reads_a_form_before_the_view_does(
    serve: Serve, guard: semel.Guard, layers: list[str]
) -> None:
    """It uses a multipart body up; without the middleware nobody could still compare it."""
    counted = Counted(upload)
    view: Any = counted.sync_view()
    if GUARD not in layers:
        view = guarded(guard)(view)
    send = serve(guard, site={"MIDDLEWARE": layers}, x=view)
    token = "a" * 32
    ask = multipart("one", "hello", b"1234")
    headers = (*ask.headers, ("cookie", f"csrftoken={token}"), ("x-csrftoken", token))
    first = send(Ask(body=ask.body, headers=headers))
    if GUARD in layers:
        assert (first.status, first.body) == (200, b"hello 4")
        assert send(Ask(body=ask.body, headers=headers)).replayed
    else:
        assert first.code == "misconfigured"
    assert counted.calls == (1 if GUARD in layers else 0)


def test_a_form_without_its_token_is_refused_and_the_key_stays_free(serve: Serve) -> None:
    counted = Counted(upload)
    send = serve(x=counted.sync, site={"MIDDLEWARE": [GUARD, CSRF]})
    assert send(multipart("one", "hello", b"1234")).status == 403
    assert counted.calls == 0


# ── streams ───────────────────────────────────────────────────────────────────────────────────────


def pieces(request: Any) -> Any:
    return StreamingHttpResponse(iter([b"one ", b"two ", b"three"]), content_type="text/plain")


def apieces(request: Any) -> Any:
    async def made() -> AsyncIterator[bytes]:
        for piece in (b"one ", b"two ", b"three"):
            yield piece

    return StreamingHttpResponse(made(), content_type="text/plain")


@pytest.mark.parametrize("answer", [pieces, apieces])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_small_stream_is_kept_whole(serve: Serve, answer: Any) -> None:
    counted = Counted(answer)
    send = serve(x=counted.sync)
    assert send().body == send().body == b"one two three"
    assert counted.calls == 1


@pytest.mark.parametrize("options", [{"response": "stream"}, {"max_response_body": 5}])
@pytest.mark.parametrize("answer", [pieces, apieces])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_that_is_not_kept_leaves_a_receipt(
    make_guard: MakeGuard, serve: Serve, answer: Any, options: dict[str, Any]
) -> None:
    counted = Counted(answer)
    send = serve(make_guard(policy=semel.ietf(**options)), x=counted.sync)
    first = send()
    assert (first.status, first.body) == (200, b"one two three")
    assert first.one("content-type") == "text/plain"
    assert send().code == "body-not-kept"
    assert counted.calls == 1


def test_a_stream_that_breaks_off_is_not_called_whole(make_guard: MakeGuard, serve: Serve) -> None:
    def broken(request: Any) -> Any:
        def made() -> Iterator[bytes]:
            yield b"one "
            raise RuntimeError("broken")

        return StreamingHttpResponse(made())

    counted = Counted(broken)
    send = serve(make_guard(policy=semel.ietf(response="stream")), x=counted.sync)
    send()
    assert counted.calls == 1
    assert send().status == 409
    assert counted.calls == 1


def test_a_file_is_closed_when_it_was_kept(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"contents")
    opened: list[Any] = []

    def file(request: Any) -> Any:
        opened.append((tmp_path / "a").open("rb"))
        return FileResponse(opened[0])

    send = serve(x=Counted(file).sync)
    first = send()
    assert first.body == send().body == b"contents"
    assert [file.closed for file in opened] == [True]


def test_cookies_are_the_first_callers_alone(serve: Serve) -> None:
    def welcome(request: Any) -> HttpResponse:
        answer = HttpResponse("hello")
        answer.set_cookie("seen", "a b", max_age=60, httponly=True)
        answer.set_cookie("other", "1")
        return answer

    send = serve(x=Counted(welcome).sync)
    first, again = send(), send()
    assert [line.strip().split("=")[0] for line in first.all("set-cookie")] == ["seen", "other"]
    assert "HttpOnly" in first.all("set-cookie")[0]
    assert again.replayed
    assert again.all("set-cookie") == []


# ── the project ───────────────────────────────────────────────────────────────────────────────────


def test_every_file_of_the_schema_has_a_migration_of_djangos() -> None:
    folder = Path(semel.__file__).parent / "frameworks" / "django" / "migrations"
    theirs = sorted(path.stem for path in folder.glob("0*.py"))
    for name in ("sqlite", "postgresql", "mysql"):
        assert theirs == [f"{it.version:04}_{it.name}" for it in dialect(name).migrations], name


def test_the_order_of_the_middleware_is_checked(make_guard: MakeGuard) -> None:
    from django.test import override_settings

    from semel.frameworks.django.apps import check_middleware

    authentication = "django.contrib.auth.middleware.AuthenticationMiddleware"
    for order, wrong in [([authentication, GUARD], []), ([GUARD, authentication], ["semel.E001"])]:
        with override_settings(MIDDLEWARE=order):
            assert [said.id for said in check_middleware()] == wrong


def test_views_that_no_key_protects_are_told_by_a_check(guard: semel.Guard) -> None:
    from semel.frameworks.django.apps import check_views

    @guard.route(semel.ietf())
    class Both(View):
        def post(self, request: Any) -> HttpResponse:
            return HttpResponse()

        def put(self, request: Any) -> HttpResponse:
            return HttpResponse()

    @guard.route(semel.ietf())
    def every(request: Any) -> HttpResponse:
        return HttpResponse()

    site = Site(guard, {"both": Both.as_view(), "every": every})
    told = [(said.id, said.msg.partition(" is")[0]) for said in check_views()]
    assert told == [("semel.W002", "PUT /both")]
    with override_settings(MIDDLEWARE=[]):
        told = [(said.id, said.msg.partition(" is")[0]) for said in check_views()]
    assert ("semel.W003", "POST /both") in told
    assert ("semel.W003", "POST /every") in told
    site.close()


def test_a_decorated_view_refuses_a_method_that_its_policy_leaves_out(serve: Serve) -> None:
    counted = Counted()
    guard = semel.Guard("memory://", tenant=None)
    send = serve(guard, site={"MIDDLEWARE": []}, x=guarded(guard)(counted.sync_view()))
    assert send(Ask(method="PUT")).status in (0, 500)
    assert counted.calls == 0
    assert send(Ask()).status == 201
    guard.close()


def test_a_deferred_request_is_run_by_a_worker_as_its_caller(
    make_guard: MakeGuard, serve: Serve, runner: asyncio.Runner, tmp_path: Path
) -> None:
    """Through the whole project, whose authentication accepts the worker's word for who asked."""

    def who(request: semel.Request) -> Any:
        return semel.principal(request.raw) or request.headers.get("x-user")

    policy = semel.accepted(mode="deferred", required=True)
    guard = make_guard(f"sqlite:///{tmp_path}/semel.db", tenant=who, policy=policy)
    callers: list[Any] = []

    def pay(request: Any) -> HttpResponse:
        callers.append(semel.principal(request))
        return HttpResponse(request.body, status=201)

    send: Any = serve(guard, x=pay)
    known = ("x-user", "ann")
    accepted = send(Ask(body=b"pay", headers=(known,)))
    assert (accepted.status, callers) == (202, [])
    where = accepted.one("location")
    assert where is not None

    def look(*headers: tuple[str, str]) -> Any:
        return send(Ask("GET", where.encode(), None, headers=headers))

    assert json.loads(look(known).body)["status"] == "pending"
    assert look().status == 401
    assert look(("x-user", "bob")).status == 404
    assert runner.run(StoredRuns(guard, send.app).run_once()).done == 1
    assert callers == ["ann"]
    told = look(known)
    assert (told.status, told.body) == (201, b"pay")


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_route_has_one_name_in_every_language(
    make_guard: MakeGuard, runner: asyncio.Runner, tmp_path: Path, language: str
) -> None:
    """A worker speaks one of them, and must find the probe of them all."""
    soon = timedelta(microseconds=1)  # and yet over when it is looked for
    wrong = semel.payments(probe=lambda inquiry: semel.Absent(final=True), reconcile_after=soon)
    guard = make_guard(f"sqlite:///{tmp_path}/semel.db", tenant=None, policy=wrong)
    answer = semel.Happened(semel.Response(201, (), b"the first label"))

    @guard.route(semel.payments(probe=lambda inquiry: answer, reconcile_after=soon))
    def ship(request: Any) -> HttpResponse:
        raise TimeoutError

    site = Site(guard, {})
    urls = Urls({})
    urls.urlpatterns = i18n_patterns(path("labels", ship))
    spoken = {"USE_I18N": True, "LANGUAGES": [("en", "English"), ("de", "German")]}
    middleware = ["django.middleware.locale.LocaleMiddleware", GUARD]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=middleware, **spoken):
        send: Any = site.driver("wsgi", runner)
        ask = Ask("POST", f"/{language}/labels".encode(), headers=(("x-user", "ann"),))
        assert send(ask).status == 500
        assert runner.run(Reconciler(guard, send.app).run_once()).note == "settled 1"
        assert send(ask).body == b"the first label"
    site.close()
