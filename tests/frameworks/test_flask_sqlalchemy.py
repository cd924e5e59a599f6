"""`db.session` of Flask-SQLAlchemy is part of semel's transaction, on real databases."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text

import semel
from semel.frameworks.flask import join
from tests.docs.pages import page

URL = "postgresql+psycopg://localhost/shop"
BLOCK = next(
    block for block in page("docs/howto/frameworks/flask.md").blocks if block.title == "orders.py"
)
KEY = {"Idempotency-Key": "a-key-for-this-order"}


class Shop:
    """The page's application, on a database of the test's own."""

    def __init__(self, folder: Path, url: str) -> None:
        path = folder / "orders.py"
        bind = f"app.config['SQLALCHEMY_BINDS'] = {{'other': 'sqlite:///{folder}/other.db'}}\n"
        text = BLOCK.text.replace(URL, url).replace("db = SQL", f"{bind}db = SQL")
        path.write_text(text)
        names = runpy.run_path(str(path))
        self.app: flask.Flask = names["app"]
        self.db: SQLAlchemy = names["db"]
        self.guard: semel.Guard = names["guard"]
        self.order: Any = names["Order"]
        self.guard.migrate()
        with self.app.app_context():
            self.db.create_all()

    def post(self, path: str = "/orders", **headers: str) -> Any:
        client = self.app.test_client()
        return client.post(path, headers={**KEY, **headers}, json={"amount": 5})

    def amounts(self) -> list[int]:
        with self.app.app_context():
            return list(self.db.session.scalars(select(self.order.amount)))

    def view(self, function: Any) -> None:
        """A further view, atomic as the first."""
        atomic = self.guard.route(semel.ietf(mode="atomic", required=True))
        self.app.post(f"/{function.__name__}")(atomic(function))

    def close(self) -> None:
        with self.app.app_context():
            for engine in self.db.engines.values():
                engine.dispose()
        self.guard.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/shop.db"
    if request.param == "postgresql":
        plain: str = request.getfixturevalue("postgres_url")
        url = plain.replace("postgresql://", "postgresql+psycopg://")
    shop = Shop(tmp_path, url)
    yield shop
    shop.close()


def test_order_and_key_are_kept_together(shop: Shop) -> None:
    first, again = shop.post(), shop.post()
    assert (first.status_code, first.get_json()) == (201, again.get_json())
    assert again.headers["Idempotent-Replayed"] == "true"
    assert shop.amounts() == [5]


def test_what_raises_after_its_commit_leaves_nothing(shop: Shop) -> None:
    def broken() -> str:
        shop.db.session.add(shop.order(amount=7))
        shop.db.session.commit()
        raise RuntimeError("broken")

    shop.view(broken)
    assert shop.post("/broken").status_code == 500
    assert shop.amounts() == []


def test_what_was_added_and_not_committed_is_written_as_well(shop: Shop) -> None:
    def added() -> str:
        shop.db.session.add(shop.order(amount=8))
        return "added"

    shop.view(added)
    assert (shop.post("/added").status_code, shop.amounts()) == (200, [8])


def test_elsewhere_it_is_the_applications_own(shop: Shop) -> None:
    @shop.app.post("/plain")
    def plain() -> str:
        shop.db.session.add(shop.order(amount=9))
        shop.db.session.commit()
        raise RuntimeError("after the commit")

    assert shop.app.test_client().post("/plain").status_code == 500
    assert shop.amounts() == [9]


def test_an_object_from_before_cannot_be_changed_unnoticed(shop: Shop) -> None:
    with shop.app.app_context():
        shop.db.session.add(shop.order(amount=5))
        shop.db.session.commit()

    def changing() -> str:
        flask.g.found.amount = 100
        shop.db.session.commit()
        return "changed"

    def merging() -> str:
        shop.db.session.merge(flask.g.found).amount = 200
        shop.db.session.commit()
        return "changed"

    @shop.app.before_request
    def load() -> None:
        flask.g.found = shop.db.session.scalars(select(shop.order)).one()

    shop.view(changing)
    shop.view(merging)
    assert shop.post("/changing").status_code == 500
    assert shop.amounts() == [5]
    assert shop.post("/merging").status_code == 200
    assert shop.amounts() == [200]


def test_a_model_of_another_database_is_refused(shop: Shop) -> None:
    class Elsewhere(shop.db.Model):  # type: ignore[name-defined, misc]
        __bind_key__ = "other"
        __tablename__ = "elsewhere"
        id = shop.db.Column(shop.db.Integer, primary_key=True)

    def outside() -> str:
        shop.db.session.add(Elsewhere())
        shop.db.session.commit()
        return "written"

    shop.view(outside)
    with shop.app.app_context():  # a table of that name is here, too, and must not be taken for it
        shop.db.session.execute(text("CREATE TABLE elsewhere (id INTEGER PRIMARY KEY)"))
        shop.db.session.commit()
        assert shop.post("/outside").status_code == 500
        assert shop.db.session.execute(text("SELECT count(*) FROM elsewhere")).scalar() == 0


def test_an_async_view_is_told_what_to_use(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    async def awaited() -> str:
        shop.db.session.add(shop.order(amount=1))
        return "added"

    shop.view(awaited)
    assert shop.post("/awaited").status_code == 500
    assert shop.amounts() == []
    assert "semel.async_operation().session" in caplog.text


def test_sessions_are_joined_once(shop: Shop) -> None:
    with pytest.raises(semel.ConfigurationError, match="joined already"):
        join(shop.db.session)
