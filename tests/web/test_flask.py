"""The Flask extension: the claim is made at the view call, after Flask's own authentication."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import flask
import flask.views
import httpx
import pytest
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import TestResponse

import semel
from semel.core import keys
from semel.effects.runs import Runs
from semel.web.flask import Semel, operation, session, transaction
from semel.web.inventory import inventory
from tests.web.drive import KEY, Ask, WsgiDriver

PEOPLE = {"Bearer ann": "ann", "Bearer ben": "ben"}


class Shop:
    """An application, its guard, and how often its views ran."""

    def __init__(self, store: str = "memory://", **options: Any) -> None:
        self.app = flask.Flask("shop")
        self.guard = semel.Guard(store, tenant=lambda _: flask.g.user, **options)
        self.semel = Semel(self.app, self.guard)
        self.ran: list[Any] = []
        self.app.before_request(self._authenticate)

    def _authenticate(self) -> None:
        flask.g.user = PEOPLE.get(flask.request.headers.get("Authorization", ""))
        if flask.g.user is None:
            flask.abort(401)

    @property
    def client(self) -> FlaskClient:
        return self.app.test_client()

    def post(self, path: str, key: str | None = None, who: str = "ann", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {who}", **more.pop("headers", {})}
        if key is not None:
            headers["Idempotency-Key"] = key
        return self.client.post(path, headers=headers, **more)

    def twice(self, path: str, **more: Any) -> tuple[Any, Any]:
        key = new_key()
        return self.post(path, key, **more), self.post(path, key, **more)


def new_key() -> str:
    return str(uuid4())


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.guard.close()


def replayed(reply: TestResponse) -> str | None:
    return reply.headers.get("Idempotent-Replayed")


class TestWhereTheClaimIsMade:
    def test_after_authentication(self, shop: Shop) -> None:
        @shop.app.post("/pay")
        def pay() -> str:
            shop.ran.append(flask.g.user)
            return f"paid by {flask.g.user}"

        key = new_key()
        assert [shop.post("/pay", key, who).text for who in ("ann", "ben", "ann", "ben")] == [
            *("paid by ann", "paid by ben", "paid by ann", "paid by ben")
        ]
        stranger = shop.post("/pay", key, "cid")
        assert (stranger.status_code, replayed(stranger)) == (401, None)
        assert shop.ran == ["ann", "ben"]

    def test_a_before_request_that_answers_is_not_kept(self, shop: Shop) -> None:
        closed = [True]

        @shop.app.before_request
        def opening_hours() -> Any:
            return ("closed", 404) if closed else None

        @shop.app.post("/pay")
        def pay() -> str:
            return "paid"

        key = new_key()
        assert shop.post("/pay", key).status_code == 404
        closed.clear()
        assert shop.post("/pay", key).text == "paid"

    def test_what_was_registered_after_the_extension_counts_too(self) -> None:
        app, guard = flask.Flask("late"), semel.Guard("memory://", tenant=lambda _: flask.g.user)
        Semel(app, guard)
        bills = flask.Blueprint("bills", "bills")

        @bills.before_request
        def authenticate() -> None:
            flask.g.user = "ann"

        @bills.post("/pay")
        def pay() -> str:
            return "paid"

        app.register_blueprint(bills, url_prefix="/bills")
        headers = {"Idempotency-Key": new_key()}
        answers = [app.test_client().post("/bills/pay", headers=headers) for _ in range(2)]
        assert [replayed(answer) for answer in answers] == ["false", "true"]
        guard.close()

    @pytest.mark.parametrize(("path", "status"), [("/none", 404), ("/get", 405), ("/dir", 308)])
    def test_what_no_view_answers_takes_no_part(self, shop: Shop, path: str, status: int) -> None:
        shop.app.add_url_rule("/get", "get", lambda: "got")
        shop.app.add_url_rule("/dir/", "dir", lambda: "dir", methods=["POST"])
        for reply in shop.twice(path):
            assert (reply.status_code, replayed(reply)) == (status, None)

    def test_a_request_without_a_key_runs_each_time(self, shop: Shop) -> None:
        @shop.app.post("/pay")
        def pay() -> str:
            shop.ran.append(1)
            return "paid"

        assert [replayed(shop.post("/pay")) for _ in range(2)] == [None, None]
        assert len(shop.ran) == 2


class TestBodies:
    @pytest.fixture
    def echo(self, shop: Shop) -> Shop:
        @shop.app.post("/echo")
        def echo() -> Any:
            shop.ran.append(1)
            form, data = flask.request.form.to_dict(), flask.request.get_data(as_text=True)
            return {"form": form, "data": data}

        return shop

    def test_a_view_reads_the_body_that_was_fingerprinted(self, echo: Shop) -> None:
        first, again = echo.twice("/echo", data="a body", content_type="text/plain")
        assert first.json["data"] == again.json["data"] == "a body"

    def test_a_form_that_before_request_has_parsed_is_fingerprinted_all_the_same(
        self, echo: Shop
    ) -> None:
        """As protection against CSRF does; parsing a form uses its body up."""

        @echo.app.before_request
        def csrf() -> None:
            assert flask.request.form["token"]

        key, forms = new_key(), ({"token": "t", "sum": n} for n in ("5", "5", "6"))
        answers = [echo.post("/echo", key, data=form) for form in forms]
        assert [answer.status_code for answer in answers] == [200, 200, 422]
        assert answers[0].json["form"] == {"token": "t", "sum": "5"}
        assert answers[2].json["differing_fields"] == ["sum"]

    def test_a_body_that_before_request_has_read_is_fingerprinted_all_the_same(
        self, echo: Shop
    ) -> None:
        @echo.app.before_request
        def read() -> None:
            assert flask.request.stream.read(1)

        key = new_key()
        answers = [echo.post("/echo", key, data=data) for data in ("one", "one", "two")]
        assert [answer.status_code for answer in answers] == [200, 200, 422]
        assert answers[0].json["data"] == "one"

    def test_a_body_too_large_is_refused_before_the_view(self, shop: Shop) -> None:
        @shop.app.post("/small")
        @shop.guard.route(semel.ietf(max_request_body=4))
        def small() -> str:
            shop.ran.append(1)
            return "small"

        reply = shop.post("/small", new_key(), data="12345")
        assert (reply.status_code, reply.json["code"]) == (413, "body-too-large")
        assert not shop.ran

    def test_flasks_own_limit_holds(self, echo: Shop) -> None:
        echo.app.config["MAX_CONTENT_LENGTH"] = 4
        reply = echo.post("/echo", new_key(), data="12345")
        assert (reply.status_code, replayed(reply)) == (413, None)


class TestAfterwards:
    def test_after_request_runs_on_replays_and_is_not_kept(self, shop: Shop) -> None:
        numbers = iter(range(9))

        @shop.app.after_request
        def count(response: flask.Response) -> flask.Response:
            response.headers["X-Number"] = str(next(numbers))
            return response

        @shop.app.post("/pay")
        def pay() -> str:
            return "paid"

        first, again = shop.twice("/pay")
        assert (first.data, first.headers["X-Number"]) == (b"paid", "0")
        assert (again.data, again.headers["X-Number"], replayed(again)) == (b"paid", "1", "true")

    def test_after_this_request_belongs_to_the_run(self, shop: Shop) -> None:
        @shop.app.post("/pay")
        def pay() -> str:
            @flask.after_this_request
            def mark(response: flask.Response) -> flask.Response:
                response.headers["X-Ran"] = "yes"
                return response

            return "paid"

        first, again = shop.twice("/pay")
        assert (first.headers.get("X-Ran"), again.headers.get("X-Ran")) == ("yes", None)

    def test_cookies_of_the_session_are_never_kept(self, shop: Shop) -> None:
        shop.app.secret_key = "a secret"

        @shop.app.post("/login")
        def login() -> str:
            flask.session["who"] = "ann"
            return "hello"

        first, again = shop.twice("/login")
        assert (first.headers.get("Set-Cookie") is None, again.headers.get("Set-Cookie")) == (
            *(False, None),
        )

    def test_teardown_runs_once_for_each_request(self, shop: Shop) -> None:
        torn: list[Any] = []
        shop.app.teardown_request(torn.append)
        shop.app.add_url_rule("/pay", "pay", lambda: "paid", methods=["POST"])
        shop.twice("/pay")
        assert torn == [None, None]

    def test_call_on_close_of_the_views_response_runs_once(self, shop: Shop) -> None:
        closed: list[int] = []

        @shop.app.post("/pay")
        def pay() -> flask.Response:
            response = flask.make_response("paid")
            response.call_on_close(lambda: closed.append(1))
            return response

        for reply in shop.twice("/pay"):
            reply.close()
        assert closed == [1]


class Declined(Exception):
    pass


class TestExceptions:
    def test_what_an_errorhandler_answers_is_the_answer(self, shop: Shop) -> None:
        @shop.app.errorhandler(Declined)
        def declined(error: Declined) -> Any:
            return {"error": str(error)}, 402

        @shop.app.post("/pay")
        def pay() -> str:
            shop.ran.append(1)
            raise Declined("no money")

        first, again = shop.twice("/pay")
        assert (first.status_code, first.json) == (402, {"error": "no money"})
        assert (again.data, replayed(again), len(shop.ran)) == (first.data, "true", 1)

    @pytest.mark.parametrize("policy", [semel.ietf(), semel.payments(probe=None)])
    def test_what_no_errorhandler_answers_is_flasks_500(
        self, shop: Shop, policy: semel.Policy
    ) -> None:
        torn: list[Any] = []
        shop.app.teardown_request(torn.append)

        @shop.app.errorhandler(500)
        def oops(error: Any) -> Any:
            return f"oops: {error.original_exception}", 500

        @shop.app.post("/pay")
        @shop.guard.route(policy)
        def pay() -> str:
            raise RuntimeError("broken")

        reply = shop.post("/pay", new_key())
        assert (reply.status_code, reply.text) == (500, "oops: broken")
        assert [type(error) for error in torn] == [RuntimeError]

    def test_a_500_that_is_kept_is_the_same_the_second_time(self, shop: Shop) -> None:
        @shop.app.post("/pay")
        @shop.guard.route(semel.stripe())
        def pay() -> str:
            shop.ran.append(1)
            raise RuntimeError("broken")

        first, again = shop.twice("/pay")
        assert (first.status_code, first.json["code"]) == (500, "handler-failed")
        assert (again.data, replayed(again), len(shop.ran)) == (first.data, "true", 1)

    def test_others_are_told_of_it_once(self, shop: Shop) -> None:
        told: list[Any] = []

        def note(sender: Any, exception: Any) -> None:
            told.append(exception)

        @shop.app.post("/pay")
        def pay() -> str:
            raise RuntimeError("broken")

        with flask.got_request_exception.connected_to(note, shop.app):
            shop.post("/pay", new_key())
        assert [str(error) for error in told] == ["broken"]

    @pytest.mark.parametrize("how", ["TESTING", "PROPAGATE_EXCEPTIONS"])
    def test_in_tests_it_is_raised(self, shop: Shop, how: str) -> None:
        shop.app.config[how] = True

        @shop.app.post("/pay")
        @shop.guard.route(semel.payments(probe=None))
        def pay() -> str:
            raise Declined("no money")

        key = new_key()
        with pytest.raises(Declined):
            shop.post("/pay", key)
        assert shop.post("/pay", key).json["code"] == "outcome-unknown"

    def test_doubt_behind_an_errorhandlers_answer_is_learnt_of(self, shop: Shop) -> None:
        @shop.app.errorhandler(semel.OutcomeUnknown)
        def shrug(error: Any) -> Any:
            return "perhaps", 502

        @shop.app.post("/pay")
        def pay() -> str:
            shop.ran.append(1)
            raise semel.OutcomeUnknown("no answer from the bank")

        first, again = shop.twice("/pay")
        assert (first.status_code, first.text) == (502, "perhaps")
        assert (again.status_code, again.json["code"]) == (409, "outcome-unknown")
        assert len(shop.ran) == 1

    @pytest.mark.parametrize(
        ("error", "policy", "ran"),
        [
            (httpx.ReadTimeout("no answer"), semel.ietf(), 1),
            (semel.NotExecuted("not sent"), semel.payments(probe=None), 2),
        ],
    )
    def test_what_failed_behind_an_errorhandlers_answer_is_learnt_of(
        self, shop: Shop, error: Exception, policy: semel.Policy, ran: int
    ) -> None:
        shop.app.register_error_handler(type(error), lambda _: ("bad gateway", 502))

        @shop.app.post("/pay")
        @shop.guard.route(policy)
        def pay() -> str:
            shop.ran.append(1)
            raise error

        assert shop.twice("/pay")[0].status_code == 502
        assert len(shop.ran) == ran

    def test_not_executed_is_a_503_that_may_be_tried_again(self, shop: Shop) -> None:
        @shop.app.post("/pay")
        @shop.guard.route(semel.payments(probe=None))
        def pay() -> str:
            shop.ran.append(1)
            if len(shop.ran) == 1:
                raise semel.NotExecuted("the bank is closed")
            return "paid"

        first, again = shop.twice("/pay")
        assert (first.status_code, first.json["code"]) == (503, "not-executed")
        assert again.text == "paid"

    def test_an_abort_is_an_answer(self, shop: Shop) -> None:
        @shop.app.post("/pay")
        def pay() -> str:
            shop.ran.append(1)
            flask.abort(409, "the till is closed")

        first, again = shop.twice("/pay")
        assert (first.status_code, again.data, len(shop.ran)) == (409, first.data, 1)


class TestViews:
    def test_method_views_have_policies_by_class_and_by_method(self, shop: Shop) -> None:
        class Bills(flask.views.MethodView):
            @shop.guard.route(semel.ietf(required=True))
            def post(self) -> str:
                return "billed"

            def patch(self) -> str:
                return "changed"

        shop.app.add_url_rule("/bills", view_func=Bills.as_view("bills"))
        assert shop.post("/bills").status_code == 400
        assert [replayed(reply) for reply in shop.twice("/bills")] == ["false", "true"]
        headers = {"Authorization": "Bearer ann"}
        assert shop.client.patch("/bills", headers=headers).text == "changed"

    def test_async_views(self, shop: Shop) -> None:
        @shop.app.post("/pay")
        async def pay() -> str:
            shop.ran.append(operation.identity)
            return "paid"

        assert [reply.text for reply in shop.twice("/pay")] == ["paid", "paid"]
        assert len(shop.ran) == 1

    def test_a_stream_with_context_is_whole(self, shop: Shop) -> None:
        @shop.app.post("/pay")
        def pay() -> flask.Response:
            def pieces() -> Iterator[str]:
                yield "paid by "
                yield flask.g.user

            return flask.Response(flask.stream_with_context(pieces()))

        assert [reply.text for reply in shop.twice("/pay")] == ["paid by ann", "paid by ann"]

    def test_a_file_is_whole(self, shop: Shop, tmp_path: Path) -> None:
        (tmp_path / "receipt").write_text("received")

        @shop.app.post("/pay")
        def pay() -> flask.Response:
            return flask.send_file(tmp_path / "receipt", mimetype="text/plain")

        first, again = shop.twice("/pay")
        assert (first.text, again.text) == ("received", "received")

    def test_a_route_that_streams_is_sent_as_it_comes_and_its_receipt_kept(
        self, shop: Shop
    ) -> None:
        @shop.app.post("/rows")
        @shop.guard.route(semel.ietf(response="stream"))
        def rows() -> flask.Response:
            def pieces() -> Iterator[str]:
                for row in ("one", "two"):
                    shop.ran.append(row)
                    yield row

            return flask.Response(flask.stream_with_context(pieces()))

        key = new_key()
        reply = shop.post("/rows", key, buffered=False)
        assert reply.text == "onetwo"
        again = shop.post("/rows", key)
        assert (again.status_code, again.json["code"]) == (409, "body-not-kept")
        assert again.json["original_status"] == 200
        assert shop.ran == ["one", "two"]

    def test_a_stream_whose_reader_leaves_is_unknown_or_a_receipt(self, shop: Shop) -> None:
        @shop.app.post("/rows")
        @shop.guard.route(semel.ietf(response="stream"))
        def rows() -> flask.Response:
            return flask.Response(iter(["one", "two", "three"]))

        key = new_key()
        reply = shop.post("/rows", key)
        next(iter(reply.response))
        reply.close()
        again = shop.post("/rows", key)
        assert (again.status_code, again.json["retryable"]) == (409, False)


class TestTheDecorator:
    def test_claims_where_it_stands_below_authentication(self) -> None:
        """As with login decorators, which know the caller only inside."""
        app, ran = flask.Flask("basic"), []
        guard = semel.Guard("memory://", tenant=lambda _: flask.g.get("user"))
        extension = Semel(app, guard)

        def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
            from functools import wraps

            @wraps(view)
            def checked(*args: Any, **kwargs: Any) -> Any:
                flask.g.user = PEOPLE.get(flask.request.headers.get("Authorization", ""))
                return view(*args, **kwargs) if flask.g.user else ("who?", 401)

            return checked

        @app.post("/pay/<int:number>")
        @login_required
        @extension.view(semel.ietf(required=True))
        def pay(number: int) -> Any:
            ran.append(flask.g.user)
            return {"paid": number}, 201

        client, key = app.test_client(), new_key()
        send = {"Idempotency-Key": key}
        assert client.post("/pay/7", headers=send).status_code == 401
        ann = {"Authorization": "Bearer ann"}
        first, again = (client.post("/pay/7", headers={**send, **ann}) for _ in range(2))
        assert (first.status_code, first.json, again.data) == (201, {"paid": 7}, first.data)
        assert (replayed(first), replayed(again), ran) == ("false", "true", ["ann"])
        assert client.post("/pay/7", headers=send).status_code == 401
        refused: Any = client.post("/pay/7", headers=ann)
        assert (refused.status_code, refused.json["code"]) == (400, "missing-key")
        guard.close()

    def test_on_async_views_and_methods_of_views(self, shop: Shop) -> None:
        class Bills(flask.views.MethodView):
            @shop.semel.view(semel.ietf(required=True))
            async def post(self) -> str:
                shop.ran.append(operation.identity)
                return "billed"

        shop.app.add_url_rule("/bills", view_func=Bills.as_view("bills"))
        first, again = shop.twice("/bills")
        assert (first.text, again.text, replayed(again)) == ("billed", "billed", "true")
        assert (len(shop.ran), shop.post("/bills").status_code) == (1, 400)

    def test_needs_no_application_yet(self) -> None:
        guard = semel.Guard("memory://", tenant=None)
        extension = Semel(guard=guard)
        bills = flask.Blueprint("bills", "bills")

        @bills.post("/pay")
        @extension.view(semel.ietf(required=True))
        def pay() -> str:
            return "paid"

        def create_app() -> flask.Flask:
            app = flask.Flask("made")
            extension.init_app(app)
            app.register_blueprint(bills)
            return app

        for app in (create_app(), create_app()):  # several applications, one extension
            assert app.test_client().post("/pay").status_code == 400
        key = {"Idempotency-Key": new_key()}
        assert replayed(create_app().test_client().post("/pay", headers=key)) == "false"
        assert replayed(create_app().test_client().post("/pay", headers=key)) == "true"
        guard.close()


class TestApplications:
    def test_each_may_have_a_guard_of_its_own(self) -> None:
        guards = [semel.Guard("memory://", tenant=None) for _ in range(2)]
        extension, clients = Semel(), []
        for guard in guards:
            app = flask.Flask("one")
            extension.init_app(app, guard)
            app.add_url_rule("/pay", "pay", lambda: "paid", methods=["POST"])
            clients.append(app.test_client())
        key = {"Idempotency-Key": new_key()}
        answers = [replayed(client.post("/pay", headers=key)) for client in clients * 2]
        assert answers == ["false", "false", "true", "true"]
        for guard in guards:
            guard.close()

    def test_without_a_guard_it_says_so(self) -> None:
        with pytest.raises(semel.ConfigurationError, match="guard"):
            Semel().init_app(flask.Flask("none"))

    def test_twice_around_one_application_is_a_mistake(self, shop: Shop) -> None:
        with pytest.raises(semel.ConfigurationError, match="already"):
            Semel(shop.app, shop.guard)

    def test_a_key_is_the_same_to_the_extension_and_to_a_guard_around(self) -> None:
        guard = semel.Guard("memory://", tenant=None)
        apps = [flask.Flask("within"), flask.Flask("around")]
        for app in apps:
            app.add_url_rule("/pay/<path:who>", "pay", lambda who: who, methods=["POST"])
        Semel(apps[0], guard)
        apps[1].wsgi_app = guard.wsgi(apps[1].wsgi_app)  # type: ignore[method-assign]
        key, where = {"Idempotency-Key": new_key()}, "/pay/caf%C3%A9%2Fann?sum=5"
        told = [
            app.test_client().post(where, headers=key, json={"a": 1}, base_url="http://x/shop")
            for app in apps
        ]
        assert [replayed(answer) for answer in told] == ["false", "true"]
        assert told[0].text == told[1].text == "café/ann"
        guard.close()

    def test_inside_a_guard_around_the_application_nothing_is_claimed_twice(self) -> None:
        app, guard = flask.Flask("both"), semel.Guard("memory://", tenant=None)
        Semel(app, guard)
        app.wsgi_app = guard.wsgi(app.wsgi_app)  # type: ignore[method-assign]
        app.add_url_rule("/pay", "pay", lambda: "paid", methods=["POST"])
        key = {"Idempotency-Key": new_key()}
        answers = [app.test_client().post("/pay", headers=key) for _ in range(2)]
        assert [(answer.text, replayed(answer)) for answer in answers] == [
            *(("paid", "false"), ("paid", "true"))
        ]
        guard.close()


class TestTransactions:
    @pytest.fixture
    def bank(self, tmp_path: Path) -> Iterator[Shop]:
        bank = Shop(f"sqlite:///{tmp_path / 'bank.db'}", policy=semel.ietf(mode="atomic"))
        yield bank
        bank.guard.close()

    def rows(self, tmp_path: Path) -> int:
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(tmp_path / "bank.db")) as connection:
            return int(connection.execute("SELECT count(*) FROM paid").fetchone()[0])

    @pytest.mark.parametrize("broken", [False, True])
    def test_rows_and_key_commit_together(self, bank: Shop, tmp_path: Path, broken: bool) -> None:
        bank.guard.start()
        import sqlite3

        sqlite3.connect(tmp_path / "bank.db").execute("CREATE TABLE paid (amount INT)")

        @bank.app.post("/pay")
        def pay() -> str:
            transaction.execute("INSERT INTO paid VALUES (5)")
            if broken:
                raise RuntimeError("broken")
            return "paid"

        @bank.app.post("/orm")
        def orm() -> str:
            import sqlalchemy

            session.execute(sqlalchemy.text("INSERT INTO paid VALUES (6)"))
            if broken:
                raise RuntimeError("broken")
            return "paid"

        for path in ("/pay", "/orm"):
            bank.twice(path)
        assert self.rows(tmp_path) == (0 if broken else 2)

    def test_an_async_view_writes_in_it_too(self, bank: Shop, tmp_path: Path) -> None:
        @bank.app.post("/pay")
        async def pay() -> str:
            transaction.execute("CREATE TABLE paid (amount INT)")
            transaction.execute("INSERT INTO paid VALUES (5)")
            return str(await operation.effect("receipt", {"amount": 5}))

        first, again = bank.twice("/pay")
        assert (first.status_code, again.text, self.rows(tmp_path)) == (200, first.text, 1)

    def test_outside_a_keyed_request_there_is_none(self, shop: Shop) -> None:
        with pytest.raises(LookupError):
            transaction.execute("SELECT 1")
        with pytest.raises(LookupError):
            _ = operation.identity


VECTORS = json.loads((Path(__file__).parents[1] / "unit" / "vectors" / "identity.json").read_text())


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS["paths"] if vector["decoded_hex"]],  # Flask redirects "" to "/"
    ids=lambda vector: vector["name"],
)
def test_a_view_has_the_identity_of_the_shared_vectors(vector: dict[str, Any]) -> None:
    """As every adapter: so a key is the same to all of them."""
    app, guard = flask.Flask("paths"), semel.Guard("memory://", tenant=lambda _: "t1")
    Semel(app, guard)
    app.url_map.merge_slashes = False
    seen: list[bytes] = []

    def note(path: str = "") -> str:
        seen.append(operation.identity)
        return "seen"

    app.add_url_rule("/", "root", note, methods=["POST"])
    app.add_url_rule("/<path:path>", "all", note, methods=["POST"])
    WsgiDriver(app)(Ask(path=bytes.fromhex(vector["decoded_hex"])))
    assert seen == [keys.identity(keys.Scope("t1", "POST", vector["canonical"]), KEY)]
    guard.close()


class TestTheInventory:
    def listed(self, app: Any) -> dict[str, tuple[str, str]]:
        entries = [entry for entry in inventory(app) if entry.method != "GET"]
        return {f"{e.method} {e.path}": (e.said, e.coverage) for e in entries}

    @pytest.fixture
    def app(self) -> flask.Flask:
        tagging = semel.Guard("memory://", tenant=None)

        class Bills(flask.views.MethodView):
            @tagging.route(semel.ietf(required=True))
            def post(self) -> str:
                return "billed"

            def patch(self) -> str:
                return "changed"

        @Semel().view(semel.ietf())
        def pay(number: int) -> str:
            return "paid"

        app, bills = flask.Flask("shop"), flask.Blueprint("bills", "bills")
        bills.add_url_rule("/", view_func=Bills.as_view("bills"))
        app.register_blueprint(bills, url_prefix="/bills")
        app.add_url_rule("/pay/<int:number>", "pay", pay, methods=["POST"])
        app.add_url_rule("/forgotten", "forgotten", lambda: "", methods=["DELETE"])
        return app

    def test_of_an_application_with_the_extension(self, app: flask.Flask) -> None:
        Semel(app, semel.Guard("memory://", tenant=None))
        assert self.listed(app) == {
            "POST /bills/": ("tag", "enforces"),
            "PATCH /bills/": ("default", "accepts"),
            "POST /pay/<int:number>": ("tag", "accepts"),
            "DELETE /forgotten": ("default", "ignores"),
        }

    def test_with_a_guard_around_it(self, app: flask.Flask) -> None:
        guard = semel.Guard("memory://", tenant=None)
        inside = self.listed(guard.wsgi(app.wsgi_app))
        app.wsgi_app = guard.wsgi(app.wsgi_app)  # type: ignore[method-assign]
        assert self.listed(app) == inside
        assert inside["POST /bills/"] == ("tag", "enforces")
        mounted = self.listed(DispatcherMiddleware(app, {"/shop": app}))
        assert mounted["POST /shop/bills/"] == mounted["POST /bills/"] == ("tag", "enforces")

    def test_without_any(self, app: flask.Flask) -> None:
        assert set(self.listed(app).values()) == {("none", "ignores")}


@pytest.mark.parametrize("asks", ["Flask's request", "semel's request"])
async def test_a_worker_runs_what_was_accepted_as_its_caller(asks: str) -> None:
    app = flask.Flask("office")

    def who(request: Any) -> str | None:
        return semel.principal(request) or PEOPLE.get(
            flask.request.headers.get("Authorization", "")
        )

    by_request = who if asks == "semel's request" else lambda _: who(flask.request)
    guard = semel.Guard("memory://", tenant=by_request)
    Semel(app, guard)

    @app.post("/pay")
    @guard.route(semel.accepted(required=True, mode="deferred"))
    def pay() -> str:
        return f"paid {flask.request.get_data(as_text=True)} by {who(flask.request)}"

    client = app.test_client()
    ann, ben = ({"Authorization": f"Bearer {name}"} for name in ("ann", "ben"))
    key = {"Idempotency-Key": new_key()}
    reply = client.post("/pay", headers={**ann, **key}, data="five")
    assert reply.status_code == 202
    where = reply.headers["Location"]
    assert [client.get(where, headers=h).status_code for h in (ann, ben, {})] == [202, 404, 401]
    runs = Runs(guard, app)
    assert (await runs.run_once()).done == 1
    await runs.aclose()
    assert client.get(where, headers=ann).text == "paid five by ann"
    await guard.aclose()
