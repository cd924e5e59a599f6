"""The Flask extension: its decorator, several applications, transactions, workers, routes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flask
import flask.views
import pytest
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import semel
from semel.core.request import keys
from semel.frameworks.flask import guarded, install, operation, session, transaction
from semel.web.inventory import inventory
from semel.worker.stored_runs import StoredRuns
from tests.frameworks.flask_shop import PEOPLE, Shop, new_key, replayed
from tests.web.drive import KEY, Ask, WsgiDriver


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.guard.close()


class TestTheDecorator:
    def test_claims_where_it_stands_below_authentication(self) -> None:
        """As with login decorators, which know the caller only inside."""
        app, ran = flask.Flask("basic"), []
        guard = semel.Guard("memory://", tenant=lambda _: flask.g.get("user"))
        install(app, guard)

        def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
            from functools import wraps

            @wraps(view)
            def checked(*args: Any, **kwargs: Any) -> Any:
                flask.g.user = PEOPLE.get(flask.request.headers.get("Authorization", ""))
                return view(*args, **kwargs) if flask.g.user else ("who?", 401)

            return checked

        @app.post("/pay/<int:number>")
        @login_required
        @guarded(guard, semel.ietf(required=True))
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
            @guarded(shop.guard, semel.ietf(required=True))
            async def post(self) -> str:
                shop.ran.append(operation.identity)
                return "billed"

        shop.app.add_url_rule("/bills", view_func=Bills.as_view("bills"))
        first, again = shop.twice("/bills")
        assert (first.text, again.text, replayed(again)) == ("billed", "billed", "true")
        assert (len(shop.ran), shop.post("/bills").status_code) == (1, 400)

    def test_needs_no_application_yet(self) -> None:
        guard = semel.Guard("memory://", tenant=None)
        bills = flask.Blueprint("bills", "bills")

        @bills.post("/pay")
        @guarded(guard, semel.ietf(required=True))
        def pay() -> str:
            return "paid"

        def create_app() -> flask.Flask:
            app = flask.Flask("made")
            install(app, guard)
            app.register_blueprint(bills)
            return app

        for app in (create_app(), create_app()):  # several applications, one guard
            assert app.test_client().post("/pay").status_code == 400
        key = {"Idempotency-Key": new_key()}
        assert replayed(create_app().test_client().post("/pay", headers=key)) == "false"
        assert replayed(create_app().test_client().post("/pay", headers=key)) == "true"
        guard.close()


class TestApplications:
    def test_each_may_have_a_guard_of_its_own(self) -> None:
        guards = [semel.Guard("memory://", tenant=None) for _ in range(2)]
        clients = []
        for guard in guards:
            app = flask.Flask("one")
            install(app, guard)
            app.add_url_rule("/pay", "pay", lambda: "paid", methods=["POST"])
            clients.append(app.test_client())
        key = {"Idempotency-Key": new_key()}
        answers = [replayed(client.post("/pay", headers=key)) for client in clients * 2]
        assert answers == ["false", "false", "true", "true"]
        for guard in guards:
            guard.close()

    @pytest.mark.parametrize("installed", [False, True])
    def test_a_decorated_view_refuses_without_its_own_guard(self, installed: bool) -> None:
        app, guard = flask.Flask("none"), semel.Guard("memory://", tenant=None)
        if installed:
            install(app, semel.Guard("memory://", tenant=None))
        app.testing = True
        app.add_url_rule("/pay", "pay", guarded(guard)(lambda: "paid"), methods=["POST"])
        with pytest.raises(semel.ConfigurationError, match=r"not guarded by the guard of"):
            app.test_client().post("/pay", headers={"Idempotency-Key": new_key()})

    def test_twice_around_one_application_is_a_mistake(self, shop: Shop) -> None:
        with pytest.raises(semel.ConfigurationError, match="already"):
            install(shop.app, shop.guard)

    def test_a_key_is_the_same_to_the_extension_and_to_a_guard_around(self) -> None:
        guard = semel.Guard("memory://", tenant=None)
        apps = [flask.Flask("within"), flask.Flask("around")]
        for app in apps:
            app.add_url_rule("/pay/<path:who>", "pay", lambda who: who, methods=["POST"])
        install(apps[0], guard)
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
        install(app, guard)
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
            running: Any = operation  # which is an AsyncOperation here
            return str(await running.enqueue("receipt", {"amount": 5}))

        first, again = bank.twice("/pay")
        assert (first.status_code, again.text, self.rows(tmp_path)) == (200, first.text, 1)

    def test_outside_a_keyed_request_there_is_none(self, shop: Shop) -> None:
        with pytest.raises(LookupError):
            transaction.execute("SELECT 1")
        with pytest.raises(LookupError):
            _ = operation.identity


VECTORS = json.loads((Path(__file__).parents[1] / "core" / "vectors" / "identity.json").read_text())


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS["paths"] if vector["decoded_hex"]],  # Flask redirects "" to "/"
    ids=lambda vector: vector["name"],
)
def test_a_view_has_the_identity_of_the_shared_vectors(vector: dict[str, Any]) -> None:
    """As every adapter: so a key is the same to all of them."""
    app, guard = flask.Flask("paths"), semel.Guard("memory://", tenant=lambda _: "t1")
    install(app, guard)
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

        @guarded(tagging, semel.ietf())
        def pay(number: int) -> str:
            return "paid"

        app, bills = flask.Flask("shop"), flask.Blueprint("bills", "bills")
        bills.add_url_rule("/", view_func=Bills.as_view("bills"))
        app.register_blueprint(bills, url_prefix="/bills")
        app.add_url_rule("/pay/<int:number>", "pay", pay, methods=["POST"])
        app.add_url_rule("/forgotten", "forgotten", lambda: "", methods=["DELETE"])
        return app

    def test_of_an_application_with_the_extension(self, app: flask.Flask) -> None:
        install(app, semel.Guard("memory://", tenant=None))
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
    install(app, guard)

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
    runs = StoredRuns(guard, app)
    assert (await runs.run_once()).done == 1
    await runs.aclose()
    assert client.get(where, headers=ann).text == "paid five by ann"
    await guard.aclose()
