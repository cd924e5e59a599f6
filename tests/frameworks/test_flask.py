"""The Flask extension: the claim is made at the view call, after Flask's own authentication."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import flask.views
import httpx
import pytest

import semel
from semel.frameworks.flask import install, operation
from tests.ears import listen
from tests.frameworks.flask_shop import Shop, new_key, replayed


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.guard.close()


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
        install(app, guard)
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

    @pytest.mark.parametrize(("said", "status"), [("ignore", 200), ("refuse", 400)])
    def test_a_key_on_a_safe_method_is_what_the_policy_says(self, said: Any, status: int) -> None:
        shop = Shop(policy=semel.ietf(safe_methods=said))
        shop.app.add_url_rule("/look", "look", lambda: "seen")
        headers = {"Authorization": "Bearer ann", "Idempotency-Key": new_key()}
        reply = shop.client.get("/look", headers=headers)
        assert (reply.status_code, replayed(reply)) == (status, None)
        shop.guard.close()

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

    @pytest.mark.parametrize("size", [1_000, 100_000, 1_500_000])
    @pytest.mark.parametrize("how", ["data", "stream", "upload"])
    def test_a_view_reads_bodies_of_every_size_in_every_way(
        self, shop: Shop, how: str, size: int
    ) -> None:
        @shop.app.post("/take")
        def take() -> Any:
            shop.ran.append(1)
            request = flask.request
            if how == "upload":
                upload = request.files["file"]
                with contextlib.closing(upload):  # Werkzeug keeps a large one in a file
                    return str(len(upload.read()))
            return str(len(request.get_data() if how == "data" else request.stream.read()))

        def send(key: str) -> Any:
            sent = b"x" * size
            if how != "upload":
                return shop.post("/take", key, data=sent)
            # As Werkzeug's test client writes it, with an empty line in front.
            edge = new_key()
            head = 'Content-Disposition: form-data; name="file"; filename="name"'
            sent = f"\r\n--{edge}\r\n{head}\r\n\r\n".encode() + sent + f"\r\n--{edge}--".encode()
            kind = f"multipart/form-data; boundary={edge}"
            return shop.post("/take", key, data=sent, content_type=kind)

        key = new_key()
        first, again = send(key), send(key)
        assert (first.text, again.text) == (str(size), str(size))
        assert (replayed(again), len(shop.ran)) == ("true", 1)

    def test_a_body_too_large_is_refused_before_the_view(self, shop: Shop) -> None:
        @shop.app.post("/small")
        @shop.guard.route(semel.ietf(max_request_body=4))
        def small() -> str:
            shop.ran.append(1)
            return "small"

        ear = listen(shop.guard)
        reply = shop.post("/small", new_key(), data="12345")
        assert (reply.status_code, reply.json["code"]) == (413, "body-too-large")
        assert ear.one("refusal")["code"] == "body-too-large"
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
        assert (first.status_code, first.json["error"]["code"]) == (500, "handler_failed")
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
